package agent_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/runtime"
)

// TestNamedVersionAlone: queries that name a version do not count in the trial of a canary, at an
// agent that is alone as little as in a fleet: nobody has drawn them.
func TestNamedVersionAlone(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		_, with := f.Versions(agenttest.TwoVersions)
		var fails atomic.Bool // once it is loaded and warm
		a := f.Start(with, func(a agent.Inside) {
			open := a.Environment().OpenExecutor
			a.Environment().OpenExecutor = func(c agent.Config, log *slog.Logger) (runtime.Executor, error) {
				e, err := open(c, log)
				return agenttest.WrongExecutor{Executor: e, Every: 1, Fails: &fails}, err
			}
		})
		f.Settled(a)
		f.Led(a)
		f.Release(a, &control.SetReleaseRequest{Version: 1})
		f.Released(1, 0, 0, a)
		f.Release(a, &control.SetReleaseRequest{Version: 2, Share: .25})
		f.Released(1, 2, .25, a)
		fails.Store(true)
		for i := range 20 {
			named := agenttest.NCFRequest(10)
			named.ModelVersion = "2"
			if _, err := a.OIP.ModelInfer(f.Context(), named); err == nil {
				f.Fatalf("query %d of version 2 is answered, want it to fail", i)
			}
		}
		drawn := uint64(0)
		for sent := 0; drawn == 0; sent++ {
			if sent == 200 {
				f.Fatal("none of 200 queries goes to the canary")
			}
			if _, err := a.OIP.ModelInfer(f.Context(), agenttest.NCFRequest(10)); err != nil {
				drawn++
			}
		}
		f.Eventually(10*time.Second, func() string {
			resp, err := a.Control.Release(f.Context(), &control.ReleaseRequest{})
			if err != nil {
				f.Fatal(err)
			}
			if got := resp.GetReleases()[0].GetCanary().GetFailed(); got != drawn {
				return fmt.Sprintf("%d failures count in the trial, want %d", got, drawn)
			}
			return ""
		})
	})
}
