package choose

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fleetplan"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
)

// A Family lets variants answer the queries that a model of a problem stands for.
type Family struct {
	Name  string
	Model int // its index among the problem's models
	// TargetAccuracy is the mean accuracy that the answers are to have at least, above 0.
	TargetAccuracy float64
	// Variants may answer, the model itself among them.
	Variants []Variant
	// Classes are parts of its queries that only some of the Variants may answer.
	Classes []Class
}

// A Variant is a model that may answer for a family.
type Variant struct {
	Name      string
	Accuracy  float64
	Latencies []plan.Latencies // by index of the problem's types
}

// fleetProblem is the fleet's demand, at the rates that its models weigh, on machines of its types,
// without their prices and limits.
func (f *Fleet) fleetProblem() (*fleetplan.Problem, error) {
	p := f.Problem
	target := p.Target
	if target == 0 {
		target = plan.DefaultTarget
	}
	whole := &fleetplan.Problem{Unserved: 1 - target}
	for _, t := range p.Types {
		whole.Types = append(whole.Types, fleetplan.Type{
			Name: string(t.Name), Capacity: 1, MemoryBytes: f.Memory[t.Name],
		})
	}
	for i := range p.Models {
		m := &p.Models[i]
		family := fleetplan.Family{Name: m.Name}
		variants := []Variant{{Name: m.Name, Accuracy: 1, Latencies: m.Latencies}}
		var classes []Class
		for _, of := range f.Families {
			if of.Model == i && len(of.Variants) > 1 {
				variants, family.TargetAccuracy = of.Variants, of.TargetAccuracy
				classes = of.Classes
			}
		}
		var known []fluid.Latencies // by variant and type
		for _, v := range variants {
			family.Variants = append(family.Variants, fleetplan.Variant{
				Model: names.ModelKey(v.Name), Accuracy: v.Accuracy, SizeBytes: f.Sizes[v.Name],
			})
			for _, l := range v.Latencies {
				known = append(known, l)
			}
		}
		answered := false
		for _, b := range fluid.Bins(names.ModelKey(m.Name), m.Weight, m.BatchSizes, m.QoSTarget,
			known) {
			bin := fleetplan.Bin{BatchSize: b.BatchSize, Rate: b.Share}
			for v := range variants {
				times := make([]float64, len(p.Types))
				for t := range times {
					times[t] = b.Latency[v*len(times)+t].Seconds()
					answered = answered || times[t] > 0
				}
				bin.RunTime = append(bin.RunTime, times)
			}
			family.Bins = append(family.Bins, bin)
		}
		if !answered {
			return nil, fmt.Errorf("model %s: no type of the catalogue answers any of its queries "+
				"within the QoS target of %v: raise that or name a faster type", m.Name, m.QoSTarget)
		}
		addClasses(&family, classes, whole.Unserved)
		whole.Families = append(whole.Families, family)
	}
	return whole, nil
}

// demand is the rate of all queries of the problem, in queries/s.
func (f *Fleet) demand() (rate float64) {
	for i := range f.Problem.Models {
		rate += f.Problem.Models[i].Weight
	}
	return rate
}

// A Capacity says what agents carry of a fleet's demand. It is not safe for concurrent use.
type Capacity struct {
	types    []plan.Type
	rate     float64 // of the demand, in queries/s
	multiple *fleetplan.Capacity
	known    map[string]float64 // by configuration
}

// NewCapacity returns the Capacity for the demand of f; its agents and limits are not read.
func NewCapacity(f *Fleet) (*Capacity, error) {
	p, err := f.fleetProblem()
	if err != nil {
		return nil, err
	}
	return f.newCapacity(p)
}

func (f *Fleet) newCapacity(p *fleetplan.Problem) (*Capacity, error) {
	multiple, err := fleetplan.NewCapacity(p)
	if err != nil {
		return nil, err
	}
	return &Capacity{types: f.Problem.Types, rate: f.demand(), multiple: multiple,
		known: map[string]float64{}}, nil
}

// SafeRate is what may be planned for so many agents, in queries/s of the demand's mix at the
// target accuracies; those of other types than the demand's carry nothing. It remembers its answers.
func (c *Capacity) SafeRate(counts map[profiles.InstanceType]int) float64 {
	config, machines := make(plan.Configuration, len(c.types)), 0
	for i, t := range c.types {
		config[i] = max(0, counts[t.Name])
		machines += config[i]
	}
	key := config.String()
	rate, ok := c.known[key]
	if !ok {
		rate = c.rate * c.multiple.MaxMultiple(config) * staffing.SafeShare(float64(machines))
		c.known[key] = rate
	}
	return rate
}

// wholeProblem is the fleet's problem on the types that may be rented or are there.
func (c *Chooser) wholeProblem(f *Fleet) (*fleetplan.Problem, error) {
	p, err := f.fleetProblem()
	if err != nil {
		return nil, err
	}
	useful := false
	for i := range p.Types {
		name := f.Problem.Types[i].Name
		if _, ours := c.config.Types[name]; ours && f.isPriced(name) || f.Foreign[name] > 0 {
			useful = true
			continue
		}
		for _, family := range p.Families {
			for _, bin := range family.Bins {
				for v := range bin.RunTime {
					bin.RunTime[v][i] = 0
				}
			}
		}
	}
	if !useful {
		return nil, errors.New("no type of the policy has a latency profile for every model, and " +
			"a price")
	}
	return p, nil
}

// isPriced reports whether a type has a price in some market.
func (f *Fleet) isPriced(t profiles.InstanceType) bool {
	return f.Prices[rent.Kind{Type: t}] > 0 || f.Prices[rent.Kind{Type: t, Market: rent.Spot}] > 0
}

// planMachines plans on-demand machines beside those that are not rented, for up to most times a
// rate, in queries/s: the cheapest that carry that, or those that carry most of it within the
// budget, in $/hr.
func (c *Chooser) planMachines(f *Fleet, whole *fleetplan.Problem, rate, budget,
	most float64) (*fleetplan.Plan, error) {
	p := whole.ScaledBy(rate / f.demand())
	p.MaxMultiple, p.BudgetUSDPerHour = most, budget
	cheapest := math.Inf(1)
	for i := range p.Types {
		t, name := &p.Types[i], f.Problem.Types[i].Name
		foreign := f.Foreign[name]
		t.Min, t.Max = foreign, foreign
		l, ours := c.config.Types[name]
		kind := rent.Kind{Type: name}
		price := f.Prices[kind]
		if !ours || price <= 0 {
			continue
		}
		t.PriceUSDPerHour = price
		p.BudgetUSDPerHour += float64(foreign) * price
		machines := l.Max
		if machines == 0 {
			machines = int(budget/price) + 1
		}
		if slices.ContainsFunc(f.Lacks, func(l rent.Lack) bool { return l.Kind == kind }) {
			machines = min(machines, f.Have[kind])
		}
		t.Min, t.Max = foreign+l.Min, foreign+max(machines, l.Min)
		cheapest = min(cheapest, price)
	}
	plans, err := c.planner.PlanSafely(p, 1)
	if err != nil {
		return nil, err
	}
	if len(plans) == 0 || len(f.Foreign) == 0 && budget < cheapest {
		return nil, fmt.Errorf("the limit of $%.4g/hr is below the price of the cheapest type, "+
			"$%.4g/hr", c.config.MaxPrice, cheapest)
	}
	return plans[0], nil
}

// rented are a plan's machines without those that are not rented, and what the limits want beside
// them.
func (c *Chooser) rented(f *Fleet, p *fleetplan.Plan) map[rent.Kind]int {
	counts, total := map[rent.Kind]int{}, 0
	for i, n := range p.Counts {
		name := f.Problem.Types[i].Name
		if n -= f.Foreign[name]; n > 0 {
			counts[rent.Kind{Type: name}] = n
			total += n
		}
	}
	return c.fill(counts, total, f.Prices)
}
