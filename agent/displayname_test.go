package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
)

// TestDisplayNames: agents show the names that they are given, or kept from before, and the price of
// their machine. Two machines with one name are warned of, and told apart where somebody means one.
func TestDisplayNames(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		named := func(name, kept string) func(agent.Inside) {
			return func(in agent.Inside) {
				in.Config().Name, in.Config().Price = name, 0.07
				if kept == "" {
					return
				}
				file := filepath.Join(in.Config().StateDir, "name")
				if err := os.WriteFile(file, []byte(kept+"\n"), 0o644); err != nil {
					f.Fatal(err)
				}
			}
		}
		a := f.Start(named("front", ""))
		b := f.Start(named("", "back"))
		c := f.Start(named("", "back"))
		f.Settled(a, b, c)
		shown := func(of *agenttest.Member) *control.Member {
			m, err := of.Control.Describe(f.Context(), &control.DescribeRequest{})
			if err != nil {
				f.Fatal(err)
			}
			return m
		}
		if m := shown(a); m.GetDisplayName() != "front" || m.GetPriceUsdPerHour() != 0.07 {
			f.Errorf("got %q at %v $/hr, want front at 0.07", m.GetDisplayName(),
				m.GetPriceUsdPerHour())
		}
		if got := shown(b).GetDisplayName(); got != "back" {
			f.Errorf("got %q, want back", got)
		}
		kept, err := os.ReadFile(filepath.Join(a.Config().StateDir, "name"))
		if string(kept) != "front\n" {
			f.Errorf("the state directory keeps %q, %v", kept, err)
		}
		f.Eventually(10*time.Second, func() string {
			if !strings.Contains(b.Log.String(), "two agents have one display name") {
				return "no warning of two agents with one name"
			}
			return ""
		})
		drain := func(name string) ([]string, error) {
			resp, err := a.Control.Drain(f.Context(), &control.DrainRequest{Agents: []string{name}})
			return resp.GetDraining(), err
		}
		if _, err := drain("back"); status.Code(err) != codes.NotFound ||
			!strings.Contains(err.Error(), b.Name()) || !strings.Contains(err.Error(), c.Name()) {
			f.Errorf("drain of a name that two have: got %v, want both agents in it", err)
		}
		if got, err := drain("front"); err != nil || len(got) != 1 || got[0] != a.Name() {
			f.Errorf("drain of a display name: got %v, %v, want %s", got, err, a.Name())
		}
	})
}
