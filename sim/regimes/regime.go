package regimes

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/fleet"
)

// A Regime is a setting in which policies are compared.
type Regime struct {
	// Name is unique, in words and hyphens; About says what the regime is, for people.
	Name, About string
	// Models are the models, with their true latencies and what is known of them.
	Models []Model
	// Lanes are the lanes.
	Lanes []Lanes
	// Load is the mean arrival rate as a multiple of the fluid limit of the lanes and the models'
	// mix, of whole queries that run one by one, by the true latencies.
	Load float64
	// Arrivals is the arrival process in the form of workload.ParseArrivals; "" is Poisson.
	// Phases, if not nil, returns how the rate changes over time, for a seed.
	Arrivals string
	Phases   func(seed uint64) []sim.Phase
	// RTT and Jitter are the network's, as fleet.Config has them.
	RTT, Jitter time.Duration
	// Deadline is when a query is dropped, in QoS targets of its model after its arrival; 0: after
	// DeadlineAfter, the same for all models.
	Deadline      float64
	DeadlineAfter time.Duration
	// Gateways share the queries equally; 0 means 4.
	Gateways int
	Faults   []fleet.Fault
	// Learns says that leaders learn latencies and prices, and know at first what the models' Known
	// says. Else leaders know that from the start, and learn nothing. WarmUp is the share of the
	// queries, the first ones, that do not count.
	Learns bool
	WarmUp float64
	// Leaderless says that no agent leads when the subject runs, so that its gateways decide. The
	// other policies have a leader.
	Leaderless bool
	// CancelShare is the share of the queries that their clients cancel after CancelAfter QoS
	// targets without an answer. A client tries Retries times, RetryAfter QoS targets after it has
	// cancelled. Without retries the queries of such clients do not count, answered or not. With
	// retries the answer to any try counts, which is in time within a QoS target after that try
	// began.
	CancelShare, CancelAfter, RetryAfter float64
	Retries                              int
	// Queries is how many queries arrive in one run, and ShortQueries in one of the short form; 0:
	// the short form leaves the regime out.
	Queries, ShortQueries int
	// Seeds is the number of runs of the whole form; 0 means 2.
	Seeds int

	limit float64         // 0: not computed yet
	known *fluid.Solution // what leaders and gateways know; nil: not computed yet
}

// A Model is a model of a regime.
type Model struct {
	sim.Model
	// Merge is how lanes run several waiting queries as one.
	Merge names.MergePolicy
	// Infeasible says that no lane can meet the model's target. Its queries count neither as late
	// nor as in time.
	Infeasible bool
}

// Lanes are lanes of one type.
type Lanes struct {
	Type  string
	Count int
	// Models are the names of the models that the lanes hold; nil: all that have latencies on the
	// type.
	Models []string
	// Distance is how much longer than half a round trip a message from or to one of them takes.
	Distance time.Duration
	// Slowdown is by how much longer runs of a batch size take there than the latencies of the type
	// say; nil: no longer. Nobody is told.
	Slowdown func(batchSize int) float64
}

// largestRun is the largest batch size of a run: that of a query, unless queries are merged.
func (m *Model) largestRun() int {
	largest := m.BatchSizes.Largest()
	if !m.Merge.Merges() {
		return largest
	}
	const usual = 1000 // as sim.Model.LargestRun has it
	if m.LargestRun > 0 {
		return max(largest, m.LargestRun)
	}
	return max(largest, usual)
}

// knownLatencies is the latency on a type that the policy assumes.
func (m *Model) knownLatencies(laneType string) match.Latencies {
	if m.Known != nil {
		return m.Known[laneType]
	}
	return m.Latencies[laneType]
}

// holdModel reports whether the lanes hold a model.
func (l *Lanes) holdModel(m *Model) bool {
	if m.Latencies[l.Type] == nil {
		return false
	}
	if l.Models == nil {
		return true
	}
	for _, name := range l.Models {
		if name == m.Name {
			return true
		}
	}
	return false
}

// Group is the name without the load at its end.
func (r *Regime) Group() string { return r.Name[:strings.LastIndex(r.Name, "-")] }

func (r *Regime) String() string {
	return fmt.Sprintf("%s: %s", r.Name, r.About)
}

// The seeds of the whole form are firstSeed and those that follow it, and the only one of the short
// form is shortSeed: what policies are tuned with is not what tests hold them to.
const firstSeed, shortSeed = 1, 7001

// SeedsOf returns the seeds of one of the regime's forms.
func (r *Regime) SeedsOf(short bool) (seeds []uint64) {
	if short {
		return []uint64{shortSeed}
	}
	const usual = 2
	for i := range cmp.Or(r.Seeds, usual) {
		seeds = append(seeds, uint64(firstSeed+i))
	}
	return seeds
}
