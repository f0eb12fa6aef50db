package scaling

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/runtime/queue"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// lanes run queries as Muster's do: in the order of runtime/queue, merged by runtime/queue/merge.
// An agent that gets another variant finishes what it has first, and then loads.
type lanes struct {
	*run
	tables [][]*match.Table // by type and variant; nil: the type cannot run it
	of     []*lane          // by agent, the lane that takes queries; nil: there is none
	taker  merge.Taker[*attempt]
	groups merge.Groups
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
	joined(l *lane)
	// ended: the lane has run the attempt, or rejects it because it would be late.
	ended(a *attempt, rejected bool)
	left(l *lane) // takes no more queries
	gone(l *lane) // has answered the last one
}

type lane struct {
	id                  match.LaneID
	agent, typ, variant int
	queue               queue.Queue[*attempt]
	kind                *merge.Kind
	running             []*attempt
	freeAt              time.Duration
	startsAt            time.Duration
	retired             bool
}

type attempt struct {
	queue.Place
	id, number int
	lane       *lane
	group      *merge.Group
}

// Merging implements [merge.Query].
func (a *attempt) Merging() (kind *merge.Kind, batch int, group *merge.Group) {
	return a.lane.kind, 1, a.group
}

// What happens at a lane.
type (
	laneStarts  struct{ lane *lane }
	laneEnds    struct{ lane *lane }
	becomesLate struct{ attempt *attempt }
	laneJoins   struct{ agent, placed int }
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
	s := &lanes{run: r, of: make([]*lane, len(r.state.Agents)), tell: tell}
	for t := range r.Fleet.Types {
		s.tables = append(s.tables, make([]*match.Table, len(r.Fleet.Variants)))
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
		if len(l.running) > 0 || l.queue.Len() > 0 {
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
	l := &lane{id: s.last, agent: x.agent, typ: a.Type, variant: a.Variant}
	if s.Batching.Merges() {
		l.kind = &merge.Kind{Policy: s.Batching, Latency: table, Largest: table.Largest()}
	}
	s.of[x.agent] = l
	s.tell.joined(l)
}

// send puts a query into a lane's queue.
func (s *lanes) send(l *lane, id, number int, group merge.GroupID) {
	q := &s.queries[id]
	a := &attempt{id: id, number: number, lane: l}
	a.Estimate = s.tables[l.typ][l.variant].Mean(1)
	a.LatestStart = queue.LatestStart(q.at, q.due-q.at, a.Estimate)
	s.state.Agents[l.agent].Holds++
	l.queue.Push(a, s.now)
	if l.kind != nil {
		l.kind.Enter(1, a.Estimate)
		a.group = s.groups.Arrive(group, s.now, a.LatestStart)
	}
	s.push(a.LatestStart+1, becomesLate{a})
	if len(l.running) == 0 {
		s.startAt(l, s.now)
	}
}

func (s *lanes) startAt(l *lane, at time.Duration) {
	if l.startsAt > 0 && l.startsAt <= at+1 {
		return
	}
	l.startsAt = at + 1
	s.push(at, laneStarts{l})
}

// handle handles what happens at lanes.
func (s *lanes) handle(e event) {
	switch x := e.what.(type) {
	case laneJoins:
		s.join(x)
	case laneStarts:
		s.start(x.lane)
	case laneEnds:
		s.end(x.lane)
	case becomesLate:
		s.late(x.attempt)
	}
}

func (s *lanes) start(l *lane) {
	if l.startsAt <= s.now+1 {
		l.startsAt = 0
	}
	if len(l.running) > 0 {
		return
	}
	run, until := s.taker.Take(&l.queue, s.now)
	if len(run) == 0 {
		if until != merge.Never {
			s.startAt(l, until)
		} else {
			s.empty(l)
		}
		return
	}
	l.running = append(l.running[:0], run...)
	if l.kind != nil {
		for _, a := range run {
			l.kind.Leave(1, a.Estimate)
		}
	}
	size := s.sizeFor(len(run))
	took := s.latency(l.typ, l.variant, size)
	ran := &s.ran[l.typ][l.variant]
	ran.runs, ran.took = ran.runs+1, ran.took+took
	ran.said += s.Fleet.Latency[l.typ][l.variant][size]
	l.freeAt = s.now + took
	s.push(l.freeAt, laneEnds{l})
}

func (s *lanes) end(l *lane) {
	ended := slices.Clone(l.running)
	l.running = l.running[:0]
	late := false
	for _, a := range ended {
		s.finish(a.id, l.variant, false)
		late = late || s.now > s.queries[a.id].due
		s.groups.Leave(a.group)
		s.holds(l, -1)
	}
	if l.kind != nil {
		l.kind.Ran(len(ended), late)
	}
	s.start(l)
	for _, a := range ended {
		s.tell.ended(a, false)
	}
}

func (s *lanes) holds(l *lane, d int) {
	if s.of[l.agent] == l {
		s.state.Agents[l.agent].Holds += d
	}
}

// late makes a lane give up a query that would be late.
func (s *lanes) late(a *attempt) {
	if !a.Waits() || a.LatestStart >= s.now {
		return
	}
	l := a.lane
	l.queue.Remove(a)
	if l.kind != nil {
		l.kind.Leave(1, a.Estimate)
	}
	s.groups.Leave(a.group)
	s.holds(l, -1)
	s.finish(a.id, -1, false)
	s.tell.ended(a, true)
	if len(l.running) == 0 {
		s.startAt(l, s.now)
	}
}

// empty lets a retired lane go.
func (s *lanes) empty(l *lane) {
	if l.retired && s.of[l.agent] == l {
		s.of[l.agent] = nil
		s.tell.gone(l)
		s.joinsAfter(l.agent)
	}
}

// remaining is how long a lane is busy with what it has.
func (s *lanes) remaining(l *lane) time.Duration {
	d := l.queue.Estimate()
	if l.kind != nil {
		d -= l.kind.Saved()
	}
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
func (d *drawn) joined(*lane)         {}
func (d *drawn) ended(*attempt, bool) {}
func (d *drawn) left(*lane)           {}
func (d *drawn) gone(*lane)           {}
