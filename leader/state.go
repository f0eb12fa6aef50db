package leader

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// heartbeat is how often a leader says something to each gateway, and looks after its lanes.
	heartbeat = 50 * time.Millisecond
	// settleTime is how long after taking over the leader waits for a lane to greet
	// before it gives away a query that is said to be there.
	settleTime = 100 * time.Millisecond
	// Turmoil is how long after taking over nothing is learned of how long a query's way is:
	// everybody is connecting. What the former leader has found holds until then.
	Turmoil = time.Second
	// linkGrace is how long a broken link may take to come back before the lanes are lost.
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
	// Threshold is the batch size above which drs sends a query to the base type.
	// Only drs reads it.
	Threshold int `json:",omitempty"`
	// Seed starts the random source of the policies that have one.
	Seed uint64
	// Ahead is what the former leader has found of how long before its start a query is to be
	// decided on; 0: nothing.
	Ahead time.Duration
}

// A State is one term's. It is not safe for concurrent use. Times are since the term began.
type State struct {
	cfg     Config
	now     time.Duration
	out     []Action
	event   match.Event // of the matcher's last step
	matcher *match.Matcher
	next    time.Time // when the matcher wants to be stepped; zero: never
	beatAt  time.Duration

	members  map[names.AgentName]*member // that have lanes
	lanes    map[match.LaneID]*lane
	lastLane match.LaneID
	view     map[names.AgentName]*Member
	// members whose process is gone, and the view does not say so yet
	gone map[names.AgentName]bool

	models map[ModelID]*model
	newest map[string]int64 // version by name, of those on lanes that do not drain
	served map[ModelID]bool // on such lanes

	gateways map[uint64]*gateway // those connected
	accounts map[string]*account // of the clients with a name that have gateways
	parked   []*query
	spares   []*query // recycled

	prices    []fluid.Price
	latencies map[names.TableKey]*Latency
	slow      map[names.AgentName]names.LaneType // the own type of those who have one, by agent
	factors   map[names.AgentName]float64
	limit     float64 // fluid
	ahead     aheadEstimate
	aheadSet  time.Duration
	aheadMost time.Duration // as of the last change of the pool

	arrived   ring
	decisions []match.Decision // the last, as a ring
	decided   int
}

// A member that has lanes, or had some.
type member struct {
	*Member // as it last described itself
	lanes   []*lane
	typ     names.LaneType
	holds   []*model      // by key
	lostAt  time.Duration // when to give its lanes up, unless its link comes back; 0: it is there
	broken  string        // why its link broke
	busy    ring          // ns
}

// A lane of a member's; what it holds the matcher knows.
type lane struct {
	id     match.LaneID
	member *member
	index  int
}

// New returns the state of a term that begins.
func New(cfg Config) (*State, error) {
	m, err := match.New(match.Config{
		Policy: cfg.Policy, Threshold: cfg.Threshold, Settle: settleTime, Seed: cfg.Seed,
	})
	if err != nil {
		return nil, err
	}
	s := &State{
		cfg: cfg, matcher: m,
		members: map[names.AgentName]*member{}, lanes: map[match.LaneID]*lane{},
		view: map[names.AgentName]*Member{}, gone: map[names.AgentName]bool{},
		models: map[ModelID]*model{}, newest: map[string]int64{}, served: map[ModelID]bool{},
		gateways: map[uint64]*gateway{}, accounts: map[string]*account{},
		latencies: map[names.TableKey]*Latency{}, slow: map[names.AgentName]names.LaneType{},
		factors: map[names.AgentName]float64{},
	}
	s.ahead.fixed, s.aheadMost = cfg.Ahead, math.MaxInt64
	return s, nil
}

// Step takes what happened at now and returns what to do about it, in order. The actions are valid
// until the next call. An earlier now counts as the latest one seen.
func (s *State) Step(now time.Duration, e *Event) []Action {
	clear(s.out)
	s.out = s.out[:0]
	s.now = max(s.now, now)
	switch e.Kind {
	case TimePassed:
		if !s.next.IsZero() && !s.at().Before(s.next) {
			s.step(match.Event{Kind: match.TimePassed})
		}
		if s.now >= s.beatAt {
			s.beatAt = s.now + heartbeat
			s.beat()
		}
	case ViewChanged:
		s.viewChanged(e.Members)
	case Described:
		s.describe(e.Member, e.Free)
	case Greeted:
		s.greeted(e)
	case LanesFree:
		s.lanesFree(e)
	case LinkBroken:
		s.linkBroken(e)
	case GatewayConnected:
		s.connect(e)
	case GatewayLost:
		if g := s.gateways[e.Gateway]; g != nil {
			s.disconnect(g)
		}
	case Submitted:
		if g := s.gateways[e.Gateway]; g != nil {
			s.submitted(g, e)
		}
	case Cancelled:
		s.cancelled(e)
	case Unused:
		s.unused(e)
	case Completed:
		s.completed(e)
	case Learned:
		s.learned(e.Advice)
	case Outdated:
		s.outdated(e)
	}
	return s.out
}

// Next is when the state wants to be stepped, with TimePassed, if nothing happens before.
func (s *State) Next() time.Duration {
	if s.next.IsZero() {
		return s.beatAt
	}
	return min(s.beatAt, s.next.Sub(origin))
}

// Waiting returns how many queries wait for a lane, and how many of them are late.
func (s *State) Waiting() (all, late int) { return s.matcher.Waiting() }

// Ahead is how long before its start at a lane a query is decided on.
func (s *State) Ahead() time.Duration { return s.aheadSet }

// Prices are those of the types of lanes. They must not be changed.
func (s *State) Prices() []fluid.Price { return s.prices }

// Latencies are those known, by model and type.
func (s *State) Latencies() []*Latency {
	return slices.SortedFunc(maps.Values(s.latencies),
		func(a, b *Latency) int { return a.Compare(b.TableKey) })
}

// origin is when a term begins, to the matcher.
var origin = time.Unix(0, 0)

// at is the present time to the matcher.
func (s *State) at() time.Time { return origin.Add(s.now) }

// act adds an action; what it returns is valid until the next.
func (s *State) act(kind ActionKind) *Action {
	s.out = append(s.out, Action{Kind: kind})
	return &s.out[len(s.out)-1]
}

// step steps the matcher and takes what it decides.
func (s *State) step(e match.Event) {
	s.event = e
	decisions, next, err := s.matcher.Step(s.at(), &s.event)
	s.next = next
	if err != nil {
		s.act(Nonsense).Message = string(match.AppendEvent(nil, s.now, &s.event)) + ": " +
			err.Error()
	}
	for i := range decisions {
		s.take(&decisions[i])
	}
}

// take has a decision of the matcher's carried out.
func (s *State) take(d *match.Decision) {
	if d.Action == match.Ask {
		s.ask(d)
		return
	}
	if len(s.decisions) < DecisionsKept {
		s.decisions = append(s.decisions, *d)
	} else {
		s.decisions[s.decided%DecisionsKept] = *d
	}
	s.decided++
	g := s.gateways[d.Query.Gateway]
	if g == nil {
		return // its queries have been forgotten
	}
	q := g.queries[d.Query.Sequence]
	switch d.Action {
	case match.Assign:
		ln, a := s.lanes[d.Lane], s.act(Assign)
		a.Decision, a.Agent, a.Lane = *d, ln.member.Name, ln.index
		if q != nil {
			a.Tag, q.attempts = q.tag, d.Attempt
			if q.model != nil {
				a.Model = q.model.ModelID
			}
		}
	case match.Reject:
		g.forget(d.Query.Sequence)
		if q != nil && q.model != nil {
			q.model.count(s.now, tally{refused: 1})
		}
		s.reject(q, d)
	case match.OfferAgain:
		a := s.act(OfferAgain)
		a.Decision = *d
		if q != nil {
			a.Tag = q.tag
		}
	}
}

// ask has a member asked what its lanes hold, for one should have answered long ago.
func (s *State) ask(d *match.Decision) {
	ln := s.lanes[d.Lane]
	if note := LaneOverdue; d.Attempt <= 2 {
		if d.Attempt == 2 {
			note = LaneSilent
		}
		a := s.act(note)
		a.Agent, a.Lane, a.Duration = ln.member.Name, ln.index, d.Waited
		a.N, _ = s.matcher.Load(ln.id)
	}
	s.act(AskHeld).Agent = ln.member.Name
}

// beat does what is due now and then.
func (s *State) beat() {
	var lost []*member
	for _, m := range s.members {
		if m.lostAt > 0 && s.now >= m.lostAt {
			lost = append(lost, m)
		}
	}
	slices.SortFunc(lost, func(a, b *member) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range lost {
		s.lose(m, "its link has not come back, which broke: "+m.broken)
	}
	if s.now >= settleTime {
		s.unpark(func(*query) bool { return true })
	}
	s.act(Heartbeat)
	s.tuneAhead()
}

// mostAhead bounds what is learned of the way to a lane: a quarter of the shortest QoS target of
// the models that lanes hold. A longer way, be it real or one of starved processes, is not hidden:
// to decide that early leaves no query in time.
func (s *State) mostAhead() time.Duration {
	most := time.Duration(math.MaxInt64)
	for _, m := range s.members {
		for _, held := range m.holds {
			most = min(most, held.target/4)
		}
	}
	return most
}

// tuneAhead tells the matcher how long the way to a lane takes, when that has changed.
func (s *State) tuneAhead() {
	ahead, ok := s.ahead.value()
	ahead = min(ahead, s.aheadMost)
	if diff := (ahead - s.aheadSet).Abs(); !ok || diff < 20*time.Microsecond ||
		diff*10 < s.aheadSet {
		return
	}
	s.aheadSet = ahead
	s.step(match.Event{Kind: match.AheadChanged, Ahead: ahead})
	s.act(TellAhead).Duration = ahead
}
