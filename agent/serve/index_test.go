package serve_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
)

// TestIndexAfterBrokenChange: in a fleet, every agent's index says which agent cannot load the
// files that it has, and why, although others serve the version, and although it serves what it
// loaded before.
func TestIndexAfterBrokenChange(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		dir := f.TempDir()
		if err := os.CopyFS(dir, os.DirFS(f.Dir)); err != nil {
			f.Fatal(err)
		}
		a := f.Start()
		b := f.Start(func(in agent.Inside) { in.Config().ModelDir = dir })
		f.Settled(a, b)
		file := filepath.Join(dir, "ncf", "1", "model.onnx")
		if err := os.WriteFile(file, []byte("no model"), 0o644); err != nil {
			f.Fatal(err)
		}
		for _, asked := range []*agenttest.Member{a, b} {
			f.Eventually(20*time.Second, func() string {
				index, err := asked.OIP.RepositoryIndex(f.Context(),
					&inference.RepositoryIndexRequest{})
				if err != nil {
					return err.Error()
				}
				for _, m := range index.GetModels() {
					if m.GetName() == "ncf" && m.GetState() == "READY" && strings.HasPrefix(
						m.GetReason(), b.Name()+": its files changed and cannot be loaded") {
						return ""
					}
				}
				return fmt.Sprintf("%s says %v", asked.Host, index.GetModels())
			})
		}
	})
}
