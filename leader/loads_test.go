package leader

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// askWith is ask for a client with a right to have models loaded.
func (in *told) askWith(share float64, seq uint64, model ModelID, least float64) *Action {
	in.t.Helper()
	for _, a := range in.tell(Event{
		Kind: Submitted, Gateway: 1, Sequence: seq, Model: model, BatchSize: 10,
		LeastAccuracy: least, LoadShare: share,
	}) {
		if a.Kind <= Split {
			return &a
		}
	}
	return nil
}

// TestNeedsLoad: a query that only what is on a disk may answer is refused with what could be loaded
// and by whom, unless its client may have models loaded: then it waits, and is answered once an
// agent holds that. What is on no disk is refused as unknown.
func TestNeedsLoad(t *testing.T) {
	family, best, none := ModelID{Name: "f"}, ModelID{Name: "best"}, ModelID{Name: "none"}
	for _, c := range []struct {
		model   ModelID
		least   float64
		share   float64
		waits   bool   // for a load
		refused string // how the reason begins; "" is not refused
		could   bool
	}{
		{family, 0, 0, false, "", false},
		{family, .9, .1, false, "", false},
		{family, .95, 0, false, "no agent holds a variant of f of accuracy 0.95; best has 1, and " +
			"w0, w1, w2 and 1 more could load it", true},
		{family, .95, .1, true, "", false},
		{best, 0, 0, false, "no agent holds model best, and w0, w1, w2 and 1 more could load it",
			true},
		{best, 0, .1, true, "", false},
		{best, 1, .1, true, "", false},
		{none, 0, .1, false, "no member of the fleet holds the model", false},
	} {
		t.Run(fmt.Sprintf("%s of %v with %v", c.model.Name, c.least, c.share), func(t *testing.T) {
			in := newTold(t)
			in.tell(Event{Kind: GatewayConnected, Gateway: 1})
			var all []*Member
			for i := range 4 {
				m := holder(fmt.Sprintf("w%d", i), "fast/1=.9")
				m.Loadable = holder("", "best/1=1").Models
				all = append(all, m)
			}
			in.join(all...)
			a := in.askWith(c.share, 4, c.model, c.least)
			switch {
			case c.waits && a != nil:
				t.Fatalf("got %+v, want that it waits", a)
			case c.refused != "":
				if a == nil || a.Kind != Reject || !strings.HasPrefix(a.Message, c.refused) ||
					(a.Loadable == ModelID{"best", 1}) != c.could {
					t.Fatalf("got %+v, want a refusal: %s", a, c.refused)
				}
				if held := in.Sizes()["queries"]; held != 0 {
					t.Errorf("the state keeps %d queries, want none", held)
				}
				return
			case !c.waits:
				if a == nil || a.Kind != Assign || a.Model.Name != "fast" {
					t.Fatalf("got %+v, want that fast answers", a)
				}
				return
			}
			loads := holder("w3", "fast/1=.9", "best/1=1")
			loads.Revision = 1
			if n, _ := in.Waiting(); n != 1 {
				t.Errorf("%d queries wait, want 1", n)
			}
			in.join(append(all[:3:3], loads)...)
			if n, _ := in.Waiting(); n != 0 || len(in.Holds("w3", 0)) != 1 {
				t.Errorf("w3 holds best, and %d queries wait", n)
			}
		})
	}
}

// TestWaitsForLoad: a query without a deadline waits 5 s for a load, also from leader to leader, and
// one with a deadline until that.
func TestWaitsForLoad(t *testing.T) {
	for name, c := range map[string]struct{ timeLeft, waited, want time.Duration }{
		"without a deadline": {0, 0, loadPatience},
		"with one":           {30 * time.Second, 0, 30 * time.Second},
		"from another":       {0, 2 * time.Second, loadPatience - 2*time.Second},
	} {
		in := newTold(t)
		in.tell(Event{Kind: GatewayConnected, Gateway: 1})
		m := holder("w0", "fast/1=.9")
		m.Loadable = holder("", "best/1=1").Models
		in.join(m)
		began := in.now
		in.tell(Event{
			Kind: Submitted, Gateway: 1, Sequence: 4, Model: ModelID{Name: "f"}, BatchSize: 10,
			LeastAccuracy: 1, LoadShare: .1, TimeLeft: c.timeLeft, Waited: c.waited,
		})
		for in.Sizes()["queries"] > 0 && in.now < began+time.Minute {
			for _, a := range in.pass(100 * time.Millisecond) {
				if a.Kind == Reject && a.Decision.Reason != match.DeadlinePassed {
					t.Errorf("%s: refused with %v", name, a.Decision.Reason)
				}
			}
		}
		if took := in.now - began; took < c.want || took > c.want+200*time.Millisecond {
			t.Errorf("%s: the query waited %v, want %v", name, took, c.want)
		}
	}
}

// TestDemandClasses: queries that only some variants may answer, of clients that may have models
// loaded, are counted as demand of their own, held or not, until none has come for a while.
func TestDemandClasses(t *testing.T) {
	in := newTold(t)
	in.tell(Event{Kind: GatewayConnected, Gateway: 1})
	m := holder("w0", "fast/1=.9")
	m.Loadable = holder("", "best/1=1", "good/1=.97").Models
	in.join(m)
	for i, q := range []struct {
		model        string
		least, share float64
	}{
		{"f", 0, .2}, {"f", .9, .2}, // all may answer
		{"f", .95, .2}, {"f", .96, .2}, // good and best
		{"f", .98, .3}, // best
		{"best", 0, .3}, {"f", .99, 0},
	} {
		in.askWith(q.share, uint64(4*(i+1)), ModelID{Name: q.model}, q.least)
	}
	good, best := ModelID{"good", 1}, ModelID{"best", 1}
	want := []ClassCount{
		{[]ModelID{best}, .3, 1}, {[]ModelID{best}, .3, 1}, {[]ModelID{best, good}, .2, 2},
	}
	counts := in.FamilyCounts()
	i := slices.IndexFunc(counts, func(c FamilyCount) bool { return c.Name == "f" })
	if i < 0 || !slices.EqualFunc(counts[i].Classes, want, func(a, b ClassCount) bool {
		return slices.Equal(a.Models, b.Models) && a.Share == b.Share && a.Arrived == b.Arrived
	}) {
		t.Fatalf("got %+v, want classes %+v", counts, want)
	}
	// best by its name and as a variant are two classes; the query without the right is none, and
	// no demand at all.
	if counts[i].Arrived != 6 {
		t.Errorf("%d queries have arrived, want 6", counts[i].Arrived)
	}
	in.now += keepClass
	in.tell(Event{Kind: TimePassed})
	for _, c := range in.FamilyCounts() {
		if len(c.Classes) > 0 {
			t.Errorf("after %v without a query: %+v", keepClass, c)
		}
	}
}
