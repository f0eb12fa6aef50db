package plancmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/sim"
)

// A Problem is a planning problem together with its evaluators.
type Problem struct {
	*plan.Problem
	Names     []string // of the models, as the user gave them
	Percent   float64  // of the queries that must be within QoS; Target is this over 100
	Evaluator plan.Evaluator
	// Simulation is nil if a table evaluates.
	Simulation *sim.Evaluator
	// Twin is the quicker evaluator of the planner twin; nil with a table for other planners. Its
	// estimates are the mean of TwinRuns runs.
	Twin     plan.Evaluator
	TwinRuns int
	// Described is the evaluator in words, such as "looked up"; Source is where its latencies come
	// from.
	Described, Source string
	Live              *FleetComparison // nil without --live
}

// ProfiledTypes returns the instance types on which all models have profiles, those of the papers'
// experiments first.
func ProfiledTypes(source *sim.Source, models []string) []string {
	var types []string
	for i, text := range models {
		name, _, _ := strings.Cut(text, "=")
		known := source.InstanceTypes(name)
		if i == 0 {
			types = known
		} else {
			types = slices.DeleteFunc(types,
				func(t string) bool { return !slices.Contains(known, t) })
		}
	}
	rank := func(t string) int {
		if i := slices.Index(sim.PaperTypes(), t); i >= 0 {
			return i
		}
		return len(sim.PaperTypes())
	}
	slices.SortStableFunc(types, func(a, b string) int { return rank(a) - rank(b) })
	return types
}

// SetLimits sets the largest counts of types from limits of the form TYPE=N.
func SetLimits(p *plan.Problem, limits []string) error {
	for _, text := range limits {
		name, count, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 0 {
			return fmt.Errorf("max: got %q, want TYPE=N with N of 0 or more", text)
		}
		i := slices.IndexFunc(p.Types, func(t plan.Type) bool { return string(t.Name) == name })
		switch {
		case i < 0:
			return fmt.Errorf("max: %s is not one of the types to choose from: %s", name,
				TypeNames(p))
		case n == 0:
			return fmt.Errorf("max: %s=0: leave %s out of --types instead", name, name)
		}
		p.Types[i].Max = n
	}
	return nil
}

// TypeNames lists the types to choose from.
func TypeNames(p *plan.Problem) string {
	names := make([]string, len(p.Types))
	for i, t := range p.Types {
		names[i] = string(t.Name)
	}
	return strings.Join(names, ", ")
}
