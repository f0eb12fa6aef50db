package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Twin is the planner that looks for the least cost with a model of the fleet, such as a simulator
// with the learned profiles. The model predicts every configuration, and the evaluator evaluates
// only the cheapest ones that may meet the target by the prediction. A Gaussian process estimates
// the model's error from those evaluations. If the model turns out to be wrong, the search goes on
// without it, as [Ribbon] does.
type Twin struct {
	// Model predicts the evaluator's estimates. It is called, by rising price, for every
	// configuration up to the price of the result.
	Model Evaluator
	// Runs is the number of runs over which Model averages an estimate, if the evaluator's estimate
	// is of one run and so varies more; 0 if the evaluator's estimates do not vary.
	Runs int
	// Seed seeds the random choice of the first configurations if the model proposes none.
	Seed uint64
	// Top is how many plans to return at most; 0 means DefaultTop.
	Top int
}

const (
	// twinError is the standard deviation of a good model's error, on the scale of nearness. On
	// that scale missing half as many queries again is 0.34. Two runs of 20,000 queries differ by
	// about twinError near a target of 99 %. Part of the error is common to similar configurations.
	twinError = 0.15
	// twinWrong is how many standard deviations a prediction may be off before the search goes on
	// without the model. Chosen: a right model is off by so many in one case of 370.
	twinWrong = 3
	// A configuration is evaluated if the chance that it meets the target is at least twinChance.
	// Chosen: each evaluation is a simulation, and twenty of these find one that meets the target.
	twinChance = 0.05
	// A configuration with one instance less than the best is evaluated unless the model predicts a
	// share below nearlyServed: then it is so overloaded that it would miss the target even if the
	// profiles were 10 % wrong.
	nearlyServed = 0.5
	// errorLength indexes the length scale of the error: 4 instances.
	errorLength = 16
)

// Plan implements [Planner]. The plans are the evaluated configurations, the best first.
func (t Twin) Plan(ctx context.Context, p *Problem, e Evaluator) (*Result, error) {
	switch {
	case e == nil || t.Model == nil:
		return nil, errors.New("twin compares a model with evaluations: give it both")
	case p.Objective != LeastCost:
		return nil, errors.New("twin minimises the cost of a load: give it a rate; to maximise " +
			"throughput take kairos+")
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
	return s.makeResult(t.Top), nil
}

// A twinSearch is the state of a search with a model.
type twinSearch struct {
	*ribbonSearch
	model *Log
	// scatter times a prediction's StdErr is the standard deviation of the difference between an
	// evaluation and that prediction if the model is right.
	scatter float64
}

// search evaluates the configurations that the model proposes, until none left might be cheaper and
// every type was tried. If it finds that the model is wrong, it returns why.
func (w *twinSearch) search(ctx context.Context) (wrong string, err error) {
	byPrice := make([]int, len(w.space))
	for i := range byPrice {
		byPrice[i] = i
	}
	slices.SortStableFunc(byPrice,
		func(i, j int) int { return cmp.Compare(roundBound(w.price[i]), roundBound(w.price[j])) })
	for {
		next, err := w.proposeNext(ctx, byPrice)
		if err != nil {
			return "", err
		}
		if next < 0 && w.met {
			next, err = w.proposeNeighbour(ctx)
			if next < 0 && err == nil {
				next, err = w.proposeUntried(ctx, byPrice)
			}
			if next < 0 || err != nil {
				return "", err
			}
		}
		if next < 0 {
			return "the model finds no configuration that might meet the target", nil
		}
		if err := w.evaluateIndex(ctx, next); err != nil {
			return "", err
		}
		if wrong, err := w.judgeModel(ctx, w.known[w.evaluated-1]); wrong != "" || err != nil {
			return wrong, err
		}
	}
}

// proposeNext returns the index of the configuration to evaluate next: the cheapest that more
// likely than not meets the target. Once an evaluated one meets it, propose returns the one with
// the largest product of price saved and probability to meet the target. -1 means none.
func (w *twinSearch) proposeNext(ctx context.Context, byPrice []int) (int, error) {
	errorOf := w.errorPredictor()
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
		chance := normalTail((w.nearnessOf(w.p.targetOrDefault()) - w.nearnessOf(predicted.Value) -
			mean) / math.Hypot(deviation, w.uncertaintyOf(predicted)))
		if !w.met && chance >= 0.5 {
			return i, nil
		}
		if gain := chance * (w.best - w.price[i]); w.met && chance >= twinChance && gain > most {
			next, most = i, gain
		}
	}
	return next, nil
}

// proposeNeighbour returns the index of a configuration with one instance less than the best, which
// too pessimistic a model would miss; -1 if all of these are evaluated or hopeless.
func (w *twinSearch) proposeNeighbour(ctx context.Context) (int, error) {
	for _, e := range w.known {
		if e.Value < w.p.targetOrDefault() || w.p.Price(e.Configuration) > w.best+roundingError {
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

// proposeUntried returns the index of a configuration that tests the model on an instance type that
// no evaluated configuration has: among those cheaper than the best and with that type, the one
// predicted to come nearest to the target. -1 means that every type was tried.
func (w *twinSearch) proposeUntried(ctx context.Context, byPrice []int) (int, error) {
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

// judgeModel returns how the model is wrong if its prediction differs from the evaluation e by more
// than random error explains.
func (w *twinSearch) judgeModel(ctx context.Context, e Evaluation) (wrong string, err error) {
	predicted, err := w.model.Evaluate(ctx, e.Configuration)
	if err != nil {
		return "", err
	}
	off := w.nearnessOf(e.Value) - w.nearnessOf(predicted.Value)
	if math.Abs(off) <= twinWrong*math.Hypot(twinError, w.uncertaintyOf(predicted)) {
		return "", nil
	}
	return fmt.Sprintf(
		"the model is wrong: it predicted %.2f %% of the queries within QoS for %s, and %.2f %% "+
			"were", 100*predicted.Value, w.p.Name(e.Configuration), 100*e.Value), nil
}

// uncertaintyOf is the standard deviation of the difference between an evaluation and the model's
// estimate e, on the scale of nearness.
func (w *twinSearch) uncertaintyOf(e Estimate) float64 {
	deviation := w.scatter * e.StdErr
	return (w.nearnessOf(min(1, e.Value+deviation)) - w.nearnessOf(e.Value-deviation)) / 2
}

// errorPredictor returns a function that predicts the mean and standard deviation of the model's
// error at a configuration, on the scale of nearness.
func (w *twinSearch) errorPredictor() func(Configuration) (mean, deviation float64) {
	if w.evaluated == 0 {
		return func(Configuration) (float64, float64) { return 0, twinError }
	}
	at, off := make([]Configuration, w.evaluated), make([]float64, w.evaluated)
	for i, e := range w.known[:w.evaluated] {
		// Cannot fail: judge has evaluated it, so the log recalls it.
		predicted, _ := w.model.Evaluate(context.Background(), e.Configuration)
		at[i], off[i] = e.Configuration, w.nearnessOf(e.Value)-w.nearnessOf(predicted.Value)
	}
	// Half of the variance is common to similar configurations, and half is independent.
	const part = math.Sqrt2
	g := newPrior(at, off, twinError/part, kernels()[errorLength], 1)
	return func(c Configuration) (float64, float64) {
		var mean, deviation [1]float64
		g.predictAt([]Configuration{c}, mean[:], deviation[:])
		return mean[0], math.Hypot(deviation[0], twinError/part)
	}
}
