package sim

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/muster-serve/muster/leader/plan"
)

// TestPlannersShown holds what docs/internals/planning.md says of the planners. It takes
// some minutes, so it runs only when asked:
//
//	MUSTER_SLOW_TESTS=1 go test ./sim -run PlannersShown -timeout 1h -v
func TestPlannersShown(t *testing.T) {
	if os.Getenv("MUSTER_SLOW_TESTS") == "" {
		t.Skip("set MUSTER_SLOW_TESTS=1: takes some minutes")
	}
	source, err := OpenSource("")
	if err != nil {
		t.Fatal(err)
	}
	for model := range qosTargets {
		cfg := reference(t, model)
		cfg.Queries, cfg.Policy = 20_000, "kairos"
		if cfg.Models[0], err = source.Model(model, PaperTypes(), cfg.Models[0].BatchSizes,
			0); err != nil {
			t.Fatal(err)
		}
		p := Problem(cfg.Models, paperPrices)
		p.Budget = 2.5
		// One log for all, so that nothing is simulated twice.
		log := plan.NewLog(&Evaluator{Config: cfg, Types: PaperTypes(), Seeds: 2})
		find := func(planner plan.Planner) (*plan.Result, float64) {
			r, err := planner.Plan(t.Context(), p, log)
			if err != nil {
				t.Fatal(err)
			}
			e, err := log.Evaluate(t.Context(), r.Plans[0].Configuration)
			if err != nil {
				t.Fatal(err)
			}
			return r, e.Value
		}
		// No configuration serves more than its fluid limit, so this search ends at
		// the best of all.
		exact, best := find(plan.KairosPlus{FluidBound: true})
		plus, plusRate := find(plan.KairosPlus{})
		kairos, kairosRate := find(plan.Kairos{})
		fluid, fluidRate := find(plan.Fluid{})
		t.Logf(
			"%s: best %s, %.1f queries/s (%d evaluations); kairos+ %.3f after %d; kairos %s "+
				"%.3f; fluid %s %.3f", model, exact.Plans[0].Configuration, best,
			len(exact.Evaluations),
			plusRate/best, len(plus.Evaluations), kairos.Plans[0].Configuration, kairosRate/best,
			fluid.Plans[0].Configuration, fluidRate/best)
		if plusRate < 0.99*best || len(plus.Evaluations) > 12 {
			t.Errorf("%s: kairos+ ends at %.3f of the best after %d evaluations", model,
				plusRate/best, len(plus.Evaluations))
		}
		if kairosRate < 0.88*best {
			t.Errorf("%s: kairos picks %s, %.3f of the best", model, kairos.Plans[0].Configuration,
				kairosRate/best)
		}
		if fluidRate < 0.98*best {
			t.Errorf("%s: fluid picks %s, %.3f of the best", model, fluid.Plans[0].Configuration,
				fluidRate/best)
		}
	}
}

// TestPlansWithinFluidLimit: over random problems, what a plan is simulated to serve is no
// more than water would.
func TestPlansWithinFluidLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	models := []string{"ncf", "rm2", "wnd", "mtwnd", "dien"}
	problems := 4
	if testing.Short() {
		problems = 1
	}
	for range problems {
		cfg := reference(t, models[r.IntN(len(models))])
		cfg.Queries = 3000
		p := Problem(cfg.Models, paperPrices)
		for i := range p.Types {
			p.Types[i].Price *= 0.5 + r.Float64()
		}
		p.Budget = 0.8 + r.Float64()
		res, err := plan.KairosPlus{}.Plan(t.Context(), p, &Evaluator{
			Config: cfg, Types: PaperTypes(), Seeds: 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		a, err := plan.Analyse(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Evaluations {
			sol, err := a.Fluid(e.Configuration)
			if err != nil {
				t.Fatal(err)
			}
			if e.Value > sol.Rate+3*e.StdErr {
				t.Errorf("%s: %s serves %v, the fluid limit is %v, the standard error %v",
					cfg.Models[0].Name, e.Configuration, e.Value, sol.Rate, e.StdErr)
			}
		}
		if best := res.Plans[0]; p.Price(best.Configuration) > p.Budget+1e-9 ||
			best.Predicted > best.FluidLimit {
			t.Errorf("%+v of a budget of %v", best, p.Budget)
		}
	}
}

// TestEvaluator: at a rate it finds the share within QoS, of two models the lesser.
func TestEvaluator(t *testing.T) {
	cfg := reference(t, "rm2")
	cfg.Queries = 2000
	e := &Evaluator{Config: cfg, Types: PaperTypes(), Seeds: 2}
	c := plan.Configuration{1, 0, 4, 0}
	throughput, err := e.Evaluate(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	e.Objective = plan.LeastCost
	for _, tt := range []struct {
		factor float64
		meets  bool
	}{{0.8, true}, {1.4, false}} {
		cfg.Rate = throughput.Value * tt.factor
		share, err := e.Evaluate(t.Context(), c)
		if err != nil || share.Value >= 0.99 != tt.meets || share.Value > 1 || share.Value <= 0 {
			t.Errorf("at %v of the throughput: %+v, %v", tt.factor, share, err)
		}
	}
	other := cfg.Models[0]
	other.Name, other.QoSTarget = "hasty", other.QoSTarget/40
	cfg.Models = append(cfg.Models, other)
	cfg.Rate = throughput.Value / 4
	share, err := e.Evaluate(t.Context(), c)
	if err != nil || share.Value > 0.9 {
		t.Errorf("with a model whose target is not met: %+v, %v", share, err)
	}
}
