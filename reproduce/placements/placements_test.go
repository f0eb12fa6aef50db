package placements

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/place"
)

// fleet has two families of three variants, each twice as fast and five points worse than the one
// before, on two types of which the second takes twice as long.
func fleet() *Fleet {
	f := &Fleet{
		Types: []place.Type{{Name: "fast", Count: 4}, {Name: "slow", Count: 4}},
		Sizes: []int{1, 2, 4},
	}
	for t := range f.Types {
		f.Latency = append(f.Latency, nil)
		for k := range 2 {
			for v := range 3 {
				base := 40 * time.Millisecond * time.Duration(t+1) >> v
				f.Latency[t] = append(f.Latency[t], []time.Duration{base, base * 3 / 2, base * 5 / 2})
				if t == 0 {
					f.Variants = append(f.Variants, Variant{
						Model: string(rune('a'+k)) + string(rune('0'+v)), Family: k,
						Accuracy: 100 - 5*float64(v),
					})
				}
			}
			if t == 0 {
				f.Families = append(f.Families, Family{
					Name: string(rune('a' + k)), Target: 300 * time.Millisecond, Expected: 50,
				})
			}
		}
	}
	return f
}

func held(s *State) (counts []int) {
	counts = make([]int, len(s.Variants))
	for i := range s.Agents {
		if v := s.Agents[i].Variant; v >= 0 {
			counts[v]++
		}
	}
	return counts
}

func place1(t *testing.T, r Rival, s *State) []int {
	t.Helper()
	if err := r.Place(s); err != nil {
		t.Fatal(err)
	}
	return held(s)
}

func TestClipper(t *testing.T) {
	for _, most := range []bool{true, false} {
		s := NewState(fleet())
		r := &Clipper{MostAccurate: most}
		counts := place1(t, r, s)
		only, other := []int{0, 3}, []int{1, 2, 4, 5}
		if !most {
			only, other = []int{2, 5}, []int{0, 1, 3, 4}
		}
		for _, v := range only {
			if counts[v] != 4 { // the families are alike
				t.Errorf("most accurate %v: variant %d is held by %d agents, want 4", most, v,
					counts[v])
			}
		}
		for _, v := range other {
			if counts[v] != 0 {
				t.Errorf("most accurate %v: variant %d is held by %d agents", most, v, counts[v])
			}
		}
		s.Forecast = []float64{1000, 0}
		if again := place1(t, r, s); !slices.Equal(again, counts) {
			t.Errorf("it holds %v and then %v, want the same always", counts, again)
		}
	}
}

func families(s *State) (of []int) {
	for i := range s.Agents {
		of = append(of, s.Variants[s.Agents[i].Variant].Family)
	}
	return of
}

// TestProduction: what the leader decides follows the load: another family gets the agents, and
// faster variants while there is much. Without model placement families stay, without model
// selection variants do.
func TestProduction(t *testing.T) {
	run := func(p *Production) (before, after *State, counts []int) {
		s := NewState(fleet())
		place1(t, p, s)
		was := *s
		was.Agents = slices.Clone(s.Agents)
		for range 60 { // seconds
			s.Demand = []float64{600, 5}
			for k, rate := range s.Demand {
				s.Ended[k] += uint64(rate)
			}
			counts = place1(t, p, s)
		}
		return &was, s, counts
	}
	ofFirst := func(s *State) (n int) {
		for _, k := range families(s) {
			if k == 0 {
				n++
			}
		}
		return n
	}
	if was, s, counts := run(&Production{}); ofFirst(s) <= ofFirst(was) ||
		counts[1]+counts[2] < 4 || counts[3]+counts[4]+counts[5] == 0 {
		t.Errorf("agents hold %v, of the family with the load %d, %d before", counts, ofFirst(s),
			ofFirst(was))
	}
	if was, s, _ := run(&Production{KeepFamilies: true}); !slices.Equal(families(was), families(s)) {
		t.Errorf("families were %v and are %v", families(was), families(s))
	}
	if _, _, counts := run(&Production{MostAccurateOnly: true}); counts[0]+counts[3] != 8 {
		t.Errorf("agents hold %v, want the most accurate variants only", counts)
	}
}

// TestSommelier: variants change with the load, families do not.
func TestSommelier(t *testing.T) {
	s := NewState(fleet())
	r := &Proteus{KeepFamilies: true, Upgrade: true}
	place1(t, r, s)
	was := families(s)
	s.Forecast = []float64{300, 10}
	counts := place1(t, r, s)
	if counts[0] == 4 || counts[3] == 0 {
		t.Errorf("agents hold %v, want faster variants of the first family only", counts)
	}
	if is := families(s); !slices.Equal(is, was) {
		t.Errorf("families of agents were %v and are %v", was, is)
	}
}

// TestProteus: with more load the program takes agents of the other family and faster variants.
func TestProteus(t *testing.T) {
	s := NewState(fleet())
	r := &Proteus{}
	s.Forecast = []float64{20, 20}
	if counts := place1(t, r, s); counts[0] == 0 || counts[3] == 0 {
		t.Errorf("agents hold %v, want the best of each family", counts)
	}
	s.Forecast = []float64{600, 5}
	place1(t, r, s)
	n := 0
	for _, k := range families(s) {
		if k == 0 {
			n++
		}
	}
	if n < 6 {
		t.Errorf("%d agents of 8 are of the family that has nearly all the load", n)
	}
	best := &Proteus{MostAccurateOnly: true}
	s = NewState(fleet())
	s.Forecast = []float64{600, 5}
	if counts := place1(t, best, s); counts[1]+counts[2]+counts[4]+counts[5] != 0 {
		t.Errorf("agents hold %v, want the most accurate variants only", counts)
	}
}

// TestINFaaS: a query places an agent where there is none; load that they cannot carry adds some,
// and agents that are not needed are removed.
func TestINFaaS(t *testing.T) {
	for _, as := range []bool{false, true} {
		s := NewState(fleet())
		r := &INFaaS{AsArtifact: as}
		rng := rand.New(rand.NewPCG(1, 1))
		i := r.Route(s, 1, rng)
		if i < 0 || s.Variants[s.Agents[i].Variant].Family != 1 {
			t.Fatalf("as the artifact %v: the first query goes to agent %d", as, i)
		}
		s.Demand = []float64{0, 200}
		s.Agents[i].Holds = 200
		r.up(s, 1)
		if n := len(r.held(s, 1)); n < 2 {
			t.Errorf("as the artifact %v: %d agents for 200 queries/s", as, n)
		}
		s.Demand[1] = 0
		for i := range s.Agents {
			s.Agents[i].Holds = 0
		}
		before := len(r.held(s, 1))
		place1(t, r, s)
		if n := len(r.held(s, 1)); n >= before {
			t.Errorf("as the artifact %v: %d agents of %d are left without load", as, n, before)
		}
	}
}

// TestSlackFit: the less time is left, the faster and the less accurate.
func TestSlackFit(t *testing.T) {
	f := fleet()
	r := &SlackFit{}
	before := time.Duration(-1)
	for _, left := range []time.Duration{0, 15, 30, 60, 100, 300} {
		left *= time.Millisecond
		v, size := r.Choose(f, 0, 0, left)
		if v < 0 || f.Variants[v].Family != 0 {
			t.Fatalf("with %v left it runs variant %d", left, v)
		}
		l := f.Latency[0][v][size]
		if l < before || left >= 10*time.Millisecond && l > left {
			t.Errorf("with %v left a run takes %v, with less %v", left, l, before)
		}
		before = l
	}
	if v, size := r.Choose(f, 0, 0, time.Second); v != 0 || size != 2 {
		t.Errorf("with much time left it runs variant %d, size %d", v, size)
	}
}

// TestRoute: queries are divided by the weights.
func TestRoute(t *testing.T) {
	s := NewState(fleet())
	s.Put(0, 0)
	s.Put(4, 1)
	r := &Fixed{Weights: Weights{{3, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0}}, placed: true}
	rng := rand.New(rand.NewPCG(1, 1))
	n := map[int]int{}
	for range 4000 {
		n[r.Route(s, 0, rng)]++
	}
	if n[0] < 2900 || n[0] > 3100 || n[0]+n[4] != 4000 {
		t.Errorf("queries went to agents %v, want 3 of 4 to agent 0 and the others to 4", n)
	}
	if i := r.Route(s, 1, rng); i != -1 {
		t.Errorf("a query of a family that nobody holds goes to agent %d", i)
	}
}
