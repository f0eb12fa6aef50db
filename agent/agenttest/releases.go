package agenttest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// Versions is a model directory with these versions of ncf, which all serve, and a change that has
// an agent emulate them, each with its latency.
func (f *Fleet) Versions(latencies map[int64]time.Duration) (string, func(agent.Inside)) {
	f.Helper()
	dir := f.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "ncf"),
		os.DirFS(filepath.Join(f.Dir, "ncf"))); err != nil {
		f.Fatal(err)
	}
	for v := range latencies {
		if v != 1 {
			f.Publish(dir, v)
		}
	}
	path := filepath.Join(dir, "ncf", "model.yaml")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, append(text, "\nversions: all\n"...), 0o644)
	}
	if err != nil {
		f.Fatal(err)
	}
	return dir, func(a agent.Inside) {
		a.Config().ModelDir = dir
		a.Environment().OpenExecutor = func(agent.Config, *slog.Logger) (runtime.Executor, error) {
			return runtime.NewEmulated(func(v *models.Version, _ int) time.Duration {
				return latencies[v.Number]
			}), nil
		}
	}
}

// Publish adds a version of ncf, as version 1 is, to a model directory.
func (f *Fleet) Publish(dir string, version int64) {
	f.Helper()
	to := filepath.Join(dir, "ncf", fmt.Sprint(version))
	if err := os.CopyFS(to, os.DirFS(filepath.Join(f.Dir, "ncf", "1"))); err != nil {
		f.Fatal(err)
	}
}

// Release asks an agent for a release.
func (f *Fleet) Release(a *Member, req *control.SetReleaseRequest) *control.ReleaseState {
	f.Helper()
	req.Model = "ncf"
	resp, err := a.Control.SetRelease(f.Context(), req)
	if err != nil || len(resp.GetReleases()) != 1 {
		f.Fatalf("%v: got %v, %v", req, resp, err)
	}
	return resp.GetReleases()[0]
}

// Released waits until all agents follow a release of ncf.
func (f *Fleet) Released(current, canary int64, share float64, agents ...*Member) {
	f.Helper()
	f.Eventually(10*time.Second, func() string {
		for _, a := range agents {
			if r := a.Releases().Of("ncf"); r.Current != current || r.Canary != canary ||
				r.Share != share {
				return fmt.Sprintf("%s follows %+v, want %d, %d with %v", a.Host, r, current, canary,
					share)
			}
		}
		return ""
	})
}

var TwoVersions = map[int64]time.Duration{1: time.Millisecond, 2: time.Millisecond}

// A WrongExecutor answers one in Every queries to version 2 wrongly, or not at all if Fails is given
// and true.
type WrongExecutor struct {
	runtime.Executor
	Every int64
	Fails *atomic.Bool
}

func (e WrongExecutor) Load(ctx context.Context, v *models.Version) (runtime.Model, error) {
	m, err := e.Executor.Load(ctx, v)
	if err == nil && v.Number == 2 {
		m = &wrongModel{Model: m, every: e.Every, fails: e.Fails}
	}
	return m, err
}

type wrongModel struct {
	runtime.Model
	every int64
	fails *atomic.Bool
	runs  atomic.Int64
}

func (m *wrongModel) Run(ctx context.Context, inputs []tensor.Tensor) (*runtime.Result, error) {
	r, err := m.Model.Run(ctx, inputs)
	if err == nil && m.runs.Add(1)%m.every == 0 && (m.fails == nil || m.fails.Load()) {
		if m.fails != nil {
			r.Release()
			return nil, errors.New("out of order")
		}
		for i := range r.Outputs {
			for at := range r.Outputs[i].Data {
				r.Outputs[i].Data[at] = 0x3f // about 0.75 in each type
			}
		}
	}
	return r, err
}
