package baselines

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/latency"
)

const ms = time.Millisecond

// A clinic is a matcher with a baseline's policy and some lanes, all of one shard.
type clinic struct {
	t    *testing.T
	m    *match.Matcher
	now  time.Time
	sent []assignment
}

// An assignment says which query went to which lane.
type assignment struct {
	query uint64
	lane  match.LaneID
}

// newClinic returns one of lanes on which each item takes the given time. The models short and long
// have targets of 100 and 1,000 ms.
func newClinic(t *testing.T, policy string, lanes ...time.Duration) *clinic {
	t.Helper()
	return newClinicOf(t, New(policy), lanes...)
}

func newClinicOf(t *testing.T, newChooser func() match.Chooser, lanes ...time.Duration) *clinic {
	t.Helper()
	m, err := match.New(match.Config{NewChooser: newChooser, Models: []match.Model{
		{Name: "short", QoSTarget: 100 * ms, LargestBatchSize: 10},
		{Name: "long", QoSTarget: time.Second, LargestBatchSize: 10},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := &clinic{t: t, m: m, now: time.Unix(0, 0)}
	for i, item := range lanes {
		laneType := names.LaneType(item.String())
		table, err := match.NewTable(latency.Fixed{PerItem: item}, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, model := range []names.ModelKey{"short", "long"} {
			c.step(match.Event{
				Kind: match.ProfileChanged, Model: model, Type: laneType, Table: table,
			})
		}
		c.step(match.Event{
			Kind: match.LaneJoined, Lane: match.LaneID(i + 1), Type: laneType,
			Models: []names.ModelKey{"short", "long"},
		})
	}
	return c
}

func (c *clinic) step(e match.Event) {
	c.t.Helper()
	decisions, _, err := c.m.Step(c.now, &e)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, d := range decisions {
		if d.Action == match.Assign {
			c.sent = append(c.sent, assignment{d.Query.Sequence, d.Lane})
		}
	}
}

func (c *clinic) submit(query uint64, model names.ModelKey, batch int) {
	c.t.Helper()
	c.step(match.Event{
		Kind: match.Submitted, Query: match.QueryID{Gateway: 1, Sequence: query}, Model: model,
		BatchSize: batch,
	})
}

// ends has a lane end a query after a time.
func (c *clinic) ends(after time.Duration, lane match.LaneID, query uint64) {
	c.t.Helper()
	c.now = c.now.Add(after)
	c.step(match.Event{
		Kind: match.Completed, Lane: lane, Attempt: 1,
		Query: match.QueryID{Gateway: 1, Sequence: query},
	})
}

func (c *clinic) want(all ...assignment) {
	c.t.Helper()
	if !slices.Equal(c.sent, all) {
		c.t.Errorf("got the queries and lanes %v, want %v", c.sent, all)
	}
}

// TestEDF: the query that is due first starts first, late ones last; a query waits for a busy lane
// that ends it before an idle one would.
func TestEDF(t *testing.T) {
	c := newClinic(t, "edf", 5*ms)
	c.submit(1, "long", 10)
	c.submit(2, "long", 1)
	c.submit(3, "short", 1)
	c.ends(50*ms, 1, 1)
	c.ends(5*ms, 1, 3)
	c.want(assignment{1, 1}, assignment{3, 1}, assignment{2, 1})

	c = newClinic(t, "edf", 5*ms)
	c.submit(1, "long", 10)
	c.submit(2, "short", 1)
	c.submit(3, "long", 1)
	c.now = c.now.Add(120 * ms) // query 2 is late by now
	c.step(match.Event{Kind: match.TimePassed})
	c.ends(0, 1, 1)
	c.ends(5*ms, 1, 3)
	c.want(assignment{1, 1}, assignment{3, 1}, assignment{2, 1})

	c = newClinic(t, "edf", 2*ms, 9*ms)
	c.submit(1, "long", 10) // lane 1 is busy for 20 ms
	c.submit(2, "short", 10)
	c.want(assignment{1, 1})
	c.submit(3, "long", 1) // lane 1 has query 2 until 40 ms
	c.want(assignment{1, 1}, assignment{3, 2})
	c.ends(20*ms, 1, 1)
	c.want(assignment{1, 1}, assignment{3, 2}, assignment{2, 1})
}

// TestShortestWork: a query goes to the lane with the least work when it arrives, and stays there.
func TestShortestWork(t *testing.T) {
	c := newClinic(t, "shortest-work", 2*ms, 9*ms)
	c.submit(1, "long", 10)  // lane 1: 20 ms
	c.submit(2, "long", 1)   // lane 2: 9 ms
	c.submit(3, "short", 10) // lane 2: 99 ms
	c.submit(4, "short", 1)  // lane 1: 22 ms
	c.ends(20*ms, 1, 1)
	c.ends(0, 2, 2)
	c.want(assignment{1, 1}, assignment{2, 2}, assignment{4, 1}, assignment{3, 2})
}

// TestTwoChoices: of many lanes two are compared, so work is spread less well than by the shortest
// work, and better than at random.
func TestTwoChoices(t *testing.T) {
	const lanes = 12
	longest := func(policy string) int {
		types := make([]time.Duration, lanes)
		for i := range types {
			types[i] = 5 * ms
		}
		c := newClinic(t, policy, types...)
		for i := range uint64(4 * lanes) {
			c.submit(i+1, "long", 10)
		}
		for i := 0; i < len(c.sent); i++ { // each lane ends what it has, until nothing waits
			c.ends(ms, c.sent[i].lane, c.sent[i].query)
		}
		count, most := map[match.LaneID]int{}, 0
		for _, s := range c.sent {
			count[s.lane]++
			most = max(most, count[s.lane])
		}
		if len(c.sent) != 4*lanes {
			t.Errorf("%s: %d queries went to lanes, want %d", policy, len(c.sent), 4*lanes)
		}
		return most
	}
	if got := longest("shortest-work"); got != 4 {
		t.Errorf("with shortest-work a lane gets up to %d queries, want 4", got)
	}
	if got := longest("two-choices"); got < 5 || got > 8 {
		t.Errorf("with two-choices a lane gets up to %d queries, want 5 to 8", got)
	}
}

// TestInTurn: lanes in the order of their ids, whatever they have.
func TestInTurn(t *testing.T) {
	c := newClinic(t, "round-robin", 2*ms, 9*ms)
	for query := range uint64(4) {
		c.submit(query+1, "long", 1)
	}
	c.ends(2*ms, 1, 1)
	c.ends(7*ms, 2, 2)
	c.want(assignment{1, 1}, assignment{2, 2}, assignment{3, 1}, assignment{4, 2})
}

// TestLeastOutstanding: what lanes have is counted, and its work is not.
func TestLeastOutstanding(t *testing.T) {
	c := newClinic(t, "least-outstanding", 2*ms, 9*ms)
	c.submit(1, "long", 10)
	c.submit(2, "long", 1)
	c.ends(9*ms, 2, 2)
	c.submit(3, "long", 1)
	c.want(assignment{1, 1}, assignment{2, 2}, assignment{3, 2})
}

// TestClockwork: the lane that ends first, or the cheapest one that is in time.
func TestClockwork(t *testing.T) {
	for policy, want := range map[string][]assignment{
		"clockwork-earliest": {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 2}},
		"clockwork-cheapest": {{1, 2}, {2, 1}, {3, 1}, {4, 1}, {5, 1}},
	} {
		c := newClinic(t, policy, 2*ms, 9*ms)
		for query := range uint64(5) {
			c.submit(query+1, "short", 10)
		}
		for i := 0; i < len(c.sent); i++ {
			c.ends(ms, c.sent[i].lane, c.sent[i].query)
		}
		slices.SortFunc(c.sent, func(a, b assignment) int { return int(a.query) - int(b.query) })
		c.want(want...)
	}
}

// TestCapable: in turn among the lanes that would answer in time if they were idle, and among all if
// none would.
func TestCapable(t *testing.T) {
	c := newClinicOf(t, NewCapable("round-robin"), 2*ms, 20*ms)
	c.submit(1, "short", 10) // takes 200 ms on lane 2
	c.submit(2, "short", 10)
	c.submit(3, "short", 1)
	c.ends(20*ms, 1, 1)
	c.want(assignment{1, 1}, assignment{3, 2}, assignment{2, 1})

	c = newClinicOf(t, NewCapable("round-robin"), 20*ms, 30*ms)
	c.submit(1, "short", 10)
	c.submit(2, "short", 10)
	c.want(assignment{1, 1}, assignment{2, 2})
}
