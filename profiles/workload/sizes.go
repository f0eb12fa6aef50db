package workload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-serve/muster/api/document"
)

const (
	// LargestBatchSize is the largest batch size in the papers' workloads; a
	// Gaussian distribution is truncated to it.
	LargestBatchSize = 1000
	// maxBatchSize bounds the batch sizes that a user may give; a larger one is a typing error.
	maxBatchSize = 1 << 20
)

// BatchSizes is a distribution of batch sizes. It is safe for concurrent use.
type BatchSizes struct {
	name  string
	pmf   []Probability
	table aliasTable
}

// A Probability is the probability of one batch size.
type Probability struct {
	BatchSize int
	P         float64 // in (0, 1]
}

// newBatchSizes makes a distribution in which batch size b has weight weights[b]. The weights need
// not sum to 1.
func newBatchSizes(name string, weights []float64) *BatchSizes {
	var total float64
	for _, w := range weights {
		total += w
	}
	d := &BatchSizes{name: name}
	ps := make([]float64, 0, len(weights))
	for b, w := range weights {
		if w > 0 {
			d.pmf = append(d.pmf, Probability{BatchSize: b, P: w / total})
			ps = append(ps, w)
		}
	}
	d.table = newAliasTable(ps)
	return d
}

// Weighted makes a distribution of probabilities, ascending by batch size, which need not sum to 1.
// The name is for [BatchSizes.String] and errors.
func Weighted(name string, pmf []Probability) (*BatchSizes, error) {
	var weights []float64
	for _, p := range pmf {
		if p.BatchSize < max(1, len(weights)) || p.BatchSize > maxBatchSize || !(p.P > 0) ||
			math.IsInf(p.P, 1) {
			return nil, fmt.Errorf(
				"batch sizes %s: batch size %d with probability %v, want ascending within 1..%d, "+
					"above 0", name, p.BatchSize, p.P, maxBatchSize)
		}
		weights = append(weights, make([]float64, p.BatchSize+1-len(weights))...)
		weights[p.BatchSize] = p.P
	}
	if len(weights) == 0 {
		return nil, fmt.Errorf("batch sizes %s: none", name)
	}
	return newBatchSizes(name, weights), nil
}

// Draw draws a batch size.
func (d *BatchSizes) Draw(r *rand.Rand) int {
	if len(d.pmf) == 1 {
		return d.pmf[0].BatchSize
	}
	return d.pmf[d.table.draw(r)].BatchSize
}

// PMF returns the probability of every batch size that occurs, in ascending
// order. The probabilities sum to one.
func (d *BatchSizes) PMF() []Probability { return slices.Clone(d.pmf) }

// Largest is the largest batch size that occurs.
func (d *BatchSizes) Largest() int { return d.pmf[len(d.pmf)-1].BatchSize }

// Mean is the mean batch size.
func (d *BatchSizes) Mean() float64 {
	var m float64
	for _, p := range d.pmf {
		m += float64(p.BatchSize) * p.P
	}
	return m
}

// String returns the distribution in the form of [ParseBatchSizes].
func (d *BatchSizes) String() string { return d.name }

// AtMost returns the distribution restricted to batch sizes up to largest; d itself if none is
// larger.
func (d *BatchSizes) AtMost(largest int) (*BatchSizes, error) {
	if d.Largest() <= largest {
		return d, nil
	}
	if d.pmf[0].BatchSize > largest {
		return nil, fmt.Errorf("batch sizes %s: the smallest is %d, the largest allowed %d", d.name,
			d.pmf[0].BatchSize, largest)
	}
	weights := make([]float64, largest+1)
	for _, p := range d.pmf {
		if p.BatchSize <= largest {
			weights[p.BatchSize] = p.P
		}
	}
	return newBatchSizes(d.name, weights), nil
}

// The parameters of the log-normal part of both papers' batch sizes.
const bodyMu, bodySigma = 5.1, 0.2

// bodyCDF is the probability that the log-normal is at most x.
func bodyCDF(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return normalCDF((math.Log(x) - bodyMu) / bodySigma)
}

func normalCDF(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// addUniform spreads p evenly over the batch sizes lo..hi.
func addUniform(weights []float64, p float64, lo, hi int) {
	for b := lo; b <= hi; b++ {
		weights[b] += p / float64(hi-lo+1)
	}
}

// addBody adds to each batch size b in lo+1..hi the part of p that the log-normal has in (b-1, b],
// and returns the rest of p. The papers' generators keep the log-normal a real number and round it
// up to a multiple of ten to look up a latency. Rounding it up to an integer, as here, gives the
// same latency.
func addBody(weights []float64, p float64, lo, hi int) (rest float64) {
	for b := lo + 1; b <= hi; b++ {
		weights[b] += p * (bodyCDF(float64(b)) - bodyCDF(float64(b-1)))
	}
	return p * (1 - bodyCDF(float64(hi)) + bodyCDF(float64(lo)))
}

// Trace is the production trace of KAIROS (after DeepRecSys): of 99 queries 8
// are uniform in 1..99, 22 in 200..599, 5 in 600..999, and the rest follow a
// log-normal (5.1, 0.2) rounded up, replaced by a uniform 190..199 where it is
// below 100 or above 200.
func Trace() *BatchSizes {
	w := make([]float64, 1000)
	addUniform(w, 8./99, 1, 99)
	addUniform(w, 22./99, 200, 599)
	addUniform(w, 5./99, 600, 999)
	addUniform(w, addBody(w, 64./99, 100, 200), 190, 199)
	return newBatchSizes("trace", w)
}

// RIBBON is the distribution behind RIBBON's tables: of 99 queries 2 are uniform
// in 1..99, 10 in 250..499, and the rest follow a log-normal (5.1, 0.2) rounded
// up, replaced by a uniform 400..499 where it is above 500.
func RIBBON() *BatchSizes {
	w := make([]float64, 501)
	addUniform(w, 2./99, 1, 99)
	addUniform(w, 10./99, 250, 499)
	addUniform(w, addBody(w, 87./99, 0, 500), 400, 499)
	return newBatchSizes("ribbon", w)
}

// MLPerf is how many candidates a query of the server scenario of MLPerf's recommendation benchmark
// DLRM-v2 has, as its file dist_quantile.txt gives it by twenty quantiles: the mean is 270.
func MLPerf() *BatchSizes {
	w := make([]float64, 701)
	w[100], w[200], w[300], w[400], w[500], w[600], w[700] = 2, 12, 2, 1, 1, 1, 1
	return newBatchSizes("mlperf", w)
}

// Gaussian is a normal distribution rounded to the nearest integer and truncated
// to 1..largest: what falls outside is drawn again.
func Gaussian(mean, sd float64, largest int) (*BatchSizes, error) {
	switch {
	case largest < 1 || largest > maxBatchSize:
		return nil, fmt.Errorf("gaussian batch sizes: largest %d, want 1..%d", largest,
			maxBatchSize)
	case !(mean >= 1 && mean <= float64(largest)):
		return nil, fmt.Errorf("gaussian batch sizes: mean %v, want 1..%d", mean, largest)
	case !(sd > 0 && sd <= maxBatchSize):
		return nil, fmt.Errorf(
			"gaussian batch sizes: standard deviation %v, want above 0 and at most %d", sd,
			maxBatchSize)
	}
	w := make([]float64, largest+1)
	for b := 1; b <= largest; b++ {
		w[b] = normalCDF((float64(b)+0.5-mean)/sd) - normalCDF((float64(b)-0.5-mean)/sd)
	}
	return newBatchSizes(fmt.Sprintf("gaussian:%g,%g", mean, sd), w), nil
}

// Fixed returns the distribution with the one batch size n.
func Fixed(n int) (*BatchSizes, error) {
	if n < 1 || n > maxBatchSize {
		return nil, fmt.Errorf("fixed batch size %d, want 1..%d", n, maxBatchSize)
	}
	w := make([]float64, n+1)
	w[n] = 1
	return newBatchSizes(fmt.Sprintf("fixed:%d", n), w), nil
}

// ReadBatchSizes reads an empirical distribution from CSV: a header line with the column batch_size
// and, if wanted, weight, then one line per batch size. name is the file's name in errors. Weights
// are counts or other numbers in any unit. If all are below 1 they are shares and must sum to 1;
// otherwise a line is missing or wrong.
func ReadBatchSizes(name string, r io.Reader) (*BatchSizes, error) {
	t, err := document.NewTable(name, r, []string{"batch_size"}, []string{"weight"})
	if err != nil {
		return nil, err
	}
	var weights []float64
	var sum, greatest float64
	for t.Next() {
		b, err := t.Integer("batch_size", 1, maxBatchSize)
		if err != nil {
			return nil, err
		}
		w := 1.0
		if t.HasColumn("weight") {
			if w, err = t.Number("weight"); err != nil {
				return nil, err
			}
			if w <= 0 {
				return nil, t.Errorf("weight", "found %v, want a number above 0", w)
			}
		}
		if b >= len(weights) {
			weights = append(weights, make([]float64, b+1-len(weights))...)
		}
		weights[b] += w
		sum, greatest = sum+w, max(greatest, w)
	}
	if err := t.Err(); err != nil {
		return nil, err
	}
	if weights == nil {
		return nil, fmt.Errorf("%s: no batch sizes after the header", name)
	}
	if greatest < 1 && math.Abs(sum-1) > 0.001 {
		return nil, fmt.Errorf(
			"%s: the weights are all below 1, so they are shares, but add up to %.6g, want 1: "+
				"correct them, or give counts", name, sum)
	}
	return newBatchSizes(name, weights), nil
}

// batchSizesForms are the forms that ParseBatchSizes accepts.
var batchSizesForms = []string{
	"trace", "ribbon", "mlperf", "gaussian:MEAN,SD", "fixed:N",
	"a CSV file with the column batch_size",
}

// BatchSizesHelp is the help of a flag whose value ParseBatchSizes reads.
const BatchSizesHelp = "batch sizes: trace, ribbon, mlperf, gaussian:MEAN,SD, fixed:N or a CSV file"

// ParseBatchSizes parses a distribution in one of the forms "trace", "ribbon", "mlperf",
// "gaussian:MEAN,SD" (truncated to [LargestBatchSize]), "fixed:N", or the path of a file that
// [ReadBatchSizes] reads.
func ParseBatchSizes(s string) (*BatchSizes, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "trace":
		return Trace(), nil
	case s == "ribbon":
		return RIBBON(), nil
	case s == "mlperf":
		return MLPerf(), nil
	case kind == "gaussian":
		m, sd, ok := strings.Cut(rest, ",")
		mean, err1 := strconv.ParseFloat(strings.TrimSpace(m), 64)
		dev, err2 := strconv.ParseFloat(strings.TrimSpace(sd), 64)
		if !ok || err1 != nil || err2 != nil {
			return nil, fmt.Errorf("batch sizes %q: want gaussian:MEAN,SD, e.g. gaussian:250,100",
				s)
		}
		return Gaussian(mean, dev, LargestBatchSize)
	case kind == "fixed":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return nil, fmt.Errorf("batch sizes %q: want fixed:N with an integer N", s)
		}
		return Fixed(n)
	}
	f, err := openFile("batch sizes", s, batchSizesForms)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadBatchSizes(s, f)
}

// openFile opens the file named s, which a user gave instead of one of the forms.
func openFile(what, s string, forms []string) (*os.File, error) {
	f, err := os.Open(s)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s %q: want %s; there is no such file", what, s, list(forms))
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return f, nil
}
