package plan

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
)

// An Analysis holds what follows from a problem's profiles without an evaluation: which types are
// useful, which one is the base type, which configurations meet the QoS target at any rate, and
// upper bounds on their throughput. It is not safe for concurrent use.
type Analysis struct {
	// Problem is the problem that was analysed. If no configuration can meet its QoS target, it is
	// a copy without the queries that no type answers in time.
	Problem *Problem
	// Base is the index of the base type: among the types that meet the QoS target at every batch
	// size, the one that alone serves the highest rate per $.
	Base int
	// Notes say which types were left out, and how the problem was changed.
	Notes []string

	useful []bool // by type: it meets a QoS target at some batch size
	// reach is, by model and set of types, the share of the model's queries that exactly the types
	// of the set can serve.
	reach    []map[uint64]float64
	feasible map[uint64]bool
	program  fluid.Program
	solver   fluid.Solver
	eq15     *eq15
	// unbudgeted: the problem came without the budget that it has now.
	unbudgeted bool
}

// errBudget is errTooMany without a budget that could be lowered.
var errBudget = errors.New("too many configurations to choose from: give a budget, limit how " +
	"many of a type, or name fewer types")

// maxTypes is how many types fit into a set of type uint64.
const maxTypes = 64

// Analyse validates p, which must have models, and analyses it.
func Analyse(p *Problem) (*Analysis, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if len(p.Models) == 0 {
		return nil, errors.New(
			"no models: this planner reads latency profiles, which a published table does not " +
				"have; ribbon needs none")
	}
	if len(p.Types) > maxTypes {
		return nil, fmt.Errorf("%d instance types, want at most %d", len(p.Types), maxTypes)
	}
	nearest := *p
	nearest.Models = slices.Clone(p.Models)
	a := &Analysis{
		Problem: &nearest, useful: make([]bool, len(p.Types)), feasible: map[uint64]bool{},
	}
	for i := range nearest.Models {
		if err := a.recordServingTypes(&nearest.Models[i]); err != nil {
			return nil, err
		}
	}
	for i, t := range p.Types {
		if !a.useful[i] {
			a.Notes = append(a.Notes,
				fmt.Sprintf("%s is left out: it answers no query within the QoS target (%s)",
					t.Name, a.describeFastest(i)))
		}
	}
	a.prepareProgram()
	if err := a.findBase(); err != nil {
		return nil, err
	}
	if len(nearest.Models) == 1 {
		a.eq15 = newEq15(&nearest, a.Base)
	}
	return a, nil
}

// meetsTarget reports whether the mean latency of the batch size on type i is within the model's
// QoS target.
func (m *ModelDemand) meetsTarget(i, batchSize int) bool {
	return m.Latencies[i].Mean(batchSize) <= m.QoSTarget
}

// recordServingTypes records which types serve which of the model's queries. If so many queries are
// served by no type that the target cannot be met, it removes the largest batch sizes, as few as
// possible.
func (a *Analysis) recordServingTypes(m *ModelDemand) error {
	sets := make([]uint64, len(m.BatchSizes)) // by batch size: the types that serve it
	var all, unserved float64                 // shares
	for b, s := range m.BatchSizes {
		for i := range m.Latencies {
			if m.meetsTarget(i, s.BatchSize) {
				sets[b] |= 1 << i
				a.useful[i] = true
			}
		}
		if all += s.Share; sets[b] == 0 {
			unserved += s.Share
		}
	}
	n := len(sets)
	kept, missed := all, unserved // up to the n-th batch size
	for n > 0 && (missed > kept*(1-a.Problem.targetOrDefault())+1e-9 || n < len(sets) &&
		sets[n-1] == 0) {
		n--
		if kept -= m.BatchSizes[n].Share; sets[n] == 0 {
			missed -= m.BatchSizes[n].Share
		}
	}
	if kept < 1e-9 { // no query, or rounding errors of the shares
		asked := slices.IndexFunc(m.BatchSizes,
			func(s profiles.Share) bool { return s.Share > 0 })
		smallest := m.BatchSizes[asked].BatchSize
		return fmt.Errorf(
			"model %s: the fastest answer to the smallest query, of batch size %d, takes %v, "+
				"which is not within the QoS target of %v: raise that or name a faster type",
			m.Name, smallest, m.minLatency(smallest), m.QoSTarget)
	}
	if n < len(sets) {
		a.Notes = append(a.Notes,
			fmt.Sprintf(
				"model %s: no configuration meets the QoS target at any rate: %.3g %% of the "+
					"queries no instance type answers within %v, and %.3g %% may be late. "+
					"These plans are for those of batch sizes up to %d; for all, the target "+
					"would have to be %v",
				m.Name, 100*unserved, m.QoSTarget, 100*(1-a.Problem.targetOrDefault()),
				m.BatchSizes[n-1].BatchSize, m.minLatency(m.BatchSizes[len(sets)-1].BatchSize)))
		m.BatchSizes = slices.Clone(m.BatchSizes[:n])
		for b := range m.BatchSizes {
			m.BatchSizes[b].Share /= kept
		}
	}
	reach := map[uint64]float64{}
	for b, s := range m.BatchSizes {
		reach[sets[b]] += s.Share
	}
	a.reach = append(a.reach, reach)
	return nil
}

// minLatency is the least mean latency of a batch size over all types.
func (m *ModelDemand) minLatency(batchSize int) time.Duration {
	least := time.Duration(math.MaxInt64)
	for _, l := range m.Latencies {
		least = min(least, l.Mean(batchSize))
	}
	return least
}

// describeFastest describes how long type i takes for the smallest queries.
func (a *Analysis) describeFastest(i int) string {
	var each []string
	for _, m := range a.Problem.Models {
		b := m.BatchSizes[0].BatchSize
		each = append(
			each,
			fmt.Sprintf("model %s: %v at batch size %d, the target is %v", m.Name,
				m.Latencies[i].Mean(b), b, m.QoSTarget))
	}
	return strings.Join(each, "; ")
}

// prepareProgram makes the fluid program, with all counts 0.
func (a *Analysis) prepareProgram() {
	p := a.Problem
	a.program.Unserved = 1 - p.targetOrDefault()
	for _, t := range p.Types {
		a.program.Types = append(a.program.Types, fluid.Type{Name: names.LaneType(t.Name)})
	}
	weights := 0.0
	for i := range p.Models {
		weights += p.Models[i].weightOrDefault()
	}
	for i := range p.Models {
		m := &p.Models[i]
		known := make([]fluid.Latencies, len(m.Latencies))
		for t, l := range m.Latencies {
			known[t] = l
		}
		a.program.Bins = append(a.program.Bins,
			fluid.Bins(names.ModelKey(m.Name), m.weightOrDefault()/weights, m.BatchSizes,
				m.QoSTarget,
				known)...)
	}
}

func (m *ModelDemand) weightOrDefault() float64 {
	if m.Weight == 0 {
		return 1
	}
	return m.Weight
}

// findBase finds the base type. If no type meets the QoS target at every batch size, it takes the
// type that meets it for most queries.
func (a *Analysis) findBase() error {
	a.Base = -1
	var share, worth float64
	for i, t := range a.Problem.Types {
		least := 1.0 // the least share over the models
		for _, reach := range a.reach {
			served := 0.0
			for set, part := range reach {
				if set&(1<<i) != 0 {
					served += part
				}
			}
			least = min(least, served)
		}
		one := make(Configuration, len(a.Problem.Types))
		one[i] = 1
		sol, err := a.Fluid(one)
		if err != nil {
			return err
		}
		if w := sol.Rate / t.Price; a.Base < 0 || least > share+1e-9 ||
			least > share-1e-9 && w > worth {
			a.Base, share, worth = i, least, w
		}
	}
	return nil
}

// Feasible reports whether c meets the QoS target at some rate: it has types for enough of the
// queries, and no type that is left out as useless.
func (a *Analysis) Feasible(c Configuration) bool {
	var set uint64
	for i, n := range c {
		if n > 0 {
			if !a.useful[i] {
				return false
			}
			set |= 1 << i
		}
	}
	known, ok := a.feasible[set]
	if ok {
		return known
	}
	feasible := true
	for _, reach := range a.reach {
		served := 0.0
		for types, part := range reach {
			if types&set != 0 {
				served += part
			}
		}
		feasible = feasible && served >= a.Problem.targetOrDefault()-1e-9
	}
	a.feasible[set] = feasible
	return feasible
}

// Configurations iterates over the affordable and feasible configurations, in the order of their
// counts. The next step overwrites the configuration yielded: clone it to keep it.
func (a *Analysis) Configurations() (iter.Seq[Configuration], error) {
	all, err := a.Problem.Configurations()
	if a.unbudgeted && errors.Is(err, errTooMany) {
		err = errBudget
	}
	if err != nil {
		return nil, err
	}
	return func(yield func(Configuration) bool) {
		for c := range all {
			if a.Feasible(c) && !yield(c) {
				return
			}
		}
	}, nil
}

// Space returns all configurations of [Analysis.Configurations], at least one, or an error that
// says why there are none.
func (a *Analysis) Space() ([]Configuration, error) {
	all, err := a.Configurations()
	if err != nil {
		return nil, err
	}
	space := collectConfigurations(all)
	if len(space) == 0 {
		return nil, a.noneFeasible()
	}
	return space, nil
}

// noneFeasible is the error that says why no configuration within the limits meets the QoS target.
func (a *Analysis) noneFeasible() error {
	base := a.Problem.Types[a.Base]
	if a.Problem.Budget > 0 && base.Price > a.Problem.Budget {
		return fmt.Errorf(
			"budget of %v $/hr buys no configuration that meets the QoS target: that needs an "+
				"instance of the base type, %s at %v $/hr", a.Problem.Budget, base.Name, base.Price)
	}
	return fmt.Errorf(
		"no configuration within the budget and the types' limits meets the QoS target at any "+
			"rate: that needs instances of the base type, %s at %v $/hr", base.Name, base.Price)
}

// Fluid solves the fluid program of c.
func (a *Analysis) Fluid(c Configuration) (*fluid.Solution, error) {
	for i, n := range c {
		a.program.Types[i].Count = n
	}
	return a.solver.Solve(&a.program)
}

// DescribeConfiguration describes c: its price, its bounds, the types that limit its throughput,
// the gain of one instance more of each type, and the expected rate by [Configuration.SafeShare].
func (a *Analysis) DescribeConfiguration(c Configuration, reason string) (Plan, error) {
	sol, err := a.Fluid(c)
	if err != nil {
		return Plan{}, err
	}
	p := a.Problem
	plan := Plan{
		Configuration: c.Clone(),
		Price:         p.Price(c),
		FluidLimit:    sol.Rate,
		Bound:         sol.Rate,
		Predicted:     c.SafeShare() * sol.Rate,
		Binding:       a.bindingTypes(c, sol),
		Reason:        reason,
	}
	blocked, short, err := a.blockedLimit(c)
	if err != nil {
		return Plan{}, err
	}
	if blocked < (1-minBlocked)*sol.Rate {
		plan.Binding += fmt.Sprintf("; runs block %s: while an instance that serves it is kept free "+
			"of long ones, %.4g queries/s at most", short, blocked)
		plan.Predicted = min(plan.Predicted, blocked)
	}
	more := c.Clone()
	for i, t := range p.Types {
		more[i]++
		sol, err := a.Fluid(more)
		if err != nil {
			return Plan{}, err
		}
		more[i]--
		plan.Gains = append(plan.Gains, Gain{
			Type: string(t.Name), Rate: max(0, sol.Rate-plan.FluidLimit), Price: t.Price,
		})
	}
	return plan, nil
}

// minBlocked is the smallest share of the fluid limit whose loss by blocking a plan mentions.
// Chosen: less is within what the simulation of a plan is off by.
const minBlocked = 0.01

// blockedLimit returns the fluid limit of c if long runs leave time to the models with far shorter
// QoS targets, and those models; +Inf if none is blocked. Queries may be split there, because
// horizon may split them, and parts are shorter. The search does without it: it needs limits that
// are in proportion to the counts.
func (a *Analysis) blockedLimit(c Configuration) (limit float64, short string, err error) {
	p := a.program
	p.Types = slices.Clone(p.Types)
	for i, n := range c {
		p.Types[i].Count = n
	}
	p.Bins = slices.Clone(p.Bins)
	for i := range p.Bins {
		p.Bins[i].Splits = true
	}
	targets := map[names.ModelKey]time.Duration{}
	for i := range a.Problem.Models {
		m := &a.Problem.Models[i]
		targets[names.ModelKey(m.Name)] = m.QoSTarget
	}
	if p.Kept = p.KeptFor(targets); len(p.Kept) == 0 {
		return math.Inf(1), "", nil
	}
	sol, err := a.solver.Solve(&p)
	if err != nil {
		return 0, "", err
	}
	var models []string
	for _, k := range p.Kept {
		models = append(models, string(k.Model))
	}
	return sol.Rate, strings.Join(models, " and "), nil
}

// bindingTypes names the types without time to spare, which limit c's throughput.
func (a *Analysis) bindingTypes(c Configuration, sol *fluid.Solution) string {
	if sol.Rate == 0 {
		return "the QoS target: too many queries that no instance answers in time"
	}
	var short, spare []string
	for i, n := range c {
		if n == 0 {
			continue
		}
		name := string(a.Problem.Types[i].Name)
		if sol.Prices[i].PerMs > 0 {
			short = append(short, name)
		} else {
			spare = append(spare,
				fmt.Sprintf("%s is idle %.0f %% of the time", name, 100*(1-sol.Busy[i]/float64(n))))
		}
	}
	s := "time on " + strings.Join(short, " and ")
	if len(spare) > 0 {
		s += "; " + strings.Join(spare, ", ")
	}
	return s
}

// Evaluated returns the plan with an evaluator's estimate in place of the expected rate.
func (a *Analysis) Evaluated(plan Plan, e Estimate) Plan {
	plan.Evaluated, plan.StdErr = true, e.StdErr
	if a.Problem.Objective == LeastCost {
		plan.Satisfaction = e.Value
		return plan
	}
	plan.Predicted = e.Value // more than the fluid limit, maybe, where queries are split and merged
	return plan
}

// rankPlans sorts evaluated plans, the best first. Evaluations do not distinguish plans that serve
// no rate within the QoS target, or that miss the target by the same share. Of such plans the one
// with the higher fluid limit comes first, or without profiles the dearer one: a user whose fleet
// is too small should not be advised to take a smaller one.
func (p *Problem) rankPlans(plans []Plan) {
	more := func(x, y Plan) int {
		limits := cmp.Compare(roundBound(y.FluidLimit), roundBound(x.FluidLimit))
		if x.FluidLimit == 0 && y.FluidLimit == 0 {
			return cmp.Compare(roundBound(y.Price), roundBound(x.Price))
		}
		return cmp.Or(limits, cmp.Compare(roundBound(x.Price), roundBound(y.Price)))
	}
	slices.SortStableFunc(plans, func(x, y Plan) int {
		if p.Objective == MostThroughput {
			if x.Predicted == 0 && y.Predicted == 0 {
				return more(x, y)
			}
			return cmp.Or(cmp.Compare(y.Predicted, x.Predicted),
				cmp.Compare(roundBound(x.Price), roundBound(y.Price)))
		}
		switch xMeets, yMeets := x.Satisfaction >= p.targetOrDefault(),
			y.Satisfaction >= p.targetOrDefault(); {
		case xMeets && yMeets:
			return cmp.Compare(roundBound(x.Price), roundBound(y.Price))
		case xMeets:
			return -1
		case yMeets:
			return 1
		}
		return cmp.Or(cmp.Compare(y.Satisfaction, x.Satisfaction), more(x, y))
	})
}

// servesLess describes how much less a plan serves than the first one.
func servesLess(plan, first *Plan) string {
	switch {
	case first.Predicted > 0:
		return fmt.Sprintf("serves %s %% less than the first",
			formatPercent(percentBelow(plan.Predicted, first.Predicted)))
	case first.FluidLimit > 0:
		return fmt.Sprintf(
			"serves no rate within the QoS target either; its fluid limit is %s %% below the "+
				"first's", formatPercent(percentBelow(plan.FluidLimit, first.FluidLimit)))
	}
	return "serves no rate within the QoS target either"
}

// servesNothing is the first plan's reason, and a note, when no evaluated configuration serves any
// rate within the QoS target.
const servesNothing = "no configuration that was evaluated meets the QoS target at any rate, " +
	"however low"

// percentBelow is by how many percent x is below best; 0 if best is 0.
func percentBelow(x, best float64) float64 {
	if best == 0 {
		return 0
	}
	return 100 * (1 - x/best)
}

// formatPercent writes a percentage with two significant figures, or as a whole number from 10 on,
// and never with an exponent.
func formatPercent(x float64) string {
	if x >= 10 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(math.Round(x*1e4)/1e4, 'g', 2, 64)
}
