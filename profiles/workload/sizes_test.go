package workload

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const draws = 200_000

// checkFrequencies holds counts of n draws against d's probabilities by a chi-squared
// test on cells of at least ten expected draws.
func checkFrequencies(t *testing.T, d *BatchSizes, counts map[int]int, n int) {
	t.Helper()
	var chi2, expected, seen, sum float64
	cells, total := 0, 0
	for _, p := range d.PMF() {
		sum += p.P
		total += counts[p.BatchSize]
		expected += p.P * float64(n)
		seen += float64(counts[p.BatchSize])
		if expected >= 10 {
			chi2 += (seen - expected) * (seen - expected) / expected
			expected, seen = 0, 0
			cells++
		}
	}
	if math.Abs(sum-1) > 1e-12 {
		t.Errorf("%s: probabilities sum to %v, want 1", d, sum)
	}
	if total != n {
		t.Errorf("%s: %d of %d draws have no probability", d, n-total, n)
	}
	// The statistic is about normal with mean k and variance 2k.
	k := float64(cells - 1)
	if limit := k + 4*math.Sqrt(2*k); chi2 > limit {
		t.Errorf("%s: chi-squared %.0f over %d cells, want at most %.0f", d, chi2, cells, limit)
	}
}

func drawn(d *BatchSizes, seed uint64, n int) map[int]int {
	r := rand.New(rand.NewPCG(seed, 0))
	counts := map[int]int{}
	for range n {
		counts[d.Draw(r)]++
	}
	return counts
}

// TestTraceFollowsTheGenerator holds the probabilities against the papers'
// generators, written down once more as they draw.
func TestTraceFollowsTheGenerator(t *testing.T) {
	between := func(r *rand.Rand, lo, hi int) float64 { return float64(lo + r.IntN(hi-lo+1)) }
	logNormal := func(r *rand.Rand) float64 { return math.Exp(5.1 + 0.2*r.NormFloat64()) }
	generators := map[string]func(r *rand.Rand) float64{
		"trace": func(r *rand.Rand) float64 {
			x := logNormal(r)
			switch c := 1 + r.IntN(99); {
			case c <= 8:
				return between(r, 1, 99)
			case c <= 30:
				return between(r, 200, 599)
			case c <= 35:
				return between(r, 600, 999)
			case x > 200 || x < 100:
				return between(r, 190, 199)
			}
			return x
		},
		"ribbon": func(r *rand.Rand) float64 {
			x := logNormal(r)
			switch c := 1 + r.IntN(99); {
			case c <= 2:
				return between(r, 1, 99)
			case c <= 12:
				return between(r, 250, 499)
			case x > 500:
				return between(r, 400, 499)
			}
			return x
		},
	}
	for name, draw := range generators {
		d, err := ParseBatchSizes(name)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(7, 0))
		counts := map[int]int{}
		for range draws {
			counts[int(math.Ceil(draw(r)))]++
		}
		checkFrequencies(t, d, counts, draws)
	}
}

func TestDrawFollowsPMF(t *testing.T) {
	for _, s := range []string{
		"trace", "ribbon", "mlperf", "gaussian:250,100", "gaussian:3,50", "gaussian:1000,5",
	} {
		d, err := ParseBatchSizes(s)
		if err != nil {
			t.Fatal(err)
		}
		checkFrequencies(t, d, drawn(d, 1, draws), draws)
	}
	d, err := Fixed(17)
	if err != nil {
		t.Fatal(err)
	}
	if got := drawn(d, 1, 10)[17]; got != 10 || d.Mean() != 17 || d.Largest() != 17 {
		t.Errorf("fixed:17 drew it %d times of 10; mean %v, largest %d", got, d.Mean(), d.Largest())
	}
}

func TestBatchSizesInNumbers(t *testing.T) {
	d, err := Gaussian(250, 100, LargestBatchSize)
	if err != nil {
		t.Fatal(err)
	}
	// Mean of a normal cut at half an integer below 1: 250 + 100 phi(z) / (1 - Phi(z)), z = -2.495.
	if got := d.Mean(); math.Abs(got-251.785) > 0.01 {
		t.Errorf("mean of gaussian:250,100 is %.3f, want 251.785", got)
	}
	if got := Trace(); got.Largest() != 999 || got.PMF()[0].BatchSize != 1 {
		t.Errorf("trace spans %d..%d, want 1..999", got.PMF()[0].BatchSize, got.Largest())
	}
	// the mean of a million draws of the generator
	if got := Trace().Mean(); math.Abs(got-239.1) > 0.5 {
		t.Errorf("mean of the trace is %.2f, want 239.1", got)
	}
	if got := MLPerf(); math.Abs(got.Mean()-270) > 1e-9 || got.Largest() != 700 ||
		got.PMF()[1] != (Probability{200, 0.6}) {
		t.Errorf("mlperf has %v, mean %v; want 200 in 12 of 20, mean 270", got.PMF(), got.Mean())
	}
	cut, err := Trace().AtMost(100)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range cut.PMF() {
		if p.BatchSize > 99 || math.Abs(p.P-1./99) > 1e-12 {
			t.Fatalf("trace cut at 100: batch size %d has probability %v, want 1/99 for 1..99",
				p.BatchSize, p.P)
		}
	}
	fixed, err := Fixed(200)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fixed.AtMost(100); err == nil || !strings.Contains(err.Error(), "200") {
		t.Errorf("fixed:200 cut at 100: error %v, want one that names 200", err)
	}
}

func TestReadBatchSizes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sizes.csv")
	if err := os.WriteFile(file, []byte("batch_size,weight\n10,3\n# a comment\n20,0.5\n10,0.5\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	d, err := ParseBatchSizes(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.PMF(); len(got) != 2 || got[0] != (Probability{10, 0.875}) ||
		got[1] != (Probability{20, 0.125}) {
		t.Errorf("got %v, want 10 with 0.875 and 20 with 0.125", got)
	}
	d, err = ReadBatchSizes("plain.csv", strings.NewReader("batch_size\n1\n1\n4\n4\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d.Mean() != 2.5 {
		t.Errorf("mean %v, want 2.5", d.Mean())
	}
}

func TestBadBatchSizes(t *testing.T) {
	for s, want := range map[string]string{
		"":                  "trace, ribbon, mlperf, gaussian:MEAN,SD, fixed:N or a CSV file",
		"uniform":           "no such file",
		"gaussian":          "gaussian:MEAN,SD",
		"gaussian:1":        "gaussian:MEAN,SD",
		"gaussian:250,0":    "standard deviation 0",
		"gaussian:NaN,1":    "mean NaN",
		"gaussian:250,+Inf": "standard deviation +Inf",
		"gaussian:-3,1":     "mean -3",
		"gaussian:1001,1":   "mean 1001",
		"fixed:":            "integer",
		"fixed:0":           "fixed batch size 0",
		"fixed:99999999":    "fixed batch size 99999999",
		t.TempDir():         "is a directory",
	} {
		if _, err := ParseBatchSizes(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", s, err, want)
		}
	}
	for csv, want := range map[string]string{
		"":                              "f.csv: empty",
		"batch_size\n":                  "f.csv: no batch sizes",
		"size\n1\n":                     `line 1, column 1: header "size"`,
		"weight\n1\n":                   `no column "batch_size"`,
		"batch_size,batch_size\n1,1\n":  "line 1, column 12",
		"batch_size\n1\nx\n":            `line 3, column 1 (batch_size): found "x"`,
		"batch_size\n0\n":               `line 2, column 1 (batch_size): found "0"`,
		"batch_size\n1\n9999999999\n":   "line 3",
		"batch_size,weight\n1,-1\n":     "line 2, column 3 (weight): found -1",
		"batch_size,weight\n1,NaN\n":    `found "NaN"`,
		"batch_size,weight\n1\n":        "line 2",
		"batch_size,weight\n1,.5\n2,.3": "add up to 0.8, want 1",
		"batch_size\n\"1\n":             "line 2",
	} {
		if _, err := ReadBatchSizes("f.csv", strings.NewReader(csv)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", csv, err, want)
		}
	}
}

func FuzzReadBatchSizes(f *testing.F) {
	f.Add("batch_size,weight\n1,2\n")
	f.Add("batch_size\n\"1\n")
	f.Fuzz(func(t *testing.T, csv string) {
		d, err := ReadBatchSizes("f.csv", strings.NewReader(csv))
		if err != nil {
			return
		}
		r := rand.New(rand.NewPCG(1, 0))
		if b := d.Draw(r); b < 1 || b > d.Largest() {
			t.Errorf("drew %d of 1..%d", b, d.Largest())
		}
	})
}
