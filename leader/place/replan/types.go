package replan

import (
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/profiles"
)

// A Snapshot is what the leader knows of its fleet. The replanner keeps the maps Latencies and
// Layouts, and what Sizes, Available and the layouts point to: the caller must not change these
// afterwards, but hand new ones to a later step.
type Snapshot struct {
	Agents   []Agent   // by name; an agent that is not listed is lost
	Families []Family  // by name; a model that is in no family is one of its own
	Variants []Variant // by model; all that some agent holds or could load
	// Latencies are what is known now, by model and type of lanes; what is absent cannot run. The
	// type of a partition's lanes is [place.Layout.LaneType] of the agent's Type.
	Latencies map[names.TableKey]Latencies
	// Layouts are layouts to choose from beside those of one model on all of an agent's lanes and
	// those that agents hold, by the agents' type; most often of two models side by side.
	Layouts map[names.LaneType][]place.Layout
}

// Latencies are mean execution latencies by batch size.
type Latencies interface {
	Mean(batchSize int) time.Duration
}

// An Agent is what is known of an agent with lanes.
type Agent struct {
	Name names.AgentName
	// Type is its lanes' type as prices and profiles know it, its own if its latencies depart from
	// its type's.
	Type names.LaneType
	// Lanes and Cores are those of its own settings: lanes, and cores of all together.
	Lanes, Cores int
	// Memory is the space for models at the agent, those that it holds included, in bytes; 0:
	// unknown, and everything fits.
	Memory int64
	// Available are the models that it has on disk or holds.
	Available []names.ModelKey
	// Held is what its lanes that do not drain hold now.
	Held place.Layout
	// Taken is the stamp of the last layout that it took, from any leader; State how far it is.
	Taken place.Stamp
	State ChangeState
	// With Failed: Why, and the models whose load failed; none: all that it would have loaded.
	Why    string
	Failed []names.ModelKey
	// Fixed says that the agent always holds what its settings say, and is never asked to change.
	Fixed bool
	// Draining says that it leaves: its lanes count no more, and it is not asked to change.
	Draining bool
}

// A ChangeState is how far an agent is on the way to the last layout that it took.
type ChangeState uint8

const (
	// Settled: the agent holds the layout that it took last, or never took one.
	Settled ChangeState = iota
	// Changing: it loads or drains.
	Changing
	// Failed: it could not reach what it took, and holds what it held before.
	Failed
)

// A Family is what is known of a family's queries. Arrived and Late count since the term began.
type Family struct {
	Name      string
	QoSTarget time.Duration
	// Sizes is the distribution of its batch sizes; nil if no query has been seen.
	Sizes profiles.Distribution
	// Arrived is all queries for the family or one of its variants; Ended those that were answered,
	// or failed not by their clients' doing; Late those of Ended that were answered late or failed.
	Arrived, Ended, Late uint64
	// WaitingLate is how many wait for a lane and are late.
	WaitingLate int
	// Classes are parts of Arrived that only some of the variants may answer.
	Classes []Class
}

// A Class is queries that only some of a family's variants may answer, of clients with the right to
// have models loaded for that.
type Class struct {
	Models []names.ModelKey // that may answer
	// Share is the share of the agents, in (0, 1], that may be planned for; at least one may.
	Share   float64
	Arrived uint64
}

// key is the name under which the queries of a class are counted; no family has it.
func (c *Class) key(family string) string {
	return family + " by " + strings.Join(names.Strings(c.Models), " ")
}

// A Variant is a model that can answer for a family.
type Variant struct {
	Model    names.ModelKey
	Family   string
	Accuracy float64 // in (0, 1]; 0: unknown, which counts as 1
	Bytes    int64   // that it takes in an agent's memory
	// Merges says that lanes run several waiting queries as one, of up to Largest items.
	Merges  bool
	Largest int
	Load    time.Duration // to load and warm it, as last measured; 0: unknown
}

// An Answer is what a step decides. The caller carries all of it out; what it shares with the
// replanner it must not change.
type Answer struct {
	// Placement is what the agents should hold; nil before the first. It is new if Changed.
	Placement *place.Placement
	Changed   bool
	// Solve, if not nil, is to be solved beside the leader's loop, by [Problem.Solve]; its plan is
	// for [Replanner.Solved]. A step asks for no second one before that, unless the first is stale.
	Solve *Problem
	// Moves are the changes that may begin now; the caller sends each to its agent. Later steps
	// answer a move again until the agent's Taken has it, so a lost one is sent again.
	Moves []Move
	// Waits are the agents that should hold something else and may not begin yet.
	Waits []Wait
	// Events are for logs and people.
	Events []Event
	// Remember says that [Replanner.Memory] has changed and is to be kept.
	Remember bool
	// Next is when to step next at the latest.
	Next time.Time
}

// A Move brings an agent to a layout.
type Move struct {
	Agent  names.AgentName
	Layout place.Layout
	Stamp  place.Stamp
	// DrainFirst says that what it holds and what it is to load do not fit together: the agent
	// drains and unloads what Layout does not have before it loads.
	DrainFirst bool
	Why        string
}

// A Wait is a change that may not begin yet.
type Wait struct {
	Agent  names.AgentName
	Layout place.Layout // wanted
	Why    string
}

// An EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	Planned   EventKind = "placement"   // a new placement; Version
	Unserved  EventKind = "unserved"    // no placement serves all of a family's demand; Family
	Unplaced  EventKind = "not_placed"  // no agent can hold a family or a variant
	Slower    EventKind = "slower"      // a model is slower than what the placement assumes
	LoadFails EventKind = "load_failed" // a load failed; the model is barred on the agent
	// a placement made more queries late; Version is the new one
	Undone    EventKind = "placement_undone"
	Stuck     EventKind = "change_stuck" // an agent cannot go where it should
	Commanded EventKind = "placement_command"
)

// An Event is something to tell.
type Event struct {
	Kind    EventKind
	Agent   names.AgentName // or ""
	Family  string          // or ""
	Model   names.ModelKey  // or ""
	Version uint64          // of the placement that it is about
	Text    string          // a sentence with all of it
}

// A Memory is what outlives a leader: the caller keeps it on disk and in introductions, and hands
// the newest to the next leader's [New].
type Memory struct {
	// Placements are the last ones, the newest last; at most [MemorySize].
	Placements []place.Placement `json:"placements"`
	Paused     bool              `json:"paused,omitempty"`
	// RolledBack says that it is paused at a placement that an operator has gone back to, and that
	// agents still go there.
	RolledBack bool                `json:"rolled_back,omitempty"`
	Pins       []place.AgentLayout `json:"pins,omitempty"` // by agent
}

// MemorySize is how many placements are remembered, and can be gone back to.
const MemorySize = 16

// A Command is what an operator asks for.
type Command struct {
	Verb    Verb
	Agent   names.AgentName // Pin, Unpin
	Layout  place.Layout    // Pin
	Version uint64          // Rollback
	By      string          // who asks, for the event
}

// A Verb is what a Command does.
type Verb uint8

const (
	// Pause: no placement is made until Resume; what has not begun to change waits.
	Pause Verb = iota
	Resume
	// Pin: an agent holds a layout whatever the plan.
	Pin
	Unpin
	// Rollback: the agents hold again what a remembered placement said, as a new version; and
	// placements are paused until Resume, so that the plan does not come back at once.
	Rollback
)

// A Config says how a replanner decides. The zero value of a field means its default.
type Config struct {
	// Epoch is the leader's.
	Epoch uint64
	// Period is the time between two plans, 10 s; Burst the least time between plans for bursts,
	// 2 s.
	Period, Burst time.Duration
	// Settle is how long a new leader changes nothing, 20 s, unless the demand of 10 s is known
	// before.
	Settle time.Duration
	// Headroom is how many times the likely demand of the last Window, 20 s, is planned for,
	// [staffing.PlacingHeadroom].
	Headroom float64
	Window   time.Duration
	// Bar is how long an agent is not asked for a model whose load failed there, 10 min.
	Bar time.Duration
	// Steps are those of [place.Solve]; [place.DefaultSteps].
	Steps int
	Seed  uint64
}
