package worker

import (
	"math"
	"testing"
	"time"
)

// TestCostsAddUp: what models and nobody pay is what the machine costs, whatever its price and lanes
// become, to within the runs under way; and no share ever falls.
func TestCostsAddUp(t *testing.T) {
	start := time.Unix(0, 0)
	price, lanes := .4, 2.0
	c := newCosts(func() float64 { return price }, start)
	now, paid := start, 0.0
	pass := func(d time.Duration) { now, paid = now.Add(d), paid+d.Hours()*price }
	last := 0.0
	check := func() {
		t.Helper()
		runs, rest := c.shares(now)
		sum := rest + runs["ncf"] + runs["wnd"]
		if math.Abs(sum-paid) > 1e-9 || rest < last {
			t.Fatalf("shares %v and %v add up to %v, want %v, and the rest from %v on", runs, rest, sum,
				paid, last)
		}
		last = rest
	}
	check()
	for hour := range 24 {
		if hour == 12 {
			price, lanes = 1.2, 4
		}
		for range 60 {
			pass(time.Minute)
			c.noteRun("ncf", 30*time.Second, 1/lanes, now)
			c.noteRun("wnd", 40*time.Second, 1/lanes/4, now)
			check()
		}
	}
	runs, rest := c.shares(now)
	// Of each minute ncf has 30 s of one lane, and wnd 40 s of a quarter of one: in the first half of
	// the day $4.8 for two lanes, in the second $14.4 for four.
	ncf, wnd := 4.8*.5/2+14.4*.5/4, 4.8*40/60/8+14.4*40/60/16
	if math.Abs(runs["ncf"]-ncf) > 1e-9 || math.Abs(runs["wnd"]-wnd) > 1e-9 ||
		math.Abs(rest-(19.2-ncf-wnd)) > 1e-9 {
		t.Errorf("models pay %v, nobody %v; want %v, %v and what is left of 19.2", runs, rest, ncf, wnd)
	}
	// A run that was under way when the rest was read does not make it fall.
	pass(time.Hour)
	_, before := c.shares(now)
	c.noteRun("ncf", time.Hour, 1/lanes, now)
	if _, after := c.shares(now); after != before {
		t.Errorf("the rest went from %v to %v", before, after)
	}
}
