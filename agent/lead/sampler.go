package lead

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/beat"
	"github.com/muster-serve/muster/leader/staffing"
)

// beatEvery is the time between two beats.
const beatEvery = time.Second

// sampler makes the beats of a term. Once a second, the term's loop hands over what it has counted,
// and the goroutine of run makes a message of that. So viewers cost the leader nothing.
type sampler struct {
	term  *term
	taken chan second // of size 1

	// The loop owns these.
	counts *beat.Counts
	last   time.Duration // when the counts began

	latest atomic.Pointer[leader.Glance] // of the last beat; nil: none was made

	// run owns these.
	meter    *beat.Meter
	before   map[leader.ModelID]leader.ModelGlance // of the second before
	revision uint64
	fleet    *control.Fleet
	members  []*control.Member  // that fleet is of
	factors  map[string]float64 // that fleet is of
	paid     map[string]float64 // that fleet is of
	models   map[names.ModelKey]int
	types    map[string]int
	offsets  map[names.AgentName]int // of an agent's first lane
}

// A second is what the loop hands over.
type second struct {
	counts *beat.Counts
	glance *leader.Glance
	passed time.Duration
	missed *control.MissedQueries
}

func newBeating(t *term) *sampler {
	return &sampler{
		term: t, taken: make(chan second, 1), counts: beat.NewCounts(nil),
		meter: beat.NewMeter(), before: map[leader.ModelID]leader.ModelGlance{},
		// beyond those of earlier epochs, and half of them for agents that see no leader
		revision: t.claim.Epoch << 20,
	}
}

// glance returns the state as of the last beat. The caller must not change it.
func (s *sampler) glance() *leader.Glance {
	if g := s.latest.Load(); g != nil {
		return g
	}
	return &leader.Glance{}
}

// countDecision counts a decision if it is an assignment. The loop calls it.
func (s *sampler) countDecision(a *leader.Action) {
	if a.Kind != leader.Assign {
		return
	}
	typ := s.term.described[a.Agent].GetInstanceType()
	s.counts.Decided(typ, a.Model, a.BatchSize, a.Decision.Slack < 0)
}

// countCompletion counts an answer. The loop calls it.
func (s *sampler) countCompletion(agent names.AgentName, c *control.Completed) {
	if c.GetRefused() != "" || s.term.described[agent].GetLanes() <= c.GetLane() {
		return
	}
	id := leader.ModelID{Name: c.GetModel(), Version: c.GetVersion()}
	if !s.term.state.Knows(id) {
		return
	}
	s.counts.Answered(agent, int(c.GetLane()), id, control.Duration(c.GetExecutionNs()),
		control.Duration(c.GetLatencyNs()))
}

// handOverCounts hands over the counts of a second that is over. The loop calls it whenever it has
// done something, which is more often than each second. If run has not taken the second before, the
// counts go on.
func (s *sampler) handOverCounts(now time.Duration) {
	if now < s.last+beatEvery || len(s.taken) == cap(s.taken) {
		return
	}
	g := &leader.Glance{}
	s.term.state.Glance(g)
	s.term.missed.countEnded(g)
	missed := s.term.missed.summary(0)
	s.taken <- second{s.counts, g, now - s.last, missed} // there is room, and nobody else sends
	s.counts, s.last = beat.NewCounts(s.counts), now.Truncate(beatEvery)
}

// run makes a beat of each second, until ctx ends.
func (s *sampler) run(ctx context.Context) {
	defer s.term.leader.metrics.factorsAre(nil)
	for {
		select {
		case x := <-s.taken:
			s.term.leader.config.Beat(s.makeSample(x))
		case <-ctx.Done():
			return
		}
	}
}

// makeSample returns the message of a second, with the fleet, which is the same as before if that
// has not changed.
func (s *sampler) makeSample(x second) *control.PulseMessage {
	s.describeFleet(x.glance)
	out := &control.PulseMessage{Fleet: s.fleet}
	lanes, serving := map[names.AgentName]int{}, 0
	for i := range x.glance.Lanes {
		l := &x.glance.Lanes[i]
		lanes[l.Agent] = max(lanes[l.Agent], l.Lane+1)
		if !l.Draining {
			serving++
		}
	}
	s.meter.Take(x.counts, x.passed, lanes)
	unknown := math.NaN()
	known := func(v float64) float64 {
		if v > 0 {
			return v
		}
		return unknown
	}
	g := x.glance
	s.latest.Store(g)
	row := &control.Row{
		Beats: 1, Rate: g.Rate, Limit: known(g.Limit),
		Allowable: known(g.Limit * staffing.SafeShare(float64(serving))),
		Price:     s.fleet.Price(), Waiting: uint32(g.Waiting), WaitingLate: uint32(g.WaitingLate),
	}
	b := &control.Beat{
		Fleet: s.revision, Epoch: s.term.claim.Epoch, Row: row, Approximate: true, Within: unknown,
		ShotWeight: uint32(x.counts.Weight()), Missed: x.missed,
	}
	if g.Any {
		b.Within = g.Within
	}
	b.Lanes, row.Busy = s.encodeLanes(g)
	s.ofModels(b, g)
	for cell, bins := range x.counts.Heat {
		s.term.leader.metrics.countAssigned(cell.Type, bins)
		typ, known := s.types[cell.Type]
		model, held := s.models[cell.Model.Key()]
		if !known || !held {
			continue
		}
		h := &control.Heat{Type: uint32(typ), Model: uint32(model)}
		for i, n := range bins {
			if n > 0 {
				h.Bins = append(h.Bins, uint32(i), n)
			}
		}
		b.Heat = append(b.Heat, h)
	}
	for _, shot := range x.counts.Shots {
		typ, known := s.types[shot.Type]
		model, held := s.models[shot.Model.Key()]
		if !known || !held {
			continue
		}
		late := uint32(0)
		if shot.Late {
			late = 1
		}
		b.Shots = append(b.Shots, uint32(max(0, shot.Batch)), uint32(typ), uint32(model), late)
	}
	out.Beat = b
	return out
}

// describeFleet describes the fleet again if members, leadership, factors or costs have changed.
func (s *sampler) describeFleet(g *leader.Glance) {
	view := s.term.leader.fleet.View()
	factors := map[string]float64{}
	for agent, f := range g.Factors {
		if f > 0 {
			factors[string(agent)] = publishedFactor(s.factors[string(agent)], f)
		}
	}
	leadership := s.term.leader.Leadership()
	var paid map[string]float64
	if r := s.term.leader.config.Rent; r != nil {
		paid = r.Paid()
	}
	if s.fleet != nil && slices.Equal(s.members, view.GetMembers()) &&
		maps.Equal(s.factors, factors) && maps.Equal(s.paid, paid) &&
		proto.Equal(s.fleet.Leadership, leadership) {
		return
	}
	s.members, s.factors, s.paid = view.GetMembers(), factors, paid
	s.term.leader.metrics.factorsAre(factors)
	s.fleet = control.NewFleet(view, factors, paid)
	s.fleet.Leadership = leadership
	s.revision++
	s.fleet.Revision = s.revision
	s.models, s.types = map[names.ModelKey]int{}, map[string]int{}
	for i, m := range s.fleet.Models {
		s.models[names.NewModelKey(m.Name, m.Version)] = i
	}
	for i, t := range s.fleet.Types {
		s.types[t.Name] = i
	}
	s.offsets = map[names.AgentName]int{}
	offset := 0
	for _, a := range s.fleet.Agents {
		s.offsets[names.AgentName(a.Name)] = offset
		offset += int(a.Lanes)
	}
}

// publishedFactor returns the factor to publish for an agent: the published one if f is within 0.05
// of it and on the same side of SlowFactor, else f. Without this hysteresis, a factor that drifts
// would change the fleet's description, and a new one would go to all agents, each second. 0.05 is
// chosen: half of the departure that makes an agent slow.
func publishedFactor(before, f float64) float64 {
	if before > 0 && math.Abs(f-before) < 0.05 &&
		(f > control.SlowFactor) == (before > control.SlowFactor) {
		return before
	}
	return f
}

// encodeLanes returns the lanes as a beat holds them, and the share of their time in use.
func (s *sampler) encodeLanes(g *leader.Glance) (encoded []byte, busy float64) {
	all := make([]control.LaneBeat, 0, s.fleet.CountLanes())
	for _, a := range s.fleet.Agents {
		for range a.Lanes {
			all = append(all, control.LaneBeat{
				Busy: -1, Model: -1, Flags: control.LaneStarting,
			})
		}
	}
	linked := 0
	for i := range g.Lanes {
		l := &g.Lanes[i]
		at, ok := s.offsets[l.Agent]
		if at += l.Lane; !ok || at >= len(all) {
			continue
		}
		b := control.LaneBeat{Free: l.Free, Busy: s.meter.Busy(l.Agent, l.Lane), Model: -1}
		if model, ok := s.models[l.Runs]; ok {
			b.Model = model
		}
		for _, f := range []struct {
			is   bool
			flag control.LaneFlags
		}{
			{l.Overdue, control.LaneOverdue},
			{g.Factors[l.Agent] > control.SlowFactor, control.LaneSlow},
			{l.Draining, control.LaneDraining}, {l.Silent, control.LaneSilent},
		} {
			if f.is {
				b.Flags |= f.flag
			}
		}
		all[at] = b
		busy += b.Busy
		linked++
	}
	encoded = make([]byte, 0, 5*len(all))
	for _, l := range all {
		encoded = control.AppendLane(encoded, l)
	}
	if linked == 0 {
		return encoded, math.NaN()
	}
	return encoded, busy / float64(linked)
}

// ofModels adds to b what is known of each model, and to its row the sums.
func (s *sampler) ofModels(b *control.Beat, g *leader.Glance) {
	now := make(map[leader.ModelID]leader.ModelGlance, len(g.Models))
	for _, m := range g.Models {
		now[m.ModelID] = m
		before := s.before[m.ModelID] // zero of a model that is new
		answered, late, failed := m.Answered-before.Answered, m.Late-before.Late,
			m.Failed-before.Failed
		b.Row.Answered += answered
		b.Row.Late += late
		b.Row.Failed += failed
		index, held := s.models[m.Key()]
		if !held {
			continue
		}
		p50, p99 := s.meter.Quantiles(m.ModelID)
		b.Row.Models = append(b.Row.Models, &control.ModelRow{
			Model: string(m.Key()), Answered: answered, Late: late, Failed: failed, P50Ns: p50,
			P99Ns: p99,
		})
		within := math.NaN()
		if m.Any {
			within = m.Within
		}
		b.Models = append(b.Models, &control.ModelBeat{
			Model: uint32(index), Rate: m.Rate, Within: within,
		})
	}
	s.before = now
}
