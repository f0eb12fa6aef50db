package leader

import (
	"cmp"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

// An EventKind says what happened. The comment of each kind lists the fields of [Event] that
// it uses.
type EventKind uint8

const (
	// TimePassed says only that time has passed; see [State.Next].
	TimePassed EventKind = iota
	// ViewChanged: Members. The fleet's view has changed; Members are all members in it.
	ViewChanged
	// Described: Member, Free. A member has described itself over its link. Those of its lanes that
	// have not joined yet join.
	Described
	// Greeted: Agent, Holds, Free. A member has sent, over a new link or because it was asked, all
	// attempts that its lanes hold.
	Greeted
	// LanesFree: Agent, Free. A member corrects when its lanes are free.
	LanesFree
	// LinkBroken: Agent, Gone, Why. The link to a member has broken.
	LinkBroken
	// GatewayConnected: Gateway, Client. A gateway has opened a new stream, over which it submits
	// all its queries again.
	GatewayConnected
	// GatewayLost: Gateway. The gateway's stream has ended.
	GatewayLost
	// Submitted: Gateway, Sequence, Attempt (how many attempts were made), Model, LeastAccuracy,
	// LoadShare, Band, Tenant, Weight, BatchSize, Users, Values, Waited, TimeLeft, Splits, Denied,
	// RetryAfter, Tag, TagSize. If the last
	// attempt still runs or is on its way: also Agent and Lane, where it is.
	Submitted
	// Cancelled: Gateway, Sequence. The gateway has decided the query's outcome.
	Cancelled
	// Unused: Gateway, Sequence, Attempt, Agent, Lane. The gateway gives an attempt back: the lane
	// does not hold it, or need not be reserved for it any more.
	Unused
	// Completed: Agent, Lane, Gateway, Sequence, Attempt, Remaining, Refused. An attempt has ended
	// at a lane. Unless the lane did not read it: also Model, BatchSize, Users, Values. Unless the
	// lane refused it: also Execution, Queue, Receive, Latency, Bytes, Merged, MergedUsers,
	// MergedValues, Divided, Shadow, NonFinite, NoAnswer. Of one that it cut off, alone on the
	// lane, Execution is how long it had run.
	Completed
	// Learned: Advice. The learning loop has new results.
	Learned
	// Outdated: Models, Tables. The learning loop has found that these have been gone for long.
	Outdated
	// Failed: Model, BatchSize, Why, N, Excused. A gateway says how queries of its clients failed.
	// BatchSize is 0 if the gateway tells none, and below 0 if they count in no trial of a canary.
	Failed
	// Released: Releases. A release was made or has changed; Releases are all that hold now.
	Released
)

// An Event tells a state what happened. Kind says which fields count. The state keeps what the
// fields point to: the caller must not change it afterwards.
type Event struct {
	Kind EventKind

	// Gateway and Sequence name a query.
	Gateway, Sequence uint64
	// Attempt is 1 for a query's first.
	Attempt int
	// Agent and Lane, counted from 0, name a member's lane.
	Agent names.AgentName
	Lane  int
	// Model has version 0 if the query names no version; the version that was released then serves
	// it, else the newest. It may also be a family, which has no version: such versions of its
	// variants then serve it.
	Model ModelID
	// LeastAccuracy is the least accuracy of the variants that may answer the query, in [0, 1]; 0
	// means that any may.
	LeastAccuracy float64
	// LoadShare is the share of the agents, in [0, 1], that may hold a model only because clients
	// with the right to have models loaded ask for it; 0: the query's client has no such right.
	LoadShare float64
	// Band, Tenant and Weight are those of a [match.Event].
	Band      int
	Tenant    string
	Weight    float64
	BatchSize int
	// Users is how many users the rows are for, 0 where each row has its own, and Values how many
	// values the ragged inputs have.
	Users, Values int
	// Waited is how long the query had waited when it was submitted. TimeLeft is how long after now
	// it is dropped: 0 means never, a negative value at once.
	Waited, TimeLeft time.Duration
	// Splits says that the gateway can split the query and join its parts' answers. Such a gateway
	// numbers its queries in multiples of 4, and parts between; see [match.Submitted].
	Splits bool
	// Denied says why the gateway's client may not submit this query; "" means that it may.
	// RetryAfter is how long until the client is within its limits again, 0 if waiting does not
	// help because it may never submit such a query.
	Denied     string
	RetryAfter time.Duration
	// Tag is a value of the caller's, returned with each decision about the query. TagSize is its
	// size in bytes.
	Tag     any
	TagSize int

	// Client is the name of the client that owns the gateway; "" if it has no name or the gateway
	// is an agent's.
	Client string

	// Refused says that the lane has not run the query.
	Refused bool
	// Remaining is the time from now until the lane is free.
	Remaining time.Duration
	// Execution is how long the query ran, Queue how long it waited at the lane before that,
	// Receive how long its inputs took to arrive, Latency the time since it arrived at its gateway.
	Execution, Queue, Receive, Latency time.Duration
	Bytes                              uint64 // of the inputs
	// Merged is the items of the run, if several queries ran as one; 0 otherwise. One of them has
	// the run's Execution; the others have 0, and the run counts in their Queue.
	Merged int
	// MergedUsers and MergedValues are those of that run; both 0 if the lane does not tell them.
	MergedUsers, MergedValues int
	// Divided says that the query ran on one core of its lane, beside others: Execution is that
	// core's share of the lane's time, and says nothing of a run on the whole lane.
	Divided bool
	// NonFinite says that the answer has NaN or infinity in a floating-point output.
	NonFinite bool
	// NoAnswer says that the lane has run the query, whose gateway tells that it failed.
	NoAnswer bool

	Member  *Member
	Members []*Member
	// Free is, by lane, the time from now until the lane is free. Lanes that it does not reach are
	// free now.
	Free  []time.Duration
	Holds []Held

	// Gone says that the member's process has ended.
	Gone bool
	Why  string

	// N is how many queries failed, Excused that they say nothing about the QoS, because of what
	// their clients did.
	N       uint64
	Excused bool

	Advice *Advice
	Models []ModelID
	Tables []names.TableKey

	// Rollouts are by model; a model without one was never released.
	Rollouts []ModelRollout
	// Shadow says that an attempt was made to compare its answer, and is no client's query.
	Shadow bool
}

// queryID is the event's query as the matcher names it.
func (e *Event) queryID() match.QueryID {
	return match.QueryID{Gateway: e.Gateway, Sequence: e.Sequence}
}

// A ModelID names a version of a model.
type ModelID struct {
	Name    string
	Version int64
}

// Key is the id as one string.
func (id ModelID) Key() names.ModelKey { return names.NewModelKey(id.Name, id.Version) }

func (id ModelID) compareTo(o ModelID) int {
	return cmp.Or(cmp.Compare(id.Name, o.Name), cmp.Compare(id.Version, o.Version))
}

// A Member is an agent's description of itself.
type Member struct {
	Name names.AgentName
	// Type is the instance type of the member's lanes, as prices and profiles name it. OwnType is
	// the name to use instead while the member's latencies depart from its type's.
	Type, OwnType names.LaneType
	Lanes         int
	Draining      bool
	// Ends is in how long the member's machine is taken, as of its last other value; 0: it is not.
	Ends time.Duration
	// Revision counts the member's descriptions; a higher one is newer.
	Revision uint64
	Models   []HeldModel
	// Loadable are the newest versions that it has on disk and does not hold, and that it may be
	// told to load.
	Loadable []HeldModel
	// Parts are groups of the member's lanes, by their indices; nil: all lanes are of Type and hold
	// all models.
	Parts []PartitionLanes
}

// A PartitionLanes is the lanes of one partition of a member. The leader loses lanes that a
// member's description no longer lists; a member that wants to end their queries first has them
// drain.
type PartitionLanes struct {
	// First is the index of the part's first lane; the others follow. A member uses an index once.
	First, Lanes int
	// Type and OwnType are as those of a [Member], with the models beside which the lanes run.
	Type, OwnType names.LaneType
	Models        []ModelID // of the member's Models, each in one part
	Draining      bool
}

// A HeldModel is a version of a model that a member holds, as the member describes it.
type HeldModel struct {
	ModelID
	// QoSTarget is the latency within which a Share of the queries, in (0, 1], should be answered.
	QoSTarget time.Duration
	Share     float64
	// Largest is the largest batch size.
	Largest int
	// RejectLate says that late queries are rejected, not served when lanes would idle.
	RejectLate bool
	// Splits says that a query may run as several parts: its rows are independent, and splitting is
	// not turned off.
	Splits bool
	// Merge is how the member's lanes run several waiting queries as one, as package
	// runtime/queue/merge names it; "": each query alone.
	Merge string
	// Family is the name of the model's family, which queries may ask for instead of the model; ""
	// if they may not.
	Family string
	// Accuracy is how good the model's answers are beside those of the family's best variant, in
	// (0, 1]; 0 if it is unknown, which counts as 1.
	Accuracy float64
	// MinAccuracy is the least accuracy of a variant that answers for the family, TargetAccuracy
	// that which its answers should have in the mean, in [0, 1]; 0: nothing is stated.
	MinAccuracy, TargetAccuracy float64
	// Profile is the key under which the model's latencies on this member's lanes are learned.
	Profile profiles.Key
}

// Model is the member's description of a version of a model, nil if the member does not hold it.
func (m *Member) Model(id ModelID) *HeldModel {
	for i := range m.Models {
		if m.Models[i].ModelID == id {
			return &m.Models[i]
		}
	}
	return nil
}

// Groups returns the member's parts; if it has none, one part of all its lanes.
func (m *Member) Groups() []PartitionLanes {
	if m.Parts != nil {
		return m.Parts
	}
	all := PartitionLanes{Lanes: m.Lanes, Type: m.Type, OwnType: m.OwnType}
	for i := range m.Models {
		all.Models = append(all.Models, m.Models[i].ModelID)
	}
	return []PartitionLanes{all}
}

// A Held is an attempt that a lane holds, as its member reports it.
type Held struct {
	Gateway, Sequence uint64
	Attempt           int
	Lane              int
	Model             ModelID
	BatchSize         int
}

// A Latency is the execution latency of a model on a type of lanes, as far as it is known.
type Latency struct {
	names.TableKey
	Profile *profiles.Table
	// Table is Profile, read at the batch sizes up to the model's largest.
	Table *match.LatencyTable
	// Doubtful says that hardly any query has run yet.
	Doubtful bool
	// Told is the profile by rows alone as it is sent to gateways and members.
	Told []byte
	// Law says how many rows a user and a value count as in Profile and Table; the zero Law is rows
	// alone. It is the same on all types of lanes. ToldWork is then Profile as it is sent.
	Law      work.Law
	ToldWork []byte
}

// Advice is a result of the learning loop.
type Advice struct {
	Latencies []*Latency // the models that are new or have changed
	// Factors is, by agent, its latency divided by its type's mean. Slow is, by agent, the agent's
	// own type, for the agents that have one. nil means: as before.
	Factors map[names.AgentName]float64
	Slow    map[names.AgentName]names.LaneType
	// Limit is the fluid limit in queries/s. Prices are those of the types; nil means: as before.
	Limit  float64
	Prices []fluid.Price
	// Unmet are the models that miss their QoS target whatever the leader decides, by key.
	Unmet  []Unmet
	Priced bool // Limit and Unmet are new
}

// An Unmet is a model that misses its QoS target: no lane would answer a Share of its queries in
// time if it had nothing else to do, and that is more than may be late.
type Unmet struct {
	Model ModelID
	Share float64
}
