package figures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/reproduce/planners"
	"github.com/muster-serve/muster/sim"
)

// ribbonModels are those of which RIBBON's authors published tables.
var ribbonModels = []string{"mtwnd", "dien"}

// searchesPerSeed is how often a search is repeated for each of Options.Seeds: a search in
// a table takes little.
const searchesPerSeed = 6

// A ribbonTable is a published table, the load it was made of, and the samples behind it.
type ribbonTable struct {
	*plan.MeasuredTable
	*plan.Problem
	model   string
	types   []string
	load    sim.FCFSConfig
	samples *profiles.Samples
	// The cheapest configuration that meets the target, and the cheapest of base instances alone.
	optimum, homogeneous plan.Configuration
}

// ribbonTables reads the tables beside the samples.
func (l *lab) ribbonTables(ctx context.Context) ([]*ribbonTable, error) {
	var all []*ribbonTable
	for _, model := range ribbonModels {
		t := &ribbonTable{model: model, samples: l.samples}
		var err error
		if t.load, t.types, err = sim.RIBBONTable(model); err != nil {
			return nil, err
		}
		names := make([]profiles.InstanceType, len(t.types))
		for i, n := range t.types {
			names[i] = profiles.InstanceType(n)
		}
		file := model + ".json"
		f, err := l.data.Open(file)
		if err != nil {
			return nil, fmt.Errorf("data: %w: want the tables that were published with RIBBON", err)
		}
		t.MeasuredTable, err = plan.ReadTable(file, f, names, profiles.DefaultCatalogue())
		f.Close()
		if err != nil {
			return nil, err
		}
		t.Problem = t.MeasuredTable.Problem(plan.DefaultTarget)
		if t.optimum, t.homogeneous, err = t.optima(ctx, t.Problem); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// optima are the cheapest configuration that meets the problem's target, and that of base instances
// alone.
func (t *ribbonTable) optima(ctx context.Context, p *plan.Problem) (optimum,
	homogeneous plan.Configuration, err error) {
	if optimum, err = cheapest(ctx, p, t.MeasuredTable,
		func(plan.Configuration) bool { return true }); err != nil {
		return nil, nil, err
	}
	homogeneous, err = cheapest(ctx, p, t.MeasuredTable,
		func(c plan.Configuration) bool { return c[0] == c.Count() })
	return optimum, homogeneous, err
}

// fromTables says where the numbers come from, and how often searches, if there are any, are
// repeated.
func (l *lab) fromTables(searches int) string {
	s := fmt.Sprintf("From the tables of MT-WND and DIEN beside %s and the latencies in it",
		l.source)
	if searches > 0 {
		s += fmt.Sprintf("; searches are repeated with %d seeds", searches)
	}
	return s + "."
}

// cheapest evaluates by rising price until a configuration meets the target.
func cheapest(ctx context.Context, p *plan.Problem, e plan.Evaluator,
	among func(plan.Configuration) bool) (plan.Configuration, error) {
	space, err := p.Space()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(space, func(a, b plan.Configuration) int {
		switch d := p.Price(a) - p.Price(b); {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
		return 0
	})
	for _, c := range space {
		if !among(c) {
			continue
		}
		estimate, err := e.Evaluate(ctx, c)
		if err != nil {
			return nil, err
		}
		if estimate.Value >= p.Target {
			return c, nil
		}
	}
	return nil, errors.New("no configuration meets the target")
}

// saving is by which share c costs less than base instances alone.
func (t *ribbonTable) saving(c plan.Configuration) float64 {
	return 1 - t.Price(c)/t.Price(t.homogeneous)
}

// A searchMethod is one of those that the figures compare.
type searchMethod struct {
	name    string
	planner func(t *ribbonTable, seed uint64) (plan.Planner, error)
}

func rival(name string) searchMethod {
	return searchMethod{name, func(_ *ribbonTable, seed uint64) (plan.Planner, error) {
		return planners.Rival{Name: name, Seed: seed}, nil
	}}
}

// twinSeeds is how many runs the twin's predictions are the mean of.
const twinSeeds = 4

// The order of searchMethods.
const (
	paperRivals = 4 // the paper's own search and its rivals come first
	oursAt      = 4
	twinAt      = 5
	fromTable   = 5 // those before it need nothing but a table
)

// searchMethods are those of the paper, its own search as published first, and ours: RIBBON's with
// our additions, and the twin.
func searchMethods() []searchMethod {
	return []searchMethod{
		{"ribbon, plain", func(_ *ribbonTable, seed uint64) (plan.Planner, error) {
			return plan.Ribbon{Seed: seed, Plain: true}, nil
		}},
		rival("hill-climb"), rival("random"), rival("rsm"),
		{"ribbon (ours)",
			func(_ *ribbonTable, seed uint64) (plan.Planner, error) {
				return plan.Ribbon{Seed: seed}, nil
			}},
		{"twin (ours)", func(t *ribbonTable, seed uint64) (plan.Planner, error) {
			load := t.load
			load.Seeds = twinSeeds
			model, err := sim.NewFCFS(load, t.samples, t.model, t.types, nil)
			return plan.Twin{Model: model, Runs: twinSeeds, Seed: seed}, err
		}},
	}
}

// searches runs a method on a table with several seeds; the twin draws nothing, so one run is all.
func (l *lab) searches(ctx context.Context, t *ribbonTable, m searchMethod) ([]*plan.Result,
	error) {
	runs := searchesPerSeed * l.Seeds
	if m.name == "twin (ours)" {
		runs = 1
	}
	var all []*plan.Result
	for run := range runs {
		l.progress("%s, %s: %d of %d searches", t.model, m.name, run, runs)
		planner, err := m.planner(t, uint64(run))
		if err != nil {
			return nil, err
		}
		r, err := planner.Plan(ctx, t.Problem, t.MeasuredTable)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// trials is what the runs of a method needed.
func (l *lab) trials(ctx context.Context, t *ribbonTable, m searchMethod) (*plan.Trials, error) {
	all, err := l.searches(ctx, t, m)
	if err != nil {
		return nil, err
	}
	return plan.Try(ctx, t.Problem, t.MeasuredTable, len(all),
		func(run int) (*plan.Result, error) { return all[run], nil })
}

// ribbonFig9: what heterogeneity saves.
func ribbonFig9(ctx context.Context, l *lab) (*Figure, error) {
	tables, err := l.ribbonTables(ctx)
	if err != nil {
		return nil, err
	}
	f := &Figure{
		Rows: [][]string{
			{"model", "homogeneous", "homogeneous_usd_per_hour", "optimum", "optimum_usd_per_hour",
				"saving_percent"},
		},
	}
	c := picture.BarChart{
		Title:  "The cheapest pool that meets QoS against base instances alone (RIBBON Fig. 9)",
		YLabel: "cost saving, %", Groups: ribbonModels, Series: []picture.Series{{Name: "heterogeneous"}},
	}
	for _, t := range tables {
		saving := 100 * t.saving(t.optimum)
		c.Series[0].Values = append(c.Series[0].Values, saving)
		f.Rows = append(f.Rows, []string{
			t.model, t.homogeneous.String(), number(t.Price(t.homogeneous)), t.optimum.String(),
			number(t.Price(t.optimum)), number(saving),
		})
	}
	f.show(1, &c)
	lo, m := least(c.Series[0].Values, ribbonModels)
	hi, _ := most(c.Series[0].Values, ribbonModels)
	f.Text = append(
		f.Text,
		fmt.Sprintf(
			"%s: a mixed pool costs 9 to 16 %% less than the cheapest of base instances alone "+
				"(here %.1f %% on %s to %.1f %%).", outcome(lo >= 9 && hi <= 16), lo, m, hi),
		l.fromTables(0))
	return f, nil
}

// ribbonFig10: evaluations until a saving is reached.
func ribbonFig10(ctx context.Context, l *lab) (*Figure, error) {
	tables, err := l.ribbonTables(ctx)
	if err != nil {
		return nil, err
	}
	f := &Figure{
		Rows: [][]string{
			{"model", "saving_percent", "method", "evaluations_mean", "runs_that_reached_it"},
		},
	}
	c := picture.BarChart{
		Title:  "Evaluations until a cost saving is reached (RIBBON Fig. 10)",
		YLabel: "evaluations, mean",
	}
	methods := searchMethods()
	toOptimum := make([][]float64, len(methods))
	for _, m := range methods {
		c.Series = append(c.Series, picture.Series{Name: m.name})
	}
	for _, t := range tables {
		highest := t.saving(t.optimum)
		savings := []float64{0, highest / 2, highest}
		for _, s := range savings {
			c.Groups = append(c.Groups, fmt.Sprintf("%s %.1f %%", t.model, 100*s))
		}
		for i, m := range methods {
			all, err := l.searches(ctx, t, m)
			if err != nil {
				return nil, err
			}
			for _, s := range savings {
				mean, reached := t.until(all, s)
				shown := mean
				if reached == 0 {
					shown = math.NaN()
				}
				c.Series[i].Values = append(c.Series[i].Values, shown)
				f.Rows = append(f.Rows, []string{
					t.model, number(100 * s), m.name, number(mean), strconv.Itoa(reached),
				})
				if s == highest {
					toOptimum[i] = append(toOptimum[i], mean)
				}
			}
		}
	}
	f.show(1, &c)
	fewest := math.Inf(1)
	for i := 1; i < paperRivals; i++ {
		for k := range tables {
			fewest = min(fewest, toOptimum[i][k]/toOptimum[0][k])
		}
	}
	ribbon, _ := most(toOptimum[0], ribbonModels)
	twin, _ := most(toOptimum[twinAt], ribbonModels)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: RIBBON finds the largest saving after about 20 evaluations (%.1f and %.1f in "+
				"the mean).", outcome(ribbon <= 25), toOptimum[0][0], toOptimum[0][1]),
		fmt.Sprintf(
			"%s: the others need more than twice as many on both models (at least %.1f x; hill "+
				"climbing %.0f and %.0f, random %.0f and %.0f, response surface %.0f and %.0f).",
			outcome(fewest > 2), fewest, toOptimum[1][0], toOptimum[1][1], toOptimum[2][0],
			toOptimum[2][1], toOptimum[3][0], toOptimum[3][1]),
		fmt.Sprintf(
			"Not in the paper: RIBBON's search with our additions needs %.1f and %.1f; our twin, "+
				"which has the samples, at most %.0f.",
			toOptimum[oursAt][0], toOptimum[oursAt][1], twin),
		l.fromTables(searchesPerSeed*l.Seeds))
	return f, nil
}

// until is the mean number of evaluations until one that meets the target saves so much, over the
// runs in which one did.
func (t *ribbonTable) until(all []*plan.Result, saving float64) (mean float64, reached int) {
	for _, r := range all {
		i := slices.IndexFunc(r.Evaluations, func(e plan.Evaluation) bool {
			return e.Value >= t.Target && t.saving(e.Configuration) >= saving-1e-9
		})
		if i >= 0 {
			mean += float64(i + 1)
			reached++
		}
	}
	return mean / float64(max(1, reached)), reached
}

// byTrials is a chart of one number of each method's trials.
func (l *lab) byTrials(ctx context.Context, title, yLabel, column string,
	of func(*plan.Trials) float64) (*Figure, [][]float64, error) {
	tables, err := l.ribbonTables(ctx)
	if err != nil {
		return nil, nil, err
	}
	f := &Figure{
		Rows: [][]string{{"model", "method", column, "evaluations_mean", "failed_runs", "runs"}},
	}
	c := picture.BarChart{Title: title, YLabel: yLabel, Groups: ribbonModels}
	var values [][]float64 // by method, model
	for _, m := range searchMethods() {
		s := picture.Series{Name: m.name}
		for _, t := range tables {
			trials, err := l.trials(ctx, t, m)
			if err != nil {
				return nil, nil, err
			}
			s.Values = append(s.Values, of(trials))
			f.Rows = append(f.Rows, []string{
				t.model, m.name, number(of(trials)), number(trials.Mean),
				strconv.Itoa(trials.Failed), strconv.Itoa(trials.Runs),
			})
		}
		c.Series = append(c.Series, s)
		values = append(values, s.Values)
	}
	f.show(1, &c)
	f.Text = []string{l.fromTables(searchesPerSeed * l.Seeds)}
	return f, values, nil
}

// ribbonFig13: what exploring costs.
func ribbonFig13(ctx context.Context, l *lab) (*Figure, error) {
	f, v, err := l.byTrials(ctx, "Cost of exploring until the optimum (RIBBON Fig. 13)",
		"% of evaluating every configuration",
		"exploration_cost_percent", func(t *plan.Trials) float64 { return t.Cost })
	if err != nil {
		return nil, err
	}
	hi, m := most(v[0], ribbonModels)
	f.Text = append([]string{
		fmt.Sprintf(
			"%s: RIBBON explores for less than 3 %% of what evaluating every configuration costs "+
				"(at most %.1f %%, on %s).", outcome(hi < 3), hi, m),
		fmt.Sprintf(
			"%s: the others pay 10 to 20 %% (hill climbing %.1f and %.1f %%, random %.1f and "+
				"%.1f %%, response surface %.1f and %.1f %%).",
			outcome(min(v[1][0], v[1][1], v[2][0], v[2][1], v[3][0], v[3][1]) >= 10), v[1][0],
			v[1][1], v[2][0], v[2][1], v[3][0], v[3][1]),
		fmt.Sprintf("Not in the paper: with our additions %.1f and %.1f %%.", v[oursAt][0],
			v[oursAt][1]),
	}, f.Text...)
	return f, nil
}

// ribbonFig14: how often QoS is violated on the way.
func ribbonFig14(ctx context.Context, l *lab) (*Figure, error) {
	f, v, err := l.byTrials(ctx,
		"Configurations evaluated that violate QoS, until the optimum (RIBBON Fig. 14)",
		"configurations, mean",
		"violating_evaluations_mean", func(t *plan.Trials) float64 { return t.Violating })
	if err != nil {
		return nil, err
	}
	fewest := true
	for i := 1; i < paperRivals; i++ {
		for k := range ribbonModels {
			fewest = fewest && v[0][k] < v[i][k]
		}
	}
	f.Text = append(
		[]string{fmt.Sprintf(
			"%s: of the paper's methods RIBBON evaluates the fewest configurations that violate "+
				"QoS on both models (%.1f and %.1f; hill climbing %.1f and %.1f, random %.1f and "+
				"%.1f, response surface %.1f and %.1f).",
			outcome(fewest), v[0][0], v[0][1], v[1][0], v[1][1], v[2][0], v[2][1], v[3][0],
			v[3][1]),
			fmt.Sprintf("Not in the paper: with our additions %.1f and %.1f.", v[oursAt][0],
				v[oursAt][1])}, f.Text...)
	return f, nil
}

// heavier is by how much the load rises in Fig. 16.
const heavier = 1.5

// A risenLoad is what a search needed on one model after the load had risen, summed over its runs.
type risenLoad struct {
	// evaluations to the optimum: of the old load, and of the new from what was explored or afresh
	before, warm, cold int
	missed             int // warm searches that ended without the optimum
}

// ribbonFig16: the search after the load has risen.
func ribbonFig16(ctx context.Context, l *lab) (*Figure, error) {
	tables, err := l.ribbonTables(ctx)
	if err != nil {
		return nil, err
	}
	f := &Figure{
		Rows: [][]string{
			{"model", "search", "run", "start", "evaluation", "configuration",
				"price_to_optimum_before", "missed_qos_percent", "is_optimum"},
		},
	}
	costs := lineChart{
		title:  "After the load has risen by half: the first plain search (RIBBON Fig. 16)",
		xLabel: "evaluations since the load rose", yLabel: "price / optimum before",
		line: 1, lineName: "the optimum before",
	}
	misses := lineChart{xLabel: costs.xLabel, yLabel: "missed QoS, % (at most 5 shown)"}
	runs := max(1, searchesPerSeed*l.Seeds/3)
	var price []float64        // by model: what the new optimum costs over what the old one did
	needed := [2][]risenLoad{} // plain and ours, by model
	for _, t := range tables {
		load := t.load
		load.MeanGap = time.Duration(math.Round(float64(load.MeanGap) / heavier))
		e, err := sim.NewFCFS(load, t.samples, t.model, t.types, nil)
		if err != nil {
			return nil, err
		}
		p := *t.Problem
		p.Types = slices.Clone(p.Types)
		for i := range p.Types {
			p.Types[i].Max = int(math.Ceil(heavier * float64(p.Types[i].Max)))
		}
		l.progress("%s: the optimum under the heavier load", t.model)
		optimum, err := cheapest(ctx, &p, e, func(plan.Configuration) bool { return true })
		if err != nil {
			return nil, err
		}
		price = append(price, p.Price(optimum)/t.Price(t.optimum))
		known := plan.NewLog(e) // nothing is simulated twice
		for i, name := range []string{"ribbon, plain", "ribbon (ours)"} {
			var sum risenLoad
			for run := range runs {
				l.progress("%s, %s: %d of %d searches", t.model, name, run, runs)
				search := plan.Ribbon{Seed: uint64(run), Plain: i == 0}
				old, err := search.Plan(ctx, t.Problem, t.MeasuredTable)
				if err != nil {
					return nil, err
				}
				n, _ := t.until([]*plan.Result{old}, t.saving(t.optimum))
				sum.before += int(n)
				for _, start := range []string{"warm", "cold"} {
					if search.Explored = nil; start == "warm" {
						search.Explored = old.Evaluations
					}
					r, err := search.Plan(ctx, &p, known)
					if err != nil {
						return nil, err
					}
					found := len(r.Evaluations) + 1
					for k, one := range r.Evaluations {
						best := one.Value >= p.Target &&
							p.Price(one.Configuration) <= p.Price(optimum)+1e-9
						if best {
							found = min(found, k+1)
						}
						f.Rows = append(f.Rows,
							[]string{t.model, name, strconv.Itoa(run), start, strconv.Itoa(k + 1),
								one.Configuration.String(),
								number(p.Price(one.Configuration) / t.Price(t.optimum)),
								number(100 * (1 - one.Value)), strconv.FormatBool(best)})
					}
					switch {
					case start == "cold":
						sum.cold += min(found, len(r.Evaluations))
						continue
					case found > len(r.Evaluations):
						sum.missed++
					}
					sum.warm += min(found, len(r.Evaluations))
					if run == 0 && i == 0 {
						cost, missed := t.risen(&p, r)
						costs.series = append(costs.series, cost)
						misses.series = append(misses.series, missed)
					}
				}
			}
			needed[i] = append(needed[i], sum)
		}
	}
	f.show(1, &costs, &misses)
	share := func(n risenLoad) float64 { return float64(n.warm) / float64(n.before) }
	helps := func(n risenLoad) float64 { return float64(n.warm) / float64(n.cold) }
	plain, ours := needed[0], needed[1]
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: after the load has risen by half the new optimum comes in less than 60 %% of "+
				"the evaluations that the one before took (%.0f %% on mtwnd and %.0f %% on dien).",
			outcome(max(share(plain[0]), share(plain[1])) < 0.6 &&
				plain[0].missed+plain[1].missed == 0), 100*share(plain[0]), 100*share(plain[1])),
		"As the paper says it, the search knows the optimum of before and estimates of what did "+
			"no better. Where that optimum is overloaded now, all of them are near 0 and tell "+
			"little of where to go.",
		fmt.Sprintf(
			"%s: what was explored before helps: it takes %.0f %% and %.0f %% of the evaluations "+
				"of a search that starts afresh.",
			outcome(max(helps(plain[0]), helps(plain[1])) < 1), 100*helps(plain[0]),
			100*helps(plain[1])),
		fmt.Sprintf(
			"Not in the paper: with our additions %.0f %% and %.0f %% of the evaluations before, "+
				"%.0f %% and %.0f %% of those afresh.",
			100*share(ours[0]), 100*share(ours[1]), 100*helps(ours[0]), 100*helps(ours[1])),
		fmt.Sprintf(
			"Of %d searches each, %d and %d end without the new optimum, with our additions %d "+
				"and %d; they count as what they evaluated.",
			runs, plain[0].missed, plain[1].missed, ours[0].missed, ours[1].missed),
		fmt.Sprintf(
			"%s: the new optimum costs about 1.5 x what the one before did (%.2f x and %.2f x).",
			outcome(math.Abs(price[0]-heavier) < 0.15 && math.Abs(price[1]-heavier) < 0.15),
			price[0], price[1]),
		"The published tables are of one load, so the heavier one is simulated as its authors "+
			"made the tables, with all counts up to half as many again.",
		l.fromTables(runs))
	return f, nil
}

// risen is a search under a heavier load as two lines: what is evaluated costs, and what it misses.
func (t *ribbonTable) risen(p *plan.Problem, r *plan.Result) (cost, missed picture.Series) {
	cost.Name, missed.Name = t.model, t.model
	for _, one := range r.Evaluations {
		cost.Values = append(cost.Values, p.Price(one.Configuration)/t.Price(t.optimum))
		missed.Values = append(missed.Values, min(5, 100*(1-one.Value)))
	}
	return cost, missed
}
