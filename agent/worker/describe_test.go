package worker

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// TestDescribeWithoutNewest: while the checksum of the version that serves by default is not known, no
// version of the model is described: no query that names none could be sent to it.
func TestDescribeWithoutNewest(t *testing.T) {
	dir := generated(t, "ncf")
	model := filepath.Join(dir, "ncf")
	if err := os.CopyFS(filepath.Join(model, "2"), os.DirFS(filepath.Join(model, "1"))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(model, "model.yaml"), []byte("versions: all\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	executor, err := Emulate("r5n.large", "shipped")
	if err != nil {
		t.Fatal(err)
	}
	sums := map[int64]*checksum{}
	for version := int64(1); version <= 2; version++ {
		sums[version] = &checksum{done: make(chan struct{}), cancel: func() {}, value: "known"}
	}
	w := &Worker{config: Config{Executor: executor}}
	if w.repository, err = models.Open(dir,
		func(ctx context.Context, v *models.Version) (*LoadedModel, error) {
			m, err := executor.Load(ctx, v)
			if err != nil {
				return nil, err
			}
			return &LoadedModel{
				Model: m, runs: runtime.NewSpread(m), of: w, checksum: sums[v.Number],
			}, nil
		}, models.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.repository.Run(ctx) }()
	defer func() { stop(); <-ended }()
	<-w.repository.Settled()

	described := func() (versions []int64) {
		for _, s := range w.repository.Index() {
			if held, _ := w.describeModel(s); held != nil {
				versions = append(versions, held.Version)
				if held.Newest != (held.Version == 2) {
					t.Errorf("version %d: newest is %t", held.Version, held.Newest)
				}
			}
		}
		return versions
	}
	close(sums[1].done)
	if got := described(); len(got) != 0 {
		t.Errorf("the checksum of version 2 is not known: versions %v are described", got)
	}
	close(sums[2].done)
	if got := described(); len(got) != 2 {
		t.Errorf("both are known: versions %v are described", got)
	}
}
