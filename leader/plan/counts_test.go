package plan

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader/staffing"
)

// TestCounts: whole counts are those that a list of all configurations gives, for both objectives.
func TestCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	compared, cuts, nodes := 0, 0, 0
	for i := range 300 {
		p := randomProblem(r)
		a, err := Analyse(p)
		if err != nil {
			continue
		}
		space, err := a.Space()
		if err != nil {
			continue
		}
		most, err := newRelaxation(a, space).highestLimits(1)
		if err != nil {
			t.Fatal(err)
		}
		short, err := a.shortlistSpace(staffing.SafeShare, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newRelaxation(a, short).highestLimits(1)
		if err != nil || len(got) != 1 || got[0].bound < most[0].bound*(1-2e-6) {
			t.Errorf("problem %d: highest limit %v, %v, want %v", i, got, err, most[0])
		}
		rate := most[0].bound * (0.2 + r.Float64())
		want, err := newRelaxation(a, space).cheapestReaching(1, needFor(rate))
		if err != nil {
			t.Fatal(err)
		}
		a.Problem.Objective, a.Problem.Rate = LeastCost, rate
		if short, err = a.shortlistSpace(staffing.SafeShare,
			limitsFor(rate)); err != nil {
			t.Fatal(err)
		}
		if got, err = newRelaxation(a, short).cheapestReaching(1, needFor(rate)); err != nil ||
			len(got) != len(want) || len(got) > 0 && got[0].price > want[0].price+1e-6 {
			t.Errorf("problem %d: for %.3g queries/s %v, %v, want %v", i, rate, got, err, want)
		}
		s, err := newCountSearch(a, rate)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.cheapestCounts(rate, false); err != nil {
			t.Fatal(err)
		}
		compared, cuts, nodes = compared+1, cuts+len(s.cuts), nodes+maxNodes-s.nodes
	}
	t.Logf("%d problems: %.1f cuts and %.1f linear programs each", compared,
		float64(cuts)/float64(compared), float64(nodes)/float64(compared))
	if compared < 200 {
		t.Errorf("only %d problems have configurations", compared)
	}
}

// TestMoreTypesCostNoMore: with more types to choose from a plan costs no more, at rates from a few
// instances to hundreds, and so with configurations that are listed or too many to list.
func TestMoreTypesCostNoMore(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	problems := 100
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		problems = 1000
	}
	compared, searched := 0, 0
	var nodes []int
	for i := 0; compared < problems; i++ {
		p := randomProblem(r)
		p.Objective, p.Budget = LeastCost, 0
		for k := range p.Types {
			p.Types[k].Max = 0
		}
		p.Rate = 10 * float64(int(1)<<r.IntN(10))
		all, err := Fluid{Top: 1}.Plan(t.Context(), p, nil)
		if err != nil || strings.Contains(strings.Join(all.Notes, ""), "batch sizes up to") {
			continue // not all queries can be served, and with other types not as many of them
		}
		if strings.Contains(strings.Join(all.Notes, ""), "more than") {
			searched++
		}
		without := *p
		left := r.IntN(len(p.Types))
		without.Types = slices.Delete(slices.Clone(p.Types), left, left+1)
		without.Models = slices.Clone(p.Models)
		for m := range without.Models {
			l := slices.Clone(without.Models[m].Latencies)
			without.Models[m].Latencies = slices.Delete(l, left, left+1)
		}
		fewer, err := Fluid{Top: 1}.Plan(t.Context(), &without, nil)
		if err != nil || strings.Contains(strings.Join(fewer.Notes, ""), "batch sizes up to") {
			continue
		}
		compared++
		// Where they are not listed, the search settles on how many instances there are, of which the
		// share depends that is safe: a thousandth may be missed.
		if a, b := all.Plans[0], fewer.Plans[0]; a.Price > b.Price*(1+1e-3) {
			t.Errorf("problem %d: %.6g queries/s cost %.6g $/hr by %s, and %.6g without %s by %s",
				i,
				p.Rate, a.Price, p.Name(a.Configuration), b.Price, p.Types[left].Name,
				without.Name(b.Configuration))
		}
		a, err := analyse(p, staffing.SafeShare)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newCountSearch(a, p.Rate/staffing.SafeShare(8))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.cheapestCounts(p.Rate/staffing.SafeShare(8), false); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, maxNodes-s.nodes)
	}
	slices.Sort(nodes)
	t.Logf("%d problems, %d too large to list; linear programs: median %d, 99 %% %d, most %d",
		compared, searched, nodes[len(nodes)/2], nodes[len(nodes)*99/100], nodes[len(nodes)-1])
	if searched < compared/10 {
		t.Errorf("only %d of %d problems are too large to list", searched, compared)
	}
}

// TestLargeBudget: within a budget for hundreds of instances no fleet beside the one that is
// planned has a higher fluid limit.
func TestLargeBudget(t *testing.T) {
	p := rm2()
	p.Budget = 50
	r, err := Fluid{Top: 1}.Plan(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	best := r.Plans[0]
	a, err := Analyse(p)
	if err != nil {
		t.Fatal(err)
	}
	c := best.Configuration
	for base := max(0, c[0]-4); base <= c[0]+4; base++ {
		for second := max(0, c[1]-4); second <= c[1]+4; second++ {
			for last := max(0, c[3]-2); last <= c[3]+2; last++ {
				other := Configuration{base, second, 0, last}
				other[2] = int((p.Budget - p.Price(other)) / p.Types[2].Price)
				sol, err := a.Fluid(other)
				if err != nil {
					t.Fatal(err)
				}
				if sol.Rate > best.FluidLimit*(1+2e-6) {
					t.Errorf("%s serves %.6g queries/s, the plan %s only %.6g", p.Name(other),
						sol.Rate,
						p.Name(c), best.FluidLimit)
				}
			}
		}
	}
}
