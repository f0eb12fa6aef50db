package leader

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/accuracy"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/canary"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// heartbeat is how often a leader sends each gateway a message and checks its lanes. Chosen: a
	// gateway counts a leader as silent after three heartbeats, so 150 ms without a leader.
	heartbeat = 50 * time.Millisecond
	// settleTime is how long after taking over the leader waits for a lane to greet. After that it
	// assigns anew a query that its gateway says is at that lane. Chosen: two heartbeats.
	settleTime = 100 * time.Millisecond
	// Turmoil is how long after taking over the leader learns nothing about the way of queries,
	// because all members and gateways are connecting. Until then it uses what the former leader
	// had found. Chosen: as linkGrace, after which those that come back are there.
	Turmoil = time.Second
	// linkGrace is how long after a member's link broke the leader waits for a new one before it
	// gives the member's lanes up. Chosen: longer than the longest wait between two attempts to
	// open a link.
	linkGrace = time.Second
	// DecisionsKept is how many decisions a [Status] has at most.
	DecisionsKept = 64
)

// A Config says how a state decides.
type Config struct {
	// Self is the name of the agent that leads.
	Self names.AgentName
	// Policy is one of [match.Policies]; "" means [match.DefaultPolicy].
	Policy string
	// NewChooser, if not nil, makes a policy from outside of [match.Policies], in place of Policy.
	// A recording does not have it, so it cannot be replayed.
	NewChooser func() match.Chooser `json:"-"`
	// Seed starts the random source of the policies that have one.
	Seed uint64
	// Ahead is how long before its start the former leader decided on a query; 0 if unknown.
	Ahead time.Duration
}

// A State is the state of one term. It is not safe for concurrent use. Times are since the term
// began.
type State struct {
	cfg     Config
	now     time.Duration
	out     []Action
	event   match.Event // the matcher's last event
	matcher *match.Matcher
	next    time.Time // when the matcher wants to be stepped; zero: never
	beatAt  time.Duration

	members  map[names.AgentName]*member // members that have lanes, by name
	lanes    map[match.LaneID]*lane
	lastLane match.LaneID
	view     map[names.AgentName]*Member
	// Members whose links have broken, by when.
	broken []*member
	// Members whose process has ended, while the view still lists them.
	gone map[names.AgentName]bool

	models       map[ModelID]*heldModel
	sortedModels []*heldModel // the same, by key
	// nowhere counts the queries that failed without reaching a version.
	nowhere heldModel
	// onDisk are the models that no member holds and a member may load that does not drain. They
	// stay in models. loadable are those of them for which any query may wait: no member serves
	// them or their family.
	onDisk, loadable map[ModelID]bool
	loaders          map[ModelID][]names.AgentName // the members that could load a model
	classes          map[classKey]*demandClass
	only             [1]*heldModel // what allowed returns for a query that names a model
	// unbound counts, by family, the queries for it that failed.
	unbound map[string]*heldModel
	counts  map[string]*FamilyCount // by family; without what is known of its models
	// by model name: of the versions on lanes that do not drain, the one for queries that name none
	// and are not a canary's
	newest   map[string]int64
	releases map[string]canary.Rollout // by model name
	served   map[ModelID]bool          // versions on lanes that do not drain
	// families is, by name, the versions that answer for a family, the most accurate first.
	families map[string][]*heldModel
	// best has, by the family that they name, the best of all versions, loadableBest of those that
	// members may be told to load; "" is no family.
	best, loadableBest accuracy.Best

	gateways  map[uint64]*gateway // the connected ones, by id
	connected uint64              // how many have connected so far
	accounts  map[string]*account // of named clients with a gateway, by name
	// parked are, by agent, the queries that their gateways say are there, and that wait for its
	// greeting; parkings counts them, and parkedLast numbers them.
	parked     map[names.AgentName][]*query
	parkings   int
	parkedLast uint64
	spares     []*query // recycled queries

	prices    []fluid.Price
	unmet     map[ModelID]float64 // see Advice.Unmet
	latencies map[names.TableKey]*Latency
	// the types of agents that depart from their instance type
	slow      map[names.AgentName]names.LaneType
	factors   map[names.AgentName]float64
	limit     float64 // the fluid limit, queries/s; 0: unknown
	ahead     aheadEstimate
	aheadSet  time.Duration
	aheadMost time.Duration // as of the last change of the pool; see poolChanged

	// changedMembers are the members that are to be counted with the next change of the pool.
	// modelsStale says that what depends on the models, on which members hold them, and on the
	// releases is of before. poolMembers and poolModels are the last pool's; nobody changes them
	// any more.
	changedMembers []*member
	modelsStale    bool
	poolMembers    []PoolMember
	poolModels     []HeldModel

	ended secondsRing // queries answered and failed
	// decisions are the last ones, as a ring. The gateways of their queries are numbers.
	decisions []match.Decision
	decided   int
}

// A member is an agent that has lanes, or had some.
type member struct {
	*Member         // its last description
	lanes   []*lane // by index
	typ     names.LaneType
	holds   []*heldModel // by key
	// when its lanes are given up unless its link comes back; 0: the link is there
	lostAt time.Duration
	broken string // why its link broke
	// counted are the models of which the member counts as a holder; serves says that it also
	// counts as one that takes queries.
	counted []*heldModel
	serves  bool
	busy    secondsRing // time in use, ns
}

// A lane is one lane of a member. The matcher knows which attempts it holds.
type lane struct {
	id     match.LaneID
	member *member
	agent  names.AgentName // the member's name; a look at all lanes does not read the members
	index  int

	typ      names.LaneType
	holds    []*heldModel // by key
	draining bool
	ends     time.Duration // as the member had it when the matcher was told
}

// NewState returns the state of a new term, or what is wrong with cfg.
func NewState(cfg Config) (*State, error) {
	m, err := match.New(match.Config{
		Policy: cfg.Policy, NewChooser: cfg.NewChooser, Settle: settleTime, Seed: cfg.Seed,
	})
	if err != nil {
		return nil, err
	}
	s := &State{
		cfg: cfg, matcher: m,
		members: map[names.AgentName]*member{}, lanes: map[match.LaneID]*lane{},
		view: map[names.AgentName]*Member{}, gone: map[names.AgentName]bool{},
		models: map[ModelID]*heldModel{}, newest: map[string]int64{}, served: map[ModelID]bool{},
		parked:   map[names.AgentName][]*query{},
		gateways: map[uint64]*gateway{}, accounts: map[string]*account{},
		latencies: map[names.TableKey]*Latency{}, slow: map[names.AgentName]names.LaneType{},
		factors: map[names.AgentName]float64{}, families: map[string][]*heldModel{},
		best: accuracy.Best{}, loadableBest: accuracy.Best{},
		classes: map[classKey]*demandClass{},
		unbound: map[string]*heldModel{}, counts: map[string]*FamilyCount{},
	}
	s.ahead.fixed, s.aheadMost = cfg.Ahead, math.MaxInt64
	return s, nil
}

// Step takes an event that happened at now and returns the actions to carry out, in order. They are
// valid until the next call. If now is earlier than in the last call, that call's now holds.
func (s *State) Step(now time.Duration, e *Event) []Action {
	clear(s.out)
	s.out = s.out[:0]
	s.now = max(s.now, now)
	switch e.Kind {
	case TimePassed:
		if !s.next.IsZero() && !s.matcherTime().Before(s.next) {
			s.step(match.Event{Kind: match.TimePassed})
		}
		if s.now >= s.beatAt {
			s.beatAt = s.now + heartbeat
			s.runHeartbeat()
		}
	case ViewChanged:
		s.viewChanged(e.Members)
	case Described:
		s.describeMember(e.Member, e.Free)
	case Greeted:
		s.handleGreeting(e)
	case LanesFree:
		s.lanesFree(e)
	case LinkBroken:
		s.linkBroken(e)
	case GatewayConnected:
		s.connect(e)
	case GatewayLost:
		if g := s.gateways[e.Gateway]; g != nil {
			s.disconnectGateway(g)
		}
	case Submitted:
		if g := s.gateways[e.Gateway]; g != nil {
			s.handleSubmit(g, e)
		}
	case Cancelled:
		s.handleCancellation(e)
	case Unused:
		s.handleReturnedAttempt(e)
	case Completed:
		s.handleCompletion(e)
	case Learned:
		s.applyAdvice(e.Advice)
	case Outdated:
		s.forgetGone(e)
	case Failed:
		s.countFailures(e)
	case Released:
		s.setReleases(e.Rollouts)
	}
	return s.out
}

// Next is when to call Step with TimePassed if nothing happens before.
func (s *State) Next() time.Duration {
	if s.next.IsZero() {
		return s.beatAt
	}
	return min(s.beatAt, s.next.Sub(origin))
}

// Waiting returns how many queries wait for a lane, and how many of them are late.
func (s *State) Waiting() (all, late int) { return s.matcher.Waiting() }

// Ahead is how long before its start at a lane the state decides on a query.
func (s *State) Ahead() time.Duration { return s.aheadSet }

// SubmitWay is what the state adds to the time that a gateway says a query has waited, for the ways
// that no decision avoids.
func (s *State) SubmitWay() time.Duration { return min(s.ahead.fixed, s.aheadSet) }

// Prices are the prices of the lanes' types. The caller must not change them.
func (s *State) Prices() []fluid.Price { return s.prices }

// Latencies are the known latencies, ordered by model and type.
func (s *State) Latencies() []*Latency {
	return slices.SortedFunc(maps.Values(s.latencies),
		func(a, b *Latency) int { return a.Compare(b.TableKey) })
}

// origin is the matcher's time when a term begins.
var origin = time.Unix(0, 0)

// matcherTime is the present as the matcher's time.
func (s *State) matcherTime() time.Time { return origin.Add(s.now) }

// addAction adds an action. The returned pointer is valid until the next call.
func (s *State) addAction(kind ActionKind) *Action {
	n := len(s.out)
	s.out = slices.Grow(s.out, 1)[:n+1] // Step has cleared what is beyond the length
	s.out[n].Kind = kind
	return &s.out[n]
}

// step passes an event to the matcher and takes its decisions.
func (s *State) step(e match.Event) {
	s.event = e
	decisions, next, err := s.matcher.Step(s.matcherTime(), &s.event)
	s.next = next
	if err != nil {
		s.addAction(Nonsense).Message = string(match.AppendEvent(nil, s.now, &s.event)) + ": " +
			err.Error()
	}
	for i := range decisions {
		s.carryOut(&decisions[i])
	}
}

// carryOut turns a decision of the matcher's into actions.
func (s *State) carryOut(d *match.Decision) {
	if d.Action == match.Ask {
		s.askHolds(d)
		return
	}
	g, kept := s.gateways[d.Query.Gateway], *d
	if kept.Query.Gateway = 0; g != nil {
		kept.Query.Gateway = g.number
	}
	if len(s.decisions) < DecisionsKept {
		s.decisions = append(s.decisions, kept)
	} else {
		s.decisions[s.decided%DecisionsKept] = kept
	}
	s.decided++
	if g == nil {
		return // the gateway is gone, and its queries are forgotten
	}
	q := g.queries[d.Query.Sequence]
	switch d.Action {
	case match.Assign:
		ln, a := s.lanes[d.Lane], s.addAction(Assign)
		a.Decision, a.Agent, a.Lane = *d, ln.member.Name, ln.index
		a.Model.Name, a.Model.Version = d.Model.Split()
		if q != nil {
			a.Tag, a.BatchSize, q.attempts = q.tag, q.batch, d.Attempt
			a.Known = s.isReleased(q)
			if q.byFamily {
				q.model = s.models[a.Model]
			}
		}
	case match.Reject:
		g.removeQuery(d.Query.Sequence) // the gateway reports the failure
		if q != nil && q.isPart() {     // the whole query is refused
			g.eachPart(q.matchID().Whole().Sequence,
				func(part *query) { g.removeQuery(part.sequence) })
		}
		s.rejectQuery(q, d)
	case match.OfferAgain:
		a := s.addAction(OfferAgain)
		a.Decision = *d
		if q != nil {
			a.Tag = q.tag
		}
	case match.Split:
		s.split(g, q, d)
	}
}

// askHolds asks a member what its lanes hold, because one of them should have answered long ago.
func (s *State) askHolds(d *match.Decision) {
	ln := s.lanes[d.Lane]
	if note := LaneOverdue; d.Attempt <= 2 {
		if d.Attempt == 2 {
			note = LaneSilent
		}
		a := s.addAction(note)
		a.Agent, a.Lane, a.Duration = ln.member.Name, ln.index, d.Waited
		a.N, _ = s.matcher.Load(ln.id)
	}
	s.addAction(AskHeld).Agent = ln.member.Name
}

// runHeartbeat does the work of each heartbeat: it gives up lanes whose link did not come back,
// submits parked queries whose lanes did not greet in time, and sends the heartbeat.
func (s *State) runHeartbeat() {
	for len(s.broken) > 0 && s.now >= s.broken[0].lostAt {
		m := s.broken[0]
		s.loseMember(m, "its link broke and did not come back: "+m.broken)
	}
	if s.now >= settleTime {
		s.submitParkedFor(func(names.AgentName) bool { return true })
	}
	if len(s.gateways) > 0 {
		s.addAction(Heartbeat)
	}
	s.tuneAhead()
}

// tuneAhead tells the matcher and the members how long the way to a lane takes, if that has
// changed.
func (s *State) tuneAhead() {
	ahead, ok := s.ahead.estimateAhead()
	ahead = min(ahead, s.aheadMost)
	if diff := (ahead - s.aheadSet).Abs(); !ok || diff < 20*time.Microsecond ||
		diff*10 < s.aheadSet {
		return
	}
	s.aheadSet = ahead
	s.step(match.Event{Kind: match.AheadChanged, Ahead: ahead})
	s.addAction(TellAhead).Duration = ahead
}
