package placecmd

import (
	"compress/gzip"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	apinames "github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fleetplan"
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

// TestJointOptima: the planner of whole fleets, given all machines, finds what HiGHS does: machines
// that hold one variant each are a special case.
func TestJointOptima(t *testing.T) {
	for _, o := range optima(t) {
		if o.agents > 0 || o.problem.layouts ||
			!strings.HasPrefix(o.name, "40-") && os.Getenv("MUSTER_SLOW_TESTS") == "" {
			continue // another objective, or more than one partition, or it takes seconds
		}
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			plan, err := fleetplan.Solve(fleetProblem(&o.problem.Program))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("served %.6f of %.6f, accuracy %.5f, HiGHS %.5f; bound %.5f, HiGHS %.5f; proven %v",
				plan.Served, o.most, 100*plan.Accuracy, o.accuracy, 100*plan.MaxAccuracy, o.bound,
				plan.Proven)
			if plan.Served < o.served-2e-4 || plan.Served > o.most+1e-6 ||
				plan.MaxServed < o.served-1e-6 {
				t.Errorf("served %v, at most %v; HiGHS serves %v, and %v is possible", plan.Served,
					plan.MaxServed, o.served, o.most)
			}
			if math.Abs(plan.Served-o.served) < 1e-6 && (100*plan.Accuracy < o.accuracy-.003 ||
				100*plan.Accuracy > o.bound+1e-3 || 100*plan.MaxAccuracy < o.accuracy-1e-3) {
				t.Errorf("accuracy %v, at most %v; HiGHS finds %v, and at most %v", 100*plan.Accuracy,
					100*plan.MaxAccuracy, o.accuracy, o.bound)
			}
		})
	}
}

// fleetProblem is a program as a problem of all machines that there are, each with memory for one
// variant.
func fleetProblem(from *place.Program) *fleetplan.Problem {
	p := &fleetplan.Problem{AccuracyUSDPerHour: math.Inf(1)}
	for _, t := range from.Types {
		p.Types = append(p.Types, fleetplan.Type{
			Name: t.Name, PriceUSDPerHour: t.Price, Min: t.Count, Max: t.Count, Capacity: 1,
			MemoryBytes: 1,
		})
	}
	index := make([]int, len(from.Variants)) // of the variant in its family
	for _, c := range from.Classes {
		f := fleetplan.Family{
			Name: c.Family, Bins: []fleetplan.Bin{{BatchSize: 1, Rate: c.Rate}},
		}
		for v, of := range from.Variants {
			if of.Family != c.Family {
				continue
			}
			index[v] = len(f.Variants)
			f.Variants = append(f.Variants, fleetplan.Variant{
				Model: apinames.ModelKey(of.Model), Accuracy: of.Accuracy / 100, SizeBytes: 1,
			})
			f.Bins[0].RunTime = append(f.Bins[0].RunTime, make([]float64, len(from.Types)))
		}
		p.Families = append(p.Families, f)
	}
	for _, c := range from.Choices {
		if s := c.Partitions[0][0]; s.Rate > 0 {
			p.Families[s.Class].Bins[0].RunTime[index[s.Variant]][c.Type] = 1 / s.Rate
		}
	}
	return p
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
