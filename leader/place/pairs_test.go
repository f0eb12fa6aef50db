package place

import (
	"slices"
	"testing"

	"github.com/muster-serve/muster/api/names"
)

// TestPairs: each low model has its best partners, at splits from one end to the other, the best
// among them.
func TestPairs(t *testing.T) {
	profiles := []*Profile{
		profile("low", socket, 100, 8, .1, 1), profile("a", socket, 1000, 16, 0, 1),
		profile("b", socket, 1000, 16, .6, 1), profile("c", socket, 1000, 16, .2, 1),
		profile("d", socket, 1000, 16, .1, 1), profile("low2", socket, 50, 4, 0, 1),
		{Model: "none", QPS: profile("none", socket, 0, 16, 0, 1).QPS},
	}
	partners := map[int][]int{}
	splits := map[[2]int]int{}
	for _, p := range socket.Pairs(profiles) {
		i, j := p.Models[0], p.Models[1]
		if !slices.Contains(partners[i], j) {
			partners[i] = append(partners[i], j)
		}
		splits[p.Models]++
		good := socket.GoodSplits(profiles[i], profiles[j])
		if !slices.ContainsFunc(good, func(s Split) bool { return s.QPS == p.QPS }) {
			t.Errorf("%+v is beaten by another split", p)
		}
	}
	// By affinity, the least harmful first; the pair of the two low ones is there once.
	if !slices.Equal(partners[0], []int{1, 5, 4}) || !slices.Equal(partners[5], []int{1, 4}) {
		t.Errorf("partners %v", partners)
	}
	for pair, n := range splits {
		if n < 1 || n > bestSplits {
			t.Errorf("%v has %d splits", pair, n)
		}
	}
	best := socket.BestSplit(profiles[0], profiles[1])
	first := socket.Pairs(profiles)[0]
	if first.QPS != best.QPS {
		t.Errorf("the first split is %+v, want the best %+v", first, best)
	}
	l := first.Layout([]names.ModelKey{"low/1", "a/2", "", "", "", "", ""})
	if _, err := ParseLayout(l.String()); err != nil || len(l.Partitions) != 2 ||
		l.LaneType(0, "box/cpu/16") == "box/cpu/16" {
		t.Errorf("layout %s: %v", l, err)
	}
}

// TestSharingOn: with two instance types, one of which cannot host all models, pairs are chosen
// where they need fewer or cheaper instances, and all is served.
func TestSharingOn(t *testing.T) {
	half := Machine{Cores: 8, Ways: 11, Bandwidth: 64}
	low, high := profile("low", socket, 100, 8, 0, 1), profile("high", socket, 1600, 16, 0, 1)
	none := profile("low", half, 0, 8, 0, 1)
	hosts := []Host{
		{Type{Name: "big", Count: 20, Price: 2}, socket, []*Profile{low, high}},
		{Type{Name: "small", Count: 20, Price: 1}, half,
			[]*Profile{none, profile("high", half, 800, 8, 0, 1)}},
	}
	// Five big ones for low alone; beside it each has 800 of high, so 4,800 of high need one more.
	p := SharingOn(hosts, []float64{500, 4800}, FewestAgents)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	s, err := Solve(p, 20000)
	if err != nil || s.Served < 1-1e-9 || s.Agents != 6 {
		t.Fatalf("%+v, %v; want six agents that serve all", s, err)
	}
	for c, n := range s.Counts {
		if n > 0 && p.Choices[c].Type == 1 && p.Choices[c].Layout != "high" {
			t.Errorf("%d small ones hold %s", n, p.Choices[c].Layout)
		}
	}
	// With one model an agent five big ones and three more, or six small ones, are needed.
	p.Choices = slices.DeleteFunc(p.Choices, func(c Choice) bool { return len(c.Partitions) > 1 })
	if s, err = Solve(p, 20000); err != nil || s.Agents != 8 {
		t.Errorf("one model an agent: %d agents, %v", s.Agents, err)
	}
}
