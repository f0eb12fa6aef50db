package replan

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// TestDemandClass: where the load is such that agents with memory for one model hold the fast one,
// queries that only the best may answer have one of them hold that, and however many they are, no
// more agents than their share or one.
func TestDemandClass(t *testing.T) {
	for _, c := range []struct {
		of, share float64 // queries/s that only the best may answer; their share of the agents
		agents    int
		want      int // that hold the best
	}{
		{0, 0, 4, 0}, {.1, .25, 4, 1}, {20, .25, 4, 1}, {20, .1, 4, 1}, {80, .5, 4, 2},
		{200, .25, 8, 2}, {.1, 1, 8, 1},
	} {
		best, fast := names.ModelKey("best/1"), names.ModelKey("fast/1")
		s := &Snapshot{
			Variants: []Variant{
				{Model: best, Family: "f", Accuracy: 1, Bytes: 1, Load: time.Second},
				{Model: fast, Family: "f", Accuracy: .9, Bytes: 1, Load: time.Second},
			},
			Families: []Family{{Name: "f", QoSTarget: 100 * time.Millisecond}},
			Latencies: map[names.TableKey]Latencies{
				{Model: best, Type: "box"}: flat(25 * time.Millisecond), // 40 queries/s
				{Model: fast, Type: "box"}: flat(time.Millisecond),
			},
		}
		if c.share > 0 {
			s.Families[0].Classes = []Class{{Models: []names.ModelKey{best}, Share: c.share}}
		}
		rate := 750 * float64(c.agents)
		p := &Problem{
			variants: s.Variants, families: s.Families, latencies: s.Latencies,
			only: map[names.AgentName]bool{}, steps: 2000, rate: []float64{rate},
			demand: []float64{1.3 * rate}, ofClass: [][]float64{{1.3 * c.of}},
		}
		for i := range c.agents {
			p.agents = append(p.agents, Agent{
				Name: names.AgentName(fmt.Sprint("a", i)), Type: "box", Lanes: 1, Cores: 1,
				Memory: 1, Available: []names.ModelKey{best, fast}, Held: place.NewLayout(fast),
			})
			p.current = append(p.current, place.NewLayout(fast))
		}
		plan, got := p.Solve(), 0
		for _, l := range plan.layouts {
			if l.Has(best) {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%v queries/s with a share of %v of %d agents: %d hold the best, want %d", c.of,
				c.share, c.agents, got, c.want)
		}
	}
}
