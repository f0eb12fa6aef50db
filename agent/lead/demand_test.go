package lead_test

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles/workload"
)

// ask sends queries with Poisson arrivals, at most n and until until says so, and
// returns for how long.
func ask(f *agenttest.Fleet, r *rand.Rand, sizes *workload.BatchSizes, rate float64, n int,
	to *agenttest.Member, until func() bool) time.Duration {
	f.Helper()
	start := time.Now()
	arrivals, err := workload.ParseArrivals("poisson", rate)
	if err != nil {
		f.Fatal(err)
	}
	var sent sync.WaitGroup
	for i := 0; i < n && (until == nil || !until()); i++ {
		size := sizes.Draw(r)
		sent.Go(func() {
			ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
			defer cancel()
			if _, err := to.OIP.ModelInfer(ctx, agenttest.NCFRequest(size)); err != nil {
				f.Errorf("query: %v", err)
			}
		})
		time.Sleep(arrivals.Gap(r))
	}
	took := time.Since(start)
	sent.Wait()
	return took
}

// proposal is what the agent was told last; nil until it has started.
func proposal(a *agenttest.Member) *control.Proposal {
	if a.Members() == nil {
		return nil
	}
	return a.Members().Proposal()
}

// series is how many series of a metric the agent has.
func series(f *agenttest.Fleet, a *agenttest.Member, name string) int {
	f.Helper()
	families, err := a.Registry().Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return len(family.GetMetric())
		}
	}
	return 0
}

// TestDemandChanges: a fleet of whole agents is asked otherwise than before. Its leader
// says so, and what to rent, in status at every agent, in an event, its log and metrics;
// the next leader knows it.
func TestDemandChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends thousands of queries")
	}
	seeds := 1
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		seeds = 20
	}
	gaussian, err := workload.Gaussian(250, 100, workload.LargestBatchSize)
	if err != nil {
		t.Fatal(err)
	}
	const rate = 300
	for _, tt := range []struct {
		name  string
		kind  string
		sizes *workload.BatchSizes
		rate  float64
		plan  string
	}{
		{"sizes", "batch sizes", gaussian, rate,
			"r5n.large=1 instead of g4dn.xlarge=1,r5n.large=2 costs"},
		{"rate", "arrival rate", workload.Trace(), 1.5 * rate,
			"instead of g4dn.xlarge=1,r5n.large=2 costs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var took []time.Duration
			for seed := range uint64(seeds) {
				agenttest.InFleet(t, func(f *agenttest.Fleet) {
					r := rand.New(rand.NewPCG(seed, 7))
					agents := []*agenttest.Member{
						f.Start(func(a agent.Inside) { a.Config().InstanceType = "g4dn.xlarge" }),
						f.Start(),
						f.Start(),
					}
					f.Settled(agents...)
					leader := f.Led(agents...)
					proposed := func() *control.Proposal { return leader.Members().Proposal() }
					// the reference: a thousand after the first second
					ask(f, r, workload.Trace(), rate, 1400, agents[0], nil)
					if p := proposed(); p != nil {
						f.Fatalf("before anything changed: %v", p)
					}
					took = append(took,
						ask(f, r, tt.sizes, tt.rate, 4000, agents[0],
							func() bool { return proposed() != nil }))
					for _, a := range agents {
						f.Eventually(time.Second, func() string {
							s, err := a.Control.Status(f.Context(), &control.StatusRequest{})
							if p := s.GetProposal(); err != nil || p.GetModel() != "ncf" ||
								p.GetKind() != tt.kind ||
								!strings.Contains(p.GetReason(), tt.plan) {
								return a.Host + " says " + p.String()
							}
							return ""
						})
					}
					p := proposed()
					if now := p.GetNow().GetRate() / tt.rate; now < 0.9 || now > 1.1 ||
						len(p.GetCurrent()) != 2 ||
						len(p.GetProposed()) == 0 {
						f.Errorf("got %v", p)
					}
					events := slices.DeleteFunc(leader.Events().After(0),
						func(e *control.Event) bool { return e.Kind != "demand" })
					if len(events) != 1 ||
						strings.Count(leader.Log.String(), "event=demand") != 1 {
						f.Errorf("the leader tells %d events: %v", len(events), events)
					}
					if changes, types := series(f, leader, "muster_demand_changes_total"), series(f,
						leader, "muster_proposed_instances"); changes != 1 ||
						types != len(p.GetProposed()) {
						f.Errorf("metrics tell %d kinds of changes and %d types, want 1 and %d",
							changes, types, len(p.GetProposed()))
					}
					if seed > 0 {
						return
					}
					f.Kill(leader)
					rest := slices.DeleteFunc(slices.Clone(agents),
						func(a *agenttest.Member) bool { return a == leader })
					next := f.Led(rest...)
					if p := next.Members().Proposal(); p.GetKind() != tt.kind {
						f.Errorf("after a takeover: %v", p)
					}
					// is told by a leader that has not planned
					late := f.Start(func(a agent.Inside) {
						a.Config().Join = []string{
							next.Host + ":7946",
						}
					})
					f.Eventually(time.Minute, func() string {
						if p := proposal(late); p.GetKind() != tt.kind {
							return late.Host + " is told " + p.String()
						}
						return ""
					})
					if n := series(f, next, "muster_proposed_instances"); n != len(p.GetProposed()) {
						f.Errorf("after a takeover %d types are proposed, want %d", n,
							len(p.GetProposed()))
					}
				})
			}
			slices.Sort(took)
			t.Logf("told after %v (median), %v (worst) of %d", took[len(took)/2], took[len(took)-1],
				len(took))
		})
	}
}
