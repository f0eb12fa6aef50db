package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// prepareInterval is how often a gateway that is led makes ready to decide without a leader: to
	// read changed profiles takes milliseconds, which are dear when the leader has just gone.
	prepareInterval = time.Second
	// keepGone is how long a profile is kept of lanes that no member has, or of a version that none
	// of them holds: longer than a leader does, which tells it anew to lanes that are back later
	// than that. It is looked for every lookGone.
	keepGone, lookGone = 10 * time.Minute, time.Minute
)

// A leaderless has a match.Leaderless decide about a gateway's queries: it tells it of the fleet,
// keeps a stream of questions and answers to each member that it asks, and hands what is decided
// to the gateway.
//
// Its lock may be taken with the gateway's held, and never the other way round.
type leaderless struct {
	g     *Gateway
	timer *time.Timer // fires when the decision is to be told of the time

	mu       sync.Mutex
	view     *control.View
	loads    map[names.AgentName]heardLoad // of members
	stale    bool                          // priced is not up to date with what follows
	arranged time.Time
	prices   []match.Price
	profiles map[names.TableKey]*profile
	absent   profiles.Absence[names.TableKey]
	looked   time.Time     // for what is absent
	priced   *match.Priced // nil: nothing can be decided
	decision *match.Leaderless
	wakeAt   time.Time // when timer fires; zero: never
	lanes    map[names.AgentName]match.LaneID
	agents   map[match.LaneID]names.AgentName
	lastLane match.LaneID
	probers  map[match.LaneID]*prober
	inquired map[uint64]inquired // what the decision is about, by sequence
	decided  []match.LeaderlessAction
}

// An inquired query is one that is decided about.
type inquired struct {
	*query
	traced *decision
}

// A profile is read from its JSON when it is first needed.
type profile struct {
	json  []byte
	table *profiles.Table
	dense *match.Table
}

func newLeaderless(g *Gateway) *leaderless {
	l := &leaderless{
		g: g, timer: time.NewTimer(time.Hour), view: &control.View{},
		loads:    map[names.AgentName]heardLoad{},
		profiles: map[names.TableKey]*profile{},
		decision: match.NewLeaderless(match.DefaultProbes, rand.Uint64()),
		lanes:    map[names.AgentName]match.LaneID{}, agents: map[match.LaneID]names.AgentName{},
		probers: map[match.LaneID]*prober{}, inquired: map[uint64]inquired{},
	}
	l.timer.Stop()
	return l
}

// viewed takes a new view of the fleet.
func (l *leaderless) viewed(v *control.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.view.GetMembers(), v.GetMembers()) {
		l.stale = true
	}
	l.view = v
	l.learn(v.GetPrices(), v.GetProfiles())
	known, now := l.g.members.Load().byName, time.Now()
	for name, lane := range l.lanes {
		if known[name] != nil {
			continue
		}
		delete(l.lanes, name)
		delete(l.agents, lane)
		if p := l.probers[lane]; p != nil {
			p.cancel()
		}
		l.decision.Lost(now, lane)
	}
	maps.DeleteFunc(
		l.loads, func(name names.AgentName, _ heardLoad) bool { return known[name] == nil })
	l.forget(now)
	l.carryOut(now)
}

// forget forgets now and then the profiles of versions and lanes that are gone. The lock is held.
func (l *leaderless) forget(now time.Time) {
	if now.Sub(l.looked) < lookGone {
		return
	}
	l.looked = now
	there := map[names.TableKey]bool{}
	for _, m := range l.view.GetMembers() {
		m.ProfileKeys(there)
	}
	isThere := func(key names.TableKey) bool { return there[key] }
	for _, key := range l.absent.Over(now, keepGone, maps.Keys(l.profiles), isThere) {
		delete(l.profiles, key)
	}
}

// A heardLoad is how busy a member was.
type heardLoad struct {
	at        time.Time
	remaining time.Duration // until its first lane is free
}

// loaded takes loads as of now. Those of others than members, and older ones than are
// known, are passed over.
func (l *leaderless) loaded(loads []*control.LaneLoad) {
	known, now := l.g.members.Load().byName, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, load := range loads {
		agent := names.AgentName(load.GetAgent())
		if known[agent] == nil || len(load.GetRemainingNs()) == 0 {
			continue
		}
		heard := heardLoad{
			now.Add(-control.Duration(load.GetAgeNs())),
			control.Duration(slices.Min(load.GetRemainingNs())),
		}
		if heard.at.Before(l.loads[agent].at) {
			continue
		}
		l.loads[agent] = heard
		if lane, ok := l.lanes[agent]; ok && l.priced != nil {
			l.priced.Heard(lane, heard.at, heard.remaining)
		}
	}
	l.forget(now)
}

// told takes what the leader says of prices and profiles.
func (l *leaderless) told(prices []*control.TypePrice, profiles []*control.Profile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learn(prices, profiles)
}

func (l *leaderless) learn(prices []*control.TypePrice, profiles []*control.Profile) {
	if len(prices) > 0 {
		before := l.prices
		l.prices = nil
		for _, p := range prices {
			l.prices = append(l.prices, match.Price{
				Type: names.LaneType(p.GetType()), PerMs: p.GetPerMs(),
				Service: time.Duration(p.GetServiceMs() * float64(time.Millisecond)),
			})
		}
		l.stale = l.stale || !slices.Equal(before, l.prices)
	}
	for _, p := range profiles {
		key := p.Key()
		if known := l.profiles[key]; known == nil || !bytes.Equal(known.json, p.GetTable()) {
			l.profiles[key] = &profile{json: p.GetTable()}
			l.stale = true
		}
	}
}

// read returns a profile's table, nil if it is unknown or no table.
func (p *profile) read() *profiles.Table {
	if p == nil {
		return nil
	}
	if p.table == nil && p.json != nil {
		t := new(profiles.Table)
		if json.Unmarshal(p.json, t) == nil {
			p.table = t
		}
	}
	return p.table
}

// A guess is the latency where no profile is known: just too long, so that
// members with a profile come first.
type guess time.Duration

func (d guess) Mean(int) time.Duration              { return time.Duration(d) }
func (d guess) Quantile(float64, int) time.Duration { return time.Duration(d) }

// arrange brings priced up to date. The lock is held.
func (l *leaderless) arrange() {
	if !l.stale {
		return
	}
	now := time.Now()
	l.stale, l.arranged = false, now
	known := l.g.members.Load()
	var models []match.Model
	for name, m := range known.models {
		for number, v := range m.versions {
			models = append(models, match.Model{Name: names.NewModelKey(name, number),
				QoSTarget:        max(v.qosTarget, time.Microsecond),
				LargestBatchSize: min(max(v.largest, 1), match.MaxBatchSize)})
		}
	}
	slices.SortFunc(
		models, func(x, y match.Model) int { return cmp.Compare(x.Name, y.Name) })
	priced, err := match.NewPriced(models, rand.Uint64())
	if err != nil { // a member says nonsense of a model
		l.priced = nil
		l.decision.Know(nil)
		return
	}
	unknown := make([]*match.Table, len(models))
	for i, m := range models {
		unknown[i], _ = match.NewTable(guess(m.QoSTarget), m.LargestBatchSize) // both are > 0
	}
	prices := slices.Clone(l.prices)
	for _, m := range l.view.GetMembers() {
		if m.GetDraining() {
			continue
		}
		// Every member is a type of its own, as it may have its own price and profiles.
		general, own := m.LaneType(), m.OwnLaneType()
		if i := l.price(general); i >= 0 && l.price(own) < 0 {
			prices = append(prices, match.Price{
				Type: own, PerMs: l.prices[i].PerMs, Service: l.prices[i].Service,
			})
		}
		for i, model := range models {
			table := l.dense(names.TableKey{Model: model.Name, Type: own}, &model)
			if table == nil {
				table = l.dense(names.TableKey{Model: model.Name, Type: general}, &model)
			}
			if table == nil {
				table = unknown[i]
			}
			_ = priced.SetProfile(model.Name, own, table) // the model and its size are right
		}
		lane, ok := l.lanes[m.AgentName()]
		if !ok {
			l.lastLane++
			lane = l.lastLane
			l.lanes[m.AgentName()], l.agents[lane] = lane, m.AgentName()
		}
		var holds []names.ModelKey
		for _, held := range m.GetModels() {
			holds = append(holds, held.Key())
		}
		priced.Join(lane, own, holds)
	}
	priced.SetPrices(prices)
	for name, load := range l.loads {
		if lane, ok := l.lanes[name]; ok {
			priced.Heard(lane, load.at, load.remaining)
		}
	}
	l.priced = priced
	l.decision.Know(priced)
}

// prepare does so ahead of need, now and then.
func (l *leaderless) prepare(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(now)
	if now.Sub(l.arranged) >= prepareInterval {
		l.arrange()
	}
}

func (l *leaderless) price(laneType names.LaneType) int {
	return slices.IndexFunc(l.prices, func(p match.Price) bool { return p.Type == laneType })
}

// dense returns a profile as Priced reads it, nil if it is unknown.
func (l *leaderless) dense(key names.TableKey, m *match.Model) *match.Table {
	p := l.profiles[key]
	table := p.read()
	if table == nil {
		return nil
	}
	if p.dense == nil || p.dense.Largest() < m.LargestBatchSize {
		dense, err := match.NewTable(table, m.LargestBatchSize)
		if err != nil {
			return nil
		}
		p.dense = dense
	}
	return p.dense
}

// slow is the 99th percentile of how long q runs at an agent, 0 if it is not known.
func (l *leaderless) slow(q *query, agent names.AgentName) time.Duration {
	known := l.g.members.Load()
	model, member := known.profileName(q), known.byName[agent]
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, laneType := range []names.LaneType{member.OwnLaneType(), member.LaneType()} {
		key := names.TableKey{Model: model, Type: laneType}
		if table := l.profiles[key].read(); table != nil {
			return table.Quantile(0.99, int(q.batch))
		}
	}
	return 0
}

func (l *leaderless) counts() (probes, unanswered uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.decision.Counts()
}

// heard tells what a worker said of itself.
func (l *leaderless) heard(agent names.AgentName, remaining time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane, ok := l.lanes[agent]; ok && l.priced != nil {
		l.priced.Heard(lane, time.Now(), remaining)
	}
}

// close has no member be asked any more; the gateway's context has ended.
func (l *leaderless) close() {
	l.mu.Lock() // who has looked before whether it has is done
	defer l.mu.Unlock()
	l.timer.Stop()
}

// silent notes that the leader does not answer.
func (l *leaderless) silent(leader names.AgentName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane, ok := l.lanes[leader]; ok {
		l.decision.Avoid(time.Now(), lane)
	}
}

// begin has the decision be about q, which failed members have failed. What comes of it is for
// [Gateway.settle].
func (l *leaderless) begin(q *query, failed []names.AgentName) {
	traced := q.trace.decide()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrange()
	l.inquired[q.Sequence] = inquired{q, traced}
	inquiry := match.Inquiry{
		Query: q.Sequence, Model: l.g.members.Load().profileName(q),
		BatchSize: int(q.batch), Arrival: l.g.began.Add(q.Arrival),
	}
	for _, name := range failed {
		if lane, ok := l.lanes[name]; ok {
			inquiry.Failed = append(inquiry.Failed, lane)
		}
	}
	now := time.Now()
	l.decision.Begin(now, inquiry)
	l.carryOut(now)
}

// answered takes a member's answer to a question.
func (l *leaderless) answered(lane match.LaneID, answer *control.ProbeAnswer) {
	l.step(func(now time.Time) {
		remaining, finish := said(answer.GetRemainingNs()), said(answer.GetFinishNs())
		l.decision.Answered(now, lane, answer.GetId(), remaining, finish)
	})
}

// said is a duration of a message that below 0 says something else.
func said(ns int64) time.Duration {
	if ns < 0 {
		return -1
	}
	return control.Duration(ns)
}

// lost notes that a member cannot be asked any more.
func (l *leaderless) lost(lane match.LaneID) {
	l.step(func(now time.Time) {
		delete(l.probers, lane)
		l.decision.Lost(now, lane)
	})
}

// watch tells the decision of the time, and has decided what kick asks for.
func (l *leaderless) watch() {
	for {
		select {
		case <-l.g.context.Done():
			return
		case <-l.timer.C:
		}
		l.step(func(now time.Time) {
			l.wakeAt = time.Time{}
			l.decision.Pass(now)
		})
	}
}

// kick has the goroutine of watch begin what is to be decided without a leader, for one that has
// better to do.
func (l *leaderless) kick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(time.Now(), 0)
}

// step tells the decision of an event, does what it wants, and hands what it has decided to the
// gateway. No lock is held.
func (l *leaderless) step(event func(now time.Time)) {
	l.mu.Lock()
	now := time.Now()
	event(now)
	l.carryOut(now)
	l.mu.Unlock()
	l.g.mu.Lock()
	l.g.settle()
	l.g.leave(false)
}

// carryOut does what the decision wants. The lock is held.
func (l *leaderless) carryOut(now time.Time) {
	for do, ok := l.decision.Next(); ok; do, ok = l.decision.Next() {
		switch about := l.inquired[do.Query]; do.Kind {
		case match.AskLane:
			if !l.ask(now, about.query, do.Lane, do.ID) {
				l.decision.Unasked(now, do.ID)
			}
		case match.ReleaseLane:
			l.release(do.Lane, do.ID)
		case match.LaneAnswered:
			about.traced.heard(l.agents[do.Lane], do.Finish)
		case match.LaneSilent:
			about.traced.silent(l.agents[do.Lane])
		case match.SendQuery, match.NoLane:
			l.decided = append(l.decided, do)
		}
	}
	if at := l.decision.Wake(); !at.IsZero() {
		l.wake(now, at.Sub(now))
	}
}

// wake has the timer fire after d at the latest. The lock is held.
func (l *leaderless) wake(now time.Time, d time.Duration) {
	if at := now.Add(d); l.wakeAt.IsZero() || at.Before(l.wakeAt) {
		l.wakeAt = at
		l.timer.Reset(d)
	}
}

// ask sends a question to a lane; false: it cannot be asked. The lock is held.
func (l *leaderless) ask(now time.Time, q *query, lane match.LaneID, id uint64) bool {
	p := l.prober(lane)
	if p == nil {
		return false
	}
	m := &control.ProbeRequest{
		Id: id, Gateway: l.g.config.ID,
		Model: q.model, Version: q.version, BatchSize: q.batch, Bytes: q.bytes,
	}
	if q.Deadline != 0 {
		m.TimeLeftNs = int64(max(1, q.Deadline-l.g.at(now)))
	}
	return p.send(m)
}

// release tells a lane that a reservation is not needed. The lock is held.
func (l *leaderless) release(lane match.LaneID, reservation uint64) {
	if p := l.probers[lane]; p != nil {
		p.send(&control.ProbeRequest{Id: reservation, Gateway: l.g.config.ID, Release: true})
	}
}

// free does the same, by the agent's name.
func (l *leaderless) free(agent names.AgentName, reservation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane, ok := l.lanes[agent]; ok {
		l.release(lane, reservation)
	}
}

// A decided query goes to the target, or, for the reason given, to nobody: it is to be decided
// again at a time.
type decided struct {
	query  *query
	target queries.Target
	again  time.Time
	why    string
}

// next returns what has been decided, once.
func (l *leaderless) next() (d decided, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.decided) == 0 {
		return d, false
	}
	do := l.decided[0]
	l.decided = l.decided[:copy(l.decided, l.decided[1:])]
	about := l.inquired[do.Query]
	delete(l.inquired, do.Query)
	d = decided{query: about.query, again: do.Again}
	switch {
	case do.Kind == match.SendQuery && l.agents[do.Lane] == "":
		d.why = "the agent that would have taken it has left"
	case do.Kind == match.SendQuery:
		d.target = queries.Target{Agent: l.agents[do.Lane], Reservation: do.ID, Took: do.Finish}
	case do.Asked == 0:
		d.why = "no agent that takes queries holds the model"
	default:
		d.why = fmt.Sprintf("none of the %d agents asked could take it", do.Asked)
	}
	about.traced.end(d.target, l.g.now()-about.query.Arrival, d.why)
	return d, true
}
