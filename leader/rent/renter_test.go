package rent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

var small, gpu = Kind{Type: "r5n.large"}, Kind{Type: "g4dn.xlarge"}

// a is a situation: what is desired, and what is there, all of which serves.
func situation(desired map[Kind]int, there ...Slot) *Seen {
	s := &Seen{
		Now: time.Hour, Majority: true, Desired: Desired{Counts: desired, By: "us"},
		Prices: map[Kind]float64{small: 0.149, gpu: 0.526},
		Serves: func(counts map[profiles.InstanceType]int) float64 {
			return 9*float64(counts["r5n.large"]) + 60*float64(counts["g4dn.xlarge"])
		},
	}
	for n, slot := range there {
		id := fmt.Sprintf("i-%d", n)
		s.Instances = append(s.Instances, Instance{ID: id, Slot: slot, State: Running, By: "us",
			Age: 10 * time.Minute, Zone: "a"})
		s.Agents = append(s.Agents, Agent{Name: "agent-" + id, Type: slot.Type, Instance: id,
			Slot: &slot, Ready: true, Load: 0.1 * float64(n), Factor: 1})
	}
	return s
}

func slots(kind Kind, n int) (all []Slot) {
	for i := range n {
		all = append(all, Slot{Kind: kind, Ordinal: i})
	}
	return all
}

func policyOf(limit float64) Policy {
	p := DefaultPolicy()
	p.MaxPrice = limit
	return p
}

// did describes a step's actions and what it holds.
func did(s Step) string {
	var parts []string
	for _, a := range s.Actions {
		of := a.ID
		if a.Kind == Launch {
			of = a.Slot.String()
		}
		parts = append(parts, a.Kind.String()+" "+of)
	}
	for _, h := range s.Held {
		parts = append(parts, fmt.Sprintf("held %s: %s", h.Reason, h.What))
	}
	return strings.Join(parts, "; ")
}

// TestSteps: what is done in a situation, and what is held for which reason.
func TestSteps(t *testing.T) {
	const everything = "every change of the fleet"
	for _, tt := range []struct {
		name    string
		desired map[Kind]int
		there   []Slot
		limit   float64
		change  func(*Seen)
		want    string
	}{
		{"as desired", map[Kind]int{small: 2}, slots(small, 2), 6, nil, ""},
		{"one more", map[Kind]int{small: 2}, slots(small, 1), 6, nil,
			"launch r5n.large/on-demand/1/0"},
		{"what adds most for its price first", map[Kind]int{small: 2, gpu: 1}, slots(small, 1), 6,
			nil, "launch g4dn.xlarge/on-demand/0/0; launch r5n.large/on-demand/1/0"},
		{"new before old", map[Kind]int{gpu: 1}, slots(small, 2), 6, nil,
			"launch g4dn.xlarge/on-demand/0/0; held new-first: r5n.large: 2 fewer"},
		{"the least loaded goes", map[Kind]int{small: 2}, slots(small, 3), 6, nil, "drain i-0"},
		{"old first where the price leaves nothing else", map[Kind]int{gpu: 1, small: 1},
			slots(small, 4), 0.7, nil,
			"drain i-0; held price: g4dn.xlarge: 1 more; held busy: r5n.large: 2 fewer"},
		{"what is needed stays", map[Kind]int{small: 1}, slots(small, 2), 6,
			func(s *Seen) { s.Needed, s.NeededFor = 12, time.Minute },
			"held needed: r5n.large: 1 fewer"},
		{"no majority", map[Kind]int{small: 2}, nil, 6, func(s *Seen) { s.Majority = false },
			"held majority: " + everything},
		{"an unanswered list is unknown, not empty", map[Kind]int{small: 2}, nil, 6,
			func(s *Seen) { s.ListAge = 2 * time.Minute }, "held list: " + everything},
		{"two fleets of one name", map[Kind]int{small: 2}, slots(small, 3), 6,
			func(s *Seen) { s.Instances[1].By = "them" }, "held two-fleets: " + everything},
		{"paused", map[Kind]int{small: 2}, nil, 6, func(s *Seen) { s.Paused = "by ops" },
			"held paused: " + everything},
		{"a price above the limit", map[Kind]int{small: 2}, slots(small, 1), 0.2,
			func(s *Seen) { s.Prices[small] = 0.3 }, "held price: r5n.large: 1 more"},
		{"no price", map[Kind]int{small: 1}, nil, 6, func(s *Seen) { delete(s.Prices, small) },
			"held no-price: r5n.large: 1 more"},
		{"what another tool ended is replaced", map[Kind]int{small: 1}, slots(small, 1), 6,
			func(s *Seen) { s.Instances[0].State = Gone }, "launch r5n.large/on-demand/0/1"},
		{"what the provider takes is replaced, and serves on", map[Kind]int{small: 1},
			slots(small, 1), 6, func(s *Seen) { s.Agents[0].Ends = 2 * time.Minute },
			"launch r5n.large/on-demand/1/0"},
		{"and is drained at the end", map[Kind]int{small: 1}, slots(small, 2), 6,
			func(s *Seen) { s.Agents[1].Ends = 10 * time.Second }, "drain i-1"},
		{"keepers stay", map[Kind]int{}, slots(small, 1), 6,
			func(s *Seen) { s.Agents[0].Keeper = true }, "held needed: r5n.large: 1 fewer"},
		{"not at this time of the day", map[Kind]int{small: 1}, slots(small, 2), 6,
			func(s *Seen) { s.NoReturns = "change.window" }, "held window: r5n.large: 1 fewer"},
		{"drained, so returned", map[Kind]int{}, slots(small, 2), 6, func(s *Seen) {
			s.Agents = s.Agents[:1]
			s.Agents[0].Keeper = true
			s.Instances[1].Drained = true
		}, "return i-1; held needed: r5n.large: 1 fewer"},
		{"what was not rented serves beside, and is left alone", map[Kind]int{}, slots(small, 1), 6,
			func(s *Seen) { s.Instances = nil; s.Agents[0].Slot = nil }, ""},
	} {
		r := New(policyOf(tt.limit), 0)
		s := situation(tt.desired, tt.there...)
		if tt.change != nil {
			tt.change(s)
		}
		first := *s
		first.Paused = "not yet"
		first.Now -= 2 * time.Minute
		for i := range first.Instances {
			first.Instances[i].Age -= 2 * time.Minute
		}
		if tt.name == "drained, so returned" {
			r.Step(&first) // it has been away for a while
		}
		for i := range s.Instances {
			s.Instances[i].Age += 2 * time.Minute
		}
		if got := did(r.Step(s)); got != strings.TrimSuffix(tt.want, "; ") {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
	}
}

// TestShort: a kind of which there is none is left alone for a time that doubles, in a round of
// launches, too, and nothing that serves goes for it meanwhile.
func TestShort(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{gpu: 2}, slots(small, 3)...)
	for i, wait := range []time.Duration{3, 6, 12, 24, 30, 30} {
		got := r.Step(s)
		if len(got.Actions) != 2 || got.Actions[0].Kind != Launch {
			t.Fatalf("time %d: %s", i, did(got))
		}
		r.Failed(got.Actions[0].Slot, IsShort, "InsufficientInstanceCapacity", s.Now)
		if why := r.Waits(gpu, s.Now); why != "InsufficientInstanceCapacity" {
			t.Errorf("the second launch of the round: %q", why)
		}
		want := "held short: g4dn.xlarge: 2 more; held new-first: r5n.large: 3 fewer"
		if got := did(r.Step(s)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if l := r.Lacking(s.Now); len(l) != 1 || l[0].Kind != gpu || l[0].For != wait*time.Minute {
			t.Errorf("lacking %v, want for %v min", l, int(wait))
		}
		s.Now += wait * time.Minute
	}
}

// TestRefusals: without rights, and after calls that give nothing, nothing is launched for a while,
// with a quota used up nothing of the kind.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		failure Failure
		reason  Reason
		wait    time.Duration
	}{
		{Denied, Refused, 30 * time.Second}, {OverQuota, Short, time.Hour},
		{Throttled, Refused, 30 * time.Second}, {Unknown, Refused, 30 * time.Second},
	} {
		r := New(policyOf(6), 0)
		s := situation(map[Kind]int{small: 1})
		slot := r.Step(s).Actions[0].Slot
		r.Failed(slot, tt.failure, "the provider's words", s.Now)
		held := r.Step(s).Held
		if len(held) != 1 || held[0].Reason != tt.reason || held[0].For != tt.wait ||
			held[0].Why != "the provider's words" {
			t.Errorf("%v: held %+v", tt.failure, held)
		}
		s.Now += tt.wait
		again := r.Step(s).Actions
		if len(again) != 1 || again[0].Slot != slot {
			t.Errorf("%v: then %+v, want the same slot", tt.failure, again)
		}
	}
}

// TestRefusalsStay: a refusal that stays is heard again after a wait that doubles, up to ten minutes,
// and after a launch that succeeds the next one waits as briefly as the first.
func TestRefusalsStay(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{small: 1})
	refuse := func(want time.Duration) {
		t.Helper()
		r.Failed(r.Step(s).Actions[0].Slot, Denied, "no rights", s.Now)
		if held := r.Step(s).Held; len(held) != 1 || held[0].For != want {
			t.Fatalf("held %+v, want for %v", held, want)
		}
		s.Now += want
	}
	for _, seconds := range []time.Duration{30, 60, 120, 240, 480, 600, 600} {
		refuse(seconds * time.Second)
	}
	slot := r.Step(s).Actions[0].Slot
	r.Launched(slot, Instance{ID: "i-1", State: Pending}, s.Now)
	s.Desired.Counts = map[Kind]int{small: 2}
	refuse(30 * time.Second)
}

// TestUnansweredCounts: what may have been launched is paid for until it is known.
func TestUnansweredCounts(t *testing.T) {
	r := New(policyOf(0.6), 0)
	s := situation(map[Kind]int{gpu: 1})
	slot := r.Step(s).Actions[0].Slot
	r.Failed(slot, Unknown, "timeout", s.Now)
	s.Desired.Counts = map[Kind]int{small: 1} // another wish, before the provider's list knows
	s.Now += time.Minute
	if got := did(r.Step(s)); got != "held price: r5n.large: 1 more" {
		t.Errorf("got %q", got)
	}
	s.Now += 2 * time.Minute
	if got := did(r.Step(s)); got != "launch r5n.large/on-demand/0/0" {
		t.Errorf("when it is forgotten: %q", got)
	}
}

// TestUnansweredAgain: what may have been launched is paid for as long after the last call that may
// have done it, and a refusal of another call does not say that it was not.
func TestUnansweredAgain(t *testing.T) {
	for _, again := range []Failure{Unknown, Throttled, Denied} {
		r := New(policyOf(0.6), 0)
		s := situation(map[Kind]int{gpu: 1})
		slot := r.Step(s).Actions[0].Slot
		r.Failed(slot, Unknown, "timeout", s.Now)
		if again == Unknown {
			s.Now += 110 * time.Second
		}
		r.Failed(slot, again, "the provider's words", s.Now)
		s.Desired.Counts = nil
		s.Now += time.Minute
		if got := r.Step(s).Price; got != 0.526 {
			t.Errorf("%v: $%v/hr are paid for, want those of the GPU", again, got)
		}
	}
}

// TestSpent: a slot whose instance has ended leads to the next generation.
func TestSpent(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{small: 1})
	for generation := range 3 {
		slot := r.Step(s).Actions[0].Slot
		if slot.Generation != generation {
			t.Fatalf("asks for %s, want generation %d", slot, generation)
		}
		r.Failed(slot, Spent, "", s.Now)
	}
}

// TestEnded: an instance that another tool ends, or that the provider takes, is told once, also if it
// is first seen while it stops.
func TestEnded(t *testing.T) {
	for _, first := range []InstanceState{Stopping, Gone} {
		r := New(policyOf(6), 0)
		s := situation(map[Kind]int{small: 2}, slots(small, 2)...)
		r.Step(s)
		s.Agents[1].Ends = time.Minute
		r.Step(s)
		s.Agents = nil
		become := func(state InstanceState) []string {
			for i := range s.Instances {
				s.Instances[i].State = state
			}
			return r.Step(s).Events
		}
		want := []string{"i-0 (r5n.large/on-demand/0/0) was ended, and not by this leader",
			"i-1 (r5n.large/on-demand/1/0): the provider has taken it back"}
		if got := become(first); !slices.Equal(got, want) {
			t.Errorf("%v: %q, want %q", first, got, want)
		}
		if again := become(Gone); len(again) > 0 {
			t.Errorf("told again: %q", again)
		}
	}
}

// TestDrainsOutOfSight: an instance whose agent drains is not returned as soon as gossip misses
// that, for it may still answer queries, but once it has stayed away. If it ends by itself
// meanwhile, nobody is told that somebody ended it.
func TestDrainsOutOfSight(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{small: 1}, slots(small, 3)...)
	agents := s.Agents
	if got := did(r.Step(s)); got != "drain i-0; held busy: r5n.large: 1 fewer" {
		t.Fatal(got)
	}
	r.Told("i-0", s.Now)
	agents[1].Draining = true // by hand
	for _, away := range []time.Duration{0, time.Second, restart - time.Second, 0, restart} {
		s.Now += away
		if s.Agents = agents[2:]; away == 0 {
			s.Agents = agents
		}
		if got := did(r.Step(s)); got != "" {
			t.Errorf("away for %v: %s", away, got)
		}
		agents[0].Draining = true
	}
	s.Now += time.Second
	if got := did(r.Step(s)); got != "return i-0; return i-1" {
		t.Errorf("both have stayed away: %q", got)
	}
	s.Instances[0].State, s.Instances[1].State = Stopping, Gone
	if got := r.Step(s).Events; len(got) > 0 {
		t.Errorf("told: %q", got)
	}
}

// TestDuds: after two instances in a row whose agents did not join, a kind is left alone.
func TestDuds(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{small: 1})
	for n := range duds {
		slot := r.Step(s).Actions[0].Slot
		i := Instance{ID: fmt.Sprintf("i-%d", n), Slot: slot, By: "us"}
		r.Launched(slot, i, s.Now)
		s.Instances = []Instance{i}
		r.Step(s)
		s.Now += 7 * time.Minute
		s.Instances[0].Age = 7 * time.Minute
		got := r.Step(s)
		if a := got.Actions[0]; a.Kind != Return || a.Why != "its agent has not joined within 6m0s" {
			t.Fatalf("%+v", a)
		}
		r.Returned(got.Actions[0], s.Now)
	}
	want := "the agents of 2 instances in a row did not join"
	if l := r.Lacking(s.Now); len(l) != 1 || l[0].Why != want {
		t.Errorf("lacking %v", l)
	}
}

// TestNotCarriedOut: a step that is not carried out, as one that shows what a paused fleet would
// do, counts no instance as one that was returned because its agent did not join.
func TestNotCarriedOut(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{small: 2}, slots(small, 2)...)
	s.Agents = nil
	r.Step(s)
	for range duds {
		s.Now += 7 * time.Minute
		if got := did(r.Step(s)); !strings.Contains(got, "return i-0; return i-1") {
			t.Fatalf("got %q", got)
		}
	}
	if l := r.Lacking(s.Now); len(l) > 0 {
		t.Errorf("lacking %v, want nothing", l)
	}
}

// TestWorthNothing: what is desired is launched, even where the numbers say that it only harms.
func TestWorthNothing(t *testing.T) {
	s := situation(map[Kind]int{small: 1, gpu: 1})
	calls := 0
	s.Serves = func(counts map[profiles.InstanceType]int) float64 {
		if calls++; calls > 1000 {
			t.Fatal("a step does not end")
		}
		return -100 * float64(counts["r5n.large"]+counts["g4dn.xlarge"])
	}
	const want = "launch g4dn.xlarge/on-demand/0/0; launch r5n.large/on-demand/0/0"
	if got := did(New(policyOf(6), 0).Step(s)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestForgotten: a slot whose instance has ended leads to the next generation also when the
// provider lists that instance no more, and so does one whose instance is never listed: a provider
// that has forgotten an instance gives it once more.
func TestForgotten(t *testing.T) {
	r := New(policyOf(6), 0)
	s := situation(map[Kind]int{}, slots(small, 1)...)
	s.Instances[0].State, s.Agents = Gone, nil
	r.Step(s)
	s.Instances, s.Desired.Counts = nil, map[Kind]int{small: 1}
	for generation := 1; generation < 3; generation++ {
		s.Now += time.Hour
		actions := r.Step(s).Actions
		if len(actions) != 1 || actions[0].Slot.Generation != generation {
			t.Fatalf("%+v, want generation %d", actions, generation)
		}
		r.Launched(actions[0].Slot, Instance{ID: fmt.Sprintf("i-%d", generation), By: "us"}, s.Now)
	}
}
