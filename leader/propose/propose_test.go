package propose

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

// A fleet is polled each ten seconds. Its instances "box" cost a dollar an hour, and serve about
// 100 queries/s each.
type fleet struct {
	Proposer
	t       *testing.T
	now     time.Time
	boxes   int
	rate    float64
	inTime  float64
	changed bool // the demand has changed
	made    []string
}

func newFleet(t *testing.T, boxes int, rate float64) *fleet {
	return &fleet{t: t, now: time.Unix(1000, 0), boxes: boxes, rate: rate, inTime: 1}
}

// passes lets time pass, and returns the last plan.
func (f *fleet) passes(d time.Duration) *Plan {
	f.t.Helper()
	var last *Plan
	for end := f.now.Add(d); !f.now.After(end); f.now = f.now.Add(Every) {
		load := Load{
			Instances: map[profiles.InstanceType]int{"box": f.boxes},
			Models: []ModelLoad{{
				Model: "m/1", Rate: f.rate, InTime: f.inTime, Target: .99, Queries: 60 * f.rate,
			}},
		}
		if f.boxes == 0 {
			clear(load.Instances)
		}
		trigger, next := f.Poll(f.now, load, f.changed)
		if next <= 0 || next > Every {
			f.t.Fatalf("to be polled again after %v", next)
		}
		if trigger == "" {
			last, _ = f.Revise()
			continue
		}
		f.changed = f.changed && trigger != "demand"
		f.made = append(f.made, trigger)
		p, err := f.Plan(f.t.Context(), f.now, trigger, &plan.Problem{
			Types: []plan.Type{{Name: "box", Price: 1, Max: 50}}, Target: .99,
			Models: []plan.ModelDemand{{
				Name: "m/1", QoSTarget: 100 * time.Millisecond, Weight: f.rate,
				BatchSizes: profiles.Distribution{{BatchSize: 1, Share: 1}},
				Latencies:  []plan.Latencies{flat},
			}},
		}, plan.Configuration{f.boxes}, true)
		if err != nil {
			f.t.Fatal(err)
		}
		last = p
	}
	return last
}

// flat is a latency of 10 ms.
var flat = func() plan.Latencies {
	t, err := profiles.NewTable(profiles.Key{Model: "m", Version: 1, InstanceType: "box"},
		profiles.Inherited, "a test", []profiles.Knot{{
			BatchSize: 1, Mean: 10 * time.Millisecond, P50: 10 * time.Millisecond,
			P90: 10 * time.Millisecond, P99: 10 * time.Millisecond, Error: 1,
		}})
	if err != nil {
		panic(err)
	}
	return t
}()

// TestStates: a plan is proposed, in force once the fleet is as planned, and superseded when the
// fleet or the demand is another.
func TestStates(t *testing.T) {
	f := newFleet(t, 4, 150)
	if p := f.passes(0); p.State != Proposed || !p.Change || p.Best.Configuration[0] != 2 {
		t.Fatalf("4 boxes for 150 queries/s: %+v", p)
	}
	f.boxes = 2
	if p := f.passes(0); p.State != InForce {
		t.Errorf("as planned, it is %s: %s", p.State, p.Reason)
	}
	f.boxes = 3
	if p := f.passes(0); p.State != Superseded || p.Change ||
		!strings.Contains(p.Reason, "the instances are others") {
		t.Errorf("with others it is %s: %s", p.State, p.Reason)
	}
	if p := f.passes(time.Minute); p.State != Proposed || p.Best.Configuration[0] != 2 {
		t.Errorf("a minute later it is %s: %s", p.State, p.Reason)
	}
}

// TestNoSavingWhileRateRises: a fleet that could not carry what arrives in the present minute is no
// saving: not one planned for a rate that has risen since, and not one planned for the mean of a
// minute that had a peak.
func TestNoSavingWhileRateRises(t *testing.T) {
	f := newFleet(t, 8, 150)
	if p := f.passes(0); p.State != Proposed || p.Best.Configuration[0] != 2 {
		t.Fatalf("8 boxes for 150 queries/s: %+v", p)
	}
	f.rate = 160 // within what varies by chance
	if p := f.passes(0); p.State != Proposed {
		t.Errorf("at a few more queries/s it is %s: %s", p.State, p.Reason)
	}
	f.rate = 400
	if p := f.passes(0); p.State != Superseded || p.Change ||
		!strings.Contains(p.Reason, "400 queries/s arrive") {
		t.Errorf("at 400 queries/s a plan for 150 is %s: %s", p.State, p.Reason)
	}
	f.passes(20 * time.Second)
	f.rate = 150
	if p := f.passes(30 * time.Second); p.Best == nil || p.Best.Predicted < 400 {
		t.Errorf("after a peak of 400 queries/s within the minute, the plan is %+v", p.Best)
	}
}

// TestNoSavingForMinute: a fleet that could not carry the mean of the present minute is no saving,
// though chance might explain each ten seconds.
func TestNoSavingForMinute(t *testing.T) {
	f := newFleet(t, 8, 150)
	f.passes(0)
	f.rate = 166 // two boxes are sure to serve 159
	if p := f.passes(0); p.State != Proposed {
		t.Errorf("after ten seconds it is %s: %s", p.State, p.Reason)
	}
	if p := f.passes(20 * time.Second); p.State != Superseded || p.Change {
		t.Errorf("after thirty seconds it is %s: %s", p.State, p.Reason)
	}
}

// TestNoSavingWhileLate: while a model misses its target, no smaller fleet is shown as a saving,
// whatever profiles say; when it is in time again, one is.
func TestNoSavingWhileLate(t *testing.T) {
	f := newFleet(t, 8, 150)
	f.inTime = .95
	p := f.passes(0)
	if p.State != InForce || p.Change || p.Best != nil ||
		!strings.Contains(p.Reason, "95.00 % of the queries for m/1 were in time") {
		t.Errorf("while it is late, the plan is %s: %s", p.State, p.Reason)
	}
	f.inTime = 1
	if p = f.passes(time.Minute); p.State != Proposed || p.Best.Configuration[0] != 2 {
		t.Errorf("in time again, the plan is %s: %s", p.State, p.Reason)
	}
	f.inTime = .95
	if p = f.passes(0); p.State != Superseded || p.Change {
		t.Errorf("late after the plan, it is %s: %s", p.State, p.Reason)
	}
	f.boxes, f.rate = 1, 150 // a larger one is proposed all the same
	if p = f.passes(time.Minute); p.State != Proposed || p.Best.Configuration[0] < 2 {
		t.Errorf("one box for 150 queries/s, late: %s: %s", p.State, p.Reason)
	}
}

// TestTriggers: it is planned for what has changed, at most once a minute.
func TestTriggers(t *testing.T) {
	f := newFleet(t, 2, 0)
	f.passes(time.Hour)
	f.boxes, f.rate = 0, 100
	f.passes(time.Hour)
	if len(f.made) > 0 {
		t.Errorf("planned for nothing: %q", f.made)
	}
	f.boxes = 2
	f.passes(time.Hour)
	f.rate = 110 // less than what counts
	f.passes(time.Hour)
	f.rate = 150
	f.passes(time.Hour)
	f.boxes = 3
	f.passes(30 * time.Second)
	f.boxes = 4
	f.passes(time.Hour)
	f.changed = true
	f.passes(0)
	f.changed = true
	f.passes(40 * time.Second)
	if got, want := strings.Join(f.made, " "), "fleet time fleet fleet demand"; got != want {
		t.Errorf("planned for %s, want %s", got, want)
	}
	f.passes(time.Hour)
	if f.made[len(f.made)-1] != "demand" || len(f.made) != 6 {
		t.Errorf("a change within a minute of another is planned for later: %q", f.made)
	}
}

// TestFailed: what keeps the leader from a plan is said, and the next poll that is due tries again.
func TestFailed(t *testing.T) {
	f := newFleet(t, 2, 100)
	load := Load{Instances: map[profiles.InstanceType]int{"box": 2}, Models: []ModelLoad{{
		Model: "m/1", Rate: 100}}}
	if trigger, _ := f.Poll(f.now, load, false); trigger != "fleet" {
		t.Fatalf("the first plan is due for %q", trigger)
	}
	p := f.Failed(f.now, "fleet", errors.New("nothing is known"))
	if p.State != "" || p.Reason != "no plan: nothing is known" {
		t.Errorf("no plan: %+v", p)
	}
	if again, changed := f.Revise(); again != p || changed {
		t.Errorf("revised: %+v", again)
	}
	if trigger, _ := f.Poll(f.now.Add(Every), load, false); trigger != "fleet" {
		t.Errorf("the next plan is due for %q", trigger)
	}
}
