// Package fleet simulates a whole fleet in which things go wrong, in virtual time: agents with a
// lane each, of which one leads, gateways, and a network between them. What decides is what decides
// in production: leader/election who leads, [leader.State] while it does, client/queries at
// gateways, with match.Leaderless while no leader answers, and runtime/queue on lanes. What is here
// carries messages between them.
//
// In come queries, by [Fleet.Arrive], and the time, by [Fleet.Until]; out go the queries' outcomes,
// by [Config.Finish]. All follows from the [Config] and the queries: it reads no clock and starts
// no goroutine. Package sim runs it.
package fleet

import (
	"io"
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
)

// Never is later than any event.
const Never = time.Duration(math.MaxInt64)

// interruptible is after how many events a fleet looks whether it should end.
const interruptible = 1 << 12

// epoch is the time 0; only differences matter.
var epoch = time.Unix(0, 0).UTC()

// A Config describes a fleet. All of it must be valid; the fleet writes what it counts to Lanes.
type Config struct {
	Models []Model
	Lanes  []Lane // an agent has one
	// Policy is one of match.Policies, with the settings of an agent.
	Policy string
	Seed   uint64
	// RTT is the round trip between any two hosts.
	RTT time.Duration
	// Deadline is how long after its arrival a query is dropped; 0: never.
	Deadline time.Duration
	// Gateways is how many there are, GossipDelay how often they hear of each lane's load (0:
	// always fresh), Probes how many lanes they ask at a time; at least one.
	Gateways    int
	GossipDelay time.Duration
	Probes      int
	Faults      []Fault
	// Limit and Prices are of the fluid program, in queries/s and as [leader.Advice] has them.
	Limit  float64
	Prices []match.Price
	// Record, if not nil, gets the recordings of all terms, by when they began.
	Record io.Writer
	// Clock, if not nil, measures what steps of leaders cost.
	Clock func() time.Duration

	// Service is how long a lane runs a query, Waits hears whether a query waits for a lane, and
	// Finish of its outcome: if it is served, on which lane, from when on.
	Service func(lane int, q *Query) time.Duration
	Waits   func(sequence uint64, waits bool)
	Finish  func(sequence uint64, o Outcome, lane int, start time.Duration)
}

// A Model is one that queries ask for.
type Model struct {
	match.Model
	// Share is the share of its queries that should meet the QoS target.
	Share float64
}

// id names the model as a leader does.
func (m *Model) id() leader.ModelID { return leader.ModelID{Name: string(m.Name), Version: 1} }

func (c *Config) matchModels() (all []match.Model) {
	for i := range c.Models {
		all = append(all, c.Models[i].Model)
	}
	return all
}

// A Lane is what runs queries, one at a time.
type Lane struct {
	Type names.LaneType
	// Known is by model what is believed of how long it runs there, Predicted the same as leaders
	// and gateways have it; nil: the lane cannot run it.
	Known     []match.Latencies
	Predicted []*match.Table
	// Busy is how long it has executed, Served how many queries it has started.
	Busy   time.Duration
	Served int
}

// A Query is one that arrives.
type Query struct {
	Sequence uint64 // counts the queries of a run
	Model    int    // its index
	// BatchSize is in 1..the model's largest.
	BatchSize int
	Arrival   time.Duration
	// Uniform and Noise are for [Config.Service].
	Uniform, Noise float64
}

// An Outcome is what became of a query.
type Outcome uint8

const (
	// Served: its answer has reached the gateway.
	Served Outcome = iota
	// Rejected by the leader or a lane.
	Rejected
	// Dropped: its deadline has passed.
	Dropped
	// NeverServed: it still waited when nothing more happened.
	NeverServed
	// Lost: as many attempts as a query may have have failed.
	Lost
)
