package placements

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/profiles"
)

// Production is what Muster's leader decides by: a [replan.Replanner], which is to be stepped each
// second. It begins with what serves the expected rates. Plans and loads take no time here, so it
// is stepped until nothing is left to do. Its options take parts of it away.
type Production struct {
	// KeepFamilies: agents change their variant and never their family (no model placement).
	KeepFamilies bool
	// MostAccurateOnly: no other variants are placed (no model selection).
	MostAccurateOnly bool
	// Steps of each search; 0 means those of the leader.
	Steps int

	replanner *replan.Replanner
	now       time.Time
	arrived   []uint64 // by family
	taken     []place.Stamp
	first     []int // by agent: the family that it has at the start
	variant   map[names.ModelKey]int
}

// Place implements [Rival].
func (p *Production) Place(s *State) error {
	if p.replanner == nil {
		return p.begin(s)
	}
	p.now = p.now.Add(time.Second)
	for k, rate := range s.Demand {
		p.arrived[k] += uint64(rate)
	}
	for range 1000 {
		answer := p.replanner.Step(p.now, p.snapshot(s))
		if answer.Solve != nil {
			p.replanner.Solved(answer.Solve.Solve())
		}
		for i := range answer.Moves {
			p.move(s, &answer.Moves[i])
		}
		if answer.Solve == nil && len(answer.Moves) == 0 {
			return nil
		}
	}
	return fmt.Errorf("at %v the planner finds no end", p.now.Sub(epoch))
}

// epoch is the time at which a run starts; only differences matter.
var epoch = time.Unix(0, 0).UTC()

func (p *Production) begin(s *State) (err error) {
	start := &Proteus{
		KeepFamilies: p.KeepFamilies, MostAccurateOnly: p.MostAccurateOnly, Upgrade: true,
		Steps: p.Steps,
	}
	if err := start.Place(s); err != nil {
		return err
	}
	p.now, p.arrived = epoch, make([]uint64, len(s.Families))
	p.taken, p.variant = make([]place.Stamp, len(s.Agents)), map[names.ModelKey]int{}
	for v, x := range s.Variants {
		p.variant[names.ModelKey(x.Model)] = v
	}
	for _, a := range s.Agents {
		family := -1
		if a.Variant >= 0 {
			family = s.Variants[a.Variant].Family
		}
		p.first = append(p.first, family)
	}
	p.replanner, err = replan.New(replan.Config{Epoch: 1, Steps: p.Steps}, replan.Memory{})
	return err
}

// snapshot is the fleet as the leader knows it. An agent has memory for one variant.
func (p *Production) snapshot(s *State) *replan.Snapshot {
	out := &replan.Snapshot{Latencies: map[names.TableKey]replan.Latencies{}}
	for k, f := range s.Families {
		out.Families = append(out.Families, replan.Family{
			Name: f.Name, QoSTarget: f.Target, Arrived: p.arrived[k], Ended: s.Ended[k],
			Late: s.Late[k], Sizes: profiles.Distribution{{BatchSize: 1, Share: 1}},
		})
	}
	for v, x := range s.Variants {
		model := names.ModelKey(x.Model)
		out.Variants = append(out.Variants, replan.Variant{
			Model: model, Family: s.Families[x.Family].Name, Accuracy: x.Accuracy / 100, Bytes: 1,
			Merges: true, Largest: s.Sizes[len(s.Sizes)-1], Load: time.Millisecond,
		})
		for t := range s.Types {
			key := names.TableKey{Model: model, Type: names.LaneType(s.Types[t].Name)}
			out.Latencies[key] = &runs{s.Sizes, slices.Clone(s.Latency[t][v])}
		}
	}
	for i := range s.Agents {
		a := &s.Agents[i]
		agent := replan.Agent{
			Name: agentName(i), Type: names.LaneType(s.Types[a.Type].Name), Lanes: 1, Cores: 1,
			Memory: 1, Taken: p.taken[i],
		}
		if a.Variant >= 0 {
			agent.Held = place.NewLayout(names.ModelKey(s.Variants[a.Variant].Model))
		}
		for v, x := range s.Variants {
			if p.KeepFamilies && x.Family != p.first[i] ||
				p.MostAccurateOnly && v != s.Best(x.Family, -1) {
				continue
			}
			agent.Available = append(agent.Available, names.ModelKey(x.Model))
		}
		out.Agents = append(out.Agents, agent)
	}
	slices.SortFunc(out.Families, func(a, b replan.Family) int {
		return cmp.Compare(a.Name, b.Name)
	})
	slices.SortFunc(out.Variants, func(a, b replan.Variant) int {
		return cmp.Compare(a.Model, b.Model)
	})
	return out
}

func agentName(i int) names.AgentName { return names.AgentName(fmt.Sprintf("agent-%06d", i)) }

// move carries a move out.
func (p *Production) move(s *State, m *replan.Move) {
	var i int
	if _, err := fmt.Sscanf(string(m.Agent), "agent-%d", &i); err != nil {
		return // no agent has another name
	}
	p.taken[i] = m.Stamp
	variant := -1
	for _, model := range m.Layout.Models() {
		variant = p.variant[model]
	}
	if variant != s.Agents[i].Variant {
		s.Put(i, variant)
	}
}

// Route implements [Rival]: agents of a family are alike.
func (p *Production) Route(s *State, family int, rng *rand.Rand) int {
	return s.any(rng, func(a *Agent) bool {
		return a.Variant >= 0 && s.Variants[a.Variant].Family == family
	})
}

// runs are the latencies of runs by number of queries.
type runs struct {
	sizes []int
	of    []time.Duration // 0: not measured
}

// Mean implements [replan.Latencies].
func (r *runs) Mean(n int) time.Duration {
	for k, size := range r.sizes {
		if size >= n && r.of[k] > 0 {
			return r.of[k]
		}
	}
	return time.Hour // the variant cannot run so many
}
