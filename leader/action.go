package leader

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

// An ActionKind says what the caller is to do. The comment of each kind lists the fields of
// [Action] that it sets.
type ActionKind uint8

const (
	// Assign, Reject, OfferAgain and Split: Decision, Tag. Tell the query's gateway the decision.
	// Assign also sets Agent, Lane, BatchSize and Model, the version that the lane is to run;
	// Reject sets Message, Model and, if a member could load what answers the query, Loadable.
	// Split sets Model, which answers all parts: the gateway submits them for it from then on. The
	// parts of a split query have its tag. Assign and Split set Known if the query names no version
	// and Model was released.
	Assign ActionKind = iota
	Reject
	OfferAgain
	Split
	// Welcome: Gateway. Tell the gateway who leads, all prices and all profiles.
	Welcome
	// Heartbeat: send every gateway a message, so that each knows that the leader lives.
	Heartbeat
	// TellLatencies: Latencies. Tell all gateways and members.
	TellLatencies
	// TellPrices: Prices. Tell all gateways and members.
	TellPrices
	// TellAhead: Duration. Tell all members how long before a lane is free the leader sends it the
	// next query.
	TellAhead
	// AskHeld: Agent. Ask the member what its lanes hold; it answers with a greeting.
	AskHeld
	// Arrived: Model, BatchSize (its work). Tell the learning loop that a query has arrived.
	Arrived
	// Observed: Member, Model, BatchSize (rows), Users, Values, Duration. Tell the learning loop how
	// long a query ran. Users is below 0 if those of the run are not known, nor its values.
	Observed
	// ObservedCut: as Observed. The query was cut off when it had run for so long.
	ObservedCut
	// PoolChanged: Pool. Tell the learning loop which members and models the fleet has.
	PoolChanged
	// The kinds from here on are facts for the log.

	// LanesJoined: Agent, N (lanes).
	LanesJoined
	// LanesLost: Agent, N (lanes), Message (why), Known (the loss is in the log already).
	LanesLost
	// LaneOverdue: Agent, Lane, N (attempts that it holds), Duration (how late its answer is).
	LaneOverdue
	// LaneSilent: as LaneOverdue. The lane has not answered the question either. It gets no queries
	// until it does.
	LaneSilent
	// LaneAnswers: Agent, Lane. A silent lane has answered.
	LaneAnswers
	// Departs: Agent, Factor, Known. The agent's latencies depart from its type's by Factor; Known
	// says that it has an instance type of its own from now on, false that it has it no more.
	Departs
	// TargetUnmet: Model, Share, Message (why). The model misses its QoS target whatever is
	// decided: a Share of its queries would be late if no other queries came. Share 0: that has
	// ended.
	TargetUnmet
	// Nonsense: Message. The matcher got an event that contradicts what it knows.
	Nonsense
)

// An Action is what a state asks its caller to do. Kind says which fields count.
type Action struct {
	Kind      ActionKind
	Decision  match.Decision
	Gateway   uint64
	Agent     names.AgentName
	Lane      int
	Model     ModelID
	Loadable  ModelID
	BatchSize int
	Users     int
	Values    int
	Tag       any
	Message   string
	Duration  time.Duration
	N         int
	Factor    float64
	Share     float64
	Known     bool
	Member    *Member
	Latencies []*Latency
	Prices    []fluid.Price
	Pool      *Pool
}

// A Pool lists the members that have lanes and the models that they hold or could load, for the
// learning loop.
type Pool struct {
	Members []PoolMember // by name
	Models  []HeldModel  // by key, without Profile
	// Loadable are the models that no member holds and one may load. They are among Models.
	Loadable map[ModelID]bool
}

// A PoolMember is a member that has lanes.
type PoolMember struct {
	*Member
	Holds []ModelID // its models
}
