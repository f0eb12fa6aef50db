package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Ribbon is RIBBON's search by Bayesian optimisation (section 4 of its paper). A Gaussian process
// learns RIBBON's objective (Eq. 2) from the evaluations. The search evaluates next the
// configuration of the largest expected improvement among those that are not pruned. It needs no
// profiles.
//
// RIBBON has no objective for the most throughput. There the objective is the throughput, and all
// sub-configurations of evaluated ones are pruned, as KAIROS does when it compares itself with
// RIBBON.
//
// Beyond the paper, unless Plain is set, a second process learns how near the share of queries
// within QoS is to the target. The expected improvement is weighted by its probability that a
// configuration meets the target. The search stops when no configuration left is likely to meet the
// target for less.
type Ribbon struct {
	// Seed seeds the random choice of the two configurations with which the search starts.
	Seed uint64
	// Explored are evaluations under the load before it changed, from which the search starts
	// (LeastCost only).
	Explored []Evaluation
	// Plain selects the paper's search without this package's additions; see ribbonplain.go.
	Plain bool
	// Top is how many plans to return at most; 0 means DefaultTop.
	Top int
}

const (
	// ribbonTheta is RIBBON's pruning margin theta. A configuration whose share of queries within
	// QoS is below the target by more than the margin prunes all its sub-configurations. A margin
	// of 0 is unsafe, because adding a slow instance can break QoS. If that was seen to cost a
	// larger share than ribbonTheta, the margin is that share.
	ribbonTheta = 0.01
	// thetaLimit is the widest margin. The margin is widened if no candidate is left and none has
	// met the target, as happens with many slow instances. Chosen: four doublings of ribbonTheta; a
	// configuration that misses by more than a sixth of its queries says nothing about larger ones.
	thetaLimit = 0.16
	// ribbonXi is the parameter xi of expected improvement (Jones, Schonlau and Welch, Journal of
	// Global Optimization 13, 1998): a smaller improvement of the objective is not worth an
	// evaluation. Chosen.
	ribbonXi = 0.03
	// A configuration is not evaluated if its probability to meet the target, or to serve more, is
	// below unlikely. Chosen: of a hundred that are passed over, one would have been better.
	unlikely = 0.01
	// A pruned configuration is evaluated after all if the second process gives it at least this
	// probability: the one that pruned it may have missed QoS because of a slow instance, not
	// because of load.
	likelyThoughPruned = 0.3
	// A configuration with a share of queries within QoS below overloaded has too few instances, of
	// whatever types. Chosen: a slow instance too many costs a few percent of the queries; a queue
	// that grows costs most of them.
	overloaded = 0.9
	// A pruned configuration cheaper than this share of the best price is not reconsidered: leaving
	// out slow instances saves less than that. Chosen.
	muchCheaper = 0.8
	// worthwhile is the smallest relative gain of throughput that counts as a gain. Chosen: a
	// simulation's throughput is known to about a percent.
	worthwhile = 0.001
)

var (
	objectiveFit = fit{nugget: 1e-6}
	rateFit      = fit{nugget: 1e-4, amplitude: true}
)

// Plan implements [Planner]. The plans are the evaluated configurations, the best first.
func (r Ribbon) Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error) {
	if e == nil {
		return nil, errors.New("ribbon evaluates configurations: give it an evaluator")
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	log := NewLog(e)
	limited, err := searchLimits(ctx, p, log)
	if err != nil {
		return nil, err
	}
	s, err := newRibbonSearch(limited, log)
	if err != nil {
		return nil, err
	}
	s.plain = r.Plain
	if err := s.start(ctx, r); err != nil {
		return nil, err
	}
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s.makeResult(r.Top), nil
}

// A ribbonSearch is the state of a search.
type ribbonSearch struct {
	p        *Problem
	analysis *Analysis // nil if there are no profiles
	log      *Log
	space    []Configuration
	price    []float64 // by configuration
	index    map[string]int
	maxPrice float64 // sum p_i m_i of Eq. 2

	done []bool
	// known has first the evaluations, in order, and then estimates from evaluations under another
	// load.
	known     []Evaluation
	evaluated int
	// hints are further estimates that the processes learn from while their configurations are not
	// evaluated: evaluations under another load, for a multiple of their instances.
	hints []Evaluation
	best  float64 // the least price that meets the target, or the highest throughput
	met   bool    // an evaluated configuration meets the target, or serves any rate
	theta float64
	plain bool // Ribbon.Plain
	notes []string
}

func newRibbonSearch(p *Problem, log *Log) (*ribbonSearch, error) {
	s := &ribbonSearch{p: p, log: log, theta: ribbonTheta, index: map[string]int{}}
	var err error
	if len(p.Models) > 0 {
		if s.analysis, err = Analyse(p); err != nil {
			return nil, err
		}
		s.notes = s.analysis.Notes
		s.space, err = s.analysis.Space()
	} else {
		s.space, err = p.Space()
	}
	if err != nil {
		return nil, err
	}
	s.price = make([]float64, len(s.space))
	s.done = make([]bool, len(s.space))
	for i, c := range s.space {
		s.price[i] = p.Price(c)
		s.maxPrice = max(s.maxPrice, s.price[i])
		s.index[c.String()] = i
	}
	for _, e := range log.Evaluations() { // the evaluations made by searchLimits
		s.addEvaluation(e)
	}
	return s, nil
}

// start evaluates the first configurations: two random ones, or, after a change of load, the former
// optimum.
func (s *ribbonSearch) start(ctx context.Context, r Ribbon) error {
	random := rand.New(rand.NewPCG(r.Seed, 0))
	first := 2
	if len(r.Explored) > 0 && s.p.Objective == LeastCost {
		if err := s.warmStart(ctx, r.Explored); err != nil {
			return err
		}
		first = 0
	}
	for first > 0 && s.evaluated < len(s.space) {
		i := random.IntN(len(s.space))
		if s.done[i] {
			continue
		}
		if err := s.evaluateIndex(ctx, i); err != nil {
			return err
		}
		first--
	}
	return nil
}

// warmStart starts from evaluations under the load before it changed; the best of them is the
// configuration that runs now. If that one no longer meets the target, configurations that missed
// the target before miss it by more now. Their estimates, scaled by how the optimum's share has
// changed, prune others and teach the processes.
//
// The paper estimates all configurations that were no better than the optimum. This departs from it
// in two ways. Configurations that met the target before are left out, because they may still meet
// it: with many instances the share of queries within QoS depends on slow instances, not on load.
// And if the optimum is overloaded, all estimates are near 0 and do not say where to go; so growing
// multiples of the optimum are evaluated until one meets the target.
func (s *ribbonSearch) warmStart(ctx context.Context, explored []Evaluation) error {
	optimum := explored[0]
	for _, e := range explored {
		if len(e.Configuration) != len(s.p.Types) {
			return fmt.Errorf("explored before: %s is not of the problem's %d instance types",
				e.Configuration, len(s.p.Types))
		}
		if s.p.isBetter(e, optimum) {
			optimum = e
		}
	}
	now, err := s.log.Evaluate(ctx, optimum.Configuration)
	if err != nil {
		return err
	}
	s.addEvaluation(Evaluation{optimum.Configuration, now})
	if now.Value >= s.p.targetOrDefault() || optimum.Value == 0 {
		return nil
	}
	if s.plain {
		s.addEstimates(explored, Evaluation{optimum.Configuration, Estimate{Value: optimum.Value}},
			now)
		return nil
	}
	for _, e := range explored {
		i, ok := s.index[e.Configuration.String()]
		if ok && !s.done[i] && e.Value < s.p.targetOrDefault() && e.Value <= optimum.Value {
			s.done[i] = true
			s.known = append(s.known, Evaluation{
				e.Configuration, Estimate{Value: e.Value * now.Value / optimum.Value},
			})
		}
	}
	for _, factor := range loadFactors {
		i, ok := s.scaledIndex(optimum.Configuration, factor)
		if !ok || s.done[i] {
			continue
		}
		if err := s.evaluateIndex(ctx, i); err != nil {
			return err
		}
		if s.met {
			s.addHints(explored, factor)
			break
		}
	}
	return nil
}

// addHints adds hints: under a load risen by factor, factor times the instances are taken to serve
// the share that the instances served before.
func (s *ribbonSearch) addHints(explored []Evaluation, factor float64) {
	hinted := map[int]bool{}
	for _, e := range explored {
		if i, ok := s.scaledIndex(e.Configuration, factor); ok && !s.done[i] && !hinted[i] {
			hinted[i] = true
			s.hints = append(s.hints, Evaluation{s.space[i], e.Estimate})
		}
	}
}

// scaledIndex is the index of the configuration with factor times the instances of c, rounded up,
// within the types' limits.
func (s *ribbonSearch) scaledIndex(c Configuration, factor float64) (i int, ok bool) {
	more := c.Clone()
	for t, n := range more {
		more[t] = int(math.Ceil(factor * float64(n)))
		if limit := s.p.Types[t].Max; limit > 0 {
			more[t] = min(more[t], limit)
		}
	}
	i, ok = s.index[more.String()]
	return i, ok
}

// loadFactors are the factors by which the load may have risen, tried in order.
var loadFactors = []float64{1.25, 1.5, 2, 3, 4, 6, 8}

// run searches until no configuration is worth an evaluation.
func (s *ribbonSearch) run(ctx context.Context) error {
	for {
		next, ok := s.next()
		if !ok {
			return nil
		}
		if err := s.evaluateIndex(ctx, next); err != nil {
			return err
		}
	}
}

func (s *ribbonSearch) evaluateIndex(ctx context.Context, i int) error {
	e, err := s.log.Evaluate(ctx, s.space[i])
	if err != nil {
		return err
	}
	s.addEvaluation(Evaluation{s.space[i], e})
	return nil
}

// addEvaluation adds an evaluation.
func (s *ribbonSearch) addEvaluation(e Evaluation) {
	if i, ok := s.index[e.Configuration.String()]; ok {
		s.done[i] = true
	}
	s.known = slices.Insert(s.known, s.evaluated, e)
	s.evaluated++
	if s.p.Objective == MostThroughput {
		s.best = max(s.best, e.Value)
		s.met = s.best > 0
	} else if price := s.p.Price(e.Configuration); e.Value >= s.p.targetOrDefault() && (!s.met ||
		price < s.best) {
		s.best, s.met = price, true
	}
}

// objectiveOf is RIBBON's Eq. 2, or for the most throughput the throughput as a share of the best.
func (s *ribbonSearch) objectiveOf(e Evaluation) float64 {
	switch {
	case s.p.Objective == MostThroughput && s.best > 0:
		return e.Value / s.best
	case s.p.Objective == MostThroughput:
		return 0
	case e.Value < s.p.targetOrDefault():
		return e.Value / s.p.targetOrDefault() / 2
	}
	return 0.5 + 0.5*(1-s.p.Price(e.Configuration)/s.maxPrice)
}

// nearnessOf maps a share of queries within QoS to the scale of the second process: the logarithm
// of the share that misses QoS, which is smooth. All shares below the target by more than
// ribbonTheta count alike, as those of overloaded pools: otherwise the step between overloaded
// pools and others would dominate the process.
func (s *ribbonSearch) nearnessOf(share float64) float64 {
	target := s.p.targetOrDefault()
	missed := 1 - max(share, target-ribbonTheta)
	return -math.Log(missed + (1-target)/5)
}

// pruningMargin is how far below the target a share must be to prune: theta, or, unless plain, the
// largest amount by which a configuration was seen to be better than one with more instances.
func (s *ribbonSearch) pruningMargin() float64 {
	margin := s.theta
	if s.plain {
		return margin
	}
	for _, fewer := range s.known {
		for _, more := range s.known {
			if fewer.Value > more.Value+margin && fewer.Configuration.Within(more.Configuration) {
				margin = fewer.Value - more.Value
			}
		}
	}
	return margin
}

// findCandidates returns the configurations that are not evaluated and not dearer than the best:
// live ones, and those that an evaluation prunes.
func (s *ribbonSearch) findCandidates() (live, pruned []int) {
	limit := math.Inf(1) // a share below it prunes the sub-configurations
	if s.p.Objective == LeastCost {
		limit = s.p.targetOrDefault() - s.pruningMargin()
	}
	var failed []Configuration
	for _, e := range s.known {
		if e.Value < limit {
			failed = append(failed, e.Configuration)
		}
	}
	for i, c := range s.space {
		switch {
		case s.done[i] || s.p.Objective == LeastCost && s.met && s.price[i] >= s.best-roundingError:
		case slices.ContainsFunc(failed, c.Within):
			pruned = append(pruned, i)
		default:
			live = append(live, i)
		}
	}
	return live, pruned
}

// next returns the configuration to evaluate next; false if the search should stop.
func (s *ribbonSearch) next() (int, bool) {
	if s.plain {
		return s.nextPlain()
	}
	live, pruned := s.findCandidates()
	for len(live) == 0 && len(pruned) > 0 && !s.met && s.p.Objective == LeastCost &&
		s.theta < thetaLimit {
		s.theta *= 2
		live, pruned = s.findCandidates()
	}
	if next, ok := s.maxPromising(live); ok {
		return next, true
	}
	if s.p.Objective == MostThroughput || !s.met || len(pruned) == 0 {
		return 0, false
	}
	chance := s.probabilitiesMeet(pruned)
	for j, i := range pruned {
		if s.oneLess(s.space[i]) || s.price[i] >= muchCheaper*s.best && s.withoutSlow(s.space[i]) {
			chance[j] = max(chance[j], likelyThoughPruned)
		}
	}
	best := slices.Index(chance, slices.Max(chance))
	return pruned[best], chance[best] >= likelyThoughPruned
}

// maxPromising returns the candidate of the largest expected improvement of the objective,
// weighted by the square of its probability to be better; false if no candidate is likely enough.
// The square favours likely candidates more than the probability itself does.
func (s *ribbonSearch) maxPromising(candidates []int) (int, bool) {
	if len(candidates) == 0 {
		return 0, false
	}
	best := 0.0
	for _, e := range s.known {
		best = max(best, s.objectiveOf(e))
	}
	mean, deviation := s.predictAll(s.objectiveOf, objectiveFit, candidates)
	likely := s.probabilitiesBetter(candidates, mean, deviation, best)
	next, most := -1, math.Inf(-1)
	for j, i := range candidates {
		improvement := likely[j] * likely[j] * expectedImprovement(mean[j], deviation[j],
			best+ribbonXi)
		if likely[j] >= unlikely && improvement > most {
			next, most = i, improvement
		}
	}
	return next, next >= 0
}

// probabilitiesBetter returns each candidate's probability to be better than the best so far, by
// the objective's mean and deviation and by the second process. Until a configuration meets the
// target the processes know too little to exclude any, unless all candidates were pruned.
func (s *ribbonSearch) probabilitiesBetter(candidates []int, mean, deviation []float64,
	best float64) []float64 {
	if s.p.Objective == LeastCost && s.met {
		likely := s.probabilitiesMeet(candidates)
		for j, i := range candidates {
			if likely[j] < unlikely && (s.liesBetween(s.space[i]) || s.oneLess(s.space[i])) {
				likely[j] = unlikely
			}
		}
		return likely
	}
	better := best + worthwhile
	if s.p.Objective == LeastCost {
		better = 0.5 // Eq. 2 is at least 0.5 if the target is met
	}
	likely := make([]float64, len(candidates))
	for j := range likely {
		likely[j] = 1
		if !(s.p.Objective == LeastCost && s.theta == ribbonTheta) &&
			normalTail((better-mean[j])/deviation[j]) < unlikely {
			likely[j] = 0
		}
	}
	return likely
}

// probabilitiesMeet returns, for each of the given configurations, the second process's probability
// that it meets the target.
func (s *ribbonSearch) probabilitiesMeet(of []int) []float64 {
	mean, deviation := s.predictAll(func(e Evaluation) float64 { return s.nearnessOf(e.Value) },
		rateFit,
		of)
	target := s.nearnessOf(s.p.targetOrDefault())
	for j := range mean {
		mean[j] = normalTail((target - mean[j]) / deviation[j])
	}
	return mean
}

// oneLess reports whether c has one instance less than a configuration that meets the target, or
// misses it by no more than random error. So near, an evaluation is safer than extrapolation.
func (s *ribbonSearch) oneLess(c Configuration) bool {
	for _, e := range s.known {
		if e.Value >= s.p.targetOrDefault()-ribbonTheta/4 &&
			c.Count() == e.Configuration.Count()-1 &&
			c.Within(e.Configuration) {
			return true
		}
	}
	return false
}

// withoutSlow reports whether c equals a configuration that misses the target without being
// overloaded, less all instances of one type, which may be what breaks QoS. It reports false if an
// overloaded configuration has at least as many instances.
func (s *ribbonSearch) withoutSlow(c Configuration) bool {
	found := false
	for _, e := range s.known {
		if e.Value < overloaded {
			if c.Within(e.Configuration) {
				return false
			}
			continue
		}
		fewer := 0
		for t, n := range c {
			if n == 0 && e.Configuration[t] > 0 {
				fewer++
			} else if n != e.Configuration[t] {
				fewer = len(c) + 1
			}
		}
		found = found || fewer == 1 && e.Value < s.p.targetOrDefault()
	}
	return found
}

// liesBetween reports whether c lies between configurations that miss the target and configurations
// that meet it or nearly do. The step between them may be anywhere, and the processes, which are
// smooth, cannot predict it.
func (s *ribbonSearch) liesBetween(c Configuration) bool {
	var missed, met bool
	for _, e := range s.known {
		missed = missed || e.Value < s.p.targetOrDefault() && e.Configuration.Within(c)
		met = met || e.Value >= s.p.targetOrDefault()-ribbonTheta/2 && c.Within(e.Configuration)
	}
	return missed && met
}

// predictAll fits a process to number(e) of each evaluation e in known and hints, and predicts the
// given configurations.
func (s *ribbonSearch) predictAll(number func(Evaluation) float64, f fit, of []int) (mean,
	deviation []float64) {
	var at []Configuration
	var y []float64
	for _, e := range s.known {
		at, y = append(at, e.Configuration), append(y, number(e))
	}
	for _, e := range s.hints {
		if !s.done[s.index[e.Configuration.String()]] {
			at, y = append(at, e.Configuration), append(y, number(e))
		}
	}
	to := make([]Configuration, len(of))
	for j, i := range of {
		to[j] = s.space[i]
	}
	mean, deviation = make([]float64, len(of)), make([]float64, len(of))
	newGaussianProcess(at, y, f).predictAt(to, mean, deviation)
	return mean, deviation
}

func (s *ribbonSearch) makeResult(top int) *Result {
	r := evaluatedResult(s.p, s.analysis, s.log.Evaluations(), len(s.space), top)
	r.Notes = append(slices.Clone(s.notes), r.Notes...)
	return r
}

// evaluatedResult ranks the evaluated configurations. a may be nil.
func evaluatedResult(p *Problem, a *Analysis, evaluations []Evaluation, space, top int) *Result {
	r := &Result{Evaluations: evaluations, SearchSpace: space}
	for _, e := range evaluations {
		r.Plans = append(r.Plans, p.evaluatedPlan(a, e))
	}
	p.rankPlans(r.Plans)
	r.Plans = r.Plans[:min(len(r.Plans), topOr(top))]
	for i := range r.Plans {
		plan, first := &r.Plans[i], &r.Plans[0]
		switch {
		case p.Objective == MostThroughput && i > 0:
			plan.Reason = servesLess(plan, first)
		case p.Objective == MostThroughput && first.Predicted == 0:
			plan.Reason = servesNothing
			r.Notes = append(r.Notes, servesNothing+": what has most comes first")
			r.Doubt = "nothing that was evaluated serves any rate"
		case p.Objective == MostThroughput:
			plan.Reason = fmt.Sprintf(
				"serves most of the %d of %d configurations that were evaluated; none of the "+
					"others is likely to serve more", len(evaluations), space)
		default:
			plan.Reason = fmt.Sprintf("answers %.2f %% of the queries within QoS",
				100*plan.Satisfaction)
			if plan.Satisfaction < p.targetOrDefault() {
				plan.Reason += fmt.Sprintf(", the target is %.4g %%", 100*p.targetOrDefault())
			} else if i == 0 {
				plan.Reason += fmt.Sprintf(
					": the cheapest that does of %d evaluated out of %d; no other is likely to "+
						"for less", len(evaluations), space)
			}
		}
	}
	if p.Objective == LeastCost && len(r.Plans) > 0 &&
		r.Plans[0].Satisfaction < p.targetOrDefault() {
		r.Notes = append(r.Notes,
			fmt.Sprintf(
				"no configuration was found that meets the target of %.4g %%: the nearest "+
					"reaches %.4g %%. Allow more instances, or a faster type",
				100*p.targetOrDefault(), 100*r.Plans[0].Satisfaction))
		r.Doubt = "nothing that was evaluated meets the target"
	}
	return r
}

// evaluatedPlan is the plan of an evaluated configuration, with its bounds if there are profiles.
func (p *Problem) evaluatedPlan(a *Analysis, e Evaluation) Plan {
	if a != nil {
		if described, err := a.DescribeConfiguration(e.Configuration, ""); err == nil {
			return a.Evaluated(described, e.Estimate)
		}
	}
	plan := Plan{
		Configuration: e.Configuration.Clone(), Price: p.Price(e.Configuration), StdErr: e.StdErr,
		Evaluated: true,
	}
	if p.Objective == LeastCost {
		plan.Satisfaction = e.Value
	} else {
		plan.Predicted = e.Value
	}
	return plan
}
