package agent

import (
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/inference"
)

// lately sends queries of 1.1 ms by the agents in turn, one every interval, while meanwhile
// runs; it returns how many were sent, how long the slowest took, how many took
// longer than the QoS target of 5 ms, and how many failed, by code and message.
func (f *testFleet) lately(interval time.Duration, meanwhile func(), agents ...*fleetAgent) (sent int, slowest time.Duration, late int, failed map[string]int) {
	f.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		meanwhile()
	}()
	var sending sync.WaitGroup
	var mu sync.Mutex
	failed = map[string]int{}
	for {
		select {
		case <-done:
			sending.Wait()
			return sent, slowest, late, failed
		case <-time.After(interval):
		}
		a := agents[sent%len(agents)]
		sent++
		sending.Go(func() {
			began := time.Now()
			req := ncfRequest(100)
			req.Parameters = map[string]*inference.InferParameter{"timeout": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1e6}}} // us
			_, err := a.oip.ModelInfer(f.Context(), req)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, took)
			if took > 5*time.Millisecond {
				late++
			}
			if err != nil {
				failed[err.Error()]++
			}
		})
	}
}

// others are the agents but one.
func others(of []*fleetAgent, but *fleetAgent) (rest []*fleetAgent) {
	for _, a := range of {
		if a != but {
			rest = append(rest, a)
		}
	}
	return rest
}

// TestLeaderEnds ends leaders in different ways, under load: no query fails, few are
// late, and within 2 s the others have one leader again.
func TestLeaderEnds(t *testing.T) {
	for name, end := range map[string]func(*testFleet, *fleetAgent){
		"killed":      func(f *testFleet, a *fleetAgent) { f.kill(a) },
		"unreachable": func(f *testFleet, a *fleetAgent) { f.partition([]*fleetAgent{a}) },
		"drained":     func(_ *testFleet, a *fleetAgent) { a.drain() },
	} {
		t.Run(name, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				agents := []*fleetAgent{f.start(), f.start(), f.start(), f.start()}
				f.settled(agents...)
				leader := f.led(agents...)
				rest := others(agents, leader)
				if failed := f.send(200, time.Millisecond, rest...); len(failed) > 0 {
					f.Fatalf("before: %v", failed)
				}
				epoch := leader.leading.leadership().GetEpoch()
				sent, slowest, late, failed := f.lately(time.Millisecond, func() {
					time.Sleep(300 * time.Millisecond)
					end(f, leader)
					time.Sleep(2 * time.Second)
				}, rest...)
				if len(failed) > 0 {
					f.Errorf("of %d queries failed: %v", sent, failed)
				}
				next := rest[0].leading.leadership()
				for _, a := range rest {
					if l := a.leading.leadership(); l.GetLeader() != next.GetLeader() || l.GetLeader() == leader.name || l.GetLeader() == "" || l.GetEpoch() <= epoch {
						f.Errorf("after 2s %s follows %v", a.host, l)
					}
				}
				f.Logf("%s: %d queries, the slowest %v, %d late", name, sent, slowest, late)
				if late > sent/20 || slowest > 250*time.Millisecond {
					f.Errorf("%d of %d queries late, the slowest %v", late, sent, slowest)
				}
			})
		})
	}
}

// TestWorkerEnds ends an agent that does not lead, under load: no query fails.
func TestWorkerEnds(t *testing.T) {
	for name, end := range map[string]func(*testFleet, *fleetAgent){
		"killed":      func(f *testFleet, a *fleetAgent) { f.kill(a) },
		"unreachable": func(f *testFleet, a *fleetAgent) { f.partition([]*fleetAgent{a}) },
		"drained":     func(_ *testFleet, a *fleetAgent) { a.drain() },
	} {
		t.Run(name, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				agents := []*fleetAgent{f.start(), f.start(neverLeads), f.start(neverLeads), f.start(neverLeads)}
				f.settled(agents...)
				f.led(agents...)
				if failed := f.send(200, time.Millisecond, agents...); len(failed) > 0 {
					f.Fatalf("before: %v", failed)
				}
				sent, slowest, late, failed := f.lately(time.Millisecond, func() {
					time.Sleep(300 * time.Millisecond)
					end(f, agents[3])
					time.Sleep(2 * time.Second)
				}, agents[:3]...)
				if len(failed) > 0 {
					f.Errorf("of %d queries failed: %v", sent, failed)
				}
				f.Logf("%s: %d queries, the slowest %v, %d late", name, sent, slowest, late)
				if late > sent/50 {
					f.Errorf("%d of %d queries late, the slowest %v", late, sent, slowest)
				}
			})
		})
	}
}
