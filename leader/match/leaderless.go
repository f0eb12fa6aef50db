package match

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

const (
	// DefaultProbes is how many lanes a gateway without a leader compares for one query: it asks no
	// more at a time, and twice as many in all.
	DefaultProbes = 4

	// A lane has answerTimeout to answer, or three usual round trips; where it is asked alone
	// soonTimeout, for then others can still be asked. Once one lane can serve the query in time
	// the others have two of its round trips, and no less than leastTimeout.
	answerTimeout = 20 * time.Millisecond
	soonTimeout   = 5 * time.Millisecond
	leastTimeout  = time.Millisecond
	// avoidTime is how long a lane that did not answer is not asked if there are others, unless it
	// answers meanwhile.
	avoidTime = time.Second
	// askAgain is about how long a query that no lane takes waits until lanes are asked again.
	askAgain = 20 * time.Millisecond
)

// A Leaderless decides where queries go at a gateway that has no leader: it asks the lanes that a
// [Priced] ranks best "when would you finish this batch?" and has the query sent to the cheapest of
// those that say in time. What a lane answers reserves it for a while, and the lanes that are not
// taken are released. On gossip a second old alone gateways crowd the same lanes; the answers carry
// the decision.
//
// Like a [Matcher] it does nothing by itself. Events are method calls, each with its time; after
// each the caller takes from [Leaderless.Next] what is to be done until there is nothing, and calls
// [Leaderless.Pass] at [Leaderless.Wake]. Gateway and simulator drive the same code.
//
// An inquiry ends with one SendQuery or NoLane. Within it no lane is asked twice. Of each
// reservation that it asks for a SendQuery, a ReleaseLane, or [Leaderless.Lost] of the
// lane is the end.
//
// It is not safe for concurrent use.
type Leaderless struct {
	known  *Priced // nil: nothing is known
	probes int
	rng    *rand.Rand

	inquiries []*inquiry          // in the order they began
	questions map[uint64]*inquiry // those without an answer, by id
	unused    []*inquiry
	avoided   map[LaneID]silence
	lastID    uint64
	roundTrip time.Duration // of a question, usually

	actions []LeaderlessAction
	taken   int // of actions

	asked, unanswered uint64
}

// An Inquiry is a query to be decided about.
type Inquiry struct {
	// Query names it among those that are not decided.
	Query     uint64
	Model     names.ModelKey
	BatchSize int
	Arrival   time.Time
	// Failed are lanes that have failed the query: they are asked if there are no others.
	Failed []LaneID
}

// A LeaderlessKind is what is to be done.
type LeaderlessKind uint8

const (
	// AskLane: ask Lane when it would finish Query. ID names the question, and the reservation that
	// the answer brings.
	AskLane LeaderlessKind = iota
	// ReleaseLane: free Lane's reservation ID, for the query goes elsewhere.
	ReleaseLane
	// SendQuery to Lane, which has reserved itself for it under ID; Finish from now the answer is
	// expected with a certainty of 90 %.
	SendQuery
	// NoLane takes the query now; Asked of them were asked. It is to begin anew at Again.
	NoLane
	// LaneAnswered and LaneSilent need no action; they are for whoever observes an inquiry.
	// LaneAnswered: it would finish the query Finish from now, less than 0: it refuses. LaneSilent:
	// it has not answered in time.
	LaneAnswered
	LaneSilent
)

// A LeaderlessAction is something to be done.
type LeaderlessAction struct {
	Kind   LeaderlessKind
	Query  uint64 // 0 of a ReleaseLane that comes of a late answer
	Lane   LaneID
	ID     uint64
	Finish time.Duration
	Asked  int
	Again  time.Time
}

// An inquiry is what is asked about a query.
type inquiry struct {
	Inquiry
	target time.Duration
	lanes  []lanesAnswer // worth asking, the best first
	asked  int           // of them
	waits  int           // of those, without an answer yet
	since  time.Time     // when these were asked
	until  time.Time     // when they count as silent
}

// A lanesAnswer is a lane worth asking and what it has answered.
type lanesAnswer struct {
	Candidate
	id        uint64 // of the question
	state     answerState
	remaining time.Duration // until it was free for the query, as it said
	freeAt    time.Time     // the same in the gateway's time
	safe      time.Duration // from its start to its end there, with a certainty of 90 %
	way       time.Duration // there, or back
}

type answerState uint8

const (
	unasked answerState = iota
	waiting
	offered // it is reserved
	failed  // it refuses, is silent or lost
)

// A silence is a lane's that has not answered.
type silence struct {
	until time.Time // it is not asked if there are others
	id    uint64    // of the question; 0: it could not be asked
	asked time.Time
}

// NewLeaderless returns the decision of a gateway that compares probes lanes for a query, and as
// yet knows of none. Gateways that decide side by side need different seeds.
func NewLeaderless(probes int, seed uint64) *Leaderless {
	return &Leaderless{
		probes: probes, rng: rand.New(rand.NewPCG(seed, 2)),
		questions: map[uint64]*inquiry{}, avoided: map[LaneID]silence{},
	}
}

// Know says which lanes there are from now on; nil: nothing is known. A lane that it had before and
// that has left must be told to Lost. The caller goes on telling p what it hears.
func (l *Leaderless) Know(p *Priced) { l.known = p }

// Counts are the questions that were asked, and those of them that were not answered in time.
func (l *Leaderless) Counts() (asked, unanswered uint64) { return l.asked, l.unanswered }

// Next returns what is to be done, in order, until there is nothing.
func (l *Leaderless) Next() (a LeaderlessAction, ok bool) {
	if l.taken == len(l.actions) {
		l.actions, l.taken = l.actions[:0], 0
		return a, false
	}
	l.taken++
	return l.actions[l.taken-1], true
}

func (l *Leaderless) do(a LeaderlessAction) { l.actions = append(l.actions, a) }

// Wake is when Pass is to be called; zero: not before another event.
func (l *Leaderless) Wake() (at time.Time) {
	for _, in := range l.inquiries {
		if at.IsZero() || in.until.Before(at) {
			at = in.until
		}
	}
	return at
}

// Begin begins an inquiry.
func (l *Leaderless) Begin(now time.Time, q Inquiry) {
	var in *inquiry
	if n := len(l.unused); n > 0 {
		in, l.unused = l.unused[n-1], l.unused[:n-1]
	} else {
		in = &inquiry{}
	}
	*in = inquiry{Inquiry: q, lanes: in.lanes[:0]}
	in.Failed = nil // the caller's
	if l.known != nil {
		in.target = l.known.target(q.Model)
		l.rank(now, in, q.Failed)
	}
	l.inquiries = append(l.inquiries, in)
	l.proceed(now, in)
}

// rank fills in the lanes to ask: those that are avoided only if there are no others.
func (l *Leaderless) rank(now time.Time, in *inquiry, failed []LaneID) {
	most := 2 * l.probes
	// A question there and back, then the query: two round trips are lost.
	waited := now.Sub(in.Arrival) + 2*l.roundTrip
	ranked := l.known.Rank(now, in.Model, in.BatchSize, waited, most+len(failed)+len(l.avoided))
	for _, c := range ranked {
		if silent := now.Before(l.avoided[c.Lane].until); silent ||
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

// proceed asks the next lanes, or ends the inquiry. No question of it is open.
func (l *Leaderless) proceed(now time.Time, in *inquiry) {
	n := in.more(now, l.roundTrip, l.probes)
	if n == 0 {
		l.end(now, in)
		return
	}
	patience := answerTimeout
	if n == 1 {
		// It counts as busy for the next query; of several asked at once one will be chosen.
		l.sent(now, &in.lanes[in.asked])
		patience = soonTimeout
	}
	in.since, in.until, in.waits = now, now.Add(max(patience, 3*l.roundTrip)), n
	for i := range in.lanes[in.asked : in.asked+n] {
		c := &in.lanes[in.asked+i]
		l.lastID++
		c.id, c.state = l.lastID, waiting
		l.questions[c.id] = in
		l.do(LeaderlessAction{Kind: AskLane, Query: in.Query, Lane: c.Lane, ID: c.id})
	}
	in.asked += n
	l.asked += uint64(n)
}

// sent has a lane count as busy with the query until something else is heard.
func (l *Leaderless) sent(now time.Time, c *lanesAnswer) {
	if l.known != nil {
		l.known.Sent(c.Lane, now, c.Latency)
	}
}

// Answered takes what a lane says to question ID: it would be free for the query after remaining,
// and finish it, with a certainty of 90 %, after finish, both from when it said so and without the
// ways. finish below 0: it refuses, and nothing is reserved; remaining below 0: it does not say.
func (l *Leaderless) Answered(
	now time.Time, lane LaneID, id uint64, remaining, finish time.Duration,
) {
	late, wasSilent := l.avoided[lane]
	delete(l.avoided, lane)
	in := l.questions[id]
	c := in.question(id)
	if c == nil || c.Lane != lane { // it is late, or another's
		if finish >= 0 {
			l.do(LeaderlessAction{Kind: ReleaseLane, Lane: lane, ID: id})
		}
		if wasSilent && late.id == id && id != 0 {
			// One answer after a long pause must not have all others waited for as long.
			took := now.Sub(late.asked)
			l.heard(now, lane, min(took, 2*max(answerTimeout, l.roundTrip)), took, remaining)
		}
		return
	}
	took := now.Sub(in.since)
	l.heard(now, lane, took, took, remaining)
	expected := time.Duration(-1)
	if finish >= 0 {
		c.state, c.way = offered, took/2
		c.remaining, c.freeAt = remaining, now.Add(max(0, remaining)-c.way)
		c.safe = max(0, finish-max(0, remaining))
		if expected = c.finish(now); now.Sub(in.Arrival)+expected <= in.target {
			if soon := now.Add(max(leastTimeout, 2*took)); soon.Before(in.until) {
				in.until = soon
			}
		}
	}
	l.do(LeaderlessAction{
		Kind: LaneAnswered, Query: in.Query, Lane: lane, ID: id, Finish: expected,
	})
	l.settle(now, in, c)
}

// heard learns from an answer: how long they take, and how busy the lane was half that time ago.
func (l *Leaderless) heard(now time.Time, lane LaneID, usual, took, remaining time.Duration) {
	l.roundTrip += (usual - l.roundTrip) / 8
	if remaining >= 0 && l.known != nil {
		l.known.Heard(lane, now.Add(-took/2), remaining)
	}
}

// settle notes that a question is open no more, and goes on if it was the last.
func (l *Leaderless) settle(now time.Time, in *inquiry, c *lanesAnswer) {
	delete(l.questions, c.id)
	if c.state == waiting {
		c.state = failed
	}
	if in.waits--; in.waits == 0 {
		l.proceed(now, in)
	}
}

// Unasked says that a question could not be asked.
func (l *Leaderless) Unasked(now time.Time, id uint64) {
	in := l.questions[id]
	if c := in.question(id); c != nil {
		l.settle(now, in, c)
	}
}

// Lost says that a lane cannot be asked any more, or has left: what it was asked gets no answer,
// and what it has reserved is free again.
func (l *Leaderless) Lost(now time.Time, lane LaneID) {
	for id, s := range l.avoided { // so that those who have left are not kept for ever
		if !now.Before(s.until) {
			delete(l.avoided, id)
		}
	}
	l.Avoid(now, lane)
	for _, in := range slices.Clone(l.inquiries) {
		i := slices.IndexFunc(in.lanes, func(c lanesAnswer) bool { return c.Lane == lane })
		switch {
		case i < 0:
		case i >= in.asked:
			in.lanes = slices.Delete(in.lanes, i, i+1)
		case in.lanes[i].state == waiting:
			l.settle(now, in, &in.lanes[i])
		default:
			in.lanes[i].state = failed
		}
	}
}

// Avoid has a lane not be asked for a while if there are others, until it answers.
func (l *Leaderless) Avoid(now time.Time, lane LaneID) {
	s := l.avoided[lane]
	s.until = now.Add(avoidTime)
	l.avoided[lane] = s
}

// Pass says that time has passed.
func (l *Leaderless) Pass(now time.Time) {
	for _, in := range slices.Clone(l.inquiries) {
		if now.Before(in.until) {
			continue
		}
		for i := range in.lanes[:in.asked] {
			c := &in.lanes[i]
			if c.state != waiting {
				continue
			}
			l.Avoid(now, c.Lane)
			if s := l.avoided[c.Lane]; s.id == 0 { // the first is answered first
				s.id, s.asked = c.id, in.since
				l.avoided[c.Lane] = s
			}
			l.unanswered++
			l.do(LeaderlessAction{Kind: LaneSilent, Query: in.Query, Lane: c.Lane, ID: c.id})
			l.settle(now, in, c)
		}
	}
}

// end decides: the query goes to the best of those who have answered, if there is one.
func (l *Leaderless) end(now time.Time, in *inquiry) {
	best := in.choose(now)
	if best >= 0 {
		c := &in.lanes[best]
		l.sent(now, c)
		l.do(LeaderlessAction{
			Kind: SendQuery, Query: in.Query, Lane: c.Lane, ID: c.id, Finish: c.finish(now),
		})
	} else {
		again := now.Add(askAgain/2 + time.Duration(l.rng.Int64N(int64(askAgain))))
		l.do(LeaderlessAction{Kind: NoLane, Query: in.Query, Asked: in.asked, Again: again})
	}
	for i := range in.lanes[:in.asked] {
		if c := &in.lanes[i]; c.state == offered && i != best {
			l.do(LeaderlessAction{Kind: ReleaseLane, Query: in.Query, Lane: c.Lane, ID: c.id})
		}
	}
	i := slices.Index(l.inquiries, in)
	l.inquiries = slices.Delete(l.inquiries, i, i+1)
	l.unused = append(l.unused, in)
}

// question is the lane that was asked the question; nil: none.
func (in *inquiry) question(id uint64) *lanesAnswer {
	if in == nil {
		return nil
	}
	i := slices.IndexFunc(in.lanes[:in.asked], func(c lanesAnswer) bool { return c.id == id })
	return &in.lanes[i]
}

// finish is the time from now until the lane that has answered would have answered the query, if
// that is sent now.
func (c *lanesAnswer) finish(now time.Time) time.Duration {
	return max(c.freeAt.Sub(now), c.way) + c.safe + c.way
}

// more is how many of the lanes not asked yet to ask now; 0: the answers must do.
//
// The best lane is asked alone: mostly it answers as believed, and every other question keeps a
// place that makes lanes look busy to others. Others are asked if it is busier than believed, or if
// nobody answers in time but somebody else still might; several at once where time is too short for
// one after the other.
func (in *inquiry) more(now time.Time, roundTrip time.Duration, probes int) int {
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
			inTime = inTime || c.finish(now) <= left
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

// choose is which lane to take: the cheapest that is within the QoS target, else the one that
// finishes first; -1: none has answered.
func (in *inquiry) choose(now time.Time) (best int) {
	best = -1
	left := in.target - now.Sub(in.Arrival)
	var finish time.Duration
	for i := range in.lanes[:in.asked] {
		c := &in.lanes[i]
		if c.state != offered {
			continue
		}
		f := c.finish(now)
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
