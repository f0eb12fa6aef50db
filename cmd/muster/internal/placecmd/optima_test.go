package placecmd

import (
	"compress/gzip"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/muster-serve/muster/leader/place"
)

// An optimum is what HiGHS found for a case, and what it proved: scripts/tools/answers/place.py.
type optimum struct {
	name            string
	served, most    float64 // the largest share that it found, and a bound of it
	accuracy, bound float64 // NaN: it found none
	agents, seconds float64
	problem         *problem
}

func optima(tb testing.TB) (all []optimum) {
	tb.Helper()
	f, err := os.Open("testdata/optima.csv")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	number := func(s string) float64 {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return math.NaN()
		}
		return x
	}
	for _, row := range rows[1:] {
		o := optimum{
			name: row[0], served: number(row[1]), most: number(row[2]), accuracy: number(row[3]),
			bound: number(row[4]), agents: number(row[5]), seconds: number(row[7]),
		}
		f, err := os.Open(filepath.Join("testdata", "cases", o.name+".json.gz"))
		if err != nil {
			tb.Fatal(err)
		}
		defer f.Close()
		text, err := gzip.NewReader(f)
		if err != nil {
			tb.Fatal(err)
		}
		if o.problem, err = readProblem("-", text); err != nil {
			tb.Fatalf("%s: %v", o.name, err)
		}
		all = append(all, o)
	}
	return all
}

// TestOptima: at the usual number of steps placements serve the share that HiGHS found, within a
// fiftieth of a percent, and are within a hundredth of a point of its accuracy; bounds hold on both
// sides.
func TestOptima(t *testing.T) {
	for _, o := range optima(t) {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			a, err := o.problem.solve(place.DefaultSteps)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("served %.6f of %.6f, accuracy %.5f, HiGHS %.5f; bound %.5f, HiGHS %.5f; "+
				"proven %v; %d steps; HiGHS %.1f s", a.ServedShare, o.most, a.Accuracy, o.accuracy,
				a.Bound, o.bound, a.Proven, a.Steps, o.seconds)
			if a.ServedShare < o.served-2e-4 || a.ServedShare > o.most+1e-6 {
				t.Errorf("served %v, HiGHS serves %v, and %v is possible", a.ServedShare, o.served,
					o.most)
			}
			if math.Abs(a.ServedShare-o.served) < 1e-6 {
				if a.Accuracy < o.accuracy-.01 {
					t.Errorf("accuracy %v, HiGHS finds %v", a.Accuracy, o.accuracy)
				}
				if a.Accuracy > o.bound+1e-3 {
					t.Errorf("accuracy %v, and no more than %v is possible", a.Accuracy, o.bound)
				}
				if a.Bound < o.accuracy-1e-3 {
					t.Errorf("bound %v, and HiGHS finds %v", a.Bound, o.accuracy)
				}
			}
			if o.agents > 0 && (a.Agents != int(o.agents) || *a.LeastAgents > a.Agents) {
				t.Errorf("%d agents, at least %d; HiGHS finds %v", a.Agents, *a.LeastAgents,
					o.agents)
			}
		})
	}
}

// BenchmarkOptima measures the time that the cases take at the usual number of steps.
func BenchmarkOptima(b *testing.B) {
	for _, o := range optima(b) {
		b.Run(o.name, func(b *testing.B) {
			for range b.N {
				if _, err := o.problem.solve(place.DefaultSteps); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
