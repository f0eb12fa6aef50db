package lead_test

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
)

// TestStatusRates: a rate is right from the start, and what is not known is
// absent: a single query is not taken for ten a second, nor for a tenth of one.
func TestStatusRates(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a := f.Start()
		f.Settled(a)
		f.Led(a)
		status := func() *control.FleetStatus {
			f.Helper()
			s, err := a.Control.Status(f.Context(), &control.StatusRequest{})
			if err != nil || len(s.GetModels()) != 1 || len(s.GetAgents()) != 1 {
				f.Fatalf("got status %v, %v", s, err)
			}
			return s
		}
		if s := status(); s.GetRate() != 0 || s.GetModels()[0].WithinQos != nil {
			f.Errorf("of an idle fleet: got status %v", s)
		}
		if failed := f.Send(1, time.Millisecond, a); len(failed) > 0 {
			f.Fatalf("failed: %v", failed)
		}
		if s := status(); s.GetRate() > 1 || s.GetRate() < 0.1 ||
			s.GetModels()[0].GetWithinQos() != 1 {
			f.Errorf("after one query: got status %v", s)
		}
		time.Sleep(time.Minute)
		if failed := f.Send(100, 50*time.Millisecond, a); len(failed) > 0 {
			f.Fatalf("failed: %v", failed)
		}
		if s := status(); s.GetRate() < 9.5 || s.GetRate() > 10.5 ||
			s.GetModels()[0].GetRate() < 8 || s.GetModels()[0].GetRate() > 11.2 { // of 9 to 10 s
			f.Errorf("20 queries/s for 5 of the last 10 s: got status %v", s)
		}
	})
}
