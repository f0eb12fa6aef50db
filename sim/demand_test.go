package sim

import (
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
)

// TestDemandChanges: the demand of a simulated fleet changes, at 20 seeds of each model, and
// is planned for anew. It holds what docs/internals/demand.md says of it; a test run has one seed of
// one model, all are
//
//	MUSTER_SLOW_TESTS=1 go test ./sim -run DemandChanges -v
func TestDemandChanges(t *testing.T) {
	models, seeds, queries := []string{"wnd"}, 1, 3000
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		models, seeds, queries = []string{"ncf", "rm2", "wnd", "mtwnd", "dien"}, 20, 20_000
	}
	source, err := OpenSource("")
	if err != nil {
		t.Fatal(err)
	}
	gaussian, err := workload.Gaussian(250, 100, workload.LargestBatchSize)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range models {
		before, err := source.Model(name, PaperTypes(), workload.Trace(), 0)
		if err != nil {
			t.Fatal(err)
		}
		p := Problem([]Model{before}, paperPrices)
		p.Budget = 2.5
		first, err := plan.Fluid{Top: 1}.Plan(t.Context(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		running := first.Plans[0].Configuration
		rate := 0.8 * first.Plans[0].FluidLimit
		for _, change := range []struct {
			kind  profiles.ChangeKind
			sizes *workload.BatchSizes
			times float64
		}{{profiles.BatchSizesChanged, gaussian, 1},
			{profiles.RateChanged, workload.Trace(), 1.5}} {
			var took []time.Duration
			plans := map[string]int{}
			var last *plan.Decision
			for seed := range uint64(seeds) {
				d, after := replan(t, seed, before, running, p, rate, change.sizes, change.times)
				if d == nil {
					t.Fatalf("%s, seed %d: no change of %s is seen", name, seed, change.kind)
				}
				took = append(took, after)
				plans[p.Name(d.Plan.Configuration)]++
				last = d
			}
			slices.Sort(took)
			t.Logf(
				"%s at %.4g queries/s on %s, %s: planned after %v (median), %v (worst); %v; "+
					"last: %s", name, rate, p.Name(running), change.kind,
				took[len(took)/2].Round(time.Millisecond),
				took[len(took)-1].Round(time.Millisecond), plans, last.Reason)
			// A suspicion takes two blocks of 1,024 at most, what follows as many again.
			if worst := time.Duration(3500 / rate * float64(time.Second)); took[len(took)-
				1] > worst {
				t.Errorf("%s, %s: planned after %v, want at most %v", name, change.kind,
					took[len(took)-1], worst)
			}
			now := before
			now.BatchSizes = change.sizes
			e := &Evaluator{
				Config: &Config{
					Models:  []Model{now},
					Rate:    rate * change.times,
					Queries: queries,
					Seed:    1,
				},
				Types: PaperTypes(), Seeds: 1, Objective: plan.LeastCost,
			}
			share := func(c plan.Configuration) float64 {
				x, err := e.Evaluate(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				return x.Value
			}
			old, proposed := share(running), share(last.Plan.Configuration)
			t.Logf("   within QoS %.4f as it runs, %.4f as proposed, at %.3f and %.3f $/hr", old,
				proposed, p.Price(running), p.Price(last.Plan.Configuration))
			if change.kind == profiles.RateChanged && (old > 0.96 || proposed < 0.98) {
				t.Errorf(
					"%s: of half again as many queries %.4f are within QoS as it runs, %.4f as "+
						"proposed", name, old, proposed)
			}
		}
	}
}

// replan runs the fleet, changes what is asked of it after 11,000 queries, and returns what is then
// planned, and how long after the change.
func replan(t *testing.T, seed uint64, m Model, running plan.Configuration, p *plan.Problem,
	rate float64, sizes *workload.BatchSizes,
	times float64) (d *plan.Decision, after time.Duration) {
	const steady = 11_000
	monitor := profiles.NewMonitor()
	changesAt := time.Duration(steady / rate * float64(time.Second))
	arriving := StreamOf("poisson", Phase{changesAt, 1}, Phase{time.Hour, times})
	cfg := &Config{
		Models: []Model{
			m,
		}, Pool: (&Evaluator{Types: PaperTypes()}).Pool(running), Rate: rate, Queries: 100_000,
		Seed:     seed,
		Deadline: 10 * m.QoSTarget,
		Stream: func(c *Config) (iter.Seq[workload.Query], error) {
			queries, err := arriving(c)
			later := rand.New(rand.NewPCG(seed, 3)) // 1 and 2 are the stream's
			return func(yield func(workload.Query) bool) {
				for q := range queries {
					if q.At >= changesAt {
						q.BatchSize = sizes.Draw(later)
					}
					if err := monitor.Observe(q.BatchSize, time.Unix(0, 0).Add(q.At)); err != nil {
						t.Error(err)
						return
					}
					if c, ok := monitor.Change(); ok {
						if after = q.At - changesAt; after < 0 {
							t.Errorf("seed %d: a change before there is one: %v", seed, c)
						}
						asked, err := p.WithDemand(m.Name, monitor.Distribution(), 0)
						if err != nil {
							t.Error(err)
							return
						}
						asked.Models[0].Weight = c.Now.Rate
						asked.Target = plan.SureTarget(plan.DefaultTarget, monitor.Queries())
						if d, err = plan.React(t.Context(), asked, running); err != nil {
							t.Error(err)
						}
						return
					}
					if !yield(q) {
						return
					}
				}
			}, err
		},
	}
	if _, err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return d, after
}
