package learn

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/profiles"
)

// TestCatalogueOutlivesMinutes: queries for a family count as demand for its best variant on any
// disk, whether that was ever held or not, for how long not, and under which leader: else a fleet
// that was once too small for the best variant would never be made large enough for it.
func TestCatalogueOutlivesMinutes(t *testing.T) {
	variant := func(name string, accuracy float64) leader.HeldModel {
		return leader.HeldModel{
			ModelID: leader.ModelID{Name: name, Version: 1}, QoSTarget: 100 * time.Millisecond,
			Share: .99, Largest: 100, Family: "rank", Accuracy: accuracy,
		}
	}
	best, fast := variant("best", 1), variant("fast", .98)
	box := func(revision uint64, holds, could []leader.HeldModel) *leader.Member {
		return &leader.Member{
			Name: "w0", Type: "box/cpu/1", OwnType: "box/cpu/1@w0", Lanes: 1, Revision: revision,
			Models: holds, Loadable: could,
		}
	}
	for range 2 { // of two leaders, the second of which has never seen best on a lane
		state, err := leader.NewState(leader.Config{Self: "leader"})
		if err != nil {
			t.Fatal(err)
		}
		learning := New(profiles.NewBook(profiles.ShippedLibrary()))
		term := &catalogueTerm{t: t, state: state, learning: learning}
		term.tell(leader.Event{Kind: leader.GatewayConnected, Gateway: 1})
		term.join(box(1, []leader.HeldModel{fast}, []leader.HeldModel{best}))
		term.ask()
		if got := term.demand(); got != "best/1" {
			t.Errorf("the queries count for %q, want best/1, which is on disk", got)
		}
		for range 15 {
			term.now += ForgetInterval
			models, tables := term.learning.Forget(term.clock())
			term.tell(leader.Event{Kind: leader.Outdated, Models: models, Tables: tables})
		}
		term.ask()
		if got := term.demand(); got != "best/1" {
			t.Errorf("after %v the queries count for %q, want best/1", term.now, got)
		}
		if f := term.state.Families(); len(f) != 1 || f[0].Best != 1 || len(f[0].Variants) != 2 {
			t.Errorf("the families are %+v, want best and fast, and the best's accuracy 1", f)
		}
		// Its file is removed: it is forgotten, with the demand.
		term.join(box(2, []leader.HeldModel{fast}, nil))
		for range 15 {
			term.now += ForgetInterval
			models, tables := term.learning.Forget(term.clock())
			term.tell(leader.Event{Kind: leader.Outdated, Models: models, Tables: tables})
		}
		term.ask()
		if got := term.demand(); got != "fast/1" {
			t.Errorf("best is on no disk, and the queries count for %q, want fast/1", got)
		}
	}
}

// A catalogueTerm is a leader's term: its state, and its learning loop.
type catalogueTerm struct {
	t        *testing.T
	state    *leader.State
	learning *State
	now      time.Duration
	asked    uint64
}

func (c *catalogueTerm) clock() time.Time { return time.Unix(1_000_000, 0).Add(c.now) }

// tell tells the state of an event, and the learning loop what follows.
func (c *catalogueTerm) tell(e leader.Event) {
	c.t.Helper()
	var seen Seen
	for _, a := range c.state.Step(c.now, &e) {
		switch a.Kind {
		case leader.PoolChanged:
			seen.Pool = a.Pool
		case leader.Arrived:
			seen.Arrivals = append(seen.Arrivals, Arrival{a.Model, a.BatchSize, c.clock()})
		}
	}
	advice, _, err := c.learning.Look(c.clock(), seen)
	if err != nil {
		c.t.Fatal(err)
	}
	if advice != nil {
		c.state.Step(c.now, &leader.Event{Kind: leader.Learned, Advice: advice})
	}
}

// join has the fleet consist of a member.
func (c *catalogueTerm) join(m *leader.Member) {
	c.t.Helper()
	c.tell(leader.Event{Kind: leader.ViewChanged, Members: []*leader.Member{m}})
	c.tell(leader.Event{Kind: leader.Described, Member: m})
	c.tell(leader.Event{Kind: leader.Greeted, Agent: m.Name})
}

// ask has queries for the family arrive, and end without an answer.
func (c *catalogueTerm) ask() {
	c.t.Helper()
	for range 50 {
		c.asked++
		c.tell(leader.Event{
			Kind: leader.Submitted, Gateway: 1, Sequence: 4 * c.asked, BatchSize: 10,
			Model: leader.ModelID{Name: "rank"},
		})
		c.tell(leader.Event{Kind: leader.Cancelled, Gateway: 1, Sequence: 4 * c.asked})
		c.now += 100 * time.Millisecond
	}
}

// demand is the model for which queries have arrived in the last minute.
func (c *catalogueTerm) demand() (of names.ModelKey) {
	for _, d := range c.learning.Demand(c.clock()) {
		if d.Rate > 0 {
			of += d.Key()
		}
	}
	return of
}
