package agent_test

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
)

// TestSoak has 100 versions of a model and 100 agents of other speeds come, serve and go, in a
// fleet of two: in the end its agents know no more than in the beginning, but for what was learned
// of the last versions.
func TestSoak(t *testing.T) {
	if agenttest.RaceDetector || testing.Short() {
		t.Skip("a soak of 100 versions and 100 agents takes long")
	}
	const generations, rounds, each = 5, 2, 10 // versions and agents in each round
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		f.Dir = copyModels(f)
		// An agent's latency is learned by run, and each query is to be one.
		config, err := os.OpenFile(filepath.Join(f.Dir, "ncf", "model.yaml"),
			os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			f.Fatal(err)
		}
		if _, err := config.WriteString("merge: none\n"); err != nil {
			f.Fatal(err)
		}
		if err := config.Close(); err != nil {
			f.Fatal(err)
		}
		s := &soak{Fleet: f, version: 1, slow: map[string]bool{}}
		s.stay = []*agenttest.Member{f.Start(quiet), f.Start(quiet, agenttest.NeverLeads)}
		f.Settled(s.stay...)
		f.Led(s.stay...)
		s.query(100, s.stay)
		begin := s.rest()
		most, end := map[string]int{}, map[string]int{}
		var heaps []uint64
		for range generations {
			for range rounds {
				s.round(each)
				for what, n := range s.sizes() {
					most[what] = max(most[what], n)
				}
			}
			end = s.rest()
			heaps = append(heaps, s.heap())
		}
		n, all := len(s.slow), generations*rounds*each
		if t.Logf("%d of %d agents got a type of their own", n, all); n < all/4 {
			t.Errorf("%d of %d agents got a type of their own: this soak shows too little", n, all)
		}
		for _, what := range slices.Sorted(maps.Keys(end)) {
			t.Logf("%-40s %6d, at most %6d, in the end %6d", what, begin[what], most[what],
				end[what])
			tolerated := begin[what] / 10
			switch _, part, _ := strings.Cut(what, ": "); part {
			case "estimates: book", "learning: book":
				// the two versions before, and what was learned before an agent knew its own type
				tolerated = 3
			case "members: profiles", "state: latencies", "learning: told":
				// each of those that stay may lately have had a type of its own
				tolerated = len(s.stay)
			}
			if end[what] > begin[what]+tolerated {
				t.Errorf("%s: %d in the beginning, %d in the end", what, begin[what], end[what])
			}
		}
		// What the Go runtime and maps once needed they keep: from the first generation on that is
		// the same.
		t.Logf("bytes in use after each generation: %d", heaps)
		if first, last := heaps[0], heaps[generations-1]; last > first+first/10 {
			t.Errorf("%d bytes are in use after the first generation, %d after the last", first,
				last)
		}
	})
}

// quiet has an agent log nothing, for its log would grow.
func quiet(a agent.Inside) { a.SetLog(slog.New(slog.DiscardHandler)) }

// A soak is a fleet of a few agents that stay, and many that do not.
type soak struct {
	*agenttest.Fleet
	stay    []*agenttest.Member
	version int
	slow    map[string]bool // agents that had a type of their own
}

// round has so many versions come, one after the other, and then so many agents of other speeds.
func (s *soak) round(n int) {
	s.Helper()
	for range n {
		s.replace()
		s.query(10, s.stay)
	}
	all := slices.Clone(s.stay)
	for i := range n {
		speed := &agenttest.Site{} // were all alike, they would be what the type is
		speed.Slower.Store(int64(1 + i%4))
		change := func(a agent.Inside) { a.Environment().OpenExecutor = speed.OpenEmulator }
		all = append(all, s.StartOn(fmt.Sprintf("10.0.1.%d", i+1), quiet, agenttest.NeverLeads, change))
	}
	s.Settled(all...)
	s.Led(all...)
	for range 8 {
		s.query(6*len(all), all)
		for typ := range s.types() {
			if _, one, own := strings.Cut(typ, "@"); own {
				s.slow[one] = true
			}
		}
	}
	var stopping sync.WaitGroup
	for _, a := range all[len(s.stay):] {
		stopping.Go(func() {
			if err := a.Stop(); err != nil {
				s.Errorf("agent %s: %v", a.AgentName(), err)
			}
		})
	}
	stopping.Wait()
	s.Agents = slices.Clone(s.stay)
	s.Settled(s.stay...)
}

// replace has the next version take the place of the present one on all agents.
func (s *soak) replace() {
	s.Helper()
	at := func(version int) string { return filepath.Join(s.Dir, "ncf", fmt.Sprint(version)) }
	if err := os.Rename(at(s.version), at(s.version+1)); err != nil {
		s.Fatal(err)
	}
	s.version++
	s.Eventually(time.Minute, func() string {
		for _, a := range s.Agents {
			for _, m := range a.Members().View().Members {
				if len(m.Models) != 1 || m.Models[0].Version != int64(s.version) {
					return a.Host + " does not see the latest version at " + m.Name
				}
			}
		}
		return ""
	})
}

// query has n queries answered that come at once, so that every lane gets some.
func (s *soak) query(n int, agents []*agenttest.Member) {
	s.Helper()
	if failed := s.Send(n, 0, agents...); len(failed) > 0 {
		s.Errorf("failed: %v", failed)
	}
}

// types are the types of lanes of which members have been told profiles.
func (s *soak) types() map[string]bool {
	types := map[string]bool{}
	for _, a := range s.stay {
		for _, p := range a.Members().View().Profiles {
			types[p.Type] = true
		}
	}
	return types
}

// rest lets everything be forgotten that is gone, with a few queries now and then, and returns how
// much there is then.
func (s *soak) rest() map[string]int {
	s.Helper()
	for range 12 {
		time.Sleep(time.Minute)
		s.query(10, s.stay)
	}
	time.Sleep(10 * time.Second) // until nothing more is on its way
	return s.sizes()
}

// heap is how many bytes are in use.
func (s *soak) heap() uint64 {
	var m goruntime.MemStats
	for range 3 {
		goruntime.GC()
	}
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// sizes are the sizes of all that agents keep by version, type of lane, agent and gateway.
func (s *soak) sizes() map[string]int {
	s.Helper()
	sizes := map[string]int{}
	for i, a := range s.stay {
		add := func(what string, n int) { sizes[fmt.Sprintf("agent %d: %s", i+1, what)] = n }
		families, err := a.Registry().Gather()
		if err != nil {
			s.Fatal(err)
		}
		series := 0
		for _, family := range families {
			series += len(family.GetMetric())
		}
		add("metrics: series", series)
		a.Members().Sizes(add)
		a.Worker().Sizes(add)
		a.Server().Sizes(add)
		add("gossip: members", len(a.Gossip().Members()))
		a.Leading().Sizes(add)
	}
	sizes["goroutines"] = goruntime.NumGoroutine()
	return sizes
}
