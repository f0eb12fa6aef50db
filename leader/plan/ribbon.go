package plan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Ribbon is RIBBON's search (section 4 of its paper): Bayesian optimisation. A Gaussian
// process learns RIBBON's objective (Eq. 2) from what was evaluated, and what is evaluated
// next is that of the largest expected improvement among all configurations that are not
// pruned. It needs no profiles.
//
// For the most throughput, where RIBBON has no objective of its own, it is the throughput, and all
// sub-configurations of what was evaluated are pruned, as KAIROS gives it in its comparison.
//
// Beyond the paper, unless Plain, a second process learns how near to the target the share of
// queries within QoS is. Its probability that a configuration meets the target weights the
// expected improvement, and says when to stop: when no configuration left is likely to meet
// the target for less.
type Ribbon struct {
	// Seed draws the two configurations with which the search starts.
	Seed uint64
	// Explored is what was evaluated under another load, before it changed; the search then starts
	// from there (LeastCost only).
	Explored []Evaluation
	// Plain is the paper's search alone, without what this package adds to it: ribbonplain.go says
	// what that leaves.
	Plain bool
	// Top is how many plans to return at most; 0 means DefaultTop.
	Top int
}

const (
	// A configuration prunes all that have no more of any type if its share of queries within QoS
	// is below the target by more than ribbonTheta. At 0 that is unsafe: a slow instance more may
	// break QoS. Where that was seen to cost more than ribbonTheta, what was seen holds.
	ribbonTheta = 0.01
	// thetaLimit is how far the margin is widened where otherwise nothing were left and nothing met
	// the target: then slow instances are many.
	thetaLimit = 0.16
	// ribbonXi is the improvement of the objective that is not worth an evaluation.
	ribbonXi = 0.03
	// A configuration whose probability to meet the target, or to serve more, is below
	// unlikely is not evaluated.
	unlikely = 0.01
	// A pruned configuration is evaluated after all if the second process thinks it as likely as
	// that: a slow instance may have broken QoS, not load.
	likelyThoughPruned = 0.3
	// A configuration with a share of queries within QoS below overloaded has too few
	// instances, whatever their types.
	overloaded = 0.9
	// What costs less than this share of the best needs no second look: slow instances do not break
	// QoS by so much.
	muchCheaper = 0.8
	// worthwhile is the share by which more throughput counts as more.
	worthwhile = 0.001
)

var (
	objectiveFit = fit{nugget: 1e-6}
	rateFit      = fit{nugget: 1e-4, amplitude: true}
)

// Plan searches. The plans are what was evaluated, the best first.
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
	return s.result(r.Top), nil
}

// A ribbonSearch is what a search knows.
type ribbonSearch struct {
	p        *Problem
	analysis *Analysis // nil where there are no profiles
	log      *Log
	space    []Configuration
	price    []float64 // by configuration
	index    map[string]int
	maxPrice float64 // sum p_i m_i of Eq. 2

	done []bool
	// What is known: evaluated, in order, and then what is estimated from another load.
	known     []Evaluation
	evaluated int
	// hints are what the processes learn beside, as long as it is not evaluated: under another
	// load, of as many instances as that asks for.
	hints []Evaluation
	best  float64 // the price of the cheapest that meets the target, or the highest throughput
	met   bool    // something meets the target, or serves anything
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
	for _, e := range log.Evaluations() { // those of the limits
		s.learn(e)
	}
	return s, nil
}

// start evaluates what a search begins with: two random configurations; after a change of load
// the optimum before it.
func (s *ribbonSearch) start(ctx context.Context, r Ribbon) error {
	random := rand.New(rand.NewPCG(r.Seed, 0))
	first := 2
	if len(r.Explored) > 0 && s.p.Objective == LeastCost {
		if err := s.warm(ctx, r.Explored); err != nil {
			return err
		}
		first = 0
	}
	for first > 0 && s.evaluated < len(s.space) {
		i := random.IntN(len(s.space))
		if s.done[i] {
			continue
		}
		if err := s.evaluate(ctx, i); err != nil {
			return err
		}
		first--
	}
	return nil
}

// warm begins from what was explored before the load changed, of which the best runs now. Where
// that one no longer meets the target, what missed it before misses it by more now: estimates, in
// proportion to how the optimum fared, prune and teach the processes.
//
// The paper takes in all that were no better than the optimum. Those of them that met the
// target may still meet it: with many instances the share of queries within QoS tells of slow
// instances, not of load. And where the optimum is overloaded, all estimates are near 0 and
// tell little of where to go; so more of the same mix is evaluated, by growing factors, until
// one meets the target.
func (s *ribbonSearch) warm(ctx context.Context, explored []Evaluation) error {
	optimum := explored[0]
	for _, e := range explored {
		if len(e.Configuration) != len(s.p.Types) {
			return fmt.Errorf("explored before: %s is not of the problem's %d instance types",
				e.Configuration, len(s.p.Types))
		}
		if s.p.better(e, optimum) {
			optimum = e
		}
	}
	now, err := s.log.Evaluate(ctx, optimum.Configuration)
	if err != nil {
		return err
	}
	s.learn(Evaluation{optimum.Configuration, now})
	if now.Value >= s.p.target() || optimum.Value == 0 {
		return nil
	}
	if s.plain {
		s.estimate(explored, Evaluation{optimum.Configuration, Estimate{Value: optimum.Value}}, now)
		return nil
	}
	for _, e := range explored {
		i, ok := s.index[e.Configuration.String()]
		if ok && !s.done[i] && e.Value < s.p.target() && e.Value <= optimum.Value {
			s.done[i] = true
			s.known = append(s.known, Evaluation{
				e.Configuration, Estimate{Value: e.Value * now.Value / optimum.Value},
			})
		}
	}
	for _, factor := range loadFactors {
		i, ok := s.times(optimum.Configuration, factor)
		if !ok || s.done[i] {
			continue
		}
		if err := s.evaluate(ctx, i); err != nil {
			return err
		}
		if s.met {
			s.hint(explored, factor)
			break
		}
	}
	return nil
}

// hint has the processes take what was explored for what that many times the instances do under the
// load that has risen by that factor.
func (s *ribbonSearch) hint(explored []Evaluation, factor float64) {
	hinted := map[int]bool{}
	for _, e := range explored {
		if i, ok := s.times(e.Configuration, factor); ok && !s.done[i] && !hinted[i] {
			hinted[i] = true
			s.hints = append(s.hints, Evaluation{s.space[i], e.Estimate})
		}
	}
}

// times is the configuration of so many times the instances, rounded up, within the types' limits.
func (s *ribbonSearch) times(c Configuration, factor float64) (i int, ok bool) {
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

// loadFactors are by how much the load may have risen, tried in turn.
var loadFactors = []float64{1.25, 1.5, 2, 3, 4, 6, 8}

// run searches from what is known until nothing more is worth an evaluation.
func (s *ribbonSearch) run(ctx context.Context) error {
	for {
		next, ok := s.next()
		if !ok {
			return nil
		}
		if err := s.evaluate(ctx, next); err != nil {
			return err
		}
	}
}

func (s *ribbonSearch) evaluate(ctx context.Context, i int) error {
	e, err := s.log.Evaluate(ctx, s.space[i])
	if err != nil {
		return err
	}
	s.learn(Evaluation{s.space[i], e})
	return nil
}

// learn takes in an evaluation.
func (s *ribbonSearch) learn(e Evaluation) {
	if i, ok := s.index[e.Configuration.String()]; ok {
		s.done[i] = true
	}
	s.known = slices.Insert(s.known, s.evaluated, e)
	s.evaluated++
	if s.p.Objective == MostThroughput {
		s.best = max(s.best, e.Value)
		s.met = s.best > 0
	} else if price := s.p.Price(e.Configuration); e.Value >= s.p.target() && (!s.met ||
		price < s.best) {
		s.best, s.met = price, true
	}
}

// objective is Eq. 2, or the throughput as a share of the best.
func (s *ribbonSearch) objective(e Evaluation) float64 {
	switch {
	case s.p.Objective == MostThroughput && s.best > 0:
		return e.Value / s.best
	case s.p.Objective == MostThroughput:
		return 0
	case e.Value < s.p.target():
		return e.Value / s.p.target() / 2
	}
	return 0.5 + 0.5*(1-s.p.Price(e.Configuration)/s.maxPrice)
}

// nearness is how near a share of queries within QoS is to the target, on the scale of the second
// process: the logarithm of what is missed, so that it is smooth. What is further below than
// ribbonTheta is all the same, a pool that is overloaded: the cliff between it and one that serves
// would be all that the process saw.
func (s *ribbonSearch) nearness(share float64) float64 {
	target := s.p.target()
	missed := 1 - max(share, target-ribbonTheta)
	return -math.Log(missed + (1-target)/5)
}

// margin is how far below the target a configuration prunes: at least theta, and, unless plain,
// more where a configuration was seen to be that much better than one with more instances.
func (s *ribbonSearch) margin() float64 {
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

// candidates are the configurations not evaluated and not dearer than the best, those apart
// that something evaluated prunes.
func (s *ribbonSearch) candidates() (live, pruned []int) {
	limit := math.Inf(1) // what is below prunes its sub-configurations
	if s.p.Objective == LeastCost {
		limit = s.p.target() - s.margin()
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

// next is the configuration to evaluate next; false: it is time to stop.
func (s *ribbonSearch) next() (int, bool) {
	if s.plain {
		return s.nextPlain()
	}
	live, pruned := s.candidates()
	for len(live) == 0 && len(pruned) > 0 && !s.met && s.p.Objective == LeastCost &&
		s.theta < thetaLimit {
		s.theta *= 2
		live, pruned = s.candidates()
	}
	if next, ok := s.mostPromising(live); ok {
		return next, true
	}
	if s.p.Objective == MostThroughput || !s.met || len(pruned) == 0 {
		return 0, false
	}
	chance := s.chance(pruned)
	for j, i := range pruned {
		if s.oneLess(s.space[i]) || s.price[i] >= muchCheaper*s.best && s.withoutSlow(s.space[i]) {
			chance[j] = max(chance[j], likelyThoughPruned)
		}
	}
	best := slices.Index(chance, slices.Max(chance))
	return pruned[best], chance[best] >= likelyThoughPruned
}

// mostPromising is the candidate of the largest expected improvement of the objective, weighted by
// the square of how likely it is to be better, if any is likely enough. The square lets fewer long
// shots through than the weight itself.
func (s *ribbonSearch) mostPromising(candidates []int) (int, bool) {
	if len(candidates) == 0 {
		return 0, false
	}
	best := 0.0
	for _, e := range s.known {
		best = max(best, s.objective(e))
	}
	mean, deviation := s.predict(s.objective, objectiveFit, candidates)
	likely := s.likely(candidates, mean, deviation, best)
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

// likely is how likely each of the candidates is to be better than what was found, by the
// objective's mean and deviation and by the second process. Until something meets the target the
// processes know too little to leave anything out, unless all seemed to be pruned.
func (s *ribbonSearch) likely(candidates []int, mean, deviation []float64, best float64) []float64 {
	if s.p.Objective == LeastCost && s.met {
		likely := s.chance(candidates)
		for j, i := range candidates {
			if likely[j] < unlikely && (s.between(s.space[i]) || s.oneLess(s.space[i])) {
				likely[j] = unlikely
			}
		}
		return likely
	}
	better := best + worthwhile
	if s.p.Objective == LeastCost {
		better = 0.5 // of Eq. 2: meets the target
	}
	likely := make([]float64, len(candidates))
	for j := range likely {
		likely[j] = 1
		if !(s.p.Objective == LeastCost && s.theta == ribbonTheta) &&
			above((better-mean[j])/deviation[j]) < unlikely {
			likely[j] = 0
		}
	}
	return likely
}

// chance is the probability that each of some configurations meets the target, by the second
// process.
func (s *ribbonSearch) chance(of []int) []float64 {
	mean, deviation := s.predict(func(e Evaluation) float64 { return s.nearness(e.Value) }, rateFit,
		of)
	target := s.nearness(s.p.target())
	for j := range mean {
		mean[j] = above((target - mean[j]) / deviation[j])
	}
	return mean
}

// oneLess reports whether c has one instance less than some that meets the target, or misses it by
// no more than chance: what is so near is not left to extrapolation.
func (s *ribbonSearch) oneLess(c Configuration) bool {
	for _, e := range s.known {
		if e.Value >= s.p.target()-ribbonTheta/4 && c.Count() == e.Configuration.Count()-1 &&
			c.Within(e.Configuration) {
			return true
		}
	}
	return false
}

// withoutSlow reports whether c is one that misses the target, though it is not overloaded, but
// without its instances of one type, which may be what breaks QoS. It is not where what is
// overloaded has as many instances.
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
		found = found || fewer == 1 && e.Value < s.p.target()
	}
	return found
}

// between reports whether c has no fewer instances than some that miss the target and no
// more than some that meet it, or nearly: the cliff between them may be anywhere, whatever
// a smooth process thinks.
func (s *ribbonSearch) between(c Configuration) bool {
	var missed, met bool
	for _, e := range s.known {
		missed = missed || e.Value < s.p.target() && e.Configuration.Within(c)
		met = met || e.Value >= s.p.target()-ribbonTheta/2 && c.Within(e.Configuration)
	}
	return missed && met
}

// predict fits a process to a number of each evaluation, known or hinted at.
func (s *ribbonSearch) predict(number func(Evaluation) float64, f fit, of []int) (mean,
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
	newGaussianProcess(at, y, f).predict(to, mean, deviation)
	return mean, deviation
}

func (s *ribbonSearch) result(top int) *Result {
	r := evaluatedResult(s.p, s.analysis, s.log.Evaluations(), len(s.space), top)
	r.Notes = append(slices.Clone(s.notes), r.Notes...)
	return r
}

// evaluatedResult ranks what was evaluated. Analysis may be nil.
func evaluatedResult(p *Problem, a *Analysis, evaluations []Evaluation, space, top int) *Result {
	r := &Result{Evaluations: evaluations, SearchSpace: space}
	for _, e := range evaluations {
		r.Plans = append(r.Plans, p.evaluated(a, e))
	}
	p.rank(r.Plans)
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
			if plan.Satisfaction < p.target() {
				plan.Reason += fmt.Sprintf(", the target is %.4g %%", 100*p.target())
			} else if i == 0 {
				plan.Reason += fmt.Sprintf(
					": the cheapest that does of %d evaluated out of %d; no other is likely to "+
						"for less", len(evaluations), space)
			}
		}
	}
	if p.Objective == LeastCost && len(r.Plans) > 0 && r.Plans[0].Satisfaction < p.target() {
		r.Notes = append(r.Notes,
			fmt.Sprintf(
				"no configuration was found that meets the target of %.4g %%: the nearest "+
					"reaches %.4g %%. Allow more instances, or a faster type",
				100*p.target(), 100*r.Plans[0].Satisfaction))
		r.Doubt = "nothing that was evaluated meets the target"
	}
	return r
}

// evaluated is the plan of what was evaluated, with its bounds where there are profiles.
func (p *Problem) evaluated(a *Analysis, e Evaluation) Plan {
	if a != nil {
		if described, err := a.Plan(e.Configuration, ""); err == nil {
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
