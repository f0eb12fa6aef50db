package fleetplan

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/names"
)

// A Type is an instance type that a fleet has or may rent.
type Type struct {
	Name string
	// PriceUSDPerHour is the price of a machine, >= 0.
	PriceUSDPerHour float64
	// Min and Max bound how many machines there are, 0 <= Min <= Max. A fleet as it is has both
	// equal.
	Min, Max int
	// Capacity is how many seconds of run time a machine may be given in a second: its lanes times
	// the share of their time up to which queries stay in time, > 0.
	Capacity float64
	// MemoryBytes is what a machine has for models, >= 0; 0: room for all of them.
	MemoryBytes float64
	// Layouts are what a machine may hold instead: partitions that run side by side.
	Layouts []Layout
}

// A Layout divides a machine.
type Layout struct {
	Name       string
	Partitions []Partition
}

// A Partition runs what it holds one after the other, on cores of its own.
type Partition struct {
	Capacity float64 // as of a Type
	Services []Service
}

// A Service is a variant that a partition holds.
type Service struct {
	Family, Variant int
	// RunTime is by bin of the family, as in Bin, beside what runs on the other partitions.
	RunTime []float64
}

// A Family is a kind of query, with the variants that can answer it. A model without a family is a
// family of one.
type Family struct {
	Name     string
	Variants []Variant
	Bins     []Bin
	// TargetAccuracy is the mean accuracy that the answers should have at least; 0: any.
	TargetAccuracy float64
}

// A Variant is a model that can answer the queries of a family. Those below the family's floor of
// accuracy are left out of the problem.
type Variant struct {
	Model     names.ModelKey
	Accuracy  float64 // >= 0
	SizeBytes float64 // what a machine needs to hold it, >= 0
}

// A Bin is a narrow range of the batch sizes of a family.
type Bin struct {
	BatchSize int     // the largest
	Rate      float64 // queries/s, >= 0
	// RunTime is the mean run time in seconds by variant and by type; 0 where the type cannot answer
	// within the QoS target.
	RunTime [][]float64
}

// A Problem is the demand for a fleet, and what the fleet may be. Solve changes nothing in it.
type Problem struct {
	Types    []Type
	Families []Family
	// Unserved is the share of each family's queries that may go unserved, in [0, 1): 0.01 for a
	// target of 99 %.
	Unserved float64
	// TargetAccuracy is the mean accuracy that all answers together should have at least; 0: any.
	TargetAccuracy float64
	// BudgetUSDPerHour bounds the price of all machines; 0: no bound.
	BudgetUSDPerHour float64
	// AccuracyUSDPerHour is what a mean accuracy of 1 instead of 0 of all answers is worth, >= 0. 0
	// asks for the cheapest fleet at the target accuracies, and then for the most accurate answers;
	// +Inf for the most accurate answers within the budget, and then for the cheapest fleet.
	AccuracyUSDPerHour float64
	// MaxMultiple, if above 0, has another share come first: the multiple, up to MaxMultiple, of the
	// rates of all bins alike that is served. So a fleet of too few machines serves a part of each
	// family's queries, of all batch sizes. What no type answers does not count.
	MaxMultiple float64

	// strict: nothing is served at less than the target accuracies.
	strict bool
}

// ScaledBy returns a copy of p with so many times the rates, whose types and rates may be changed.
func (p *Problem) ScaledBy(factor float64) *Problem {
	q := *p
	q.Types, q.Families = slices.Clone(p.Types), slices.Clone(p.Families)
	for f := range q.Families {
		q.Families[f].Bins = slices.Clone(p.Families[f].Bins)
		for b := range q.Families[f].Bins {
			q.Families[f].Bins[b].Rate *= factor
		}
	}
	return &q
}

// WithReached returns a copy of p whose target accuracies are no higher than what a plan reaches.
func (p *Problem) WithReached(plan *Plan) *Problem {
	q := *p
	q.Families = slices.Clone(p.Families)
	for f := range q.Families {
		of := &q.Families[f]
		of.TargetAccuracy = min(of.TargetAccuracy, plan.Families[f].Accuracy*(1-slack))
	}
	return &q
}

// slack is by how much what is computed from a plan may be less than what the plan was for.
const slack = 1e-6

// Validate reports everything that is wrong with p, or nil.
func (p *Problem) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	number := func(x float64, format string, args ...any) {
		if !(x >= 0) || math.IsInf(x, 0) {
			bad("%s is %v, want a finite number >= 0", fmt.Sprintf(format, args...), x)
		}
	}
	if len(p.Types) == 0 {
		bad("no types")
	}
	for _, t := range p.Types {
		number(t.PriceUSDPerHour, "type %s: price", t.Name)
		number(t.MemoryBytes, "type %s: memory", t.Name)
		if number(t.Capacity, "type %s: capacity", t.Name); t.Capacity == 0 {
			bad("type %s: capacity is 0, want above 0", t.Name)
		}
		if t.Min < 0 || t.Max < t.Min || t.Max > maxMachines {
			bad("type %s: %d to %d machines, want 0 <= min <= max <= %d", t.Name, t.Min, t.Max,
				maxMachines)
		}
		for _, l := range t.Layouts {
			errs = append(errs, p.validateLayout(&t, &l)...)
		}
	}
	for _, f := range p.Families {
		number(f.TargetAccuracy, "family %s: target accuracy", f.Name)
		for _, v := range f.Variants {
			number(v.Accuracy, "variant %s of family %s: accuracy", v.Model, f.Name)
			number(v.SizeBytes, "variant %s of family %s: size", v.Model, f.Name)
		}
		for _, b := range f.Bins {
			number(b.Rate, "family %s at batch size %d: rate", f.Name, b.BatchSize)
			if len(b.RunTime) != len(f.Variants) {
				bad("family %s at batch size %d: run times of %d variants, and there are %d",
					f.Name, b.BatchSize, len(b.RunTime), len(f.Variants))
			}
			for v, times := range b.RunTime {
				if len(times) != len(p.Types) {
					bad("family %s at batch size %d: run times of variant %d on %d types, and "+
						"there are %d", f.Name, b.BatchSize, v, len(times), len(p.Types))
				}
				for t, s := range times {
					number(s, "family %s at batch size %d: run time of variant %d on type %d",
						f.Name, b.BatchSize, v, t)
				}
			}
		}
	}
	if !(p.Unserved >= 0 && p.Unserved < 1) {
		bad("the share that may go unserved is %v, want in [0, 1)", p.Unserved)
	}
	number(p.TargetAccuracy, "the target accuracy")
	number(p.BudgetUSDPerHour, "the budget")
	number(p.MaxMultiple, "the largest multiple")
	if !(p.AccuracyUSDPerHour >= 0) {
		bad("the worth of accuracy is %v, want >= 0", p.AccuracyUSDPerHour)
	}
	return errors.Join(errs...)
}

func (p *Problem) validateLayout(t *Type, l *Layout) (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("type %s: layout %s: %s", t.Name, l.Name,
			fmt.Sprintf(format, args...)))
	}
	for _, part := range l.Partitions {
		if !(part.Capacity > 0) || math.IsInf(part.Capacity, 0) {
			bad("capacity is %v, want a finite number above 0", part.Capacity)
		}
		for _, s := range part.Services {
			if s.Family < 0 || s.Family >= len(p.Families) || s.Variant < 0 ||
				s.Variant >= len(p.Families[s.Family].Variants) {
				bad("family %d or variant %d does not exist", s.Family, s.Variant)
				continue
			}
			if bins := len(p.Families[s.Family].Bins); len(s.RunTime) != bins {
				bad("run times of %d bins, and there are %d", len(s.RunTime), bins)
			}
			for _, seconds := range s.RunTime {
				if !(seconds >= 0) || math.IsInf(seconds, 0) {
					bad("run time is %v, want a finite number >= 0", seconds)
				}
			}
		}
	}
	return errs
}

// maxMachines bounds the machines of a type, so that sums stay exact.
const maxMachines = 1_000_000

// Enough is a number of machines of a type more than which answer no more, whatever these hold.
func (p *Problem) Enough(typ int) int {
	machines := 0.0
	for _, f := range p.Families {
		time := make([]float64, len(f.Variants)) // seconds of run time in a second
		for _, b := range f.Bins {
			for v := range time {
				time[v] += b.Rate * b.RunTime[v][typ]
			}
		}
		for _, seconds := range time {
			machines += math.Ceil(seconds / p.Types[typ].Capacity)
		}
	}
	return int(min(machines, maxMachines))
}
