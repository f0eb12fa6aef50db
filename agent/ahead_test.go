package agent

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestAheadEstimate: the way of a query of the median size is learned, whatever a third of the queries that
// meet a stall take, and some that are very large.
func TestAheadEstimate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var e aheadEstimate
	for i := range 31 {
		e.observe(3*time.Millisecond, 0, uint64(1000*i))
	}
	if v, ok := e.value(); ok {
		t.Errorf("after 31 answers it says %v, want nothing yet", v)
	}
	const perByte = 8 // ns
	for range 1280 {
		bytes := uint64(50_000 + rng.IntN(100_000))
		if rng.IntN(10) == 0 {
			bytes *= 50
		}
		receive := time.Duration(perByte * bytes)
		round := receive + 3*time.Millisecond // of which two thirds come before the start
		if rng.IntN(3) == 0 {
			round += time.Duration(rng.IntN(300)) * time.Millisecond
		}
		e.observe(round, receive, bytes)
	}
	v, ok := e.value()
	if want := 2*time.Millisecond + perByte*100_000; !ok || v < want*8/10 || v > want*15/10 {
		t.Errorf("got %v, %t, want about %v", v, ok, time.Duration(want))
	}
}

// TestAheadBounded: what is learned never exceeds a quarter of the shortest QoS target that lanes serve.
func TestAheadBounded(t *testing.T) {
	r := &reign{workers: map[string]*worker{"a": {models: []string{"ncf/1", "rm2/1"}}}, models: map[string]*leaderModel{
		"ncf/1": {target: 5 * time.Millisecond}, "rm2/1": {target: 350 * time.Millisecond}, "fast/1": {target: time.Millisecond},
	}}
	if got, want := r.mostAhead(), 1250*time.Microsecond; got != want {
		t.Errorf("with NCF and RM2 got %v, want %v", got, want)
	}
	r.workers["a"].models = []string{"rm2/1"}
	if got, want := r.mostAhead(), 87500*time.Microsecond; got != want {
		t.Errorf("with RM2 got %v, want %v", got, want)
	}
}
