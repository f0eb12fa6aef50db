package figures

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/reproduce/planners"
	"github.com/muster-serve/muster/sim"
)

// fig1Pools are the configurations of Fig. 1 and 3, of three instance types.
func fig1Pools() (types []string, pools []sim.Pool) {
	types = sim.PaperTypes()[:3]
	for _, n := range [][3]int{{4, 0, 0}, {3, 1, 3}, {2, 0, 9}, {1, 4, 2}} {
		pools = append(pools, sim.Pool{
			{Type: types[0], Count: n[0]}, {Type: types[1], Count: n[1]}, {
				Type: types[2], Count: n[2],
			},
		})
	}
	return types, pools
}

// fig1: heterogeneous configurations of RM2 under RIBBON's distribution against the homogeneous
// one.
func fig1(ctx context.Context, l *lab) (*Figure, error) {
	cfg, err := l.config("rm2", workload.Trace())
	if err != nil {
		return nil, err
	}
	homogeneous, err := l.homogeneous(ctx, cfg, budget)
	if err != nil {
		return nil, err
	}
	f := &Figure{
		Rows: [][]string{
			{"pool", "price_usd_per_hour", "throughput_qps", "standard_error_qps",
				"ratio_to_homogeneous"},
		},
	}
	c := picture.BarChart{
		Title:  "RM2: pools (g4dn, c5n, r5n) against homogeneous (KAIROS Fig. 1)",
		YLabel: "queries/s", Line: homogeneous, LineName: homogeneousLine, Series: []picture.Series{
			{Name: "fcfs"},
		},
	}
	types, pools := fig1Pools()
	var ratio []float64
	for _, pool := range pools {
		t, err := l.throughput(ctx, cfg, "fcfs", pool)
		if err != nil {
			return nil, err
		}
		c.Groups = append(c.Groups, counts(pool, types))
		c.Series[0].Values = append(c.Series[0].Values, t.Rate)
		c.Series[0].Errors = append(c.Series[0].Errors, t.StandardError)
		ratio = append(ratio, t.Rate/homogeneous)
		f.Rows = append(f.Rows, []string{
			counts(pool, types), number(pool.Cost(l.prices)), number(t.Rate),
			number(t.StandardError), number(t.Rate / homogeneous),
		})
	}
	f.show(1, &c)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: a heterogeneous configuration can serve more than the homogeneous one scaled to "+
				"the same budget: (3,1,3) serves %.2f x, the paper has 1.15.",
			outcome(ratio[1] > 1), ratio[1]),
		fmt.Sprintf(
			"%s: others serve less: (2,0,9) %.2f x and (1,4,2) %.2f x, the latter although it "+
				"costs more.", outcome(ratio[2] < 1 && ratio[3] < 1), ratio[2], ratio[3]))
	return f, nil
}

// fig2: what simulated annealing evaluates on its way, under RIBBON's distribution.
func fig2(ctx context.Context, l *lab) (*Figure, error) {
	cfg, err := l.config("rm2", workload.Trace())
	if err != nil {
		return nil, err
	}
	homogeneous, err := l.homogeneous(ctx, cfg, budget)
	if err != nil {
		return nil, err
	}
	const shown, slow = 60, 20 // evaluations; queries/s, below which the paper leaves them out
	worth := func(e []plan.Evaluation) []plan.Evaluation {
		return slices.DeleteFunc(slices.Clone(e),
			func(e plan.Evaluation) bool { return e.Value < slow })
	}
	all, err := firstEvaluations(ctx, planners.Rival{Name: "annealing", Seed: 1},
		l.problem(cfg, budget), l.watched(l.quick(cfg, "fcfs"), "annealing"),
		func(e []plan.Evaluation) bool { return len(worth(e)) >= shown })
	if err != nil {
		return nil, err
	}
	f := &Figure{Rows: [][]string{{"evaluation", "pool", "throughput_qps", "ratio_to_homogeneous"}}}
	s := picture.Series{Name: "simulated annealing"}
	worse, best := 0, 0.0
	explored := worth(all)
	for i, e := range explored {
		ratio := e.Value / homogeneous
		s.Values = append(s.Values, ratio)
		if best = max(best, ratio); ratio < 1 {
			worse++
		}
		f.Rows = append(f.Rows, []string{
			strconv.Itoa(i + 1), e.Configuration.String(), number(e.Value), number(ratio),
		})
	}
	c := lineChart{
		title: "RM2: what simulated annealing explores (KAIROS Fig. 2)", xLabel: "evaluation",
		yLabel: "throughput / homogeneous", line: 1,
		lineName: homogeneousLine, series: []picture.Series{s},
	}
	f.show(1, &c)
	f.Text = append(
		f.Text,
		fmt.Sprintf(
			"%s: most of the configurations explored are worse than the homogeneous one (%.0f %% "+
				"of %d that serve at least %d queries/s; the paper has about 70 %%). The best of "+
				"them serves %.2f x. One seed.",
			outcome(2*worse > len(explored)), 100*float64(worse)/float64(len(explored)),
			len(explored), slow, best))
	return f, nil
}

// quick is the evaluator for searches that evaluate many configurations: one seed.
func (l *lab) quick(cfg *sim.Config, policy string) *sim.Evaluator {
	e := l.evaluator(cfg, policy)
	e.Seeds = 1
	return e
}

// watched tells of each evaluation.
func (l *lab) watched(e plan.Evaluator, what string) plan.Evaluator {
	n := 0
	return plan.EvaluatorFunc(func(ctx context.Context, c plan.Configuration) (plan.Estimate,
		error) {
		n++
		l.progress("%s: evaluation %d, %s", what, n, c)
		return e.Evaluate(ctx, c)
	})
}

// fig10: how many evaluations the search of kairos+ needs under each distribution.
func fig10(ctx context.Context, l *lab) (*Figure, error) {
	f := &Figure{
		Rows: [][]string{
			{"model", "policy", "evaluations", "search_space", "percent_of_space", "best_pool",
				"best_qps"},
		},
	}
	policies := []string{"fcfs", "drs", "clockwork-earliest", "kairos"}
	c := picture.BarChart{
		Title:  "Evaluations until the search of kairos+ ends, by distribution (KAIROS Fig. 10)",
		YLabel: "evaluations, % of the search space", Groups: paperModels,
	}
	share := make([][]float64, len(policies))
	for i, policy := range policies {
		for _, model := range paperModels {
			cfg, err := l.config(model, workload.Trace())
			if err != nil {
				return nil, err
			}
			r, err := plan.KairosPlus{}.Plan(ctx, l.problem(cfg, budget),
				l.watched(l.quick(cfg, policy), model+", "+policy))
			if err != nil {
				return nil, err
			}
			percent := 100 * float64(len(r.Evaluations)) / float64(r.SearchSpace)
			share[i] = append(share[i], percent)
			f.Rows = append(f.Rows, []string{
				model, policy, strconv.Itoa(len(r.Evaluations)), strconv.Itoa(r.SearchSpace),
				number(percent), r.Plans[0].Configuration.String(), number(r.Plans[0].Predicted),
			})
		}
		c.Series = append(c.Series, picture.Series{Name: policy, Values: share[i]})
	}
	f.show(1, &c)
	kairos := share[3]
	hi, hiModel := most(kairos, paperModels)
	var others, fewer []float64
	for _, s := range share[:3] {
		for i := range s {
			others = append(others, s[i])
			fewer = append(fewer, s[i]/kairos[i])
		}
	}
	lo, _ := least(fewer, slices.Concat(paperModels, paperModels, paperModels))
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: with the same search, KAIROS's distribution needs fewer evaluations than any "+
				"other on every model (at least %.1f x fewer).", outcome(lo > 1), lo),
		fmt.Sprintf(
			"%s: KAIROS+ evaluates less than 1 %% of the search space on every model (at most "+
				"%.1f %%, on %s).", outcome(hi < 1), hi, hiModel),
		fmt.Sprintf(
			"The others evaluate %.1f %% to %.1f %%; the paper has often 5 %% to 30 %%. Counted "+
				"until the search ends, that is, until it knows that it has the best. One seed "+
				"each.", slices.Min(others), slices.Max(others)))
	return f, nil
}

// errEnough ends a search whose first evaluations are all that is wanted.
var errEnough = errors.New("evaluated as often as wanted")

// firstEvaluations are what a search evaluates until that is enough.
func firstEvaluations(ctx context.Context, planner plan.Planner, p *plan.Problem, e plan.Evaluator,
	enough func([]plan.Evaluation) bool) ([]plan.Evaluation, error) {
	var first *plan.Log
	first = plan.NewLog(
		plan.EvaluatorFunc(func(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
			if enough(first.Evaluations()) {
				return plan.Estimate{}, errEnough
			}
			return e.Evaluate(ctx, c)
		}))
	if _, err := planner.Plan(ctx, p, first); err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return first.Evaluations(), nil
}

// fig11: how many evaluations other searches need to come to what kairos+ finds, under KAIROS's
// distribution.
func fig11(ctx context.Context, l *lab) (*Figure, error) {
	seeds := max(1, l.Seeds)
	searches := []struct {
		name    string
		planner func(seed uint64) plan.Planner
	}{
		{"kairos+", func(uint64) plan.Planner { return plan.KairosPlus{} }},
		{"ribbon, plain", func(seed uint64) plan.Planner {
			return plan.Ribbon{
				Seed: seed, Plain: true,
			}
		}},
		{"genetic", func(seed uint64) plan.Planner {
			return planners.Rival{
				Name: "genetic", Seed: seed,
			}
		}},
		{"random", func(seed uint64) plan.Planner {
			return planners.Rival{
				Name: "random", Seed: seed,
			}
		}},
		{"ribbon (ours)", func(seed uint64) plan.Planner { return plan.Ribbon{Seed: seed} }},
	}
	const ours = 4 // those before are the paper's
	f := &Figure{Rows: [][]string{{"model", "search", "evaluations_mean", "percent_of_space"}}}
	c := picture.BarChart{
		Title:  "Evaluations until the configuration that kairos+ finds (KAIROS Fig. 11)",
		YLabel: "evaluations, % of the search space", Groups: paperModels,
	}
	share := make([][]float64, len(searches))
	for _, model := range paperModels {
		cfg, err := l.config(model, workload.Trace())
		if err != nil {
			return nil, err
		}
		p := l.problem(cfg, budget)
		// One log for all, so that nothing is simulated twice.
		log := plan.NewLog(l.watched(l.quick(cfg, "kairos"), model))
		found, err := plan.KairosPlus{}.Plan(ctx, p, log)
		if err != nil {
			return nil, err
		}
		best := slices.MaxFunc(found.Evaluations,
			func(a, b plan.Evaluation) int { return cmp.Compare(a.Value, b.Value) }).Value
		for i, search := range searches {
			mean := 0.0
			for seed := range seeds {
				first, err := firstEvaluations(ctx, search.planner(uint64(seed+1)), p, log,
					func(e []plan.Evaluation) bool {
						return len(e) > 0 && e[len(e)-1].Value >= best
					})
				if err != nil {
					return nil, err
				}
				for _, e := range first {
					// The searches that know no profiles also ask for pools that meet the
					// QoS target at no rate. The paper's search space has none of those, so
					// they are not counted.
					if e.Value > 0 {
						mean += 1 / float64(seeds)
					}
				}
			}
			percent := 100 * mean / float64(found.SearchSpace)
			share[i] = append(share[i], percent)
			f.Rows = append(f.Rows, []string{model, search.name, number(mean), number(percent)})
		}
	}
	for i, search := range searches {
		c.Series = append(c.Series, picture.Series{Name: search.name, Values: share[i]})
	}
	f.show(1, &c)
	var fewer []float64
	for _, s := range share[1:ours] {
		for i := range s {
			fewer = append(fewer, s[i]/share[0][i])
		}
	}
	lo, loModel := least(fewer, slices.Concat(paperModels, paperModels, paperModels))
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: every other search needs more evaluations than KAIROS+ to come to the same "+
				"configuration (at least %.1f x as many, on %s).", outcome(lo > 1), lo, loModel),
		fmt.Sprintf(
			"In the mean over the models: KAIROS+ %.1f %% of the search space, RIBBON %.1f %%, "+
				"genetic %.1f %%, random %.1f %%. All prune sub-configurations; evaluations are "+
				"counted up to that which finds it, over %d runs of each search on one seed's "+
				"queries.",
			mean(share[0]), mean(share[1]), mean(share[2]), mean(share[3]), seeds),
		fmt.Sprintf("Not in the paper: RIBBON's search with our additions %.1f %%.",
			mean(share[ours])))
	return f, nil
}

// fig12: RM2's queries change from the trace to Gaussian batch sizes, and every scheme searches
// anew.
func fig12(ctx context.Context, l *lab) (*Figure, error) {
	gaussian, err := workload.Gaussian(250, 100, workload.LargestBatchSize)
	if err != nil {
		return nil, err
	}
	cfg, err := l.config("rm2", gaussian)
	if err != nil {
		return nil, err
	}
	const evaluations = 20
	schemes := []struct {
		name, policy string
		planner      plan.Planner
	}{
		{"ribbon", "fcfs", plan.Ribbon{Seed: 1, Plain: true}},
		{"drs", "drs", plan.KairosPlus{}},
		{"clockwork", "clockwork-earliest", plan.KairosPlus{}},
		{"kairos+", "kairos", plan.KairosPlus{}},
	}
	p := l.problem(cfg, budget)
	f := &Figure{Rows: [][]string{{"scheme", "evaluation", "pool", "throughput_qps"}}}
	c := lineChart{
		title: "RM2 after its batch sizes became Gaussian (KAIROS Fig. 12)", xLabel: "evaluation",
		yLabel: "throughput of what is evaluated, queries/s",
	}
	ended := map[string]int{}
	best := map[string]float64{}
	for _, scheme := range schemes {
		first, err := firstEvaluations(ctx, scheme.planner, p,
			l.watched(l.quick(cfg, scheme.policy), scheme.name),
			func(e []plan.Evaluation) bool { return len(e) == evaluations })
		if err != nil {
			return nil, err
		}
		s := picture.Series{Name: scheme.name}
		ended[scheme.name] = len(first)
		for i, e := range first {
			s.Values = append(s.Values, e.Value)
			best[scheme.name] = max(best[scheme.name], e.Value)
			f.Rows = append(f.Rows, []string{
				scheme.name, strconv.Itoa(i + 1), e.Configuration.String(), number(e.Value),
			})
		}
		for len(s.Values) < evaluations { // it has ended, and what it found runs
			s.Values = append(s.Values, best[scheme.name])
		}
		c.series = append(c.series, s)
	}
	_, chosen, err := l.byBound(ctx, cfg, budget, 1)
	if err != nil {
		return nil, err
	}
	kairos, err := sim.FindThroughput(ctx, withPool(cfg, "kairos", chosen), 1, nil)
	if err != nil {
		return nil, err
	}
	c.series = append(c.series, picture.Series{
		Name: "kairos", Values: slices.Repeat([]float64{kairos.Rate}, evaluations),
	})
	f.Rows = append(f.Rows, []string{
		"kairos", "0", counts(chosen, sim.PaperTypes()), number(kairos.Rate),
	})
	f.show(1, &c)
	mean := func(i int) float64 {
		sum := 0.0
		for _, v := range c.series[i].Values {
			sum += v
		}
		return sum / evaluations
	}
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: KAIROS serves near the best at once, without an evaluation: %.1f of the %.1f "+
				"queries/s that KAIROS+ ends at.", outcome(kairos.Rate > 0.9*best["kairos+"]),
			kairos.Rate, best["kairos+"]),
		fmt.Sprintf(
			"%s: that is twice what RIBBON and DRS serve while they search (%.2f x and %.2f x "+
				"their mean over %d evaluations).",
			outcome(kairos.Rate > 1.8*max(mean(0), mean(1))), kairos.Rate/mean(0),
			kairos.Rate/mean(1), evaluations),
		fmt.Sprintf(
			"%s: KAIROS+ has evaluated or pruned every configuration within 8 evaluations (here "+
				"%d).", outcome(ended["kairos+"] <= 8), ended["kairos+"]),
		fmt.Sprintf(
			"Best within %d evaluations: RIBBON %.1f, DRS %.1f, Clockwork %.1f queries/s. One "+
				"seed each.", evaluations, best["ribbon"], best["drs"], best["clockwork"]))
	return f, nil
}

func withPool(cfg *sim.Config, policy string, pool sim.Pool) *sim.Config {
	one := *cfg
	one.Policy, one.Pool = policy, pool
	return &one
}

// fig13: what the pools of the highest bound really serve.
func fig13(ctx context.Context, l *lab) (*Figure, error) {
	const top = 20
	f := &Figure{
		Rows: [][]string{
			{"model", "rank", "pool", "price_usd_per_hour", "upper_bound_qps", "throughput_qps",
				"standard_error_qps", "chosen"},
		},
	}
	var charts []shown
	rank := make([]float64, len(paperModels)) // of the best
	var share, trend []float64
	for m, model := range paperModels {
		cfg, err := l.config(model, workload.Trace())
		if err != nil {
			return nil, err
		}
		pools, chosen, err := l.byBound(ctx, cfg, budget, top)
		if err != nil {
			return nil, err
		}
		c := &picture.BarChart{Title: model +
			": the pools (g4dn, c5n, r5n, t3) of the highest bound; * is KAIROS's choice (Fig. 13)",
			YLabel: "queries/s", Reference: true,
			Series: []picture.Series{{Name: "upper bound (Eq. 15)"}, {Name: "kairos"}}}
		best, chosenRate := 0.0, 0.0
		for i, b := range pools {
			t, err := l.throughput(ctx, cfg, "kairos", b.pool)
			if err != nil {
				return nil, err
			}
			name := counts(b.pool, sim.PaperTypes())
			isChosen := b.pool.String() == chosen.String()
			if t.Rate > best {
				best, rank[m] = t.Rate, float64(i+1)
			}
			f.Rows = append(f.Rows, []string{
				model, strconv.Itoa(i + 1), name, number(b.pool.Cost(l.prices)), number(b.bound),
				number(t.Rate), number(t.StandardError), strconv.FormatBool(isChosen),
			})
			if isChosen {
				name += "*"
				chosenRate = t.Rate
			}
			c.Groups = append(c.Groups, name)
			c.Series[0].Values = append(c.Series[0].Values, b.bound)
			c.Series[1].Values = append(c.Series[1].Values, t.Rate)
			c.Series[1].Errors = append(c.Series[1].Errors, t.StandardError)
		}
		share = append(share, chosenRate/best)
		trend = append(trend, mean(c.Series[1].Values[:top/2])/mean(c.Series[1].Values[top/2:]))
		charts = append(charts, c)
	}
	f.show(1, charts...)
	hi, hiModel := most(rank, paperModels)
	lo, loModel := least(trend, paperModels)
	worst, worstModel := least(share, paperModels)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: the best of the %d configurations of the highest bound is always among the "+
				"first ten (at the worst it is number %.0f, on %s).", outcome(hi <= 10), top, hi,
			hiModel),
		fmt.Sprintf(
			"%s: throughput follows the bound's trend, though not in strict order (the first ten "+
				"serve at least %.2f x what the next ten do, on %s).", outcome(lo > 1), lo,
			loModel),
		fmt.Sprintf(
			"%s: KAIROS chooses one near the best without evaluating any (at the worst %.2f of "+
				"it, on %s).", outcome(worst > 0.95), worst, worstModel))
	return f, nil
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// fig15: KAIROS's gain with four times the budget, and with a QoS target 20 % higher.
func fig15(ctx context.Context, l *lab) (*Figure, error) {
	settings := []struct {
		name   string
		budget float64
		target float64 // times the model's
	}{{"Fig. 8", budget, 1}, {"(a) four times the budget", 4 * budget, 1}, {
		"(b) QoS target 20 % higher", budget, 1.2,
	}}
	f := &Figure{
		Rows: [][]string{
			{"setting", "model", "homogeneous_scaled_qps", "kairos_pool", "kairos_qps",
				"standard_error_qps", "ratio"},
		},
	}
	c := picture.BarChart{
		Title:  "KAIROS, on the pool it chooses, relative to homogeneous (KAIROS Fig. 15)",
		YLabel: "throughput / homogeneous", Groups: paperModels, Line: 1,
		LineName:  homogeneousLine,
		Reference: true,
	}
	for _, setting := range settings {
		s := picture.Series{Name: setting.name}
		for _, model := range paperModels {
			cfg, err := l.config(model, workload.Trace())
			if err != nil {
				return nil, err
			}
			m := &cfg.Models[0]
			m.QoSTarget = time.Duration(float64(m.QoSTarget) * setting.target)
			homogeneous, err := l.homogeneous(ctx, cfg, setting.budget)
			if err != nil {
				return nil, err
			}
			_, chosen, err := l.byBound(ctx, cfg, setting.budget, 1)
			if err != nil {
				return nil, err
			}
			t, err := l.throughput(ctx, cfg, "kairos", chosen)
			if err != nil {
				return nil, err
			}
			s.Values = append(s.Values, t.Rate/homogeneous)
			s.Errors = append(s.Errors, t.StandardError/homogeneous)
			f.Rows = append(f.Rows, []string{
				setting.name, model, number(homogeneous), counts(chosen, sim.PaperTypes()),
				number(t.Rate), number(t.StandardError), number(t.Rate / homogeneous),
			})
		}
		c.Series = append(c.Series, s)
	}
	f.show(1, &c)
	loA, modelA := least(c.Series[1].Values, paperModels)
	loB, modelB := least(c.Series[2].Values, paperModels)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: with four times the budget KAIROS gains substantially on every model (least: "+
				"%.2f x on %s).", outcome(loA > 1.25), loA, modelA),
		fmt.Sprintf(
			"%s: with QoS targets 20 %% higher it gains as before (least: %.2f x on %s; the "+
				"means are %.2f x and before %.2f x).",
			outcome(loB > 1.2 && mean(c.Series[2].Values) > 0.9*mean(c.Series[0].Values)),
			loB, modelB, mean(c.Series[2].Values), mean(c.Series[0].Values)))
	return f, nil
}
