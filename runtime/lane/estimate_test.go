package lane

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestLinearEstimator(t *testing.T) {
	const floor, slope = 300 * time.Microsecond, 30 * time.Microsecond
	truth := func(batch int) time.Duration { return floor + time.Duration(batch)*slope }
	near := func(t *testing.T, got, want time.Duration, tolerance float64) {
		t.Helper()
		if math.Abs(float64(got)/float64(want)-1) > tolerance {
			t.Errorf("got %v, want %v within %v%%", got, want, 100*tolerance)
		}
	}
	t.Run("unknown", func(t *testing.T) {
		if got := NewLinearEstimator().Estimate("m/1", 7); got != 0 {
			t.Errorf("got %v before any observation, want 0", got)
		}
	})
	t.Run("one size", func(t *testing.T) {
		e := NewLinearEstimator()
		for range 3 {
			e.Observe("m/1", 10, time.Millisecond)
		}
		near(t, e.Estimate("m/1", 1), time.Millisecond, 1e-6)
		near(t, e.Estimate("m/1", 10), time.Millisecond, 1e-6)
		near(t, e.Estimate("m/1", 50), 5*time.Millisecond, 1e-6)
		if got := e.Estimate("other/1", 10); got != 0 {
			t.Errorf("profiles mix: got %v", got)
		}
	})
	t.Run("noise", func(t *testing.T) {
		e := NewLinearEstimator()
		r := rand.New(rand.NewPCG(1, 2))
		for range 200 {
			b := 1 + r.IntN(1000)
			e.Observe("m/1", b, time.Duration(float64(truth(b))*(0.9+0.2*r.Float64())))
		}
		for _, b := range []int{10, 100, 1000} {
			near(t, e.Estimate("m/1", b), truth(b), 0.1)
		}
	})
	t.Run("follows a change", func(t *testing.T) {
		e := NewLinearEstimator()
		for i := range 500 {
			e.Observe("m/1", 1+i%100, truth(1+i%100))
		}
		for i := range 500 {
			e.Observe("m/1", 1+i%100, 3*truth(1+i%100))
		}
		near(t, e.Estimate("m/1", 50), 3*truth(50), 0.1)
	})
	t.Run("one size for long", func(t *testing.T) { // floor and slope keep their ratio
		e := NewLinearEstimator()
		for i := range 500 {
			e.Observe("m/1", 1+i%100, truth(1+i%100))
		}
		for i := range 3000 {
			e.Observe("m/1", 64, truth(64)*time.Duration(1+i/1500))
		}
		for _, b := range []int{1, 16, 200} {
			near(t, e.Estimate("m/1", b), 2*truth(b), 0.2)
		}
	})
	t.Run("falling", func(t *testing.T) { // noise must not make a slope negative
		e := NewLinearEstimator()
		e.Observe("m/1", 10, 2*time.Millisecond)
		e.Observe("m/1", 100, time.Millisecond)
		if small, large := e.Estimate("m/1", 1), e.Estimate("m/1", 1000); small <= 0 ||
			large < small {
			t.Errorf("got %v for 1 and %v for 1000", small, large)
		}
	})
	t.Run("zero duration", func(t *testing.T) {
		e := NewLinearEstimator()
		e.Observe("m/1", 1, 0)
		e.Observe("m/1", 2, 0)
		if got := e.Estimate("m/1", 100); got < 0 || got > time.Microsecond {
			t.Errorf("got %v", got)
		}
	})
}

func TestRowsWithin(t *testing.T) {
	var l Line
	if got := l.RowsWithin(10 * time.Millisecond); got != 0 {
		t.Errorf("got %d rows before any observation, want 0", got)
	}
	for range 10 {
		for _, n := range []int{1, 16, 64, 250} {
			l.Observe(n, time.Duration(n)*40*time.Microsecond)
		}
	}
	if got := l.RowsWithin(10 * time.Millisecond); got < 240 || got > 260 {
		t.Errorf("got %d rows of 40 us in 10 ms, want 250", got)
	}
	var high Line // a floor above the piece's time
	for range 10 {
		for _, n := range []int{10, 100, 400} {
			high.Observe(n, 20*time.Millisecond+time.Duration(n)*time.Millisecond)
		}
	}
	if got := high.RowsWithin(10 * time.Millisecond); got < 150 || got > 170 {
		t.Errorf("got %d rows, want 160: eight times the floor", got)
	}
	var flat Line
	flat.Observe(16, time.Millisecond)
	flat.Observe(4, time.Millisecond)
	if got := flat.RowsWithin(10 * time.Millisecond); got != 64 {
		t.Errorf("got %d rows, want 64: four times what was seen", got)
	}
}
