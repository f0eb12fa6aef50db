package match

import (
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
)

// A QueryID names a query: by the gateway that owns it, and its number there.
type QueryID struct {
	Gateway  uint64
	Sequence uint64
}

// A LaneID names a lane. The caller numbers the lanes of all agents and never
// uses a number twice. Ties between lanes go to the smaller number.
type LaneID uint32

// An EventKind says what happened. The comment of each kind lists the fields of [Event] that
// it uses.
type EventKind uint8

const (
	// TimePassed says only that time has passed; the caller steps with it when
	// the matcher asked to be stepped and nothing else happened.
	TimePassed EventKind = iota
	// Submitted: Query, Model, LeastAccuracy, BatchSize, Rows, Once, Waited, TimeLeft, Attempt, Splits,
	// Band, Tenant, Weight. Model is a model or a family. Attempt is the number of the query's last
	// assignment, 0 if there was none. A second submit of a query that the matcher knows is ignored,
	// unless its gateway has made attempts that the matcher does not know; then the query waits anew.
	// Splits says that the gateway can split queries and join their parts' answers. Its queries then
	// have numbers that are multiples of 4; the other numbers are those of parts. A query that is
	// submitted with attempts while the matcher knows parts of it replaces them, because the gateway
	// has sent the whole query itself; without attempts it is ignored.  If Lane is not 0, the gateway
	// has already sent the query to that lane as the given attempt, by its own choice or by that of
	// another leader. The matcher then reserves the lane. If the query is cancelled, the reservation is
	// dropped too, unless the lane has confirmed it. A query that the matcher believes to wait, or to
	// be elsewhere by an attempt that is not later, counts as being at Lane from now on. An unknown
	// lane, or attempt 0, counts as no Lane.
	Submitted
	// Cancelled: Query. The query's gateway has decided its outcome, so the matcher decides nothing
	// more about it, nor about its parts. A lane that was given the query stays reserved until it
	// answers (Completed or Refused).
	Cancelled
	// Completed: Query, Attempt, Lane, Remaining. The lane has run the query, its answer is out,
	// and it is free after Remaining. If this was the query's live attempt, that is its outcome. If
	// not, the gateway may still take the answer, and then says so with Cancelled.
	Completed
	// Refused: Query, Attempt, Lane, Remaining. The lane has not run the query: it refused it, or
	// the attempt was cancelled. If this was the query's live attempt, the query waits again.
	Refused
	// LaneHas: Lane, Holds, Remaining. The lane reports all attempts that it holds, and when it is
	// free. A reserved attempt that is not among them never came, or has been answered: its query
	// waits again if it was the live attempt. The matcher keeps an attempt that may still be on its
	// way. The same report a second time changes nothing.
	LaneHas
	// Unused: Query, Attempt, Lane. The query's gateway gives a reservation back, because the lane
	// does not hold the attempt or need not be kept for it. Without such a reservation the event is
	// ignored.
	Unused
	// GatewayLost: Query.Gateway. All queries of that gateway are cancelled.
	GatewayLost
	// LaneJoined: Lane, Agent, Type, Models, Remaining.
	LaneJoined
	// LaneLost: Lane. The queries that the lane held wait again.
	LaneLost
	// LaneDraining: Lane. The lane finishes the attempts that it holds and gets no more.
	LaneDraining
	// LaneModels: Lane, Models, Type. The lane holds these models and is of this type from now on;
	// an empty Type means: as before.
	LaneModels
	// LaneRemaining: Lane, Remaining. A correction: the lane is free after Remaining, counted from
	// now. The event says nothing about the attempts that the lane holds.
	LaneRemaining
	// ProfileChanged: Model, Type, Table, Doubtful, More. A type that has neither profiles nor
	// lanes nor a price is forgotten.
	ProfileChanged
	// PricesChanged: Prices.
	PricesChanged
	// ModelChanged: Model, Family, Accuracy, QoSTarget, BatchSize (the model's largest),
	// RejectLate, Splits, Merge. The model is new, or has these settings from now on. The matcher
	// forgets profiles of it that end before the largest batch size.
	ModelChanged
	// AheadChanged: Ahead. [Config.DispatchAhead] is Ahead from now on.
	AheadChanged
	// LaneEnds: Lane, Remaining. The lane's machine is taken after Remaining, counted from now, so
	// the lane gets no query any more that would then still run; Remaining 0: it is not taken.
	LaneEnds
	// ModelGone: Model. No lane holds the model and no query asks for it. The matcher forgets it
	// and its profiles.
	ModelGone
)

// An Event tells a matcher what happened. Kind says which fields count.
type Event struct {
	Kind  EventKind
	Query QueryID
	// Attempt is the number of the assignment; 1 for a query's first.
	Attempt int
	Model   names.ModelKey
	// Family and Accuracy are those of [Model].
	Family   names.ModelKey
	Accuracy float64
	// LeastAccuracy is the least accuracy of the variants that may answer the query, in [0, 1]; 0
	// means that any may. A query that names a model is answered by that model, which must be as
	// accurate.
	LeastAccuracy float64
	// Band is the query's priority, 1 for the highest; 0 means [DefaultBand], and one above
	// [MaxBand] counts as that. Tenant is who asks, and Weight the share of the lanes' time that the
	// tenant gets beside others of the band, in proportion to theirs; one that is not above 0
	// counts as 1.
	Band   int
	Tenant string
	Weight float64
	// BatchSize must be in 1..the model's largest batch size; a query with another is rejected.
	BatchSize int
	// Rows is the number of rows of a query that takes as long as one of BatchSize rows, because of
	// its users and values: Rows <= BatchSize. The model's largest batch size then bounds the rows,
	// and a larger BatchSize counts as that. Once is the part of BatchSize that each part of the
	// query has again, if it is split: 0 <= Once < BatchSize. Rows 0: as many as BatchSize.
	Rows, Once int
	// QoSTarget and RejectLate are those of [Model]; so is Splits with ModelChanged.
	QoSTarget  time.Duration
	RejectLate bool
	Splits     bool
	// Merge is that of [Model].
	Merge Merge
	// Waited is how long the query had waited when it was submitted, and TimeLeft how
	// long after now it is dropped (its deadline); 0: never.
	Waited, TimeLeft time.Duration

	Lane  LaneID
	Agent names.AgentName // the lane's agent, for recordings
	Type  names.LaneType
	// Models are the models that the lane holds. The matcher copies the slice.
	Models []names.ModelKey
	// Remaining is the time from now until the lane is free, >= 0.
	Remaining time.Duration
	// Ahead is the new [Config.DispatchAhead], >= 0.
	Ahead time.Duration

	// Table is the latency of Model on Type; nil means that it is unknown again. The matcher keeps
	// it: the caller must not change it afterwards.
	Table *LatencyTable
	// More says that another ProfileChanged follows at once, so that the matcher takes all in
	// together, with the last one or with the next event of another kind.
	More bool
	// Doubtful says that hardly any query has run yet, so a lane gets longer before it counts as
	// overdue.
	Doubtful bool
	// Holds are the attempts that the lane holds. The caller must not change the slice afterwards.
	Holds []Held
	// Prices are the types' prices; nil means that none are known. The caller must not change the
	// slice afterwards.
	Prices []fluid.Price
}

// A Held is an attempt that a lane holds, as the lane reports it. The matcher learns of the query
// itself only by Submitted.
type Held struct {
	Query     QueryID
	Attempt   int
	Model     names.ModelKey
	BatchSize int
}

// modelSettings is the model that a ModelChanged describes.
func (e *Event) modelSettings() Model {
	return Model{
		e.Model, e.Family, e.Accuracy, e.QoSTarget, e.BatchSize, e.RejectLate, e.Splits, e.Merge,
	}
}
