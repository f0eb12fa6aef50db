package plan

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestTwin(t *testing.T) {
	p := &Problem{Types: []Type{{"a", 0.5, 9}, {"b", 0.15, 12}}, Objective: LeastCost}
	most := []float64{1, 0.93}
	truth := capacity(4, []float64{1, 0.2}, most)
	exact, err := Twin{Model: truth}.Plan(t.Context(), p, truth)
	if err != nil {
		t.Fatal(err)
	}
	best := exact.Plans[0]
	if best.Price != 2 || best.Satisfaction < 0.99 ||
		exact.Evaluations[0].Configuration.String() != best.Configuration.String() ||
		len(exact.Notes) > 0 {
		t.Errorf("a model that is right: %+v of %v, notes %q", best, exact.Evaluations, exact.Notes)
	}
	for name, model := range map[string]Evaluator{
		"thinks too well of b":     capacity(4, []float64{1, 0.5}, []float64{1, 1}),
		"thinks too little of all": capacity(6, []float64{1, 0.2}, most),
		"thinks nothing serves":    capacity(1000, []float64{1, 0.2}, most),
		"thinks everything does":   capacity(0.1, []float64{1, 0.2}, []float64{1, 1}),
	} {
		r, err := Twin{Model: model}.Plan(t.Context(), p, truth)
		if err != nil {
			t.Fatal(err)
		}
		if r.Plans[0].Price != best.Price {
			t.Errorf("a model that %s: %+v, notes %q", name, r.Plans[0], r.Notes)
		}
		if name == "thinks nothing serves" &&
			!strings.Contains(strings.Join(r.Notes, " "), "went on without it") {
			t.Errorf("notes %q", r.Notes)
		}
	}
}

func TestTwinErrors(t *testing.T) {
	p := &Problem{Types: []Type{{"a", 0.5, 9}}, Objective: LeastCost}
	truth := capacity(4, []float64{1}, []float64{1})
	broken := errors.New("broken")
	fails := EvaluatorFunc(func(context.Context, Configuration) (Estimate, error) {
		return Estimate{}, broken
	})
	if _, err := (Twin{Model: truth}).Plan(t.Context(), p, nil); err == nil ||
		!strings.Contains(err.Error(), "give it both") {
		t.Errorf("no evaluator: %v", err)
	}
	if _, err := (Twin{}).Plan(t.Context(), p, truth); err == nil ||
		!strings.Contains(err.Error(), "give it both") {
		t.Errorf("no model: %v", err)
	}
	if _, err := (Twin{Model: truth}).Plan(t.Context(), &Problem{Types: p.Types, Budget: 2},
		truth); err == nil || !strings.Contains(err.Error(), "kairos+") {
		t.Errorf("most throughput: %v", err)
	}
	if _, err := (Twin{Model: fails}).Plan(t.Context(), p, truth); !errors.Is(err, broken) {
		t.Errorf("model: %v", err)
	}
	if _, err := (Twin{Model: truth}).Plan(t.Context(), p, fails); !errors.Is(err, broken) {
		t.Errorf("evaluator: %v", err)
	}
}
