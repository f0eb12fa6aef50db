package match

import (
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A byTurn queues queries at lanes in turn, and notes what it is shown.
type byTurn struct {
	t       *testing.T
	arrived int
}

func (p *byTurn) QueryArrived(v View, q WaitingQuery) {
	var lanes []UsableLane
	for l := range v.UsableLanes() {
		lanes = append(lanes, l)
	}
	if len(lanes) == 0 {
		return
	}
	v.Enqueue(q, lanes[p.arrived%len(lanes)])
	p.arrived++
}

func (p *byTurn) Choose(v View) {
	for l := range v.UsableLanes() {
		for q := range l.Queued() {
			took, ok := l.Latency(q, l.Start())
			if !ok || took <= 0 || q.Asked() != "m" || q.QoSTarget() != 100*time.Millisecond ||
				q.TimeLeft() > q.QoSTarget() {
				p.t.Errorf("lane %d takes %v (%v) for a query of %q with %v of %v left", l.ID(),
					took, ok, q.Asked(), q.TimeLeft(), q.QoSTarget())
			}
			if open := l.IsOpen(); v.Assign(q, l) != open {
				p.t.Errorf("lane %d is open: %v, but the assignment did the other", l.ID(), open)
			}
		}
	}
}

// TestChooser: the matcher carries out what a policy from outside chooses, and has it choose anew
// for a query whose lane goes.
func TestChooser(t *testing.T) {
	policy := &byTurn{t: t}
	m, err := New(Config{
		Models:     []Model{{Name: "m", QoSTarget: 100 * time.Millisecond, LargestBatchSize: 1}},
		NewChooser: func() Chooser { return policy },
	})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(fixedLatency(10*time.Millisecond), 1)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	var sent []LaneID
	step := func(e Event) {
		t.Helper()
		decisions, _, err := m.Step(now, &e)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range decisions {
			if d.Action == Assign {
				sent = append(sent, d.Lane)
			}
		}
	}
	step(Event{Kind: ProfileChanged, Model: "m", Type: "t", Table: table})
	for lane := range LaneID(2) {
		step(Event{Kind: LaneJoined, Lane: lane + 1, Type: "t", Models: []names.ModelKey{"m"}})
	}
	for i := range uint64(4) { // two wait, one at each lane
		step(Event{
			Kind: Submitted, Query: QueryID{Gateway: 1, Sequence: i + 1}, Model: "m", BatchSize: 1,
		})
	}
	step(Event{Kind: LaneLost, Lane: 2}) // its query, and the one that waits for it, go to lane 1
	for i := range 5 {
		now = now.Add(10 * time.Millisecond)
		step(Event{
			Kind: Completed, Lane: 1, Query: m.all[0].held[0].query,
			Attempt: m.all[0].held[0].attempt,
		})
		if len(m.queries) == 0 {
			break
		}
		if i == 4 {
			t.Fatal("queries are left after four answers")
		}
	}
	if want := []LaneID{1, 2, 1, 1, 1}; !slices.Equal(sent, want) {
		t.Errorf("queries went to lanes %v, want %v", sent, want)
	}
}

// drawnQueues queues each query at a lane that it draws among those that serve the query.
type drawnQueues struct{}

func (drawnQueues) QueryArrived(v View, q WaitingQuery) {
	var serve, last []UsableLane // those that serve it, and of these those that end after it does
	for l := range v.UsableLanes() {
		if l.Serves(q) {
			serve = append(serve, l)
		}
		if _, ok := l.Latency(q, l.Start()+l.QueuedWork()); ok {
			last = append(last, l)
		}
	}
	if len(last) > 0 {
		serve = last
	}
	if len(serve) > 0 {
		v.Enqueue(q, serve[v.Rand().IntN(len(serve))])
	}
}

func (drawnQueues) Choose(v View) {
	for l := range v.UsableLanes() {
		for q := range l.Queued() {
			if !l.IsOpen() {
				break
			}
			v.Assign(q, l)
		}
	}
}
