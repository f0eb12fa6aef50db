package scaling

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/reproduce/merging"
	"github.com/muster-serve/muster/runtime/lane"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// lanes run queries as Muster's do, by runtime/lane.
// An agent that gets another variant finishes what it has first, and then loads.
type lanes struct {
	*run
	tables [][]*match.LatencyTable // by type and variant; nil: the type cannot run it
	of     []*variantLane          // by agent, the lane that takes queries; nil: there is none
	last   match.LaneID
	tell   teller
	ran    [][]ran // by type and variant
}

// A ran is how long runs have taken, and take by what the fleet says.
type ran struct {
	runs       int
	took, said time.Duration
}

// A teller is told what happens at lanes.
type teller interface {
	joined(l *variantLane)
	// ended: the lane has run the attempt, or rejects it because it would be late.
	ended(a *attempt, rejected bool)
	left(l *variantLane) // takes no more queries
	gone(l *variantLane) // has answered the last one
}

type variantLane struct {
	id                  match.LaneID
	agent, typ, variant int
	state               *lane.State
	class               *lane.Class // nil: it merges nothing
	held                int         // attempts there
	running             []*attempt
	freeAt              time.Duration
	wakeAt              time.Duration // when its state is stepped again; lane.Never: it need not
	retired             bool
}

type attempt struct {
	lane.Query
	id, number int
	on         *variantLane
}

// A lanePredictor predicts what a lane runs by what is known of its variant.
type lanePredictor struct {
	all *lanes
	of  *variantLane
}

// Estimate implements [lane.Estimator].
func (p *lanePredictor) Estimate(_ names.ModelKey, batchSize int) time.Duration {
	return p.all.tables[p.of.typ][p.of.variant].Mean(batchSize)
}

// High implements [lane.Estimator]: the fleet's latencies do not vary.
func (p *lanePredictor) High(profile names.ModelKey, batchSize int) time.Duration {
	return p.Estimate(profile, batchSize)
}

// Observe implements [lane.Estimator].
func (p *lanePredictor) Observe(names.ModelKey, int, time.Duration) {}

// What happens at a lane.
type (
	laneWakes struct{ lane *variantLane }
	laneEnds  struct{ lane *variantLane }
	refused   struct{ attempt *attempt }
	laneJoins struct{ agent, placed int }
)

// known is a fleet's latency of a variant on a type.
type known struct {
	run *run
	of  []time.Duration
}

// Mean implements [match.Latencies].
func (k known) Mean(n int) time.Duration { return k.of[k.run.sizeFor(n)] }

// Quantile is the mean: the fleet's latencies do not vary.
func (k known) Quantile(_ float64, n int) time.Duration { return k.Mean(n) }

func newLanes(r *run, tell teller) (*lanes, error) {
	s := &lanes{run: r, of: make([]*variantLane, len(r.state.Agents)), tell: tell}
	for t := range r.Fleet.Types {
		s.tables = append(s.tables, make([]*match.LatencyTable, len(r.Fleet.Variants)))
		s.ran = append(s.ran, make([]ran, len(r.Fleet.Variants)))
		for v := range r.Fleet.Variants {
			if err := s.tabulate(t, v); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// tabulate makes the table of a variant on a type from what is known of it.
func (s *lanes) tabulate(t, v int) (err error) {
	of := s.state.Latency[t][v]
	sizes := 0
	for sizes < len(of) && of[sizes] > 0 {
		sizes++
	}
	variant := &s.Fleet.Variants[v]
	if s.tables[t][v] == nil &&
		(sizes == 0 || of[0] > s.Fleet.Families[variant.Family].Target) {
		return nil
	}
	largest := s.Fleet.Sizes[sizes-1]
	if !s.Batching.Merges() {
		largest = 1
	}
	known := known{run: s.run, of: slices.Clone(of)}
	if s.tables[t][v], err = match.NewTable(known, largest); err != nil {
		return fmt.Errorf("%s: %w", variant.Model, err)
	}
	return nil
}

// placed makes an agent's lane retire, and one with the new variant join when it is done.
func (s *lanes) placed(agent int) {
	if l := s.of[agent]; l != nil {
		if a := &s.state.Agents[agent]; a.Variant == l.variant && !l.retired {
			return // it keeps what it has
		}
		l.retired = true
		s.tell.left(l)
		if l.held > 0 {
			return
		}
		s.of[agent] = nil
		s.tell.gone(l)
	}
	s.joinsAfter(agent)
}

// joinsAfter makes an agent's new lane join once its variant is loaded.
func (s *lanes) joinsAfter(agent int) {
	a := &s.state.Agents[agent]
	load := s.Load
	if s.now == 0 {
		load = 0 // what is placed at the start is there
	}
	s.push(s.now+load, laneJoins{agent, a.Placed})
}

func (s *lanes) join(x laneJoins) {
	a := &s.state.Agents[x.agent]
	if a.Placed != x.placed || a.Variant < 0 || s.tables[a.Type][a.Variant] == nil {
		return
	}
	s.last++
	table := s.tables[a.Type][a.Variant]
	l := &variantLane{
		id: s.last, agent: x.agent, typ: a.Type, variant: a.Variant, wakeAt: lane.Never,
	}
	l.state = lane.New(lane.Config{
		Lanes: 1, Cores: 1, MaxWaiting: math.MaxInt, MaxWaitingBytes: math.MaxInt64,
		Estimator: &lanePredictor{s, l},
	})
	if s.Batching.Merges() {
		l.class = &lane.Class{
			Kind: merge.Kind{
				Policy: s.Batching, Rule: merging.New(s.Batching), Latency: table,
				Largest: table.Largest(),
			},
		}
	}
	s.of[x.agent] = l
	s.tell.joined(l)
}

// send has a query come to a lane.
func (s *lanes) send(l *variantLane, id, number int, group merge.GroupID) {
	q := &s.queries[id]
	a := &attempt{id: id, number: number, on: l}
	a.Query = lane.Query{
		Owner: a, BatchSize: 1, Arrival: q.at, QoSTarget: q.due - q.at, RejectLate: true,
		Class: l.class, Group: group,
	}
	l.held++
	s.state.Agents[l.agent].Holds++
	s.step(l, lane.Event{Kind: lane.Arrived, Query: &a.Query})
}

// step tells a lane what has happened, and carries out what is to be done.
func (s *lanes) step(l *variantLane, e lane.Event) {
	actions, wakeAt := l.state.Step(s.now, e)
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case lane.Start:
			s.start(l, a.Query, a.Run)
		case lane.Refuse: // whoever sends a query is not to hear of it meanwhile
			s.push(s.now, refused{a.Query.Owner.(*attempt)})
		}
	}
	if wakeAt < l.wakeAt {
		l.wakeAt = wakeAt
		s.push(wakeAt, laneWakes{l})
	}
}

// handle handles what happens at lanes.
func (s *lanes) handle(e event) {
	switch x := e.what.(type) {
	case laneJoins:
		s.join(x)
	case laneWakes:
		x.lane.wakeAt = lane.Never
		s.step(x.lane, lane.Event{Kind: lane.TimePassed})
	case laneEnds:
		s.end(x.lane)
	case refused:
		s.late(x.attempt)
	}
}

// start starts a run of a query, or of several.
func (s *lanes) start(l *variantLane, first *lane.Query, run *lane.Run) {
	l.running = append(l.running[:0], first.Owner.(*attempt))
	if run != nil {
		for _, q := range run.Members[1:] {
			l.running = append(l.running, q.Owner.(*attempt))
		}
	}
	size := s.sizeFor(len(l.running))
	took := s.latency(l.typ, l.variant, size)
	ran := &s.ran[l.typ][l.variant]
	ran.runs, ran.took = ran.runs+1, ran.took+took
	ran.said += s.Fleet.Latency[l.typ][l.variant][size]
	l.freeAt = s.now + took
	s.push(l.freeAt, laneEnds{l})
}

func (s *lanes) end(l *variantLane) {
	ended := slices.Clone(l.running)
	l.running = l.running[:0]
	for _, a := range ended {
		s.finish(a.id, l.variant, false)
		s.release(l)
	}
	first := &ended[0].Query
	s.step(l, lane.Event{
		Kind: lane.RunEnded, Query: first, Execution: s.now - first.Started(),
	})
	s.leaveIfEmpty(l)
	for _, a := range ended {
		s.tell.ended(a, false)
	}
}

// release notes that a lane holds an attempt less.
func (s *lanes) release(l *variantLane) {
	l.held--
	if s.of[l.agent] == l {
		s.state.Agents[l.agent].Holds--
	}
}

// late handles that a lane has given up a query that would be late.
func (s *lanes) late(a *attempt) {
	s.release(a.on)
	s.finish(a.id, -1, false)
	s.tell.ended(a, true)
	s.leaveIfEmpty(a.on)
}

// leaveIfEmpty lets a retired lane go that holds nothing.
func (s *lanes) leaveIfEmpty(l *variantLane) {
	if l.retired && l.held == 0 && s.of[l.agent] == l {
		s.of[l.agent] = nil
		s.tell.gone(l)
		s.joinsAfter(l.agent)
	}
}

// remaining is how long a lane is busy with what it has; what runs ends when it will.
func (s *lanes) remaining(l *variantLane) time.Duration {
	d := l.state.WaitingWork()
	if len(l.running) > 0 {
		d += max(0, l.freeAt-s.now)
	}
	return d
}

// A drawn system is a rival on Muster's lanes.
type drawn struct{ *lanes }

func newDrawn(r *run) (*drawn, error) {
	d := &drawn{}
	var err error
	d.lanes, err = newLanes(r, d)
	return d, err
}

func (d *drawn) arrived(id int) {
	agent := d.Rival.Route(d.state, d.queries[id].family, d.rng)
	d.run.sync()
	if agent >= 0 {
		l := d.of[agent]
		if l != nil && d.Fleet.Variants[l.variant].Family == d.queries[id].family {
			d.send(l, id, 1, merge.GroupID{})
			return
		}
	}
	d.finish(id, -1, false)
}

func (d *drawn) handle(e event)       { d.lanes.handle(e) }
func (d *drawn) joined(*variantLane)  {}
func (d *drawn) ended(*attempt, bool) {}
func (d *drawn) left(*variantLane)    {}
func (d *drawn) gone(*variantLane)    {}
