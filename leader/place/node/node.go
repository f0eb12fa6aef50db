// Package node moves lanes between the models that share an agent, as their loads change: Hera's
// node manager (Algorithm 3), fed with what a leader knows. It loads nothing and moves no model.
//
// The package has no clock and no goroutine. A Manager is not safe for concurrent use.
package node

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/staffing"
)

// Period is how often [Manager.Step] should be called.
const Period = time.Second

// maxAnswers bounds the latencies that are kept of a partition and period; beyond it, later ones
// replace earlier ones. Chosen: the 99 % quantile then rests on 40 latencies.
const maxAnswers = 4096

// A SharedAgent shares its lanes between the models of its layout.
type SharedAgent struct {
	Name  names.AgentName
	Lanes place.Layout // as it has them now
}

// A FamilyLoad is what arrived for a model, or for any of a family's variants.
type FamilyLoad struct {
	Arrived     uint64 // since the beginning
	WaitingLate int    // of those that wait for a lane now
	Models      []string
	QoSTarget   time.Duration
	Share       float64 // of the queries that should be answered within QoSTarget, in (0, 1)
}

// A Move gives an agent's models other numbers of lanes.
type Move struct {
	Agent    names.AgentName
	From, To place.Layout
	// Why says what both models had and asked for, for logs.
	Why string
}

// A Manager decides which lanes move. The zero value is not ready; use [New].
type Manager struct {
	agents  map[names.AgentName]*agentPeriod
	arrived map[string]uint64 // by family's first model, at the last step
	stepped bool
}

// New returns a manager that knows nothing yet.
func New() *Manager {
	return &Manager{agents: map[names.AgentName]*agentPeriod{}, arrived: map[string]uint64{}}
}

// An agentPeriod is what was seen of an agent since the last step.
type agentPeriod struct {
	models map[string]*modelPeriod
	calm   [2]int
}

// A modelPeriod is what was seen of a model on an agent.
type modelPeriod struct {
	answered  int
	latencies []time.Duration // of the period
	// Of the runs: a mean over periods. They are forgotten slowly, so that one quiet period does not
	// leave them unknown.
	weight, time float64
}

// forget is the factor by which each period reduces the weight of earlier runs (EWMA). Chosen:
// three periods count, so a change shows in a few seconds and a period with few runs has help.
const forget = 0.7

// Answered notes that an agent has run a query: for how long, with the share of a run of several,
// and how long its client has waited. Of agents that share nothing nothing is kept.
func (m *Manager) Answered(name names.AgentName, model string, execution, latency time.Duration) {
	a := m.agents[name]
	if a == nil {
		return
	}
	s := a.models[model]
	if s == nil {
		return
	}
	if len(s.latencies) < maxAnswers {
		s.latencies = append(s.latencies, latency)
	} else {
		s.latencies[s.answered%maxAnswers] = latency
	}
	s.answered++
	s.weight++
	s.time += execution.Seconds()
}

// canMoveLanes reports whether lanes can move between the partitions of a layout.
func canMoveLanes(l place.Layout) bool {
	if len(l.Partitions) != 2 {
		return false
	}
	a, b := l.Partitions[0], l.Partitions[1]
	return a.Lanes > 0 && b.Lanes > 0 && a.Lanes+b.Lanes > 2 && a.Cores == b.Cores
}

// Step looks at a period that has passed since the last step, and returns the lanes to move. Agents
// that are not named are forgotten.
func (m *Manager) Step(passed time.Duration, agents []SharedAgent,
	families []FamilyLoad) (moves []Move) {
	arrivals := map[string]float64{} // queries/s, by model's family
	of := map[string]*FamilyLoad{}   // by model
	now := map[string]uint64{}
	answered := map[*FamilyLoad]int{}
	for i := range families {
		f := &families[i]
		if len(f.Models) == 0 {
			continue
		}
		id := f.Models[0]
		now[id] = f.Arrived
		if before, ok := m.arrived[id]; ok && f.Arrived >= before && passed > 0 {
			arrivals[id] = float64(f.Arrived-before) / passed.Seconds()
		}
		for _, model := range f.Models {
			of[model] = f
		}
	}
	m.arrived = now
	known := m.agents
	m.agents = map[names.AgentName]*agentPeriod{}
	for _, x := range agents {
		if !canMoveLanes(x.Lanes) {
			continue
		}
		a := known[x.Name]
		if a == nil {
			a = &agentPeriod{models: map[string]*modelPeriod{}}
		}
		m.agents[x.Name] = a
		for _, p := range x.Lanes.Partitions {
			for _, key := range p.Models {
				model, _ := key.Split()
				if a.models[model] == nil {
					a.models[model] = &modelPeriod{}
				}
				if f := of[model]; f != nil {
					answered[f] += a.models[model].answered
				}
			}
		}
	}
	for _, x := range agents {
		a := m.agents[x.Name]
		if a == nil {
			continue
		}
		if move, ok := a.step(x, of, arrivals, answered, len(m.agents)); ok && m.stepped {
			moves = append(moves, move)
		}
		for _, s := range a.models {
			s.answered, s.latencies = 0, s.latencies[:0]
			s.weight, s.time = forget*s.weight, forget*s.time
		}
	}
	m.stepped = true
	return moves
}

// step is Step for one agent. answered is, by family, how many queries were answered by all agents
// that share lanes; there are so many such agents.
func (a *agentPeriod) step(x SharedAgent, of map[string]*FamilyLoad, arrivals map[string]float64,
	answered map[*FamilyLoad]int, agents int) (Move, bool) {
	machine := place.Machine{}
	for _, p := range x.Lanes.Partitions {
		machine.Cores += p.Lanes
	}
	var tenants [2]place.Tenant
	for i, p := range x.Lanes.Partitions {
		t := &tenants[i]
		t.Workers, t.Calm = p.Lanes, a.calm[i]
		var all modelPeriod
		target := math.Inf(1)
		for _, key := range p.Models {
			model, _ := key.Split()
			s, f := a.models[model], of[model]
			if f == nil {
				continue // nobody has asked for it
			}
			part := 1 / float64(max(1, agents))
			if n := answered[f]; n > 0 {
				part = float64(s.answered) / float64(n)
			}
			traffic := part * arrivals[f.Models[0]]
			t.Traffic += traffic
			t.Tail = max(t.Tail, tailLatency(s.latencies, f))
			if waits := part * float64(f.WaitingLate); waits > 0 {
				t.Tail = max(t.Tail, 1+waits/max(1, traffic))
			}
			all.weight += s.weight
			all.time += s.time
			target = min(target, f.QoSTarget.Seconds())
		}
		t.Profile = all.profileOf(machine.Cores, target)
	}
	next, _ := machine.Adjust(tenants)
	a.calm = [2]int{next[0].Calm, next[1].Calm}
	// A lane that neither asks for stays where it is.
	for i := range next {
		spare := machine.Cores - next[0].Workers - next[1].Workers
		next[i].Workers += max(0, min(spare, tenants[i].Workers-next[i].Workers))
	}
	if next[0].Workers == tenants[0].Workers {
		return Move{}, false
	}
	to := place.Layout{Partitions: slices.Clone(x.Lanes.Partitions)}
	for i := range to.Partitions {
		to.Partitions[i].Lanes = next[i].Workers
	}
	return Move{Agent: x.Name, From: x.Lanes, To: to, Why: explainMove(&tenants, x.Lanes)}, true
}

// explainMove says what each partition's queries/s were, and its tail latency.
func explainMove(tenants *[2]place.Tenant, l place.Layout) string {
	var text [2]string
	for i, t := range tenants {
		text[i] = fmt.Sprintf("%s had %.3g queries/s, of %.3g that %d lanes serve, at %.2g of its "+
			"target", l.Partitions[i].Models[0], t.Traffic, t.Profile.QPS[t.Workers][0], t.Workers,
			t.Tail)
	}
	return text[0] + "; " + text[1]
}

// tailLatency is the latency within which the family's share of the answers came, by its target.
func tailLatency(latencies []time.Duration, f *FamilyLoad) float64 {
	if len(latencies) == 0 || f.QoSTarget <= 0 {
		return 0
	}
	slices.Sort(latencies)
	n := min(int(f.Share*float64(len(latencies))), len(latencies)-1)
	return float64(latencies[n]) / float64(f.QoSTarget)
}

// profileOf returns how many queries/s so many lanes serve safely (package staffing), within a target
// in seconds.
func (s *modelPeriod) profileOf(lanes int, target float64) *place.Profile {
	p := &place.Profile{QPS: make([][]float64, lanes+1)}
	for w := range p.QPS {
		p.QPS[w] = []float64{0}
	}
	mean := target / 2 // nothing has run yet
	if s.weight > 0 && s.time > 0 {
		mean = s.time / s.weight
	}
	if math.IsInf(target, 1) || mean <= 0 {
		return p
	}
	for w := 1; w <= lanes; w++ {
		p.QPS[w][0] = staffing.SafeShare(float64(w)) * float64(w) / mean
	}
	return p
}
