package fleet

import (
	"cmp"
	"io"
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/runtime/queue/merge"
)

// Never is later than any event.
const Never = time.Duration(math.MaxInt64)

// interruptible is the number of events after which a fleet checks whether ctx has ended.
const interruptible = 1 << 12

// epoch is the time 0; only differences matter.
var epoch = time.Unix(0, 0).UTC()

// A Config describes a fleet. The caller must have validated it. The fleet writes its counters to
// Lanes.
type Config struct {
	Models []Model
	Lanes  []Lane // one for each agent
	// Policy is one of match.Policies. NewChooser, if not nil, makes a policy from outside in its
	// place.
	Policy     string
	NewChooser func() match.Chooser
	Seed       uint64
	// RTT is the round trip between any two hosts. Jitter is how much longer, in the mean, the way
	// of a query to its lane takes, with an exponential distribution.
	RTT, Jitter time.Duration
	// Deadline is how long after its arrival a query is dropped; 0 means never. That of a model
	// goes before it.
	Deadline time.Duration
	// Gateways is the number of gateways, >= 1. GossipDelay is the time between two reports of a
	// lane's load to them; 0 means that the loads that they know are always up to date. Probes is
	// how many lanes a gateway asks at a time, >= 1.
	Gateways    int
	GossipDelay time.Duration
	Probes      int
	Faults      []Fault
	// Limit and Prices are the solution of the fluid program; Limit is in queries/s, and the models
	// that tell classes of lanes apart have no versions.
	Limit  float64
	Prices []match.Price
	// Learns says that leaders learn latencies and prices by leader/learn, from what they see:
	// Limit and Prices then do not count. They start from Prior, which returns what is known of a
	// model on a type at first; nil: nothing.
	Learns bool
	Prior  func(model int, laneType names.LaneType) *profiles.Table
	// Candidates is how many agents may lead, the first ones; 0: all; below 0: none, so that
	// gateways decide for good.
	Candidates int
	// Record, if not nil, receives the recordings of all terms, in the order in which they began.
	Record io.Writer
	// Clock, if not nil, is a wall clock, with which the time of leaders' steps is measured.
	Clock func() time.Duration

	// Service returns how long a lane runs a query, whose batch size is the sum of those that run
	// with it. Waits is called when a query begins or ends to wait for a lane, Split when it is
	// split, which happens once at most. Finish is called with a query's outcome, and if it is
	// served with the lane and the start of its execution.
	Service func(lane int, q *Query) time.Duration
	Split   func(sequence uint64)
	Waits   func(sequence uint64, waits bool)
	Finish  func(sequence uint64, o Outcome, lane int, start time.Duration)
}

// A Model is a model for which queries arrive.
type Model struct {
	match.Model
	// Share is the share of its queries that should meet the QoS target, in (0, 1].
	Share float64
	// Deadline is how long after its arrival a query is dropped; 0 means as Config.Deadline says.
	Deadline time.Duration
}

// id is the model's id at a leader.
func (m *Model) id() leader.ModelID { return leader.ModelID{Name: string(m.Name), Version: 1} }

// deadline is how long after its arrival a query of a model is dropped; 0 means never.
func (c *Config) deadline(model int) time.Duration {
	return cmp.Or(c.Models[model].Deadline, c.Deadline)
}

func (c *Config) matchModels() (all []match.Model) {
	for i := range c.Models {
		all = append(all, c.Models[i].Model)
	}
	return all
}

// A Lane runs queries, one at a time, or several as one where package merge says so.
type Lane struct {
	Type names.LaneType
	// Distance is how much longer than half a round trip a message from or to the lane's agent
	// takes, such as one in another zone.
	Distance time.Duration
	// Known is, by model, its latency on the lane as leaders and gateways assume it, Predicted the
	// same as a table; nil if the lane cannot run the model. Where leaders learn, they are what is
	// assumed at first, and the fleet changes copies of them.
	Known     []match.Latencies
	Predicted []*match.Table
	// Kinds is, by model, how its queries run together on the lane; nil if they do not.
	Kinds []*merge.Kind
	// Busy is the lane's total execution time, Served the number of queries that it has started.
	// The fleet sets both.
	Busy   time.Duration
	Served int
}

// A Query is an arriving query.
type Query struct {
	Sequence uint64 // its number in the run
	Model    int    // its index in Config.Models
	// BatchSize is in 1..the model's largest batch size.
	BatchSize int
	Arrival   time.Duration
	// Uniform and Noise are random numbers for [Config.Service].
	Uniform, Noise float64
	// CancelAfter is how long after its arrival the client cancels the query, if it has no outcome
	// by then; 0: it does not.
	CancelAfter time.Duration
}

// An Outcome is the outcome of a query.
type Outcome uint8

const (
	// Served: its answer has reached the gateway.
	Served Outcome = iota
	// Rejected: the leader or a lane has rejected the query.
	Rejected
	// Dropped: its deadline has passed.
	Dropped
	// NeverServed: the query still waited at the end of the run.
	NeverServed
	// Lost: all attempts that a query may have have failed.
	Lost
	// Cancelled: its client has cancelled it.
	Cancelled
)
