package replan

import (
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fleetplan"
	"github.com/muster-serve/muster/leader/place"
)

// NewFleetProblem makes the problem of serving families at the rates of demand, in queries/s, which
// are to have all headroom that is wanted, with instances of the types of s.Agents, of which each
// stands for its type: in their order, without prices and limits. Demand and rates are those for
// which the leader would plan what so many agents hold. Families and variants are those of s in its
// order; a second result says which of them no instance can hold or serve.
func NewFleetProblem(s *Snapshot, demand []float64) (*fleetplan.Problem, []Event) {
	p := &Problem{
		agents: s.Agents, current: make([]place.Layout, len(s.Agents)), variants: s.Variants,
		families: s.Families, rate: slices.Clone(demand), demand: slices.Clone(demand),
		latencies: s.Latencies, only: map[names.AgentName]bool{}, unstaffed: true,
	}
	plan := &Plan{problem: p}
	p.buildProgram(plan)
	fleet := &fleetplan.Problem{}
	for _, kind := range p.kinds {
		fleet.Types = append(fleet.Types, fleetplan.Type{
			Name: string(kind.typ), Capacity: 1, MemoryBytes: float64(p.memory[kind.agents[0]]),
		})
	}
	index := make([]int, len(p.variants)) // of the variant in its family
	for f := range p.families {
		family := fleetplan.Family{Name: p.families[f].Name}
		for v := range p.variants {
			if of := &p.variants[v]; of.Family == family.Name {
				index[v] = len(family.Variants)
				family.Variants = append(family.Variants, fleetplan.Variant{
					Model: of.Model, Accuracy: accuracyOrBest(of), SizeBytes: float64(of.Bytes),
				})
			}
		}
		for k, largest := range p.classes[f] {
			bin := fleetplan.Bin{
				BatchSize: largest, Rate: p.program.Classes[p.first[f]+k].Rate,
				RunTime: make([][]float64, len(family.Variants)),
			}
			for v := range bin.RunTime {
				bin.RunTime[v] = make([]float64, len(fleet.Types))
			}
			family.Bins = append(family.Bins, bin)
		}
		fleet.Families = append(fleet.Families, family)
	}
	for _, c := range p.program.Choices {
		for _, service := range c.Partitions[0] { // the same in all layouts of one partition
			f := p.family[p.program.Variants[service.Variant].Family]
			bin := &fleet.Families[f].Bins[service.Class-p.first[f]]
			bin.RunTime[index[service.Variant]][c.Type] = 1 / service.Rate
		}
	}
	return fleet, plan.missing
}
