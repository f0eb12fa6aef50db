package figures

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/muster-serve/muster/api/picture"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
)

// fig3: four configurations of RM2 under four ways to distribute queries.
func fig3(ctx context.Context, l *lab) (*Figure, error) {
	cfg, err := l.config("rm2", workload.Trace())
	if err != nil {
		return nil, err
	}
	homogeneous, err := l.homogeneous(ctx, cfg, budget)
	if err != nil {
		return nil, err
	}
	types, pools := fig1Pools()
	policies := []string{"fcfs", "drs", "clockwork-earliest", sim.Oracle}
	f := &Figure{
		Rows: [][]string{
			{"pool", "price_usd_per_hour", "policy", "throughput_qps", "standard_error_qps",
				"ratio_to_homogeneous"},
		},
	}
	c := picture.BarChart{Title: "RM2: pools (g4dn, c5n, r5n) under different query distribution (KAIROS " +
		"Fig. 3)",
		YLabel: "throughput / homogeneous", Line: 1, LineName: homogeneousLine}
	ratio := map[string][]float64{}
	for _, policy := range policies {
		s := picture.Series{Name: policy}
		for _, pool := range pools {
			t, err := l.throughput(ctx, cfg, policy, pool)
			if err != nil {
				return nil, err
			}
			s.Values = append(s.Values, t.Rate/homogeneous)
			s.Errors = append(s.Errors, t.StandardError/homogeneous)
			f.Rows = append(f.Rows, []string{
				counts(pool, types), number(pool.Cost(l.prices)), policy, number(t.Rate),
				number(t.StandardError), number(t.Rate / homogeneous),
			})
		}
		ratio[policy] = s.Values
		c.Series = append(c.Series, s)
	}
	for _, pool := range pools {
		c.Groups = append(c.Groups, counts(pool, types))
	}
	f.show(1, &c)
	below := true // every real policy stays below the oracle on every heterogeneous pool
	best := map[string]bool{}
	for i := 1; i < len(pools); i++ {
		winner := ""
		for _, policy := range policies[:3] {
			below = below && ratio[policy][i] < ratio[sim.Oracle][i]
			if winner == "" || ratio[policy][i] > ratio[winner][i] {
				winner = policy
			}
		}
		best[winner] = true
	}
	spread := 0.0
	for i := range pools {
		lo, hi := math.Inf(1), 0.0
		for _, policy := range policies[:3] {
			lo, hi = min(lo, ratio[policy][i]), max(hi, ratio[policy][i])
		}
		spread = max(spread, hi/lo)
	}
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: the throughput of a configuration depends on how queries are distributed, by a "+
				"factor of up to %.2f between FCFS (RIBBON), DRS and Clockwork.",
			outcome(spread > 1.1), spread),
		fmt.Sprintf("%s: none of them reaches the oracle on a heterogeneous configuration.",
			outcome(below)),
		fmt.Sprintf(
			"%s: no one of them is the best everywhere (best somewhere among the heterogeneous: "+
				"%s).", outcome(len(best) > 1), strings.Join(sorted(best), ", ")),
		fmt.Sprintf("FCFS on (3,1,3) reaches %.2f x homogeneous; the paper has 1.15.",
			ratio["fcfs"][1]))
	return f, nil
}

// fig8: KAIROS against the best homogeneous pool.
func fig8(ctx context.Context, l *lab) (*Figure, error) {
	f := &Figure{
		Rows: [][]string{
			{"model", "homogeneous_scaled_qps", "kairos_pool", "kairos_qps", "standard_error_qps",
				"ratio"},
		},
	}
	c := picture.BarChart{Title: "KAIROS and the best homogeneous pool at $2.5/hr (KAIROS Fig. 8)",
		YLabel: "throughput / homogeneous",
		Groups: paperModels, Reference: true, Series: []picture.Series{
			{Name: "homogeneous, scaled to budget"}, {Name: "kairos"},
		}}
	var ratios []float64
	for _, model := range paperModels {
		cfg, err := l.config(model, workload.Trace())
		if err != nil {
			return nil, err
		}
		r, err := l.compare(ctx, cfg, []string{"kairos"})
		if err != nil {
			return nil, err
		}
		k := r.Policies[0]
		f.Rows = append(f.Rows, []string{
			model, number(r.HomogeneousScaled), k.Pool, number(k.Rate), number(k.StandardError),
			number(k.Ratio),
		})
		ratios = append(ratios, k.Ratio)
		c.Series[0].Values = append(c.Series[0].Values, 1)
		c.Series[1].Values = append(c.Series[1].Values, k.Ratio)
		c.Series[1].Errors = append(c.Series[1].Errors, k.StandardError/r.HomogeneousScaled)
	}
	c.Series[0].Errors = make([]float64, len(paperModels))
	f.show(1, &c)
	lo, loModel := least(ratios, paperModels)
	hi, hiModel := most(ratios, paperModels)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: KAIROS serves more than 1.25 x the best homogeneous pool on every model (least: "+
				"%.2f x on %s).", outcome(lo > 1.25), lo, loModel),
		fmt.Sprintf("%s: it gains most on RM2, about 2 x (most here: %.2f x on %s; RM2 %.2f x).",
			outcome(hiModel == "rm2" && hi > 1.8), hi, hiModel, ratios[1]))
	return f, nil
}

// fig9: KAIROS and KAIROS+ against other schemes, those on their best pools.
func fig9(ctx context.Context, l *lab) (*Figure, error) {
	policies := []string{
		"fcfs", "drs", "clockwork-earliest", "clockwork-cheapest", "kairos", "horizon", sim.Oracle,
	}
	f := &Figure{
		Rows: [][]string{
			{"model", "scheme", "pool", "throughput_qps", "standard_error_qps", "ratio_to_ribbon"},
		},
	}
	c := picture.BarChart{Title: "Throughput at $2.5/hr, each scheme on its pool (KAIROS Fig. 9)",
		YLabel: "throughput / RIBBON (fcfs)", Groups: paperModels, Reference: true,
		Series: []picture.Series{
			{Name: "ribbon (fcfs)"}, {Name: "drs"}, {Name: "clockwork"},
			{Name: "kairos (pool by Eq. 15)"}, {Name: "kairos+ (best pool)"},
			{Name: "horizon (ours)"}, {Name: "oracle"},
		}}
	ratio := make([][]float64, len(c.Series))
	for _, model := range paperModels {
		cfg, err := l.config(model, workload.Trace())
		if err != nil {
			return nil, err
		}
		r, err := l.compare(ctx, cfg, policies)
		if err != nil {
			return nil, err
		}
		_, chosen, err := l.byBound(ctx, cfg, budget, 1)
		if err != nil {
			return nil, err
		}
		kairos, err := l.throughput(ctx, cfg, "kairos", chosen)
		if err != nil {
			return nil, err
		}
		p := r.Policies
		clockwork := p[2]
		if p[3].Rate > clockwork.Rate {
			clockwork = p[3]
		}
		for i, e := range []sim.Entry{
			p[0], p[1], clockwork, {Pool: chosen.String(), Throughput: kairos}, p[4], p[5], p[6],
		} {
			ratio[i] = append(ratio[i], e.Rate/p[0].Rate)
			c.Series[i].Values = append(c.Series[i].Values, e.Rate/p[0].Rate)
			c.Series[i].Errors = append(c.Series[i].Errors, e.StandardError/p[0].Rate)
			f.Rows = append(f.Rows, []string{
				model, c.Series[i].Name, e.Pool, number(e.Rate), number(e.StandardError),
				number(e.Rate / p[0].Rate),
			})
		}
	}
	f.show(1, &c)
	const ribbon, drs, clockwork, kairos, plus, horizon, oracle = 0, 1, 2, 3, 4, 5, 6
	over := func(a, b int) []float64 {
		var q []float64
		for i := range ratio[a] {
			q = append(q, ratio[a][i]/ratio[b][i])
		}
		return q
	}
	loRibbon, m1 := least(over(kairos, ribbon), paperModels)
	hiRibbon, _ := most(over(kairos, ribbon), paperModels)
	loDRS, m2 := least(over(kairos, drs), paperModels)
	loClock, m3 := least(over(kairos, clockwork), paperModels)
	hiDRS, _ := most(over(kairos, drs), paperModels)
	hiClock, _ := most(over(kairos, clockwork), paperModels)
	loRivals, m4 := least(append(over(drs, ribbon), over(clockwork, ribbon)...),
		append(paperModels[:5:5], paperModels...))
	loPlus, m5 := least(over(kairos, plus), paperModels)
	loOracle, m6 := least(over(plus, oracle), paperModels)
	loHorizon, m7 := least(over(horizon, plus), paperModels)
	f.Text = append(f.Text,
		fmt.Sprintf("%s: KAIROS serves around 1.5 x what RIBBON does (%.2f x on %s to %.2f x).",
			outcome(loRibbon >= 1.35), loRibbon, m1, hiRibbon),
		fmt.Sprintf(
			"%s: it outperforms DRS and Clockwork on every model, by up to 44 %% (DRS: %.2f x on "+
				"%s to %.2f x; Clockwork, the better of two variants: %.2f x on %s to %.2f x).",
			outcome(loDRS > 1 && loClock > 1), loDRS, m2, hiDRS, loClock, m3, hiClock),
		fmt.Sprintf("%s: DRS and Clockwork outperform RIBBON on every model (least: %.2f x on %s).",
			outcome(loRivals > 1), loRivals, m4),
		fmt.Sprintf(
			"%s: the pool that KAIROS chooses without evaluating any is nearly as good as the "+
				"best (at the worst %.2f of KAIROS+, on %s).", outcome(loPlus > 0.95), loPlus, m5),
		fmt.Sprintf(
			"%s: KAIROS+ comes within 15 %% of the oracle (at the worst %.2f of it, on %s).",
			outcome(loOracle >= 0.85), loOracle, m6),
		fmt.Sprintf(
			"Not in the paper: our policy horizon serves at least %.3f x what kairos does on its "+
				"best pool (%s).", loHorizon, m7))
	return f, nil
}

// fig14: the pools of the highest bound for RM2 under different query distribution.
func fig14(ctx context.Context, l *lab) (*Figure, error) {
	cfg, err := l.config("rm2", workload.Trace())
	if err != nil {
		return nil, err
	}
	const top = 6
	all, _, err := l.byBound(ctx, cfg, budget, top)
	if err != nil {
		return nil, err
	}
	oracle, err := l.compare(ctx, cfg, []string{sim.Oracle})
	if err != nil {
		return nil, err
	}
	best := oracle.Policies[0].Rate
	policies := []string{"kairos", "fcfs", "drs", "clockwork-earliest"}
	f := &Figure{
		Rows: [][]string{
			{"pool", "upper_bound_qps", "policy", "throughput_qps", "standard_error_qps"},
		},
	}
	c := picture.BarChart{Title: "RM2: pools (g4dn, c5n, r5n, t3) of the highest bound (KAIROS Fig. " +
		"14)", YLabel: "queries/s",
		Line: best, LineName: "the oracle on its best pool", Reference: true, Series: []picture.Series{
			{Name: "upper bound (Eq. 15)"},
		}}
	for _, policy := range policies {
		c.Series = append(c.Series, picture.Series{Name: policy})
	}
	others := 0.0
	var bounds, share []float64
	for _, b := range all {
		c.Groups = append(c.Groups, counts(b.pool, sim.PaperTypes()))
		c.Series[0].Values = append(c.Series[0].Values, b.bound)
		bounds = append(bounds, b.bound)
		for i, policy := range policies {
			t, err := l.throughput(ctx, cfg, policy, b.pool)
			if err != nil {
				return nil, err
			}
			c.Series[i+1].Values = append(c.Series[i+1].Values, t.Rate)
			c.Series[i+1].Errors = append(c.Series[i+1].Errors, t.StandardError)
			f.Rows = append(f.Rows, []string{
				counts(b.pool, sim.PaperTypes()), number(b.bound), policy, number(t.Rate),
				number(t.StandardError),
			})
			if policy == "kairos" {
				share = append(share, t.Rate/b.bound)
			} else {
				others = max(others, t.Rate/b.bound)
			}
		}
	}
	f.show(1, &c)
	lo, loPool := least(share, c.Groups)
	hi, _ := most(bounds, c.Groups)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: the bound is close to the oracle's best throughput, and no higher (%.1f against "+
				"%.1f queries/s, %+.1f %%).", outcome(hi < 1.005*best && hi > 0.85*best), hi, best,
			100*(hi/best-1)),
		fmt.Sprintf(
			"%s: KAIROS comes close to the bound on the pools of the highest bound (at the worst "+
				"%.2f of it, on %s).", outcome(lo > 0.75), lo, loPool),
		fmt.Sprintf(
			"%s: without KAIROS's query distribution the throughput stays far from the bound "+
				"(FCFS, DRS and Clockwork reach at most %.2f of it).", outcome(others < 0.9*lo),
			others))
	return f, nil
}

// fig16: KAIROS's gain when batch sizes are Gaussian, and when latency is noisy.
func fig16(ctx context.Context, l *lab) (*Figure, error) {
	gaussian, err := workload.Gaussian(250, 100, workload.LargestBatchSize)
	if err != nil {
		return nil, err
	}
	settings := []struct {
		name                string
		sizes               *workload.BatchSizes
		prediction, latency float64 // standard deviations of noise
	}{
		{"trace (Fig. 8)", workload.Trace(), 0, 0},
		{"(a) Gaussian batch sizes", gaussian, 0, 0},
		{"(b) 5 % noise in prediction", workload.Trace(), 0.05, 0},
		{"5 % noise in latency itself", workload.Trace(), 0, 0.05},
	}
	f := &Figure{
		Rows: [][]string{
			{"setting", "model", "homogeneous_scaled_qps", "kairos_pool", "kairos_qps",
				"standard_error_qps", "ratio"},
		},
	}
	c := picture.BarChart{
		Title:  "KAIROS relative to homogeneous: batch sizes, noise (KAIROS Fig. 16)",
		YLabel: "throughput / homogeneous", Groups: paperModels, Line: 1,
		LineName:  homogeneousLine,
		Reference: true,
	}
	for _, setting := range settings {
		s := picture.Series{Name: setting.name}
		for _, model := range paperModels {
			cfg, err := l.config(model, setting.sizes)
			if err != nil {
				return nil, err
			}
			cfg.PredictionNoise, cfg.LatencyNoise = setting.prediction, setting.latency
			r, err := l.compare(ctx, cfg, []string{"kairos"})
			if err != nil {
				return nil, err
			}
			k := r.Policies[0]
			s.Values = append(s.Values, k.Ratio)
			s.Errors = append(s.Errors, k.StandardError/r.HomogeneousScaled)
			f.Rows = append(f.Rows, []string{
				setting.name, model, number(r.HomogeneousScaled), k.Pool, number(k.Rate),
				number(k.StandardError), number(k.Ratio),
			})
		}
		c.Series = append(c.Series, s)
	}
	f.show(1, &c)
	trace, gauss := c.Series[0].Values, c.Series[1].Values
	lo, loModel := least(gauss, paperModels)
	fewer := 0
	for i := range paperModels {
		if gauss[i] < trace[i] {
			fewer++
		}
	}
	// change is the largest loss of gain, compared with the trace without noise.
	change := func(noisy []float64) (float64, string) {
		loss := make([]float64, len(noisy))
		for i := range noisy {
			loss[i] = 1 - noisy[i]/trace[i]
		}
		return most(loss, paperModels)
	}
	prediction, predictionModel := change(c.Series[2].Values)
	latency, latencyModel := change(c.Series[3].Values)
	f.Text = append(f.Text,
		fmt.Sprintf(
			"%s: with Gaussian batch sizes KAIROS still gains on every model (least: %.2f x on "+
				"%s); the gain is smaller than with the trace on %d of %d models.", outcome(lo > 1),
			lo, loModel, fewer, len(paperModels)),
		fmt.Sprintf(
			"%s: 5 %% noise in what is predicted hardly changes the gain (it costs at most %.1f "+
				"%%, on %s).", outcome(prediction < 0.05), 100*prediction, predictionModel),
		fmt.Sprintf(
			"Not in the paper: 5 %% noise in the latency itself, so that some queries are later "+
				"than any policy could know, costs at most %.1f %%, on %s.", 100*latency,
			latencyModel))
	return f, nil
}

func sorted(set map[string]bool) []string {
	var names []string
	for _, name := range []string{"fcfs", "drs", "clockwork-earliest"} {
		if set[name] {
			names = append(names, name)
		}
	}
	return names
}

// homogeneousLine names the line at 1 where throughputs are relative.
const homogeneousLine = "homogeneous, scaled to budget"
