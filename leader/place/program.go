package place

import (
	"errors"
	"fmt"
	"math"
)

// A Type is an instance type.
type Type struct {
	Name  string
	Count int     // agents of the type, >= 0; with FewestAgents, the most there may be
	Price float64 // of one agent, in any unit, >= 0
}

// A Variant is a model that can answer for a family.
type Variant struct {
	Model    string
	Family   string
	Accuracy float64 // points, >= 0
}

// A Class is a size class of a family: a narrow range of batch sizes. Most families have one.
type Class struct {
	Family string
	Rate   float64 // queries/s that are to be served, >= 0
}

// A Service is a variant that a partition serves to a class.
type Service struct {
	Class, Variant int     // indices in the Program
	Rate           float64 // queries/s of one agent if the partition did nothing else, >= 0
}

// A Choice is a layout on a type. Its partitions serve side by side; the services of one partition
// share its time.
type Choice struct {
	Type       int // index in the Program
	Layout     string
	Partitions [][]Service
}

// An Objective says what is best among the placements that serve the most.
type Objective int

const (
	// MostAccurate: accuracy, then price, then changes.
	MostAccurate Objective = iota
	// FewestAgents: agents, then accuracy.
	FewestAgents
)

// A Program is what Solve decides on. Solve keeps nothing of it and changes nothing in it.
type Program struct {
	Types    []Type
	Variants []Variant
	Classes  []Class
	Choices  []Choice
	// Current is, by choice, how many agents have it now; nil if that does not matter.
	Current   []int
	Objective Objective
	// Price and Change are what all agents' prices together, and a change of all agents, may cost
	// in points of accuracy; 0 means a thousandth and a ten-thousandth, so that they decide among
	// placements of like accuracy only.
	Price, Change float64
	Seed          uint64
}

// A Solution is a placement by types.
type Solution struct {
	Counts []int // agents by choice
	// Flow is queries/s by choice, partition and service.
	Flow [][][]float64
	// Served is the served part of the demand, in [0, 1]; 1 if there is no demand.
	Served float64
	// Accuracy is the mean over what is served, in points; 0 if nothing is.
	Accuracy float64
	// Bound: no placement that serves the same share has a higher accuracy.
	Bound  float64
	Agents int
	// LeastAgents, with FewestAgents: no placement that serves this share has fewer.
	LeastAgents int
	Price       float64
	Steps       int // taken
	// Proven says that the search ended because no other placement is better.
	Proven bool
}

// Validate reports all that is wrong with p.
func (p *Program) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	number := func(what string, x float64) {
		if !(x >= 0) || math.IsInf(x, 0) {
			bad("%s is %v, want a finite number >= 0", what, x)
		}
	}
	for i, t := range p.Types {
		if t.Count < 0 {
			bad("type %d, %s: count is %d, want >= 0", i, t.Name, t.Count)
		}
		number(fmt.Sprintf("type %d, %s: price", i, t.Name), t.Price)
	}
	for i, v := range p.Variants {
		number(fmt.Sprintf("variant %d, %s: accuracy", i, v.Model), v.Accuracy)
	}
	for i, c := range p.Classes {
		number(fmt.Sprintf("class %d of %s: rate", i, c.Family), c.Rate)
	}
	for i, c := range p.Choices {
		if c.Type < 0 || c.Type >= len(p.Types) {
			bad("choice %d, %s: type is %d, and there are %d", i, c.Layout, c.Type, len(p.Types))
		}
		for _, partition := range c.Partitions {
			for _, s := range partition {
				if s.Class < 0 || s.Class >= len(p.Classes) || s.Variant < 0 ||
					s.Variant >= len(p.Variants) {
					bad("choice %d, %s: class %d or variant %d does not exist", i, c.Layout,
						s.Class, s.Variant)
				}
				number(fmt.Sprintf("choice %d, %s: rate", i, c.Layout), s.Rate)
			}
		}
	}
	if p.Current != nil && len(p.Current) != len(p.Choices) {
		bad("current has %d choices, and there are %d", len(p.Current), len(p.Choices))
	}
	for i, n := range p.Current {
		if n < 0 {
			bad("current %d is %d, want >= 0", i, n)
		}
	}
	number("price", p.Price)
	number("change", p.Change)
	return errors.Join(errs...)
}
