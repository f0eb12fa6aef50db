// Package inquire decides where queries go at a gateway that has no leader: it asks lanes when they
// would finish a query, and sends the query to the cheapest that can serve it in time.
package inquire

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
)

const (
	// DefaultProbes is how many lanes a gateway without a leader compares for one query (the power
	// of d choices; Mitzenmacher, IEEE TPDS 12, 2001). It asks at most so many at a time, and at
	// most twice as many in all. Chosen: beyond two, each further choice gains little, and some do
	// not answer.
	DefaultProbes = 4

	// A lane has answerTimeout, or three usual round trips if that is longer, to answer. A lane
	// that is asked alone has soonTimeout, because others can still be asked after it. Once one
	// lane can serve the query in time, the others have two of that lane's round trips, but at
	// least minTimeout.
	answerTimeout = 20 * time.Millisecond
	soonTimeout   = 5 * time.Millisecond
	minTimeout    = time.Millisecond
	// avoidTime is how long a lane that did not answer is asked only if there are no others. The
	// time ends early if the lane answers.
	avoidTime = time.Second
	// askAgain is about how long a query that no lane takes waits before lanes are asked again.
	askAgain = 20 * time.Millisecond
)

// A State decides where queries go at a gateway that has no leader. It asks the lanes that a
// [match.PricedLanes] ranks best when they would finish the query, and sends the query to the
// cheapest lane that can serve it in time. An answer reserves the lane for a while; lanes that are
// not chosen are released. Gossip alone is too old for this: gateways that chose by state a second
// old would all choose the same lanes.
//
// Like a [match.Matcher] it is a pure state machine. Events are method calls, each with its
// time. After each call the caller takes actions from [State.Next] until there is none, and it
// calls [State.Pass] at [State.Wake].
//
// An inquiry ends with one SendQuery or NoLane. Within it no lane is asked twice. Each reservation
// that it asks for ends with a SendQuery, a ReleaseLane, or [State.Lost] of its lane.
//
// It is not safe for concurrent use.
type State struct {
	known  *match.PricedLanes // nil: no lane is known
	probes int
	rng    *rand.Rand

	inquiries []*inquiry          // in the order they began
	questions map[uint64]*inquiry // questions without an answer, by id
	unused    []*inquiry
	avoided   map[match.LaneID]silence
	lastID    uint64
	roundTrip time.Duration // the usual round trip of a question

	actions []Action
	taken   int // actions that Next has returned

	asked, unanswered uint64
}

// An ActionKind says what the caller is to do.
type ActionKind uint8

const (
	// AskLane: ask Lane when it would finish Query with Model. ID names the question, and the
	// reservation that the answer brings.
	AskLane ActionKind = iota
	// ReleaseLane: free Lane's reservation ID, for the query goes elsewhere.
	ReleaseLane
	// SendQuery: send Query to Lane, which has reserved itself under ID, to run Model. With a
	// certainty of 90 % the answer comes within Finish from now.
	SendQuery
	// NoLane: no lane takes Query now; Asked lanes were asked. The caller begins a new inquiry at
	// Again.
	NoLane
	// LaneAnswered and LaneSilent need no action; they are for traces and tests. LaneAnswered: Lane
	// would finish Query in Finish from now; a negative Finish means that it refuses. LaneSilent:
	// Lane has not answered in time.
	LaneAnswered
	LaneSilent
)

// An Action is an action for the caller. Kind says which fields count.
type Action struct {
	Kind  ActionKind
	Query uint64 // 0 in a ReleaseLane after a late answer
	Lane  match.LaneID
	// Model is the model that the query names, or a variant of the family that it names, and
	// Accuracy the variant's, 1 if it is unknown. AskLane, SendQuery
	Model    names.ModelKey
	Accuracy float64
	ID       uint64
	Finish   time.Duration
	Asked    int
	Again    time.Time
}

// An inquiry is the state of one query's inquiry.
type inquiry struct {
	match.Inquiry
	target time.Duration
	lanes  []lanesAnswer // the lanes worth asking, the best first
	asked  int           // how many of lanes were asked
	waits  int           // how many of those have not answered
	since  time.Time     // when those were asked
	until  time.Time     // when those count as silent
}

// A lanesAnswer is a lane worth asking, and its answer.
type lanesAnswer struct {
	match.Candidate
	id        uint64 // the question's id
	state     answerState
	remaining time.Duration // time until it was free for the query, by its answer
	freeAt    time.Time     // when it is free, by the gateway's clock
	safe      time.Duration // from start to end there, with a certainty of 90 %
	way       time.Duration // one way between gateway and lane
}

type answerState uint8

const (
	unasked answerState = iota
	waiting
	offered // the lane is reserved
	failed  // the lane refuses, is silent or is lost
)

// A silence notes that a lane has not answered.
type silence struct {
	until time.Time // until then the lane is asked only if there are no others
	id    uint64    // the question's id; 0: the lane could not be asked
	asked time.Time
}

// New returns a State that compares probes lanes for a query and knows no lane yet.
// Gateways of one fleet need different seeds.
func New(probes int, seed uint64) *State {
	return &State{
		probes: probes, rng: rand.New(rand.NewPCG(seed, 2)),
		questions: map[uint64]*inquiry{}, avoided: map[match.LaneID]silence{},
	}
}

// SetLanes sets the lanes from now on; nil means that none are known. The caller calls Lost for
// each lane that has left since, and goes on updating p with what it hears.
func (s *State) SetLanes(p *match.PricedLanes) { s.known = p }

// Counts returns how many questions were asked, and how many of them were not answered in time.
func (s *State) Counts() (asked, unanswered uint64) { return s.asked, s.unanswered }

// Next returns the next action; false if there is none.
func (s *State) Next() (a Action, ok bool) {
	if s.taken == len(s.actions) {
		s.actions, s.taken = s.actions[:0], 0
		return a, false
	}
	s.taken++
	return s.actions[s.taken-1], true
}

func (s *State) do(a Action) { s.actions = append(s.actions, a) }

// Wake is when to call Pass if no event comes before; zero: never.
func (s *State) Wake() (at time.Time) {
	for _, in := range s.inquiries {
		if at.IsZero() || in.until.Before(at) {
			at = in.until
		}
	}
	return at
}

// Begin begins the inquiry for q. It copies what it needs of q.Failed.
func (s *State) Begin(now time.Time, q match.Inquiry) {
	var in *inquiry
	if n := len(s.unused); n > 0 {
		in, s.unused = s.unused[n-1], s.unused[:n-1]
	} else {
		in = &inquiry{}
	}
	*in = inquiry{Inquiry: q, lanes: in.lanes[:0]}
	in.Failed = nil // it belongs to the caller
	if s.known != nil {
		in.target = s.known.Target(q.Model)
		s.rankLanes(now, in, q.Failed)
	}
	s.inquiries = append(s.inquiries, in)
	s.askNextLanes(now, in)
}

// rankLanes fills in the lanes to ask. Lanes that failed or were silent are among them only if
// there are no others.
func (s *State) rankLanes(now time.Time, in *inquiry, failed []match.LaneID) {
	most := 2 * s.probes
	// The question and the query each take a round trip to the lane.
	waited := now.Sub(in.Arrival) + 2*s.roundTrip
	ranked := s.known.Rank(now, &in.Inquiry, waited, most+len(failed)+len(s.avoided))
	for _, c := range ranked {
		if silent := now.Before(s.avoided[c.Lane].until); silent ||
			slices.Contains(failed, c.Lane) {
			continue
		}
		if len(in.lanes) < most {
			in.lanes = append(in.lanes, lanesAnswer{Candidate: c})
		}
	}
	if len(in.lanes) > 0 {
		return
	}
	for _, c := range ranked[:min(most, len(ranked))] {
		in.lanes = append(in.lanes, lanesAnswer{Candidate: c})
	}
}

// askNextLanes asks the next lanes, or ends the inquiry. None of the inquiry's questions may be
// open.
func (s *State) askNextLanes(now time.Time, in *inquiry) {
	n := in.countToAsk(now, s.roundTrip, s.probes)
	if n == 0 {
		s.endInquiry(now, in)
		return
	}
	patience := answerTimeout
	if n == 1 {
		// The lane counts as busy for the next query. Of several lanes asked at once, one will be
		// chosen.
		s.countSent(now, &in.lanes[in.asked])
		patience = soonTimeout
	}
	in.since, in.until, in.waits = now, now.Add(max(patience, 3*s.roundTrip)), n
	for i := range in.lanes[in.asked : in.asked+n] {
		c := &in.lanes[in.asked+i]
		s.lastID++
		c.id, c.state = s.lastID, waiting
		s.questions[c.id] = in
		s.do(Action{Kind: AskLane, Query: in.Query, Lane: c.Lane, Model: c.Model,
			Accuracy: c.Accuracy, ID: c.id})
	}
	in.asked += n
	s.asked += uint64(n)
}

// countSent counts the lane as busy with the query until the gateway hears otherwise.
func (s *State) countSent(now time.Time, c *lanesAnswer) {
	if s.known != nil {
		s.known.Sent(c.Lane, now, c.Latency)
	}
}

// Answered takes a lane's answer to question ID. The lane would be free for the query after
// remaining, and would finish it, with a certainty of 90 %, after finish; both count from when it
// answered, without the ways. A negative finish means that the lane refuses and has reserved
// nothing; a negative remaining that it does not say.
func (s *State) Answered(
	now time.Time, lane match.LaneID, id uint64, remaining, finish time.Duration,
) {
	late, wasSilent := s.avoided[lane]
	delete(s.avoided, lane)
	in := s.questions[id]
	c := in.findQuestion(id)
	if c == nil || c.Lane != lane { // the answer is late, or not to this question
		if finish >= 0 {
			s.do(Action{Kind: ReleaseLane, Lane: lane, ID: id})
		}
		if wasSilent && late.id == id && id != 0 {
			// One answer after a long pause must not raise the usual round trip by as much.
			took := now.Sub(late.asked)
			s.learnFromAnswer(now, lane, min(took, 2*max(answerTimeout, s.roundTrip)), took,
				remaining)
		}
		return
	}
	took := now.Sub(in.since)
	s.learnFromAnswer(now, lane, took, took, remaining)
	expected := time.Duration(-1)
	if finish >= 0 {
		c.state, c.way = offered, took/2
		c.remaining, c.freeAt = remaining, now.Add(max(0, remaining)-c.way)
		c.safe = max(0, finish-max(0, remaining))
		if expected = c.timeToFinish(now); now.Sub(in.Arrival)+expected <= in.target {
			if soon := now.Add(max(minTimeout, 2*took)); soon.Before(in.until) {
				in.until = soon
			}
		}
	}
	s.do(Action{
		Kind: LaneAnswered, Query: in.Query, Lane: lane, ID: id, Finish: expected,
	})
	s.closeQuestion(now, in, c)
}

// learnFromAnswer learns from an answer the usual round trip, and how busy the lane was half a
// round trip ago.
func (s *State) learnFromAnswer(now time.Time, lane match.LaneID, usual, took,
	remaining time.Duration) {
	s.roundTrip += (usual - s.roundTrip) / 8
	if remaining >= 0 && s.known != nil {
		s.known.NoteRemaining(lane, now.Add(-took/2), remaining)
	}
}

// closeQuestion closes a question, and proceeds if no other is open.
func (s *State) closeQuestion(now time.Time, in *inquiry, c *lanesAnswer) {
	delete(s.questions, c.id)
	if c.state == waiting {
		c.state = failed
	}
	if in.waits--; in.waits == 0 {
		s.askNextLanes(now, in)
	}
}

// Unasked says that a question could not be asked.
func (s *State) Unasked(now time.Time, id uint64) {
	in := s.questions[id]
	if c := in.findQuestion(id); c != nil {
		s.closeQuestion(now, in, c)
	}
}

// Lost says that a lane cannot be reached any more, or has left: its open questions get no answer,
// and its reservations are gone.
func (s *State) Lost(now time.Time, lane match.LaneID) {
	for id, was := range s.avoided { // drop old entries, also those of lanes that have left
		if !now.Before(was.until) {
			delete(s.avoided, id)
		}
	}
	s.Avoid(now, lane)
	for _, in := range slices.Clone(s.inquiries) {
		i := slices.IndexFunc(in.lanes, func(c lanesAnswer) bool { return c.Lane == lane })
		switch {
		case i < 0:
		case i >= in.asked:
			in.lanes = slices.Delete(in.lanes, i, i+1)
		case in.lanes[i].state == waiting:
			s.closeQuestion(now, in, &in.lanes[i])
		default:
			in.lanes[i].state = failed
		}
	}
}

// Avoid says to ask a lane, for avoidTime or until it answers, only if there are no others.
func (s *State) Avoid(now time.Time, lane match.LaneID) {
	silent := s.avoided[lane]
	silent.until = now.Add(avoidTime)
	s.avoided[lane] = silent
}

// Pass says that time has passed: questions without an answer in time count as silent.
func (s *State) Pass(now time.Time) {
	for _, in := range slices.Clone(s.inquiries) {
		if now.Before(in.until) {
			continue
		}
		for i := range in.lanes[:in.asked] {
			c := &in.lanes[i]
			if c.state != waiting {
				continue
			}
			s.Avoid(now, c.Lane)
			// keep the oldest question: its answer comes first
			if silent := s.avoided[c.Lane]; silent.id == 0 {
				silent.id, silent.asked = c.id, in.since
				s.avoided[c.Lane] = silent
			}
			s.unanswered++
			s.do(Action{Kind: LaneSilent, Query: in.Query, Lane: c.Lane, ID: c.id})
			s.closeQuestion(now, in, c)
		}
	}
}

// endInquiry ends the inquiry: the query goes to the best lane that has answered, if there is one.
func (s *State) endInquiry(now time.Time, in *inquiry) {
	best := in.chooseLane(now)
	if best >= 0 {
		c := &in.lanes[best]
		s.countSent(now, c)
		s.do(Action{
			Kind: SendQuery, Query: in.Query, Lane: c.Lane, Model: c.Model, Accuracy: c.Accuracy,
			ID: c.id, Finish: c.timeToFinish(now),
		})
	} else {
		again := now.Add(askAgain/2 + time.Duration(s.rng.Int64N(int64(askAgain))))
		s.do(Action{Kind: NoLane, Query: in.Query, Asked: in.asked, Again: again})
	}
	for i := range in.lanes[:in.asked] {
		if c := &in.lanes[i]; c.state == offered && i != best {
			s.do(Action{Kind: ReleaseLane, Query: in.Query, Lane: c.Lane, ID: c.id})
		}
	}
	i := slices.Index(s.inquiries, in)
	s.inquiries = slices.Delete(s.inquiries, i, i+1)
	s.unused = append(s.unused, in)
}

// findQuestion is the lane that was asked question id; nil if none of the inquiry's was.
func (in *inquiry) findQuestion(id uint64) *lanesAnswer {
	if in == nil {
		return nil
	}
	i := slices.IndexFunc(in.lanes[:in.asked], func(c lanesAnswer) bool { return c.id == id })
	return &in.lanes[i]
}

// timeToFinish is the time from now until the lane, which has answered, would have the query's
// answer at the gateway, if the query is sent now.
func (c *lanesAnswer) timeToFinish(now time.Time) time.Duration {
	return max(c.freeAt.Sub(now), c.way) + c.safe + c.way
}

// countToAsk is how many further lanes to ask now; 0: choose by the answers there are.
//
// The best lane is asked alone: mostly its answer is as expected, and every question more would
// reserve a lane and make it look busy to other gateways. Other lanes are asked if the best is
// busier than expected, or if no lane so far can serve the query in time but another still might.
// They are asked several at once if time is too short to ask one after the other.
func (in *inquiry) countToAsk(now time.Time, roundTrip time.Duration, probes int) int {
	asked, rest := in.lanes[:in.asked], in.lanes[in.asked:]
	if len(rest) == 0 {
		return 0
	}
	left := in.target - now.Sub(in.Arrival)
	spare := left - rest[0].Needs
	answers, inTime := 0, false
	for i := range asked {
		if c := &asked[i]; c.state == offered {
			answers++
			inTime = inTime || c.timeToFinish(now) <= left
		}
	}
	busier := len(asked) == 1 && asked[0].remaining > asked[0].Wait+roundTrip
	n := probes
	switch {
	case in.asked == 0:
		if spare < 0 || spare > 5*roundTrip {
			n = 1
		}
	case answers == 0:
	case busier && !(inTime && spare < 2*roundTrip):
		n--
	case inTime, spare < 2*roundTrip:
		n = 0
	case in.asked < probes:
		n -= in.asked
	}
	return min(n, len(rest))
}

// chooseLane returns the index of the lane to take: the cheapest that meets the QoS target, else
// the one that finishes first; -1 if none has answered.
func (in *inquiry) chooseLane(now time.Time) (best int) {
	best = -1
	left := in.target - now.Sub(in.Arrival)
	var finish time.Duration
	for i := range in.lanes[:in.asked] {
		c := &in.lanes[i]
		if c.state != offered {
			continue
		}
		f := c.timeToFinish(now)
		better := best < 0
		if !better {
			b := &in.lanes[best]
			switch inTime := f <= left; {
			case inTime != (finish <= left):
				better = inTime
			case inTime && c.Cost != b.Cost:
				better = c.Cost < b.Cost
			default:
				better = f < finish
			}
		}
		if better {
			best, finish = i, f
		}
	}
	return best
}
