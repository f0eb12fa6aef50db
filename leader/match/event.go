package match

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A QueryID names a query: the gateway that owns it and that gateway's count.
type QueryID struct {
	Gateway  uint64
	Sequence uint64
}

// A LaneID names a lane. The caller numbers the lanes of all agents and never
// uses a number twice. Ties between lanes go to the smaller number.
type LaneID uint32

// A Kind says what happened. Beside each stand the fields of [Event] it uses.
type Kind uint8

const (
	// TimePassed says only that time has passed; the caller steps with it when
	// the matcher asked to be stepped and nothing else happened.
	TimePassed Kind = iota
	// Submitted: Query, Model, BatchSize, Waited, TimeLeft, Attempt: that of the last
	// assignment before, 0 if there was none. A query that the matcher knows already is not
	// submitted twice, unless its gateway has made attempts of which the matcher does not know: it
	// then waits anew.
	//
	// With Lane, other than 0, the gateway has sent the query to that lane already, as the given
	// attempt, by its own choice or that of another leader: the lane is reserved. Should the query
	// be cancelled, so is the reservation if the lane never spoke of it. A query that the matcher
	// knows to wait, or to be elsewhere by no later attempt, is there from now on. A lane that is
	// not there, or attempt 0, counts as none.
	Submitted
	// Cancelled: Query. Its gateway has decided the outcome; nothing more is
	// decided about it. A lane that was given it stays reserved until it
	// answers (Completed or Refused).
	Cancelled
	// Completed: Query, Attempt, Lane, Remaining. The lane has run the query, its answer is out,
	// and it is free after Remaining. That is the query's outcome if this was its live attempt;
	// that of another the gateway may not take, and says so (Cancelled) if it does.
	Completed
	// Refused: Query, Attempt, Lane, Remaining. The lane has not run the query:
	// it refused it, or stopped because the attempt was cancelled. The query waits
	// again if this was its live attempt.
	Refused
	// LaneHas: Lane, Holds, Remaining. The lane says all that it has, and when it is free.
	// What is not among it and is reserved there it never had, or has answered: that waits
	// again if it was a live attempt. Only what may still be on its way there is left alone.
	// Told again, it changes nothing.
	LaneHas
	// Unused: Query, Attempt, Lane. The query's gateway gives a reservation back: the lane does not
	// have it, or is not to be kept for it. If there is none nothing changes.
	Unused
	// GatewayLost: Query.Gateway. All queries of that gateway are cancelled.
	GatewayLost
	// LaneJoined: Lane, Agent, Type, Models, Remaining.
	LaneJoined
	// LaneLost: Lane. What it held waits again.
	LaneLost
	// LaneDraining: Lane. It finishes what it holds and gets nothing more.
	LaneDraining
	// LaneModels: Lane, Models, Type. The lane holds these models now, and is of this
	// type from now on; "": as before.
	LaneModels
	// LaneRemaining: Lane, Remaining. A correction: the lane is free after
	// Remaining, counted from now. It says nothing about what the lane holds.
	LaneRemaining
	// ProfileChanged: Model, Type, Table, Doubtful. A type that has neither profiles nor lanes nor
	// a price is forgotten.
	ProfileChanged
	// PricesChanged: Prices.
	PricesChanged
	// ModelChanged: Model, QoSTarget, BatchSize (its largest), RejectLate. The model is new,
	// or is so from now on. A profile that ends before the largest batch size is unknown again.
	ModelChanged
	// AheadChanged: Ahead. It is [Config.DispatchAhead] from now on.
	AheadChanged
	// ModelGone: Model. No lane holds it and no query asks for it; it is forgotten, and its
	// profiles.
	ModelGone
)

// An Event tells a matcher what happened. Kind says which fields count.
type Event struct {
	Kind  Kind
	Query QueryID
	// Attempt is that of the assignment spoken of; 1 for a query's first.
	Attempt int
	Model   names.ModelKey
	// BatchSize is in 1..the model's largest batch size; anything else is rejected.
	BatchSize int
	// QoSTarget and RejectLate are those of [Model].
	QoSTarget  time.Duration
	RejectLate bool
	// Waited is how long the query had waited when it was submitted, and TimeLeft how
	// long after now it is dropped (its deadline); 0: never.
	Waited, TimeLeft time.Duration

	Lane  LaneID
	Agent names.AgentName // whose lane it is, for the record
	Type  names.LaneType
	// Models are those the lane can run. The matcher copies the slice.
	Models []names.ModelKey
	// Remaining is the time from now until the lane is free, >= 0.
	Remaining time.Duration
	// Ahead is >= 0.
	Ahead time.Duration

	// Table is the latency of Model on Type; nil: unknown again. It must not
	// change afterwards.
	Table *Table
	// Doubtful says that hardly any query has run yet: a lane is not soon overdue.
	Doubtful bool
	// Holds must not change afterwards.
	Holds []Held
	// Prices must not change afterwards; nil: none known.
	Prices []fluid.Price
}

// A Held is an attempt that a lane says that it has. Of the query itself nothing is known but by
// Submitted.
type Held struct {
	Query     QueryID
	Attempt   int
	Model     names.ModelKey
	BatchSize int
}
