package rent

import (
	"time"

	"github.com/muster-serve/muster/profiles"
)

// An Agent is a member of the fleet, as gossip and its description say.
type Agent struct {
	Name     string
	Type     profiles.InstanceType
	Instance string // the provider's name of its machine, "" where it has none
	// Slot is that of its machine's tag; nil: the machine was not rented by this fleet, or does
	// not say.
	Slot     *Slot
	Ready    bool // its models are loaded and warm
	Draining bool
	// Ends is how long the provider leaves the machine; 0: for good.
	Ends   time.Duration
	Risky  bool    // the provider advises to leave it
	Load   float64 // share of its lanes' time in use
	Factor float64 // its latency against its type's; 0: unknown
	Leads  bool
	Keeper bool // it can rent, and is never returned
}

// Desired is what the fleet is to become.
type Desired struct {
	Version uint64
	// Counts are of rented instances. Agents on machines that were not rented serve beside them.
	Counts map[Kind]int
	// By is the fleet's identity, which launched instances carry.
	By string
}

// Seen is what a step goes by.
type Seen struct {
	// Now is the time since any fixed moment.
	Now       time.Duration
	Instances []Instance
	// ListAge is how long ago the provider gave Instances.
	ListAge time.Duration
	Agents  []Agent
	Desired Desired
	// Prices in $/hr of the kinds that may be launched, where they are dearest.
	Prices map[Kind]float64
	// Template is what new instances are launched from; "" where that does not matter.
	Template string
	// Serves is the rate that so many agents can serve, in queries/s; it must not fall with more.
	Serves func(map[profiles.InstanceType]int) float64
	// Needed is the rate that must be served while the fleet changes, for NeededFor at least.
	Needed    float64
	NeededFor time.Duration
	Majority  bool   // the leader sees most of those that may lead
	Paused    string // why nothing may be done; "": it may
	NoReturns string // why nothing that serves may be returned now; "": it may
}

// A Policy bounds what a Renter does. All durations and counts must be above 0.
type Policy struct {
	// MaxPrice is the most that everything which is paid for costs, in $/hr, however short a time.
	MaxPrice float64
	// Settle is how long a new Renter watches before it acts, at least as long as the provider's
	// list may lack a new instance.
	Settle time.Duration
	// Stale is the age from which a list counts as unknown.
	Stale time.Duration
	// JoinTimeout is how long an instance's agent may take to join; Lost is how long one that had
	// joined may be away.
	JoinTimeout, Lost time.Duration
	// DrainTimeout is how long a drain may take before the instance is returned nevertheless.
	DrainTimeout time.Duration
	// Notice is how long before the provider takes an instance it is drained.
	Notice time.Duration
	// Forget is how long an instance that was launched, or may have been, counts unlisted.
	Forget time.Duration
	// A kind of which the provider has none is left alone for Shortage, twice as long each time, up
	// to MaxShortage; one whose quota is used up for Quota; all of them after a refusal or another
	// error for Backoff, twice as long each time, up to Denied after a refusal and else to MaxBackoff.
	// Most refusals stay until a person acts, but some are gone in a second: an API server that has
	// just started knows no rights yet.
	Shortage, MaxShortage, Quota, Denied, Backoff, MaxBackoff time.Duration
	// Launches are how many instances may start at once, Drains how many of those that serve may be
	// drained at once: a share of all, but one at least.
	Launches int
	Drains   float64
	// Min is how many agents must go on serving.
	Min int
}

// DefaultPolicy is the policy of fleet.yaml without any line on it, and without a price limit.
func DefaultPolicy() Policy {
	return Policy{
		Settle: time.Minute, Stale: 90 * time.Second,
		JoinTimeout: 6 * time.Minute, Lost: 5 * time.Minute, DrainTimeout: 5 * time.Minute,
		Notice: 15 * time.Second, Forget: 2 * time.Minute,
		Shortage: 3 * time.Minute, MaxShortage: 30 * time.Minute, Quota: time.Hour,
		Denied: 10 * time.Minute, Backoff: 30 * time.Second, MaxBackoff: 5 * time.Minute,
		Launches: 8, Drains: 0.1, Min: 1,
	}
}

// An ActionKind is what to do.
type ActionKind uint8

const (
	Launch ActionKind = iota // Slot
	Drain                    // Mark ID with the provider, then have Agent drain
	Return                   // end ID
)

func (k ActionKind) String() string { return [...]string{"launch", "drain", "return"}[k] }

// An Action is one thing to do. Doing it twice is the same as once.
type Action struct {
	Kind  ActionKind
	Slot  Slot
	ID    string   // of Drain and Return
	Agent string   // of Drain
	Avoid []string // of Launch: zones to take last
	Why   string
}

// A Held is something that is wished for and not done.
type Held struct {
	What   string // in words: "r5n.large: 2 fewer are desired"
	Reason Reason
	Why    string        // in words
	For    time.Duration // at least so long; 0: unknown
}

// A Reason is why something is not done.
type Reason string

// The reasons.
const (
	NoMajority Reason = "majority"   // the leader does not see most of those that may lead
	Settling   Reason = "settling"   // the leader is new
	NoList     Reason = "list"       // the provider has not listed its machines yet
	Paused     Reason = "paused"     // a person wants it so, or the mode
	TwoFleets  Reason = "two-fleets" // another fleet has the same name
	PriceLimit Reason = "price"      // the limit would be passed
	NoPrice    Reason = "no-price"   // a price is not known
	Short      Reason = "short"      // the provider has none, or gives none
	Refused    Reason = "refused"    // the provider refuses or does not answer
	Busy       Reason = "busy"       // enough are starting or draining
	NewFirst   Reason = "new-first"  // what replaces it does not serve yet
	Needed     Reason = "needed"     // without it too little would be served
	Window     Reason = "window"     // not at this time of the day
)

// A Failure is what a launch that gave no instance ended with.
type Failure uint8

const (
	Unknown Failure = iota // it may have been launched
	IsShort                // the provider has none
	OverQuota
	Denied
	Throttled
	Spent // the slot's instance has ended
)

// A Phase is where an instance is on its way.
type Phase uint8

const (
	Asked    Phase = iota // launched by this Renter, not listed yet
	Starting              // its agent has not joined
	Warming               // its agent loads models
	Serving
	Missing  // its agent has been away for less than Policy.Lost
	Leaving  // it serves, and the provider will take it
	Draining // takes no more queries
	Drained  // its agent has left after a drain
	Lost     // its agent did not join, or has been away for long
	Ended    // it is not paid for any more
)

func (p Phase) String() string {
	return [...]string{"asked", "starting", "warming", "serving", "missing", "leaving", "draining",
		"drained", "lost", "ended"}[p]
}

// A Machine is an instance with its agent.
type Machine struct {
	Instance
	Agent *Agent // nil: not there
	Phase Phase
	Why   string // of Lost
}

// A Lack is a kind that is left alone for a while.
type Lack struct {
	Kind Kind
	Why  string
	For  time.Duration
}

// A Step is what comes of Renter.Step.
type Step struct {
	Actions  []Action
	Held     []Held
	Machines []Machine // the fleet's machines, ordered by slot, without those that have ended
	Foreign  []Agent   // that serve and were not rented by this fleet
	// Price is the sum of the prices of all machines that are paid for, in $/hr.
	Price float64
	// Events tell of what has changed without this Renter doing it.
	Events []string
	// Exact: the fleet is as desired, and all of it serves.
	Exact bool
	// Next is in how long the next step is due.
	Next time.Duration
}
