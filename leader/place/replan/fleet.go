package replan

import (
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// A FleetProblem is the problem of a fleet that is not there yet: how many instances of each type
// would hold what. Its program is that which the leader would solve for as many agents.
type FleetProblem struct {
	problem *Problem
	// Program has a type for each instance type, in their order, and a choice for each layout that
	// an instance may hold, but for those to which its memory has room to add. Its counts are 0.
	Program *place.Program
	// Unplaced says which families and variants no instance can hold or serve.
	Unplaced []Event
}

// NewFleetProblem makes the problem of serving families at the rates of demand, in queries/s, which
// are to have all headroom that is wanted, with instances of the types of s.Agents, of which each
// stands for its type.
func NewFleetProblem(s *Snapshot, demand []float64) *FleetProblem {
	p := &Problem{
		agents: s.Agents, current: make([]place.Layout, len(s.Agents)), variants: s.Variants,
		families: s.Families, rate: slices.Clone(demand), demand: slices.Clone(demand),
		latencies: s.Latencies, layouts: s.Layouts, only: map[names.AgentName]bool{},
	}
	plan := &Plan{problem: p}
	p.buildProgram(plan)
	p.dropCoveredChoices()
	p.program.Current, p.program.Change = nil, 0
	for t := range p.program.Types {
		p.program.Types[t].Count = 0
	}
	return &FleetProblem{p, &p.program, plan.missing}
}

// dropCoveredChoices drops the choices that serve no more than another one of their kind, which
// holds the same models and more on the same lanes: agents hold what their memory has room for, as
// [Problem.extendLayouts] has it.
func (p *Problem) dropCoveredChoices() {
	layout := func(o option) place.Layout { return p.kinds[o.kind].layouts[o.layout] }
	covers := func(larger, o option) bool {
		l, models := layout(larger), layout(o).Models()
		return larger.kind == o.kind && l.IsOnAllLanes() && layout(o).IsOnAllLanes() &&
			len(l.Models()) > len(models) && !slices.ContainsFunc(models,
			func(m names.ModelKey) bool { return !l.Has(m) })
	}
	var choices []place.Choice
	var options []option
	for c, o := range p.choices {
		if !slices.ContainsFunc(p.choices, func(larger option) bool { return covers(larger, o) }) {
			choices, options = append(choices, p.program.Choices[c]), append(options, o)
		}
	}
	p.program.Choices, p.choices = choices, options
}

// Forecast is what a solution of the program expects of the families.
func (r *FleetProblem) Forecast(sol *place.Solution) []place.FamilyForecast {
	return r.problem.forecastFamilies(r.Program, sol)
}
