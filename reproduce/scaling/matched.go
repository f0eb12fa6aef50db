package scaling

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// epoch is the time at which a run starts; only differences matter.
var epoch = time.Unix(0, 0).UTC()

// A matched system is Muster: its matcher binds queries to lanes, late.
type matched struct {
	*lanes
	matcher *match.Matcher
	sent    []int // by query: attempts so far
	// by type and variant: of what the fleet says, how long runs are known to take
	times  [][]float64
	byID   map[match.LaneID]*variantLane
	models map[names.ModelKey]int
	wakeAt time.Duration
}

type wakes struct{}

func newMatched(r *run) (*matched, error) {
	m := &matched{
		sent: make([]int, len(r.queries)), byID: map[match.LaneID]*variantLane{},
		models: map[names.ModelKey]int{},
	}
	var err error
	if m.lanes, err = newLanes(r, m); err != nil {
		return nil, err
	}
	cfg := match.Config{Seed: r.Seed}
	for v, x := range r.Fleet.Variants {
		f := r.Fleet.Families[x.Family]
		cfg.Models = append(cfg.Models, match.Model{
			Name: model(x.Model), Family: family(f.Name), Accuracy: x.Accuracy / 100,
			QoSTarget: f.Target, LargestBatchSize: 1, RejectLate: true, Merge: r.Batching,
		})
		m.models[model(x.Model)] = v
	}
	if m.matcher, err = match.New(cfg); err != nil {
		return nil, err
	}
	for t := range r.Fleet.Types {
		m.times = append(m.times, slices.Repeat([]float64{1}, len(r.Fleet.Variants)))
		for v := range r.Fleet.Variants {
			if m.tables[t][v] != nil {
				m.profile(t, v)
			}
		}
	}
	return m, nil
}

// profile tells the matcher what is known of a variant on a type.
func (m *matched) profile(t, v int) {
	m.step(&match.Event{
		Kind: match.ProfileChanged, Model: model(m.Fleet.Variants[v].Model), Type: m.typ(t),
		Table: m.tables[t][v],
	})
}

// learn makes known what runs have taken, and expects the same of what has not run as package learn
// does.
func (m *matched) learn() error {
	shown := &profiles.ProfileErrors{}
	for t := range m.ran {
		for v := range m.ran[t] {
			if ran := &m.ran[t][v]; ran.runs > 0 {
				shown.Add(string(m.typ(t)), m.familyOf(v),
					float64(ran.took)/float64(ran.said), float64(ran.runs))
			}
		}
	}
	for t := range m.ran {
		for v := range m.ran[t] {
			ran := &m.ran[t][v]
			times := shown.Factor(string(m.typ(t)), m.familyOf(v))
			if ran.runs > 0 {
				times = float64(ran.took) / float64(ran.said)
			}
			if now := m.times[t][v]; math.Abs(times/now-1) < 0.01 {
				continue
			}
			m.times[t][v] = times
			for k, l := range m.Fleet.Latency[t][v] {
				m.state.Latency[t][v][k] = time.Duration(times * float64(l))
			}
			if err := m.tabulate(t, v); err != nil {
				return err
			}
			if m.tables[t][v] == nil {
				continue
			}
			m.profile(t, v)
			for _, l := range m.of {
				if l != nil && l.typ == t && l.variant == v && l.class != nil {
					l.class.Latency = m.tables[t][v]
				}
			}
		}
	}
	return nil
}

func (m *matched) familyOf(variant int) string {
	return m.Fleet.Families[m.Fleet.Variants[variant].Family].Name
}

// A family may have a variant's name in others' data, which the matcher does not permit.
func family(name string) names.ModelKey { return names.ModelKey("family " + name) }

func model(name string) names.ModelKey { return names.ModelKey(name) }

func (m *matched) typ(t int) names.LaneType { return names.LaneType(m.Fleet.Types[t].Name) }

func (m *matched) queryID(id int) match.QueryID {
	return match.QueryID{Gateway: 1, Sequence: 4 * uint64(id+1)}
}

func (m *matched) arrived(id int) {
	m.step(&match.Event{
		Kind: match.Submitted, Query: m.queryID(id), BatchSize: 1,
		Model: family(m.Fleet.Families[m.queries[id].family].Name),
	})
}

func (m *matched) handle(e event) {
	if e.what != (wakes{}) {
		m.lanes.handle(e)
		return
	}
	if m.wakeAt <= m.now { // else there is a later one
		m.wakeAt = 0
		m.step(&match.Event{Kind: match.TimePassed})
	}
}

func (m *matched) step(e *match.Event) {
	decisions, next, err := m.matcher.Step(epoch.Add(m.now), e)
	if err != nil {
		panic(fmt.Sprintf("the matcher at %v: %v", m.now, err)) // a fault of this package
	}
	for i := range decisions {
		d := &decisions[i]
		id := int(d.Query.Sequence/4) - 1
		switch d.Action {
		case match.Assign:
			m.sent[id] = d.Attempt
			m.send(m.byID[d.Lane], id, d.Attempt, merge.GroupID{Number: d.Merge, Queries: d.Merged})
		case match.Reject:
			m.finish(id, -1, false)
		}
	}
	if next.IsZero() {
		return
	}
	at := max(next.Sub(epoch), m.now)
	if e.Kind == match.TimePassed {
		at = max(at, m.now+1) // so that virtual time advances
	}
	if m.wakeAt == 0 || at < m.wakeAt {
		m.wakeAt = at
		m.push(at, wakes{})
	}
}

func (m *matched) joined(l *variantLane) {
	m.byID[l.id] = l
	m.step(&match.Event{
		Kind: match.LaneJoined, Lane: l.id,
		Agent: names.AgentName(fmt.Sprintf("agent-%d", l.agent)),
		Type:  m.typ(l.typ), Models: []names.ModelKey{model(m.Fleet.Variants[l.variant].Model)},
	})
}

func (m *matched) left(l *variantLane) {
	m.step(&match.Event{Kind: match.LaneDraining, Lane: l.id})
}

func (m *matched) gone(l *variantLane) {
	m.step(&match.Event{Kind: match.LaneLost, Lane: l.id})
	delete(m.byID, l.id)
}

func (m *matched) ended(a *attempt, rejected bool) {
	e := match.Event{
		Kind: match.Completed, Query: m.queryID(a.id), Attempt: a.number, Lane: a.on.id,
		Remaining: m.remaining(a.on),
	}
	if rejected {
		m.step(&match.Event{Kind: match.Cancelled, Query: e.Query})
		e.Kind = match.Refused
	}
	m.step(&e)
}
