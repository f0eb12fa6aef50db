// Profiles fits the latency profiles that Muster ships to measured samples. A profile has a few
// knots for each model and instance type, with straight lines between them for the mean and the
// quantiles. The knots are placed so that the largest relative error of the mean is small.
//
//	go run ./scripts/tools/profiles [-samples FILE] [-out profiles/shipped.json]
//
// FILE is a CSV as profiles.ReadSamples reads it; the default is the samples of KAIROS in
// profiles/published. The result depends only on the samples and on this program.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/sim"
)

// qosTargets are the models' QoS targets, from Table 3 of the paper on KAIROS.
var qosTargets = map[string]time.Duration{
	"ncf":   5 * time.Millisecond,
	"rm2":   350 * time.Millisecond,
	"wnd":   25 * time.Millisecond,
	"mtwnd": 25 * time.Millisecond,
	"dien":  35 * time.Millisecond,
}

const (
	source = "fitted from the latency samples published with KAIROS (HPDC 2023) and RIBBON (SC " +
		"2021): " +
		"inference and load, 99 samples a batch size (10, 20, ... 1000), the largest of 100 dropped"
	fewKnots = 8
	// tolerance is the largest relative distance of a curve from a mean; below batch size errorFrom
	// twice that is allowed.
	tolerance = 0.0495
	errorFrom = 20
	// levels is how many values are tried at a knot, spread evenly over the tolerance.
	levels = 49
)

func main() {
	samples := flag.String("samples", published.Name,
		"CSV `file` of latency samples, plain or gzip")
	out := flag.String("out", "profiles/shipped.json", "`file` to write")
	flag.Parse()
	if err := run(*samples, *out); err != nil {
		fmt.Fprintln(os.Stderr, "profiles:", err)
		os.Exit(1)
	}
}

func run(samplesFile, out string) error {
	samples, err := sim.OpenSamples(samplesFile, published.KAIROS)
	if err != nil {
		return err
	}
	var models []profiles.ModelInfo
	var tables []*profiles.Table
	for _, name := range samples.Models() {
		model, fitted, err := fitModel(samples, name)
		if err != nil {
			return fmt.Errorf("fit %s: %w", name, err)
		}
		models = append(models, model)
		tables = append(tables, fitted...)
		for _, t := range fitted {
			knots := t.Knots()
			fmt.Printf("%-30s %2d knots, worst error of the mean from batch size %d on %.2f %%\n",
				t.Key(), len(knots), errorFrom, 100*knots[0].Error)
		}
	}
	command := "go run ./scripts/tools/profiles -samples " + filepath.Base(samplesFile) +
		" -out profiles/shipped.json"
	library, err := profiles.NewLibrary(source, command, models, tables)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := library.Write(&b); err != nil {
		return err
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}

// fitModel returns the profiles of one model on every instance type it was measured on.
func fitModel(samples *profiles.Samples, name string) (model profiles.ModelInfo,
	tables []*profiles.Table, err error) {
	target, ok := qosTargets[name]
	if !ok {
		return model, nil, errors.New("its QoS target is not known here")
	}
	model = profiles.ModelInfo{Name: name, QoSTarget: target}
	for _, t := range samples.Types(name) {
		instance, err := profiles.DefaultCatalogue().Lookup(t)
		if err != nil {
			return model, nil, err
		}
		series, err := samples.Series(name, t)
		if err != nil {
			return model, nil, err
		}
		cells, err := summarise(series)
		if err != nil {
			return model, nil, err
		}
		knots, err := fit(cells)
		if err != nil {
			return model, nil, fmt.Errorf("on %s: %w", t, err)
		}
		table, err := profiles.NewTable(
			profiles.Key{Model: name, InstanceType: t, Provider: instance.Provider()},
			profiles.Shipped, "", knots)
		if err != nil {
			return model, nil, err
		}
		model.LargestBatchSize = max(model.LargestBatchSize, cells[len(cells)-1].batch)
		tables = append(tables, table)
	}
	return model, tables, nil
}

// A cell summarises the samples at one batch size, in ms.
type cell struct {
	batch               int
	mean, p50, p90, p99 float64
}

func summarise(s *profiles.Series) (cells []cell, err error) {
	table, err := s.Table(profiles.Key{Model: s.Model, InstanceType: s.InstanceType})
	if err != nil {
		return nil, err
	}
	for _, k := range table.Knots() {
		cells = append(cells, cell{k.BatchSize, ms(k.Mean), ms(k.P50), ms(k.P90), ms(k.P99)})
	}
	return cells, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// fit returns the knots of one profile, whose Error is the worst relative error of the mean from
// batch size errorFrom on. It takes fewKnots that never descend where such a curve stays within
// tolerance of every mean. On t3.xlarge none does, with any number of knots: a mean of 99 samples
// that vary by 22 % is itself off by 2 %, and larger batches measured faster than smaller ones.
// There it takes as many knots as the tolerance needs, and the curve follows the samples.
func fit(cells []cell) (knots []profiles.Knot, err error) {
	at, means := curve(cells, fewKnots, fewKnots, true)
	if at == nil {
		at, means = curve(cells, fewKnots, len(cells), false)
	}
	if at == nil {
		return nil, fmt.Errorf("no curve is within %v of the means", tolerance)
	}
	var worst float64
	for i, c := range cells {
		if c.batch >= errorFrom {
			worst = max(worst, math.Abs(evaluate(cells, at, means, i)/c.mean-1))
		}
	}
	p50 := ratios(cells, at, func(c cell) float64 { return c.p50 })
	p90 := ratios(cells, at, func(c cell) float64 { return c.p90 })
	p99 := ratios(cells, at, func(c cell) float64 { return c.p99 })
	for i, c := range at {
		r50 := p50[i]
		r90 := max(p90[i], r50)
		r99 := max(p99[i], r90)
		knots = append(knots, profiles.Knot{
			BatchSize: cells[c].batch,
			Mean:      rounded(means[i]), P50: rounded(means[i] * r50),
			P90: rounded(means[i] * r90), P99: rounded(means[i] * r99),
			Error: math.Round(worst*1e4) / 1e4,
		})
	}
	return knots, nil
}

// rounded turns ms into a duration of whole tenths of a microsecond.
func rounded(ms float64) time.Duration {
	return time.Duration(math.Round(ms*1e4)) * 100 * time.Nanosecond
}

// curve returns the knots (indices of cells) and values of the continuous, piecewise linear curve
// with the least sum of squared relative errors among those with the fewest knots, from least to
// most of them, that stay within tolerance of every cell; nil if there is none. Dynamic programming
// over (cell, one of levels values around its mean), knot by knot.
func curve(cells []cell, least, most int, ascending bool) (at []int, values []float64) {
	type state struct {
		cost        float64
		cell, level int // of the knot before
	}
	n := len(cells)
	within := func(i int) float64 {
		if cells[i].batch < errorFrom {
			return 2 * tolerance
		}
		return tolerance
	}
	value := func(i, level int) float64 {
		return cells[i].mean * (1 + within(i)*(2*float64(level)/(levels-1)-1))
	}
	errorOf := squaredErrors(cells)

	start := make([]state, n*levels)
	for i := range start {
		start[i].cost = math.Inf(1)
		if i < levels {
			start[i].cost = math.Pow(value(0, i)/cells[0].mean-1, 2)
		}
	}
	layers := [][]state{start}
	for len(layers) < most {
		before, next := layers[len(layers)-1], make([]state, n*levels)
		for i := range next {
			next[i].cost = math.Inf(1)
		}
		for i := range n - 1 {
			for level := range levels {
				from := before[i*levels+level]
				if math.IsInf(from.cost, 1) {
					continue
				}
				// slopes within tolerance so far
				y, lowest, highest := value(i, level), math.Inf(-1), math.Inf(1)
				if ascending {
					lowest = 0
				}
				for j := i + 1; j < n && lowest <= highest; j++ {
					run := float64(cells[j].batch - cells[i].batch)
					lowest = max(lowest, (cells[j].mean*(1-within(j))-y)/run)
					highest = min(highest, (cells[j].mean*(1+within(j))-y)/run)
					for l := range levels {
						slope := (value(j, l) - y) / run
						if slope < lowest-1e-12 || slope > highest+1e-12 {
							continue
						}
						if cost := from.cost +
							errorOf(i, j, y, slope); cost < next[j*levels+l].cost {
							next[j*levels+l] = state{cost, i, level}
						}
					}
				}
			}
		}
		layers = append(layers, next)
		if len(layers) < least {
			continue
		}
		end := next[(n-1)*levels:]
		level := 0
		for l := range end {
			if end[l].cost < end[level].cost {
				level = l
			}
		}
		if math.IsInf(end[level].cost, 1) {
			continue
		}
		for i, layer := n-1, len(layers)-1; ; layer-- {
			at, values = append(at, i), append(values, value(i, level))
			if layer == 0 {
				break
			}
			s := layers[layer][i*levels+level]
			i, level = s.cell, s.level
		}
		slices.Reverse(at)
		slices.Reverse(values)
		return at, values
	}
	return nil, nil
}

// squaredErrors returns a function that gives, in constant time, the sum of squared
// relative errors over the cells after i up to j of the line from value y at cell i with a slope.
func squaredErrors(cells []cell) func(i, j int, y, slope float64) float64 {
	// of 1, 1/mean, x/mean, 1/mean^2, x/mean^2, x^2/mean^2
	type sums struct{ n, m, xm, mm, xmm, xxmm float64 }
	upTo := make([]sums, len(cells))
	var s sums
	for i, c := range cells {
		x, m := float64(c.batch), 1/c.mean
		s = sums{s.n + 1, s.m + m, s.xm + x*m, s.mm + m*m, s.xmm + x*m*m, s.xxmm + x*x*m*m}
		upTo[i] = s
	}
	return func(i, j int, y, slope float64) float64 {
		p, q := &upTo[i], &upTo[j]
		a := y - slope*float64(cells[i].batch)
		return a*a*(q.mm-p.mm) + 2*a*slope*(q.xmm-p.xmm) + slope*slope*(q.xxmm-p.xxmm) -
			2*a*(q.m-p.m) - 2*slope*(q.xm-p.xm) + q.n - p.n
	}
}

// evaluate returns the piecewise linear function through values at the knots, at cell i.
func evaluate(cells []cell, at []int, values []float64, i int) float64 {
	k, share := hat(cells, at, i)
	return values[k] + share*(values[k+1]-values[k])
}

// hat returns the knot before cell i and how far the cell is on the way to the next.
func hat(cells []cell, at []int, i int) (k int, share float64) {
	k = min(max(upper(at, i)-1, 0), len(at)-2)
	lo, hi := cells[at[k]].batch, cells[at[k+1]].batch
	return k, float64(cells[i].batch-lo) / float64(hi-lo)
}

// upper returns the first position of at whose value exceeds i.
func upper(at []int, i int) int {
	p, found := slices.BinarySearch(at, i)
	if found {
		p++
	}
	return p
}

// ratios returns at each knot a quantile's ratio to the mean, such that the function
// through them has the least squared error over the cells: tridiagonal normal
// equations, for each cell lies between two knots.
func ratios(cells []cell, at []int, quantile func(cell) float64) []float64 {
	n := len(at)
	diagonal, above, right := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, c := range cells {
		k, share := hat(cells, at, i)
		a, b := 1-share, share
		r := quantile(c) / c.mean
		diagonal[k] += a * a
		diagonal[k+1] += b * b
		above[k] += a * b
		right[k] += a * r
		right[k+1] += b * r
	}
	for k := 1; k < n; k++ {
		f := above[k-1] / diagonal[k-1]
		diagonal[k] -= f * above[k-1]
		right[k] -= f * right[k-1]
	}
	values := make([]float64, n)
	for k := n - 1; k >= 0; k-- {
		v := right[k]
		if k < n-1 {
			v -= above[k] * values[k+1]
		}
		values[k] = v / diagonal[k]
	}
	return values
}
