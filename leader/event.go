package leader

import (
	"cmp"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// A Kind says what happened. Beside each stand the fields of [Event] that it uses.
type Kind uint8

const (
	// TimePassed says only that time has passed; see [State.Next].
	TimePassed Kind = iota
	// ViewChanged: Members. All that the fleet's view has.
	ViewChanged
	// Described: Member, Free. A member says by its link what it is; lanes that have not joined yet
	// do.
	Described
	// Greeted: Agent, Holds, Free. A member says by a new link all that its lanes hold.
	Greeted
	// LanesFree: Agent, Free. A correction of when a member's lanes are free.
	LanesFree
	// LinkBroken: Agent, Gone, Why. A member is not heard any more.
	LinkBroken
	// GatewayConnected: Gateway, Client. A gateway has a new stream, by which it submits all anew.
	GatewayConnected
	// GatewayLost: Gateway. Its stream has ended.
	GatewayLost
	// Submitted: Gateway, Sequence, Attempt (how many were made), Model, BatchSize, Waited,
	// TimeLeft, Denied, RetryAfter, Tag, TagSize; and Agent, Lane where the last attempt is, if
	// it is still there.
	Submitted
	// Cancelled: Gateway, Sequence. The gateway has decided the query's outcome.
	Cancelled
	// Unused: Gateway, Sequence, Attempt, Agent, Lane. The gateway gives an attempt back: the lane
	// does not have it, or is not to be reserved for it any more.
	Unused
	// Completed: Agent, Lane, Gateway, Sequence, Attempt, Remaining, Refused; and unless it
	// was refused Model, BatchSize, Execution, Queue, Receive, Latency, Bytes. An attempt has
	// ended at a lane.
	Completed
	// Learned: Advice. The learning loop has found something out.
	Learned
	// Outdated: Models, Tables. What the learning loop has found to be gone for long.
	Outdated
)

// An Event tells a state what happened. Kind says which fields count. What it points to must not
// change afterwards.
type Event struct {
	Kind Kind

	// Gateway and Sequence name a query.
	Gateway, Sequence uint64
	// Attempt is 1 for a query's first.
	Attempt int
	// Agent and Lane, counted from 0, name a member's lane.
	Agent names.AgentName
	Lane  int
	// Model has version 0 where the query names none: the newest is meant.
	Model     ModelID
	BatchSize int
	// Waited is how long the query had waited when it was submitted, TimeLeft how long after now it
	// is dropped: 0 for never, less than 0 for at once.
	Waited, TimeLeft time.Duration
	// Denied says why the gateway's client may not ask this, and RetryAfter after how long it is
	// within its limits again, 0 if it has no right to; neither: it may.
	Denied     string
	RetryAfter time.Duration
	// Tag is the caller's own: it comes back with what is decided about the query. TagSize is how
	// many bytes it takes.
	Tag     any
	TagSize int

	// Client is the name of the gateway's client; "": it has none, or is an agent.
	Client string

	// Refused says that the lane has not run the query.
	Refused bool
	// Remaining is the time from now until the lane is free.
	Remaining time.Duration
	// Execution is how long the query ran, Queue how long it waited at the lane before, Receive how
	// long its inputs took to come in, Latency the time since it arrived at its gateway.
	Execution, Queue, Receive, Latency time.Duration
	Bytes                              uint64 // of the inputs

	Member  *Member
	Members []*Member
	// Free is by lane the time from now until it is free; lanes beyond are free now.
	Free  []time.Duration
	Holds []Held

	// Gone says that the member's process has ended.
	Gone bool
	Why  string

	Advice *Advice
	Models []ModelID
	Tables []names.TableKey
}

// query is what the matcher calls the event's query.
func (e *Event) query() match.QueryID {
	return match.QueryID{Gateway: e.Gateway, Sequence: e.Sequence}
}

// A ModelID names a version of a model.
type ModelID struct {
	Name    string
	Version int64
}

// Key is how the version is named where one string must do.
func (id ModelID) Key() names.ModelKey { return names.NewModelKey(id.Name, id.Version) }

func (id ModelID) compare(o ModelID) int {
	return cmp.Or(cmp.Compare(id.Name, o.Name), cmp.Compare(id.Version, o.Version))
}

// A Member is what an agent says that it is.
type Member struct {
	Name names.AgentName
	// Type is what its lanes are, as prices and profiles name it; OwnType the same where the
	// member's latencies depart from its type's.
	Type, OwnType names.LaneType
	Lanes         int
	Draining      bool
	// Revision counts the member's descriptions.
	Revision uint64
	Models   []Model
}

// A Model is what a member says of a version of a model that it holds.
type Model struct {
	ModelID
	// QoSTarget is the latency within which a Share of the queries, in (0, 1], should be answered.
	QoSTarget time.Duration
	Share     float64
	// Largest is the largest batch size.
	Largest int
	// RejectLate has late queries rejected.
	RejectLate bool
	// Profile is under which key its latencies on this member's lanes are learned.
	Profile profiles.Key
}

// Model is what the member says of a version of a model, nil if it does not hold it.
func (m *Member) Model(id ModelID) *Model {
	for i := range m.Models {
		if m.Models[i].ModelID == id {
			return &m.Models[i]
		}
	}
	return nil
}

// A Held is an attempt that a lane says that it has.
type Held struct {
	Gateway, Sequence uint64
	Attempt           int
	Lane              int
	Model             ModelID
	BatchSize         int
}

// A Latency is what is known of how long the queries of a model run on a type of lanes.
type Latency struct {
	names.TableKey
	Profile *profiles.Table
	// Table is of the profile, up to the model's largest batch size.
	Table *match.Table
	// Doubtful says that hardly any query has run yet.
	Doubtful bool
	// Told is the profile as others are told it.
	Told []byte
}

// Advice is what the learning loop has found out.
type Advice struct {
	Latencies []*Latency // those that are new or have changed
	// Factors is by agent its latency against its type's mean, Slow the own type of those who have
	// one; nil: as before.
	Factors map[names.AgentName]float64
	Slow    map[names.AgentName]names.LaneType
	// Limit is the fluid limit in queries/s, Prices those of the types; nil: as before.
	Limit  float64
	Prices []fluid.Price
	Priced bool // Limit is new
}
