package plan

import (
	"context"
	"math"
	"strings"
	"testing"
)

func TestTry(t *testing.T) {
	// Twelve configurations but for the empty one; those with two instances or more of
	// a meet the target.
	p := &Problem{Objective: LeastCost, Types: []Type{{"a", 1, 3}, {"b", 0.5, 2}}}
	e := EvaluatorFunc(func(_ context.Context, c Configuration) (Estimate, error) {
		if c[0] >= 2 {
			return Estimate{Value: 0.995}, nil
		}
		return Estimate{Value: 0.5}, nil
	})
	runs := [][]Configuration{
		{{3, 2}, {1, 2}, {2, 0}, {1, 0}}, // found by the third
		{{2, 0}},                         // at once
		{{3, 0}, {1, 1}},                 // not at all
	}
	trials, err := Try(t.Context(), p, e, len(runs), func(run int) (*Result, error) {
		log := NewLog(e)
		for _, c := range runs[run] {
			if _, err := log.Evaluate(t.Context(), c); err != nil {
				return nil, err
			}
		}
		return &Result{Plans: []Plan{{}}, Evaluations: log.Evaluations()}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const all = 4*3*0.5 + 3*6 // the price of all
	want := Trials{Runs: 3, Optimum: Configuration{2, 0}, OptimumPrice: 2, Mean: 2, Median: 2,
		Worst: 3, Failed: 1, Ended: 7. / 3, Violating: 2. / 3,
		Cost: 100 * ((4 + 2 + 2) + 2 + (3 + 1.5)) / all / 3}
	if trials.Optimum.String() != "(2,0)" || math.Abs(trials.Cost-want.Cost) > 1e-9 ||
		math.Abs(trials.Ended-want.Ended) > 1e-9 ||
		math.Abs(trials.Violating-want.Violating) > 1e-9 ||
		trials.Mean != want.Mean || trials.Median != want.Median || trials.Worst != want.Worst ||
		trials.Failed != want.Failed {
		t.Errorf("got %+v, want %+v", *trials, want)
	}
	p.Target = 0.999
	if _, err := Try(t.Context(), p, e, 1, nil); err == nil ||
		!strings.Contains(err.Error(), "no configuration meets the target of 99.9 %") {
		t.Errorf("a target that none meets: %v", err)
	}
	if _, err := Try(t.Context(), p, e, 0, nil); err == nil {
		t.Error("no runs: no error")
	}
}
