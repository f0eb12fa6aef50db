package agent

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/runtime"
)

// TestNamedVersionAlone: queries that name a version do not count in the trial of a canary, at an
// agent that is alone as little as in a fleet: nobody has drawn them.
func TestNamedVersionAlone(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		_, with := f.versions(twoVersions)
		var fails atomic.Bool // once it is loaded and warm
		a := f.start(with, func(a Inside) {
			open := a.Environment().OpenExecutor
			a.Environment().OpenExecutor = func(c Config, log *slog.Logger) (runtime.Executor, error) {
				e, err := open(c, log)
				return wrongExecutor{e, 1, &fails}, err
			}
		})
		f.settled(a)
		f.led(a)
		f.release(a, &control.SetReleaseRequest{Version: 1})
		f.released(1, 0, 0, a)
		f.release(a, &control.SetReleaseRequest{Version: 2, Share: .25})
		f.released(1, 2, .25, a)
		fails.Store(true)
		for i := range 20 {
			named := ncfRequest(10)
			named.ModelVersion = "2"
			if _, err := a.oip.ModelInfer(f.Context(), named); err == nil {
				f.Fatalf("query %d of version 2 is answered, want it to fail", i)
			}
		}
		drawn := uint64(0)
		for sent := 0; drawn == 0; sent++ {
			if sent == 200 {
				f.Fatal("none of 200 queries goes to the canary")
			}
			if _, err := a.oip.ModelInfer(f.Context(), ncfRequest(10)); err != nil {
				drawn++
			}
		}
		f.eventually(10*time.Second, func() string {
			resp, err := a.ctl.Release(f.Context(), &control.ReleaseRequest{})
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
