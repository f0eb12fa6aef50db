package leader

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestAheadEstimate: the way of a query of the median size is learned, whatever a fifth of the queries that
// meet a stall take, and some that are very large; and a standard deviation of the execution besides.
func TestAheadEstimate(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var e aheadEstimate
		for i := range 31 {
			e.observe(3*time.Millisecond, 0, 0, uint64(1000*i))
		}
		if v, ok := e.value(); ok {
			t.Errorf("after 31 answers it says %v, want nothing yet", v)
		}
		e.fixed = 5 * time.Millisecond
		if v, ok := e.value(); !ok || v != e.fixed {
			t.Errorf("after a leader that had found 5ms it says %v, %t", v, ok)
		}
		const perByte = 8 // ns
		for range 1280 {
			bytes := uint64(50_000 + rng.IntN(100_000))
			if rng.IntN(10) == 0 {
				bytes *= 50
			}
			receive := time.Duration(perByte * bytes)
			round := receive + 3*time.Millisecond // of which two thirds come before the start
			if rng.IntN(5) == 0 {
				round += time.Duration(rng.IntN(300)) * time.Millisecond
			}
			e.observe(round, receive, time.Duration(rng.NormFloat64()*float64(time.Millisecond)), bytes)
		}
		v, ok := e.value()
		if want := 3*time.Millisecond + perByte*100_000; !ok || v < want*8/10 || v > want*13/10 {
			t.Errorf("seed %d: got %v, %t, want about %v", seed, v, ok, time.Duration(want))
		}
	}
}

// TestAheadBounded: what is learned never exceeds a quarter of the shortest QoS target that lanes serve.
func TestAheadBounded(t *testing.T) {
	of := func(target time.Duration) *model { return &model{settings: settings{target: target}} }
	ncf, rm2, fast := of(5*time.Millisecond), of(350*time.Millisecond), of(time.Millisecond)
	s := &State{members: map[string]*member{"a": {holds: []*model{ncf, rm2}}}, models: map[ModelID]*model{{"fast", 1}: fast}}
	if got, want := s.mostAhead(), 1250*time.Microsecond; got != want {
		t.Errorf("with NCF and RM2 got %v, want %v", got, want)
	}
	s.members["a"].holds = []*model{rm2}
	if got, want := s.mostAhead(), 87500*time.Microsecond; got != want {
		t.Errorf("with RM2 got %v, want %v", got, want)
	}
}
