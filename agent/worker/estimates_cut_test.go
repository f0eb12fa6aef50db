package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/agent/agenttest"
)

// TestCutOffAlone: an agent that is alone learns from runs that are cut off, as one of a fleet does.
func TestCutOffAlone(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start()
		f.Settled(a)
		before := a.Worker().Learned()
		for range 100 { // a table is rebuilt after some observations
			ctx, cancel := context.WithTimeout(f.Context(), 300*time.Microsecond)
			_, err := a.OIP.ModelInfer(ctx, agenttest.NCFRequest(1000))
			cancel()
			if err == nil {
				f.Fatalf("a query of 1000 items ran within 300 us, want it to be cut off")
			}
			synctest.Wait()
		}
		if a.Worker().Learned() == before {
			f.Errorf("nothing was learned of 100 runs that were cut off")
		}
	})
}
