package choose

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/rent"
)

// lateBy is a minute in which a share of the queries for rm2 was late, and 1 % may be.
func lateBy(share float64) []Lateness {
	return []Lateness{{Model: "rm2/1", Queries: 1000, LateShare: share, AllowedShare: .01}}
}

// TestSafeLoadFinds: where queries are late above a load that nobody knows, the safe load goes
// below it and stays there nearly all the time, whatever it is; a steady load changes it ever more
// rarely; and when the reason has gone it returns to all.
func TestSafeLoadFinds(t *testing.T) {
	const step = 15 * time.Second
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 56))
		threshold := minShare + (1.1-minShare)*r.Float64()
		s, now := newSafeLoad(), time.Hour
		changes, over, rest := 0, time.Duration(0), 72*time.Hour
		for at := time.Duration(0); at < rest; at += step {
			now += step
			late := 0.0
			if s.Share > threshold {
				late = .02 + .5*r.Float64()
			}
			if s.observe(now, true, true, lateBy(late)) && at > rest/3 {
				changes++
			}
			if late > 0 && at > rest/3 {
				over += step
			}
			if s.Share < minShare || s.Share > 1 || s.Hold < firstHold || s.Hold > maxHold ||
				(s.Share < 1) != (s.Why != "") {
				t.Fatalf("seed %d: %+v", seed, s)
			}
		}
		if changes > 30 || over > 20*time.Minute {
			t.Errorf("seed %d: late above %.2f: in the last two days %d changes, late for %v",
				seed, threshold, changes, over)
		}
		for at := time.Duration(0); at < 45*maxHold; at += time.Minute {
			now += time.Minute
			s.observe(now, true, true, lateBy(0))
		}
		if s.Share != 1 || s.Hold != firstHold {
			t.Errorf("seed %d: after weeks in time: %+v", seed, s)
		}
	}
}

// TestSafeLoadWithCause: queries that are late by less than chance explains lower the safe load
// where a cause is known, which is in the reason; with the cause alone none does.
func TestSafeLoadWithCause(t *testing.T) {
	for _, tt := range []struct {
		late    float64
		cause   string
		lowered bool
	}{
		{.015, "", false}, {.015, "vm-2 lacks CPU", true}, {.01, "vm-2 lacks CPU", false},
	} {
		s, models := newSafeLoad(), lateBy(tt.late)
		models[0].Queries, models[0].Cause = 100, tt.cause
		for now := time.Hour; now < time.Hour+2*evidenceFor; now += 15 * time.Second {
			s.observe(now, true, true, models)
		}
		if (s.Share < 1) != tt.lowered || tt.lowered && !strings.Contains(s.Why, tt.cause) {
			t.Errorf("%.3f late, cause %q: %v: %s", tt.late, tt.cause, s.Share, s.Why)
		}
	}
}

// TestSafeLoadMonotone: from any state, more late queries never make a higher load safe.
func TestSafeLoadMonotone(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 57))
		s, now := newSafeLoad(), time.Hour
		for range 400 {
			now += time.Duration(r.IntN(120)) * time.Second
			exact, carries, late := r.IntN(20) > 0, r.IntN(20) > 0, max(0, r.Float64()-.9)
			more := s
			more.observe(now, exact, carries, lateBy(late+.1*r.Float64()))
			if s.observe(now, exact, carries, lateBy(late)); more.Share > s.Share {
				t.Fatalf("seed %d: %.3f of the queries late: %+v, with more %+v", seed, late, s, more)
			}
		}
	}
}

// TestSafeLoadNeedsEvidence: a fleet that changes says nothing, nor do few queries, nor a share
// that chance explains.
func TestSafeLoadNeedsEvidence(t *testing.T) {
	few := []Lateness{{Model: "rm2/1", Queries: 10, LateShare: .5, AllowedShare: .01}}
	for name, tt := range map[string]struct {
		exact, carries bool
		models         []Lateness
		changes        bool
	}{
		"late":       {true, true, lateBy(.05), true},
		"changing":   {false, true, lateBy(.05), false},
		"overloaded": {true, false, lateBy(.05), false},
		"few":        {true, true, few, false},
		"by chance":  {true, true, lateBy(.018), false},
	} {
		s, changed := newSafeLoad(), false
		for now := time.Hour; now < time.Hour+5*time.Minute; now += 2 * time.Second {
			changed = s.observe(now, tt.exact, tt.carries, tt.models) || changed
		}
		if changed != tt.changes {
			t.Errorf("%s: changed is %v, %+v", name, changed, s)
		}
	}
}

// TestLateFleetGrows: a fleet that is late though it was planned to serve its load becomes larger,
// with the reason, until the price limit is reached, which is then said; it does not become smaller
// while it is late, and does once it has been in time for long.
func TestLateFleetGrows(t *testing.T) {
	config := Config{MaxPrice: 2, MinInstances: 1, Headroom: 1.15, Threshold: .05,
		Calm: time.Minute, Types: someTypes}
	c, now := New(config), time.Hour
	f := &Fleet{Problem: problem(t, onDemand), Prices: onDemand, Desired: map[rent.Kind]int{}}
	var choice *Choice
	live := func(of time.Duration, rate, late float64) {
		t.Helper()
		planned := time.Duration(0)
		for until := now + of; now < until; now += 10 * time.Second {
			c.Observe(now, rate)
			c.ObserveLateness(now, f.Desired, true, lateBy(late))
			if !c.NeedsPlan(now) && now-planned < 5*time.Minute {
				continue
			}
			planned = now
			c.MarkPlanned(now)
			var err error
			if choice, err = c.Choose(t.Context(), now, f); err != nil {
				t.Fatal(err)
			}
			if choice.Change {
				f.Desired = choice.Counts
			}
		}
	}
	live(10*time.Minute, 30, 0)
	before := choice.Price
	live(10*time.Minute, 30, .05)
	if choice.Price <= before || !strings.Contains(choice.Why, "5.0 % of the last minute's queries "+
		"for rm2/1 were late or failed") {
		t.Errorf("$%.3f after $%.3f: %s", choice.Price, before, choice.Why)
	}
	live(20*time.Minute, 10, .05) // a third of the load, and late still
	if choice.Price < before {
		t.Errorf("$%.3f after $%.3f for a third of the load, late: %s", choice.Price, before,
			choice.Why)
	}
	live(time.Hour, 60, .05)
	if choice.Price < 1.8 || !strings.Contains(choice.Why,
		"limits.max_price_usd_per_hour, $2, allows no more") {
		t.Errorf("at the limit: $%.3f, %s", choice.Price, choice.Why)
	}
	live(24*time.Hour, 30, 0)
	if choice.Price != before || c.SafeLoad().Share != 1 {
		t.Errorf("$%.3f after days in time, $%.3f before: %s", choice.Price, before, choice.Why)
	}
}

// TestSavingCarriesPresent: a rate that a person set below what is asked for makes no saving of a
// fleet that the present minute needs.
func TestSavingCarriesPresent(t *testing.T) {
	for _, rate := range []float64{20, 50} {
		config := Config{MaxPrice: 4, MinInstances: 1, Headroom: 1, Threshold: .05, Rate: 20,
			Calm: time.Minute, Types: someTypes}
		c := New(config)
		f := &Fleet{Problem: problem(t, onDemand), Prices: onDemand,
			Desired: map[rent.Kind]int{oneGPU: 4}}
		for now := time.Duration(0); now < 2*time.Minute; now += 2 * time.Second {
			c.Observe(now, rate)
		}
		var choice *Choice
		for range 2 {
			var err error
			if choice, err = c.Choose(t.Context(), 2*time.Minute, f); err != nil {
				t.Fatal(err)
			}
		}
		if choice.Change != (rate == 20) {
			t.Errorf("planned for 20 queries/s, with %v: %+v", rate, choice)
		}
	}
}
