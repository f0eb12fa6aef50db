package plan

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// An Objective is the quantity that a planner optimises.
type Objective int

// The objectives.
const (
	// MostThroughput looks for the highest allowable throughput within the budget.
	MostThroughput Objective = iota
	// LeastCost looks for the cheapest configuration that meets the QoS target at the demand's
	// rate.
	LeastCost
)

// Latencies gives the mean execution latency of a batch size; a *profiles.Table implements it.
type Latencies interface {
	Mean(batchSize int) time.Duration
}

// A Type is an instance type that may be bought.
type Type struct {
	Name profiles.InstanceType
	// Price is the price of an instance in $/hr, > 0.
	Price float64
	// Max is the largest number of instances; 0 means as many as the budget buys.
	Max int
}

// A ModelDemand is the part of the demand that is for one model.
type ModelDemand struct {
	Name string
	// QoSTarget is the latency within which a query should be answered, > 0.
	QoSTarget time.Duration
	// Weight is the model's part of the arrivals, relative to the weights of the other models; 0
	// means 1.
	Weight float64
	// BatchSizes is the distribution of its queries' batch sizes.
	BatchSizes profiles.Distribution
	// Latencies are the model's profiles, by index of [Problem.Types].
	Latencies []Latencies
}

// A Problem is the input of a planner.
type Problem struct {
	Types     []Type
	Objective Objective
	// Budget is a hard limit on the price, in $/hr; 0 means no limit, and is allowed for LeastCost
	// only.
	Budget float64
	// Rate is the arrival rate of all models together in queries/s, for LeastCost. It is 0 if only
	// the evaluator knows it, as with a published table.
	Rate float64
	// Target is the share of each model's queries that must meet their QoS target, in (0,
	// 1); 0 means 0.99.
	Target float64
	// Models are the demand. There are none if only the evaluator knows the demand, as with a
	// published table.
	Models []ModelDemand
}

// DefaultTarget is the default of [Problem.Target].
const DefaultTarget = 0.99

// MaxConfigurations bounds the search space, and so its memory; chosen.
const MaxConfigurations = 4_000_000

// targetOrDefault is Target, or its default.
func (p *Problem) targetOrDefault() float64 {
	if p.Target == 0 {
		return DefaultTarget
	}
	return p.Target
}

// Validate reports everything that is wrong with p and what to do about it, or nil.
func (p *Problem) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(p.Types) == 0 {
		bad("no instance types: name at least one")
	}
	cheapest, seen := math.Inf(1), map[profiles.InstanceType]bool{}
	for _, t := range p.Types {
		if seen[t.Name] {
			bad("instance type %s is named twice: name it once", t.Name)
		}
		seen[t.Name] = true
		if !(t.Price > 0) || math.IsInf(t.Price, 1) {
			bad("price of %s is %v $/hr, want above 0: correct it in the catalogue", t.Name,
				t.Price)
		} else {
			cheapest = min(cheapest, t.Price)
		}
		if t.Max < 0 {
			bad("at most %d instances of %s, want 0 (no limit) or more", t.Max, t.Name)
		}
	}
	switch {
	case !(p.Budget >= 0) || math.IsInf(p.Budget, 1) ||
		p.Budget == 0 && p.Objective == MostThroughput:
		bad("budget is %v $/hr, want above 0", p.Budget)
	case p.Budget > 0 && p.Budget < cheapest && !math.IsInf(cheapest, 1):
		bad("budget of %v $/hr is below the cheapest instance, %s", p.Budget, p.describeCheapest())
	}
	if !(p.Rate >= 0) || math.IsInf(p.Rate, 1) {
		bad("rate is %v queries/s, want above 0", p.Rate)
	}
	if p.Objective == LeastCost && p.Rate == 0 && len(p.Models) > 0 {
		bad("rate: give a rate above 0 queries/s, for which to minimise the cost")
	}
	if !(p.Target >= 0 && p.Target < 1) {
		bad("QoS target is met by a share of %v of the queries, want in (0, 1), such as 0.99",
			p.Target)
	}
	errs = append(errs, p.validateModels()...)
	return errors.Join(errs...)
}

// describeCheapest describes the cheapest type: its name and price.
func (p *Problem) describeCheapest() string {
	best := p.Types[0]
	for _, t := range p.Types {
		if t.Price > 0 && t.Price < best.Price {
			best = t
		}
	}
	return fmt.Sprintf("%s at %v $/hr: raise the budget or name a cheaper type", best.Name,
		best.Price)
}

func (p *Problem) validateModels() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i := range p.Models {
		m := &p.Models[i]
		if m.QoSTarget <= 0 {
			bad("model %s: QoS target is %v, want above 0", m.Name, m.QoSTarget)
		}
		if !(m.Weight >= 0) || math.IsInf(m.Weight, 1) {
			bad("model %s: weight is %v, want 0 or more", m.Name, m.Weight)
		}
		if len(m.Latencies) != len(p.Types) {
			bad("model %s: %d profiles for %d instance types", m.Name, len(m.Latencies),
				len(p.Types))
			continue
		}
		for j, l := range m.Latencies {
			if l == nil {
				bad("model %s has no profile on %s: measure it, or leave the type out", m.Name,
					p.Types[j].Name)
			}
		}
		sum, last := 0.0, 0
		for _, s := range m.BatchSizes {
			if s.BatchSize <= last || s.BatchSize > profiles.MaxBatchSize {
				bad("model %s: batch size %d after %d, want ascending within 1..%d", m.Name,
					s.BatchSize, last, profiles.MaxBatchSize)
			}
			if !(s.Share >= 0 && s.Share <= 1+1e-6) {
				bad("model %s: share of batch size %d is %v, want in [0, 1]", m.Name, s.BatchSize,
					s.Share)
			}
			sum, last = sum+s.Share, s.BatchSize
		}
		if len(m.BatchSizes) == 0 {
			bad("model %s: no batch sizes", m.Name)
		} else if math.Abs(sum-1) > 1e-6 {
			bad("model %s: the shares of its batch sizes add up to %v, want 1: divide them by that",
				m.Name, sum)
		}
	}
	return errs
}

// Price is the price of a configuration in $/hr.
func (p *Problem) Price(c Configuration) float64 {
	sum := 0.0
	for i, n := range c {
		sum += float64(n) * p.Types[i].Price
	}
	return sum
}

// Affordable reports whether a configuration lies within the budget and the types' limits.
func (p *Problem) Affordable(c Configuration) bool {
	for i, n := range c {
		if p.Types[i].Max > 0 && n > p.Types[i].Max {
			return false
		}
	}
	return p.Budget == 0 || p.Price(c) <= p.Budget+roundingError
}

// roundingError bounds the rounding error of sums of prices, in $/hr.
const roundingError = 1e-9

// Name writes a configuration with the names of its types: "g4dn.xlarge=1,r5n.large=13".
func (p *Problem) Name(c Configuration) string {
	var parts []string
	for i, n := range c {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", p.Types[i].Name, n))
		}
	}
	return strings.Join(parts, ",")
}

// maxInstances is the largest number of instances of type i in a configuration of that type alone.
func (p *Problem) maxInstances(i int) (int, error) {
	t := p.Types[i]
	n := math.Inf(1)
	if p.Budget > 0 {
		n = math.Floor((p.Budget + roundingError) / t.Price)
	}
	if t.Max > 0 {
		n = min(n, float64(t.Max))
	}
	switch {
	case n <= 1e9:
		return int(n), nil
	case p.Budget > 0:
		return 0, errTooMany
	}
	return 0, fmt.Errorf("no limit on the number of %s: give a budget or a maximum", t.Name)
}

// searchLimits returns the result of most for each type, and the budget plus roundingError.
func (p *Problem) searchLimits() (most []int, budget float64, err error) {
	most = make([]int, len(p.Types))
	for i := range most {
		if most[i], err = p.maxInstances(i); err != nil {
			return nil, 0, err
		}
	}
	budget = math.Inf(1)
	if p.Budget > 0 {
		budget = p.Budget + roundingError
	}
	return most, budget, nil
}

// Configurations iterates over all affordable configurations except the empty one, in the order of
// their counts. The next step overwrites the configuration yielded: clone it to keep it. Without a
// budget every type needs a Max. More than MaxConfigurations is an error.
func (p *Problem) Configurations() (iter.Seq[Configuration], error) {
	most, budget, err := p.searchLimits()
	if err != nil {
		return nil, err
	}
	if p.countConfigurations(most, budget) > MaxConfigurations {
		return nil, errTooMany
	}
	return func(yield func(Configuration) bool) {
		c := make(Configuration, len(p.Types))
		var from func(i int, price float64) bool
		from = func(i int, price float64) bool {
			if i == len(c) {
				return price == 0 || yield(c)
			}
			t := &p.Types[i]
			for n := 0; n <= most[i]; n++ {
				cost := price + float64(n)*t.Price
				if cost > budget {
					break
				}
				c[i] = n
				if !from(i+1, cost) {
					return false
				}
			}
			c[i] = 0
			return true
		}
		from(0, 0)
	}, nil
}

var errTooMany = fmt.Errorf(
	"more than %d configurations to choose from: lower the budget, limit how many of a type, or "+
		"name fewer types", MaxConfigurations)

// countConfigurations is the number of configurations, or any number above MaxConfigurations. It
// computes, and does not iterate over, those that differ in the last type only.
func (p *Problem) countConfigurations(most []int, budget float64) int {
	last := len(most) - 1
	total := 0
	var from func(i int, price float64)
	from = func(i int, price float64) {
		t := &p.Types[i]
		if i == last {
			total += 1 +
				min(most[i], int(min(math.Floor((budget-price)/t.Price), MaxConfigurations)))
			return
		}
		for n := 0; n <= most[i] && total <= MaxConfigurations; n++ {
			cost := price + float64(n)*t.Price
			if cost > budget {
				break
			}
			from(i+1, cost)
		}
	}
	from(0, 0)
	return total
}

// Space returns all configurations of [Problem.Configurations], at least one.
func (p *Problem) Space() ([]Configuration, error) {
	all, err := p.Configurations()
	if err != nil {
		return nil, err
	}
	space := collectConfigurations(all)
	if len(space) == 0 {
		return nil, errors.New("no configuration to choose from: the types' limits allow none")
	}
	return space, nil
}

// collectConfigurations clones the configurations of an iterator into a slice.
func collectConfigurations(all iter.Seq[Configuration]) []Configuration {
	var space []Configuration
	var counts []int // one allocation for many configurations
	for c := range all {
		if len(counts)+len(c) > cap(counts) {
			counts = make([]int, 0, min(1<<20, max(64, 2*len(space)))*len(c))
		}
		n := len(counts)
		counts = append(counts, c...)
		space = append(space, counts[n:len(counts):len(counts)])
	}
	return space
}
