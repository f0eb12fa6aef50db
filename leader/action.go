package leader

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

// An ActionKind says what is to be done. Beside each stand the fields of [Action] that it has.
type ActionKind uint8

const (
	// Assign, Reject and OfferAgain: Decision, Tag. The gateway of the decision's query is told.
	// Assign has Agent, Lane and Model, too, and Reject has Message and Model.
	Assign ActionKind = iota
	Reject
	OfferAgain
	// Welcome: Gateway. It is told who leads, all prices and all profiles.
	Welcome
	// Heartbeat: all gateways hear something.
	Heartbeat
	// TellLatencies: Latencies. All gateways and members are told.
	TellLatencies
	// TellPrices: Prices. All gateways and members are told.
	TellPrices
	// TellAhead: Duration. All members are told how long before a lane is free it
	// gets its next query.
	TellAhead
	// AskHeld: Agent. The member is asked what its lanes hold: it greets again.
	AskHeld
	// Arrived: Model, BatchSize. The learning loop is told of a query.
	Arrived
	// Observed: Member, Model, BatchSize, Duration. The learning loop is told how long a query ran.
	Observed
	// PoolChanged: Pool. The learning loop is told which members and models there are.
	PoolChanged
	// What follows is for the log.

	// LanesJoined: Agent, N (lanes).
	LanesJoined
	// LanesLost: Agent, N (lanes), Message (why), Known (the log says so already).
	LanesLost
	// LaneOverdue: Agent, Lane, N (what it holds), Duration (by how much).
	LaneOverdue
	// LaneSilent: as LaneOverdue. It still has not answered, and gets no queries until it does.
	LaneSilent
	// LaneAnswers: Agent, Lane. One that was silent.
	LaneAnswers
	// Departs: Agent, Factor, Known (it has a type of its own from now on, else no more).
	Departs
	// Nonsense: Message. The matcher was told of what cannot be.
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
	BatchSize int
	Tag       any
	Message   string
	Duration  time.Duration
	N         int
	Factor    float64
	Known     bool
	Member    *Member
	Latencies []*Latency
	Prices    []fluid.Price
	Pool      *Pool
}

// A Pool is what the learning loop must know of members and models.
type Pool struct {
	Members []PoolMember // by name
	Models  []Model      // by key, without Profile
}

// A PoolMember is a member that has lanes.
type PoolMember struct {
	*Member
	Holds []ModelID // its models
}
