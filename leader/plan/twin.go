package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Twin looks for the least cost with a model of the fleet beside the fleet itself: the model, a
// simulator with the learned profiles, proposes, the evaluator disposes, and a Gaussian process
// models by how much the model errs. Only what the model thinks cheapest is evaluated; where it is
// found to be wrong the search goes on as [Ribbon]'s, without it.
type Twin struct {
	// Model predicts what the evaluator will find. It is asked of every configuration no dearer
	// than what comes out, by rising price.
	Model Evaluator
	// Runs is of how many runs an estimate of the model's is the mean, where the evaluator's is of
	// one and so scatters more; 0 where the evaluator's does not.
	Runs int
	// Seed draws where the search starts if the model proposes nothing.
	Seed uint64
	// Top is how many plans to return at most; 0 means DefaultTop.
	Top int
}

const (
	// twinError is the standard deviation of a good model's error on the scale of nearness, where a
	// half more queries missed are 0.34: what two runs of 20,000 queries differ by near a target of
	// 99 %. A part of it is common to alike configurations.
	twinError = 0.15
	// twinWrong is by how many standard deviations a prediction may be off before the
	// model is given up.
	twinWrong = 3
	// A configuration is evaluated if the chance that it meets the target is at least twinChance.
	twinChance = 0.05
	// A configuration with an instance less than the best is evaluated, unless the model thinks
	// that it serves less than nearlyServed: below that it is so overloaded that even profiles a
	// tenth wrong make no difference.
	nearlyServed = 0.5
	// errorLength indexes the length scale of the error: 4 instances.
	errorLength = 16
)

// Plan searches. Plans are what was evaluated, the best first.
func (t Twin) Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error) {
	switch {
	case e == nil || t.Model == nil:
		return nil, errors.New("twin compares a model with evaluations: give it both")
	case p.Objective != LeastCost:
		return nil, errors.New("twin looks for the least cost of a load: give it a rate; for the " +
			"most throughput take kairos+")
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	model := NewLog(t.Model)
	limited, err := searchLimits(ctx, p, model)
	if err != nil {
		return nil, err
	}
	s, err := newRibbonSearch(limited, NewLog(e))
	if err != nil {
		return nil, err
	}
	w := &twinSearch{ribbonSearch: s, model: model, scatter: math.Sqrt(1 + float64(t.Runs))}
	wrong, err := w.search(ctx)
	if err != nil {
		return nil, err
	}
	if wrong != "" {
		s.notes = append(slices.Clone(s.notes), wrong+": the search went on without it")
		if s.evaluated == 0 {
			if err := s.start(ctx, Ribbon{Seed: t.Seed}); err != nil {
				return nil, err
			}
		}
		if err := s.run(ctx); err != nil {
			return nil, err
		}
	}
	return s.result(t.Top), nil
}

// A twinSearch is a ribbonSearch with a model.
type twinSearch struct {
	*ribbonSearch
	model *Log
	// scatter is by how much more an evaluation scatters about the truth than the model's estimate
	// does about its mean.
	scatter float64
}

// search evaluates what the model proposes until it has nothing left that might be cheaper, and
// every type was tried. It returns why the model is wrong, if it is.
func (w *twinSearch) search(ctx context.Context) (wrong string, err error) {
	byPrice := make([]int, len(w.space))
	for i := range byPrice {
		byPrice[i] = i
	}
	slices.SortStableFunc(byPrice,
		func(i, j int) int { return cmp.Compare(digits(w.price[i]), digits(w.price[j])) })
	for {
		next, err := w.propose(ctx, byPrice)
		if err != nil {
			return "", err
		}
		if next < 0 && w.met {
			next, err = w.neighbour(ctx)
			if next < 0 && err == nil {
				next, err = w.untried(ctx, byPrice)
			}
			if next < 0 || err != nil {
				return "", err
			}
		}
		if next < 0 {
			return "the model finds no configuration that might meet the target", nil
		}
		if err := w.evaluate(ctx, next); err != nil {
			return "", err
		}
		if wrong, err := w.judge(ctx, w.known[w.evaluated-1]); wrong != "" || err != nil {
			return wrong, err
		}
	}
}

// propose is the cheapest configuration that more likely than not meets the target, once there is
// one that does the one from which most is to be expected, price by chance; -1: none.
func (w *twinSearch) propose(ctx context.Context, byPrice []int) (int, error) {
	errorOf := w.errorProcess()
	next, most := -1, 0.0
	for _, i := range byPrice {
		if w.done[i] {
			continue
		}
		if w.met && w.price[i] >= w.best-roundingError {
			break
		}
		predicted, err := w.model.Evaluate(ctx, w.space[i])
		if err != nil {
			return -1, err
		}
		mean, deviation := errorOf(w.space[i])
		chance := above((w.nearness(w.p.target()) - w.nearness(predicted.Value) -
			mean) / math.Hypot(deviation, w.uncertain(predicted)))
		if !w.met && chance >= 0.5 {
			return i, nil
		}
		if gain := chance * (w.best - w.price[i]); w.met && chance >= twinChance && gain > most {
			next, most = i, gain
		}
	}
	return next, nil
}

// neighbour is a configuration with one instance less than the best, which a model that is too
// pessimistic would miss; -1: all are known or hopeless.
func (w *twinSearch) neighbour(ctx context.Context) (int, error) {
	for _, e := range w.known {
		if e.Value < w.p.target() || w.p.Price(e.Configuration) > w.best+roundingError {
			continue
		}
		less := e.Configuration.Clone()
		for t := range less {
			less[t]--
			i, ok := w.index[less.String()]
			less[t]++
			if !ok || w.done[i] {
				continue
			}
			predicted, err := w.model.Evaluate(ctx, w.space[i])
			if err != nil {
				return -1, err
			}
			if predicted.Value >= nearlyServed {
				return i, nil
			}
		}
	}
	return -1, nil
}

// untried is a configuration to try the model of a type that nothing evaluated has, and that a
// cheaper configuration may need: of the cheaper ones with that type the one nearest to the target.
// -1: every type was tried.
func (w *twinSearch) untried(ctx context.Context, byPrice []int) (int, error) {
	for t := range w.p.Types {
		if slices.ContainsFunc(w.known, func(e Evaluation) bool { return e.Configuration[t] > 0 }) {
			continue
		}
		next, nearest := -1, math.Inf(-1)
		for _, i := range byPrice {
			if w.price[i] >= w.best-roundingError {
				break
			}
			if w.done[i] || w.space[i][t] == 0 {
				continue
			}
			predicted, err := w.model.Evaluate(ctx, w.space[i])
			if err != nil {
				return -1, err
			}
			if predicted.Value > nearest {
				next, nearest = i, predicted.Value
			}
		}
		if next >= 0 {
			return next, nil
		}
	}
	return -1, nil
}

// judge says what is wrong with the model if it is further from an evaluation than chance explains.
func (w *twinSearch) judge(ctx context.Context, e Evaluation) (wrong string, err error) {
	predicted, err := w.model.Evaluate(ctx, e.Configuration)
	if err != nil {
		return "", err
	}
	off := w.nearness(e.Value) - w.nearness(predicted.Value)
	if math.Abs(off) <= twinWrong*math.Hypot(twinError, w.uncertain(predicted)) {
		return "", nil
	}
	return fmt.Sprintf(
		"the model is wrong: it predicted %.2f %% of the queries within QoS for %s, and %.2f %% "+
			"were", 100*predicted.Value, w.p.Name(e.Configuration), 100*e.Value), nil
}

// uncertain is by how much an evaluation may differ from an estimate by chance, on
// the scale of nearness.
func (w *twinSearch) uncertain(e Estimate) float64 {
	deviation := w.scatter * e.StdErr
	return (w.nearness(min(1, e.Value+deviation)) - w.nearness(e.Value-deviation)) / 2
}

// errorProcess returns the mean and deviation of the model's error at a configuration, on
// the scale of nearness.
func (w *twinSearch) errorProcess() func(Configuration) (mean, deviation float64) {
	if w.evaluated == 0 {
		return func(Configuration) (float64, float64) { return 0, twinError }
	}
	at, off := make([]Configuration, w.evaluated), make([]float64, w.evaluated)
	for i, e := range w.known[:w.evaluated] {
		// recalled: judge has asked
		predicted, _ := w.model.Evaluate(context.Background(), e.Configuration)
		at[i], off[i] = e.Configuration, w.nearness(e.Value)-w.nearness(predicted.Value)
	}
	// Half of the variance is common to alike configurations, and half is the luck of each.
	const part = math.Sqrt2
	g := newPrior(at, off, twinError/part, kernels()[errorLength], 1)
	return func(c Configuration) (float64, float64) {
		var mean, deviation [1]float64
		g.predict([]Configuration{c}, mean[:], deviation[:])
		return mean[0], math.Hypot(deviation[0], twinError/part)
	}
}
