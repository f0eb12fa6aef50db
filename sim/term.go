package sim

import (
	"fmt"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/fleet"
)

// A term is the leadership of a run without faults: the leader's state and the code that passes
// events to it and carries out its actions. Each lane belongs to a member of its own, and none
// fails.
type term struct {
	*run
	state     *leader.State
	rec       *leader.Recorder          // nil: not recorded
	gateways  uint64                    // number of gateways, which submit in turn
	members   []*leader.Member          // by lane
	lane      map[names.AgentName]int32 // by the member's name
	models    []leader.ModelID          // by variant
	described []leader.Model            // by variant
	event     leader.Event              // the last event
	glance    leader.Glance
}

// newTerm returns a term whose state knows the run's latencies, prices and lanes.
func newTerm(r *run) (*term, error) {
	// The state starts with the true way to the lanes, as if a former leader had learned it.
	cfg := leader.Config{
		Policy: r.cfg.Policy, Threshold: r.cfg.Threshold, Seed: r.cfg.Seed, Ahead: r.cfg.RTT,
	}
	t := &term{run: r, gateways: uint64(r.cfg.gateways()), lane: map[names.AgentName]int32{}}
	var err error
	if t.state, err = leader.New(cfg); err != nil {
		return nil, err
	}
	if r.cfg.Record != nil {
		if t.rec, err = leader.NewRecorder(r.cfg.Record, &cfg); err != nil {
			return nil, fmt.Errorf("write recording: %w", err)
		}
	}
	advice := &leader.Advice{
		Limit: r.splitLimit.Rate, Prices: fleet.Versioned(r.splitLimit.Prices), Priced: true,
	}
	models := make([]leader.Model, len(r.variants))
	for i := range r.variants {
		v, m := &r.variants[i], &r.models[r.modelOf(i)]
		id := leader.ModelID{Name: v.Name, Version: 1}
		t.models = append(t.models, id)
		models[i] = leader.Model{
			ModelID: id, QoSTarget: m.QoSTarget, Share: m.qosShare(),
			Largest: m.BatchSizes.Largest(), RejectLate: m.RejectLate, Splits: m.Splits,
			Merge: string(r.cfg.Merge), Family: v.family,
		}
		if v.family != "" {
			models[i].Accuracy = v.Accuracy
		}
		known := make([]bool, len(r.types))
		lanes := r.lanes
		if r.cfg.Placement != nil {
			lanes = r.known
		}
		for _, l := range lanes {
			table := l.predicted[i]
			if table == nil || known[l.instanceType] {
				continue
			}
			known[l.instanceType] = true
			key := names.TableKey{
				Model: id.Key(), Type: names.LaneType(r.types[l.instanceType]),
			}
			advice.Latencies = append(advice.Latencies, &leader.Latency{
				TableKey: key, Table: table,
			})
		}
	}
	t.described = models
	number := make([]int, len(r.types))
	for id := range r.lanes {
		k := r.lanes[id].instanceType
		number[k]++
		m := &leader.Member{
			Name: names.AgentName(fmt.Sprintf("%s-%d", r.types[k], number[k])),
			Type: names.LaneType(r.types[k]), Lanes: 1,
		}
		m.OwnType = m.Type.Own(m.Name)
		for i, table := range r.lanes[id].predicted {
			if table != nil && r.lanes[id].holds(r.variants[i].Name) {
				m.Models = append(m.Models, t.holding(m, i))
			}
		}
		t.members, t.lane[m.Name] = append(t.members, m), int32(id)
		t.step(&leader.Event{Kind: leader.Described, Member: m})
	}
	t.step(&leader.Event{Kind: leader.Learned, Advice: advice})
	for g := range t.gateways {
		t.step(&leader.Event{Kind: leader.GatewayConnected, Gateway: 1 + g})
	}
	t.step(&leader.Event{Kind: leader.TimePassed})
	return t, r.err
}

// about returns an event about a query.
func (t *term) about(kind leader.Kind, seq uint64) *leader.Event {
	t.event = leader.Event{Kind: kind, Gateway: 1 + seq/numbering%t.gateways, Sequence: seq}
	return &t.event
}

// submitted passes a query's submit to the state, half a round trip after the query's arrival.
func (t *term) submitted(seq uint64) {
	q := t.at(seq)
	e := t.about(leader.Submitted, seq)
	e.Model.Name, e.BatchSize = t.asks(q), int(q.batch)
	e.Splits = t.run.models[q.model].Splits
	if t.cfg.Deadline > 0 {
		e.TimeLeft = max(1, q.arrival+t.cfg.Deadline-t.now)
	}
	t.step(e)
}

// ended passes the end of an attempt to the state, half a round trip after it.
func (t *term) ended(a *attempt, refused bool) {
	q := t.at(a.query)
	e := t.about(leader.Completed, a.query)
	e.Agent, e.Attempt, e.Refused = t.members[a.lane].Name, int(a.number), refused
	e.Remaining = a.remains
	if !refused {
		e.Model, e.BatchSize = t.models[a.variant], int(q.batch)
		e.Execution, e.Queue = a.end-a.start, a.start-a.cameAt
		if e.Merged = a.merged; a.merged > 0 && a.joined {
			e.Execution, e.Queue = 0, a.end-a.cameAt
		}
		e.Latency = a.end - q.arrival
	}
	t.step(e)
}

// cancelled tells the state that a gateway has decided a query's outcome.
func (t *term) cancelled(seq uint64) { t.step(t.about(leader.Cancelled, seq)) }

// passed steps the state at the time for which it asked.
func (t *term) passed() {
	t.event = leader.Event{Kind: leader.TimePassed}
	t.step(&t.event)
}

// step steps the state and carries out its actions.
func (t *term) step(e *leader.Event) {
	var before time.Duration
	if t.cfg.Clock != nil {
		before = t.cfg.Clock()
	}
	actions := t.state.Step(t.now, e)
	if t.cfg.Clock != nil {
		t.cost += t.cfg.Clock() - before
	}
	t.steps++
	if t.rec != nil {
		if err := t.rec.Step(t.now, e, actions); err != nil {
			t.fail(fmt.Errorf("write recording: %w", err))
			return
		}
	}
	t.wakeAt = max(t.now, t.state.Next())
	if e.Kind == leader.TimePassed {
		t.wakeAt = max(t.wakeAt, t.now+1) // so that virtual time advances
	}
	for i := range actions {
		t.carryOut(&actions[i])
	}
}

func (t *term) carryOut(a *leader.Action) {
	switch a.Kind {
	case leader.Assign, leader.Reject, leader.OfferAgain, leader.Split:
	case leader.Nonsense:
		t.fail(fmt.Errorf("the leader at %v: an event makes no sense: %s", t.now, a.Message))
		return
	default: // a lane asked what it holds need not answer: no message is lost
		if t.placed != nil {
			t.placed.Acts(t.now, a)
		}
		return
	}
	d := &a.Decision
	seq := d.Query.Sequence
	if seq < t.first || seq >= t.next {
		t.fail(fmt.Errorf("the leader at %v: decides about query %d, which it does not hold", t.now,
			seq))
		return
	}
	q := t.at(seq)
	if a.Kind == leader.Assign {
		q.variant = t.variantOf[a.Model.Name]
	}
	if !q.live { // its gateway has decided, and the leader does not know yet
		if a.Kind == leader.Assign {
			t.dispatch(seq, t.lane[a.Agent], t.cfg.RTT, merge.GroupID{})
		}
		return
	}
	switch a.Kind {
	case leader.Assign:
		to, known := t.lane[a.Agent]
		if !q.waits || d.Attempt != int(q.sent)+1 || !known {
			t.fail(
				fmt.Errorf("the leader at %v: assigns query %d to %s as attempt %d; it waits: %v, "+
					"and has been sent %d times", t.now, seq, a.Agent, d.Attempt, q.waits, q.sent))
			return
		}
		t.dispatch(seq, to, t.cfg.RTT, merge.GroupID{Number: d.Merge, Queries: d.Merged})
	case leader.Reject:
		outcome := Rejected
		if d.Reason == match.DeadlinePassed {
			outcome = Dropped
		}
		if !q.waits { // the attempt under way goes on
			return
		}
		t.finish(seq, q, outcome, nil)
	case leader.OfferAgain: // an attempt under way goes on until there is another
		if q.waits || d.Attempt != int(q.sent) {
			t.fail(
				fmt.Errorf(
					"the leader at %v: offers query %d again after attempt %d; it waits: %v, "+
						"and has been sent %d times", t.now, seq, d.Attempt, q.waits, q.sent))
			return
		}
		t.setWaits(seq, true)
	case leader.Split:
		t.split(seq, d.Rows)
	}
}
