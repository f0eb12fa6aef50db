package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/profiles/workload"
)

// ribbonData opens what was published with RIBBON: the table of a model and the samples behind it.
func ribbonData(t testing.TB, model string) (*plan.MeasuredTable, *profiles.Samples) {
	t.Helper()
	f, err := published.Files(published.RIBBON).Open(model + ".json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, names, err := RIBBONTable(model)
	if err != nil {
		t.Fatal(err)
	}
	var types []profiles.InstanceType
	for _, n := range names {
		types = append(types, profiles.InstanceType(n))
	}
	table, err := plan.ReadTable(model, f, types, profiles.DefaultCatalogue())
	if err != nil {
		t.Fatal(err)
	}
	samples, err := published.Samples(published.RIBBON)
	if err != nil {
		t.Fatal(err)
	}
	return table, samples
}

// twinOf simulates the published load with the samples, times scale on each type.
func twinOf(t testing.TB, samples *profiles.Samples, model string, seeds int,
	scale []float64) *FCFS {
	t.Helper()
	cfg, types, err := RIBBONTable(model)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Seeds = seeds
	f, err := NewFCFS(cfg, samples, model, types, scale)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTwin: with the samples behind the tables the twin comes to the optimum within three
// evaluations, and with samples that are wrong by up to a tenth it ends there too.
func TestTwin(t *testing.T) {
	models := []string{"mtwnd", "dien"}
	if testing.Short() {
		models = models[:1]
	}
	for _, model := range models {
		t.Run(model, func(t *testing.T) {
			table, samples := ribbonData(t, model)
			p := table.Problem(0.99)
			search := func(scale []float64) func(int) (*plan.Result, error) {
				const seeds = 4
				return func(int) (*plan.Result, error) {
					return plan.Twin{
						Model: twinOf(t, samples, model, seeds, scale), Runs: seeds,
					}.Plan(t.Context(), p, table)
				}
			}
			trials, err := plan.Try(t.Context(), p, table, 1, search(nil))
			if err != nil {
				t.Fatal(err)
			}
			if trials.Failed > 0 || trials.Worst > 3 {
				t.Errorf("good profiles: %+v", trials)
			}
			runs := 3
			if os.Getenv("MUSTER_SLOW_TESTS") != "" {
				runs = 30
			} else if testing.Short() {
				runs = 1
			}
			wrong, err := plan.Try(t.Context(), p, table, runs,
				func(run int) (*plan.Result, error) {
					r := rand.New(rand.NewPCG(uint64(run+1), 0))
					scale := []float64{
						0.9 + 0.2*r.Float64(), 0.9 + 0.2*r.Float64(), 0.9 + 0.2*r.Float64(),
					}
					return search(scale)(run)
				})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("good profiles: %+v; wrong ones: %+v", *trials, *wrong)
			if wrong.Failed > 0 {
				t.Errorf("wrong profiles: %+v", wrong)
			}
		})
	}
}

// A made table is one of another load, target, prices or types than those published.
type madeTable struct {
	paper, model string
	types        []string
	prices       []float64
	most         []int
	gap, target  time.Duration
	share        float64
}

// TestRibbonOnOtherTables: the search was built with two tables in sight; here are others.
func TestRibbonOnOtherTables(t *testing.T) {
	const g4dn, c5, c5n, r5n, t3 = "g4dn.xlarge", "c5.2xlarge", "c5n.2xlarge", "r5n.large",
		"t3.xlarge"
	const ribbon, kairos = published.RIBBON, published.KAIROS
	us, ms := time.Microsecond, time.Millisecond
	tables := []madeTable{
		{ribbon, "mtwnd", []string{g4dn, r5n}, []float64{0.526, 0.149}, []int{7, 12}, 1200 * us,
			22 * ms, 0.99},
		{ribbon, "dien", []string{g4dn, r5n, c5}, []float64{0.45, 0.2, 0.3}, []int{5, 7, 6},
			2500 * us, 28 * ms, 0.98},
		{kairos, "wnd", []string{g4dn, r5n, t3}, []float64{0.526, 0.149, 0.1664}, []int{5, 8, 6},
			1000 * us, 25 * ms, 0.99},
	}
	seeds := 2
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		seeds = 10
		for i := range 6 {
			gap := time.Duration(1100+300*i) * us
			tables = append(tables,
				madeTable{
					ribbon, "mtwnd", []string{g4dn, c5, r5n}, []float64{0.526, 0.34, 0.149},
					[]int{8, 10, 12}, gap, time.Duration(18+2*i) * ms, 0.99,
				},
				madeTable{
					ribbon, "dien", []string{g4dn, r5n, c5}, []float64{0.5, 0.17, 0.28},
					[]int{9, 10, 10}, gap * 4 / 3, time.Duration(26+3*i) * ms, 0.99,
				},
				madeTable{
					kairos, "mtwnd", []string{g4dn, c5n, t3}, []float64{0.526, 0.432, 0.1664},
					[]int{6, 8, 8}, gap, 25 * ms, 0.98,
				},
				madeTable{
					kairos, "dien", []string{g4dn, c5n, r5n, t3},
					[]float64{0.526, 0.432, 0.149, 0.1664}, []int{6, 4, 5, 4}, gap * 3 / 2, 35 * ms,
					0.99,
				})
		}
	} else if testing.Short() {
		tables, seeds = tables[:1], 1
	}
	for i, m := range tables {
		t.Run(fmt.Sprintf("%d-%s", i, m.model), func(t *testing.T) {
			samples, err := published.Samples(m.paper)
			if err != nil {
				t.Fatal(err)
			}
			cfg := FCFSConfig{
				MeanGap: m.gap, Target: m.target, BatchSizes: workload.RIBBON(), Queries: 20_000,
				Seeds: 1,
			}
			f, err := NewFCFS(cfg, samples, m.model, m.types, nil)
			if err != nil {
				t.Fatal(err)
			}
			p := &plan.Problem{Objective: plan.LeastCost, Target: m.share}
			for i, name := range m.types {
				p.Types = append(p.Types, plan.Type{
					Name: profiles.InstanceType(name), Price: m.prices[i], Max: m.most[i],
				})
			}
			space, err := p.Space()
			if err != nil {
				t.Fatal(err)
			}
			// As the published tables are: of every configuration one run with queries of its own.
			shares, random := map[string]float64{}, rand.New(rand.NewPCG(uint64(i), 1))
			for _, c := range space {
				shares[c.String()] = math.Round(f.run(c, f.draw(random.Uint64()))*1e4) / 1e4
			}
			table := plan.EvaluatorFunc(
				func(_ context.Context, c plan.Configuration) (plan.Estimate, error) {
					return plan.Estimate{Value: shares[c.String()]}, nil
				})
			trials, err := plan.Try(t.Context(), p, table, seeds,
				func(run int) (*plan.Result, error) {
					return plan.Ribbon{Seed: uint64(run)}.Plan(t.Context(), p, table)
				})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", *trials)
			if trials.Failed > 0 {
				t.Errorf("%+v", trials)
			}
		})
	}
}
