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
	"github.com/muster-serve/muster/profiles/work"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/sim/colocate"
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
	Lanes  []LaneConfig // one for each agent
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
	// how many lanes a gateway asks at a time; below 0 it asks none, and takes the best that it
	// knows.
	Gateways    int
	GossipDelay time.Duration
	Probes      int
	Faults      []Fault
	// Settled says that the fleet begins at time 0, led and with all its links open, and that
	// nothing can fail: there are no Faults and no elections, and no agent watches others for
	// silence. The leader, if there may be one, is a host of its own.
	Settled bool
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

	// Service returns how long a lane runs a query, whose work is the sum of those that run with
	// it. Waits is called when a query begins or ends to wait for a lane, Split when it is
	// split, which happens once at most. Finish is called with a query's outcome; by counts if it
	// is served.
	Service func(lane int, q *ArrivingQuery) time.Duration
	Split   func(sequence uint64)
	// Luck, if not nil, gives a part of a query, counted from 1, random numbers of its own.
	Luck   func(q *ArrivingQuery, part int)
	Waits  func(sequence uint64, waits bool)
	Finish func(sequence uint64, o Outcome, by Answer)
	// Acts, if not nil, is called with the present leader's actions that are for its learning loop.
	// In a fleet that is not settled, it replaces that of Learns.
	Acts func(a *leader.Action)
	// Choose, if not nil, says to which lane a gateway that has no leader sends a query. Answered
	// is then called when the answer comes.
	Choose   func(gateway int, q *ArrivingQuery) (lane int)
	Answered func(gateway int, q *ArrivingQuery, by Answer)
}

// A Model is a model for which queries arrive.
type Model struct {
	match.Model
	// Share is the share of its queries that should meet the QoS target, in (0, 1].
	Share float64
	// Deadline is how long after its arrival a query is dropped; 0 means as Config.Deadline says.
	Deadline time.Duration
	// Law says how many rows a user and a value count as in what is known of its latencies from the
	// start; the zero Law: rows alone.
	Law work.Law
}

// leaderID is the model's id at a leader.
func (m *Model) leaderID() leader.ModelID {
	return leader.ModelID{Name: string(m.Name), Version: 1}
}

// deadlineOf is how long after its arrival a query of a model is dropped; 0 means never.
func (c *Config) deadlineOf(model int) time.Duration {
	return cmp.Or(c.Models[model].Deadline, c.Deadline)
}

// learns reports whether what is known of latencies and prices may change.
func (c *Config) learns() bool { return c.Learns || c.Acts != nil && !c.Settled }

func (c *Config) matchModels() (all []match.Model) {
	for i := range c.Models {
		all = append(all, c.Models[i].Model)
	}
	return all
}

// A LaneConfig runs queries, one at a time, or several as one where package merge says so.
type LaneConfig struct {
	Type names.LaneType
	// Distance is how much longer than half a round trip a message from or to the lane's agent
	// takes, such as one in another zone.
	Distance time.Duration
	// Known is, by model, its latency on the lane as leaders and gateways assume it, Predicted the
	// same as a table; nil if the lane cannot run the model. Where leaders learn, they are what is
	// assumed at first, and the fleet changes copies of them.
	Known     []match.Latencies
	Predicted []*match.LatencyTable
	// Holds are the models that the lane holds at first; nil: all that it can run.
	Holds []int
	// Absent says that the lane's agent is not there at first: [Fleet.Start] starts it.
	Absent bool
	// NeverLeads says that its agent may not lead.
	NeverLeads bool
	// Kinds is, by model, how its queries run together on the lane; nil if they do not.
	Kinds []*merge.Kind
	// Seat is the lane's on a machine whose lanes slow each other down; its Machine is nil if none
	// does.
	Seat colocate.Seat
	// Busy is the lane's total execution time, Served the number of queries that it has started.
	// The fleet sets both.
	Busy   time.Duration
	Served int
}

// A ArrivingQuery is an arriving query.
type ArrivingQuery struct {
	Sequence uint64 // its number in the run
	Model    int    // its index in Config.Models
	// Family, if it is not "", is the family that the query names: any of its models may answer.
	// Model is one of them.
	Family names.ModelKey
	// BatchSize is in 1..the model's largest batch size.
	BatchSize int
	// Users and Values are what else the query has, as the leader sees it. Parts share the user.
	Users, Values int
	// Work is the batch size that takes as long, where the leader sees another; 0: BatchSize.
	Work    int
	Arrival time.Duration
	// Uniform and Noise are random numbers for [Config.Service].
	Uniform, Noise float64
	// CancelAfter is how long after its arrival the client cancels the query, if it has no outcome
	// by then; 0: it does not.
	CancelAfter time.Duration
}

// Size is the batch size by which the query takes its time.
func (q *ArrivingQuery) Size() int { return cmp.Or(q.Work, q.BatchSize) }

// sizeOf is the size of a query in the known latencies of its model: rows, or work.
func (f *Fleet) sizeOf(q *ArrivingQuery) int {
	return f.sizeOfRun(q.Model, q.BatchSize, q.Users, q.Values)
}

func (f *Fleet) sizeOfRun(model, rows, users, values int) int {
	if f.laws[model] == (work.Law{}) {
		return rows
	}
	m := &f.cfg.Models[model]
	return max(rows, min(f.laws[model].Size(rows, users, values), m.LargestBatchSize))
}

// askedName is what a query asks for.
func (c *Config) askedName(q *ArrivingQuery) names.ModelKey {
	if q.Family != "" {
		return q.Family
	}
	return c.Models[q.Model].Name
}

// An Answer says where a query has run.
type Answer struct {
	Lane, Model int
	Found       int // how many others were at the lane when it came there
	// CameAt is when it came to the lane, Start when its execution began.
	CameAt, Start time.Duration
	// Remaining is how long the lane was to be busy then.
	Remaining time.Duration
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
	// Lost: all permitted attempts have failed.
	Lost
	// Cancelled: the client has cancelled the query.
	Cancelled
)
