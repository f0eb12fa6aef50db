package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader/inquire"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

const (
	// prepareInterval is how often a gateway with a leader reads changed profiles for decisions
	// without one. Reading takes milliseconds, which would delay queries just when the leader is
	// lost.
	prepareInterval = time.Second
	// keepGone is how long a profile is kept of a type that no lane has, or of a version that no
	// member holds. A leader keeps it for less time, and tells it again if the lanes come back
	// later than that. Every lookGone the gateway looks for such profiles. Chosen: keepGone is
	// members.KeepTold, and profiles that stay for a minute longer take some KiB.
	keepGone, lookGone = 10 * time.Minute, time.Minute
)

// A leaderless drives a inquire.State, which decides a gateway's queries while there is no
// leader. It gives it the fleet's view, prices and profiles, keeps a Probe stream to each member
// that is asked, and hands the decisions to the gateway.
//
// Lock order: its lock may be taken while the gateway's is held, never the other way round.
type leaderless struct {
	g     *Gateway
	timer *time.Timer // fires at decision.Wake

	mu       sync.Mutex
	view     *control.View
	loads    map[names.AgentName]heardLoad // by member
	stale    bool                          // priced must be made anew from the fields below
	arranged time.Time
	prices   []match.Price
	profiles map[names.TableKey]*profile
	absent   profiles.Absence[names.TableKey]
	looked   time.Time          // when forget last ran
	priced   *match.PricedLanes // nil if nothing is known to decide by
	decision *inquire.State
	wakeAt   time.Time // when timer fires; zero means never
	lanes    map[names.AgentName]match.LaneID
	agents   map[match.LaneID]names.AgentName
	lastLane match.LaneID
	probers  map[match.LaneID]*prober
	inquired map[uint64]openInquiry // queries with an open inquiry, by sequence
	decided  []inquire.Action
}

// An openInquiry is a query with an open inquiry.
type openInquiry struct {
	*gatewayQuery
	traced   *decision
	released names.ModelKey // the version that answers, if a release says so; else ""
}

// A profile is read from its JSON when it is first needed.
type profile struct {
	json  []byte
	law   work.Law // of table: what users and values take
	table *profiles.Table
	dense *match.LatencyTable
}

func newLeaderless(g *Gateway) *leaderless {
	l := &leaderless{
		g: g, timer: time.NewTimer(time.Hour), view: &control.View{},
		loads:    map[names.AgentName]heardLoad{},
		profiles: map[names.TableKey]*profile{},
		decision: inquire.New(inquire.DefaultProbes, rand.Uint64()),
		lanes:    map[names.AgentName]match.LaneID{}, agents: map[match.LaneID]names.AgentName{},
		probers: map[match.LaneID]*prober{}, inquired: map[uint64]openInquiry{},
	}
	l.timer.Stop()
	return l
}

// applyView takes a new view of the fleet from the gateway.
func (l *leaderless) applyView(v *control.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.view.GetMembers(), v.GetMembers()) {
		l.stale = true
	}
	l.view = v
	l.learnReports(v.GetPrices(), v.GetProfiles())
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
	l.dropGone(now)
	l.carryOut(now)
}

// dropGone drops, once every lookGone, the profiles of versions and lanes that have been gone for
// keepGone. The caller holds the lock.
func (l *leaderless) dropGone(now time.Time) {
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

// A heardLoad is the last known load of a member.
type heardLoad struct {
	at        time.Time
	remaining time.Duration // until its first lane is free
}

// applyLoads takes loads as of now. It ignores loads of agents that are no members, and loads older
// than the known ones.
func (l *leaderless) applyLoads(loads []*control.LaneLoad) {
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
			l.priced.NoteRemaining(lane, heard.at, heard.remaining)
		}
	}
	l.dropGone(now)
}

// applyReports takes prices and profiles from the leader.
func (l *leaderless) applyReports(prices []*control.TypePrice, profiles []*control.Profile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learnReports(prices, profiles)
}

func (l *leaderless) learnReports(prices []*control.TypePrice, profiles []*control.Profile) {
	if len(prices) > 0 {
		before := l.prices
		l.prices = nil
		for _, p := range prices {
			l.prices = append(l.prices, priceOf(p))
		}
		l.stale = l.stale || !slices.EqualFunc(before, l.prices, match.Price.Equal)
	}
	for _, p := range profiles {
		key := p.TableKey()
		if known := l.profiles[key]; known == nil || !known.isOf(p) {
			l.profiles[key] = newProfile(p)
			l.stale = true
		}
	}
}

// priceOf converts a price.
func priceOf(p *control.TypePrice) match.Price {
	service := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	price := match.Price{
		Type: names.LaneType(p.GetType()), PerMs: p.GetPerMs(), Service: service(p.GetServiceMs()),
	}
	for _, c := range p.GetClasses() {
		class := match.ClassPrice{PerMs: c.GetPerMs(), Service: service(c.GetServiceMs())}
		for _, model := range c.GetModels() {
			class.Models = append(class.Models, names.ModelKey(model))
		}
		price.Classes = append(price.Classes, class)
	}
	return price
}

// read returns a profile's table, nil if it is unknown or cannot be parsed.
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

// newProfile returns what the leader tells of a model, by work if it knows what that is.
func newProfile(p *control.Profile) *profile {
	law := work.NewLaw(p.GetRowsPerUser(), p.GetRowsPerValue())
	if law == (work.Law{}) || len(p.GetWorkTable()) == 0 {
		return &profile{json: p.GetTable()}
	}
	return &profile{json: p.GetWorkTable(), law: law}
}

// isOf reports whether p is what the leader tells.
func (p *profile) isOf(told *control.Profile) bool {
	o := newProfile(told)
	return p.law == o.law && bytes.Equal(p.json, o.json)
}

// sizeOf is the size of a query in the profiles of a model, of which there may be none. The law of a
// model is one on all types of lanes. The caller holds the lock.
func (l *leaderless) sizeOf(q *gatewayQuery, model names.ModelKey, largest int) int {
	size := int(q.batch)
	if q.users == 0 && q.values == 0 {
		return size
	}
	for key, p := range l.profiles {
		if key.Model == model && p.law != (work.Law{}) {
			values := int(min(q.values, math.MaxInt32))
			return max(size, min(p.law.Size(size, int(q.users), values), largest))
		}
	}
	return size
}

// A guess is the latency assumed where no profile is known: a QoS target, so that with any waiting
// the query would be late and members with a profile come first.
type guess time.Duration

func (d guess) Mean(int) time.Duration              { return time.Duration(d) }
func (d guess) Quantile(float64, int) time.Duration { return time.Duration(d) }

// remakePriced makes priced anew if it is stale. The caller holds the lock.
func (l *leaderless) remakePriced() {
	if !l.stale {
		return
	}
	now := time.Now()
	l.stale, l.arranged = false, now
	known := l.g.members.Load()
	var models []match.Model
	for name, m := range known.models {
		for number, v := range m.versions {
			family := names.ModelKey("")
			if known.families[v.family] != nil {
				family = names.ModelKey(v.family)
			}
			models = append(models, match.Model{Name: names.NewModelKey(name, number),
				QoSTarget:        max(v.qosTarget, time.Microsecond),
				LargestBatchSize: min(max(v.largest, 1), match.MaxBatchSize),
				Family:           family, Accuracy: v.accuracy})
		}
	}
	slices.SortFunc(
		models, func(x, y match.Model) int { return cmp.Compare(x.Name, y.Name) })
	priced, err := match.NewPricedLanes(models, rand.Uint64())
	if err != nil { // a member's description of a model is invalid
		l.priced = nil
		l.decision.SetLanes(nil)
		return
	}
	unknown := make([]*match.LatencyTable, len(models))
	for i, m := range models {
		// cannot fail: both are > 0
		unknown[i], _ = match.NewTable(guess(m.QoSTarget), m.LargestBatchSize)
	}
	prices := slices.Clone(l.prices)
	for _, m := range l.view.GetMembers() {
		if m.GetDraining() {
			continue
		}
		// Every member is an instance type of its own in priced, because it may have its own price
		// and profiles.
		own, general := m.OwnLaneType(), m.LaneType()
		if parts := m.GetParts(); len(parts) > 0 && len(parts[0].GetModels()) > 0 {
			general = m.LaneTypeOf(parts[0].GetModels()[0]) // here a member has one price
		}
		if i := l.priceIndex(general); i >= 0 && l.priceIndex(own) < 0 {
			price := l.prices[i]
			price.Type = own
			prices = append(prices, price)
		}
		for i, model := range models {
			name, _ := model.Name.Split()
			general := m.LaneTypeOf(name)
			table := l.denseTable(names.TableKey{
				Model: model.Name, Type: general.Own(m.AgentName()),
			}, &model)
			if table == nil {
				table = l.denseTable(names.TableKey{Model: model.Name, Type: general}, &model)
			}
			if table == nil {
				table = unknown[i]
			}
			_ = priced.SetProfile(model.Name, own, table) // cannot fail: model and table size match
		}
		lane, ok := l.lanes[m.AgentName()]
		if !ok {
			l.lastLane++
			lane = l.lastLane
			l.lanes[m.AgentName()], l.agents[lane] = lane, m.AgentName()
		}
		var holds []names.ModelKey
		for _, held := range m.GetModels() {
			if m.KnowsRoles() || !known.needsRoles(held) {
				holds = append(holds, held.Key())
			}
		}
		priced.Join(lane, own, holds)
	}
	priced.SetPrices(prices)
	for name, load := range l.loads {
		if lane, ok := l.lanes[name]; ok {
			priced.NoteRemaining(lane, load.at, load.remaining)
		}
	}
	l.priced = priced
	l.decision.SetLanes(priced)
}

// remakeAhead calls arrange ahead of need, once every prepareInterval.
func (l *leaderless) remakeAhead(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropGone(now)
	if now.Sub(l.arranged) >= prepareInterval {
		l.remakePriced()
	}
}

func (l *leaderless) priceIndex(laneType names.LaneType) int {
	return slices.IndexFunc(l.prices, func(p match.Price) bool { return p.Type == laneType })
}

// denseTable returns a profile as a match.Table, nil if it is unknown.
func (l *leaderless) denseTable(key names.TableKey, m *match.Model) *match.LatencyTable {
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

// p99Execution is the 99th percentile of q's execution latency at an agent, 0 if unknown.
func (l *leaderless) p99Execution(q *gatewayQuery, agent names.AgentName) time.Duration {
	known := l.g.members.Load()
	model, member := known.profileName(q, l.g.config.ID), known.byName[agent]
	l.mu.Lock()
	defer l.mu.Unlock()
	name, _ := model.Split()
	general := member.LaneTypeOf(name)
	for _, laneType := range []names.LaneType{general.Own(agent), general} {
		key := names.TableKey{Model: model, Type: laneType}
		if table := l.profiles[key].read(); table != nil {
			return table.Quantile(0.99, l.sizeOf(q, model, known.largestOf(model)))
		}
	}
	return 0
}

func (l *leaderless) probeCounts() (probes, unanswered uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.decision.Counts()
}

// noteRemaining takes the time until a worker is free, which it sent with an answer.
func (l *leaderless) noteRemaining(agent names.AgentName, remaining time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane, ok := l.lanes[agent]; ok && l.priced != nil {
		l.priced.NoteRemaining(lane, time.Now(), remaining)
	}
}

// close stops the timer. The gateway's context must have ended before, which ends the probers; no
// prober starts after close.
func (l *leaderless) close() {
	l.mu.Lock() // wait for those that checked the context before it ended
	defer l.mu.Unlock()
	l.timer.Stop()
}

// noteSilence notes that the leader is silent: it is asked last for a while.
func (l *leaderless) noteSilence(leader names.AgentName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane, ok := l.lanes[leader]; ok {
		l.decision.Avoid(time.Now(), lane)
	}
}

// beginInquiry begins an inquiry for q. failed are members that have failed it.
// [Gateway.takeDecisions] takes the result.
func (l *leaderless) beginInquiry(q *gatewayQuery, failed []names.AgentName) {
	traced := q.trace.beginDecision()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remakePriced()
	known := l.g.members.Load()
	about := openInquiry{gatewayQuery: q, traced: traced}
	name := known.profileName(q, l.g.config.ID)
	if known.releases[q.model].Current != 0 && q.version == 0 && q.family == nil {
		about.released = name
	}
	l.inquired[q.Sequence] = about
	inquiry := match.Inquiry{
		Query: q.Sequence, Model: name,
		BatchSize: l.sizeOf(q, name, known.largestOf(name)), Arrival: l.g.began.Add(q.Arrival), LeastAccuracy: q.least,
	}
	if q.family != nil {
		inquiry.Model = names.ModelKey(q.model)
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

// handleAnswer takes a member's answer to a question.
func (l *leaderless) handleAnswer(lane match.LaneID, answer *control.ProbeAnswer) {
	l.step(func(now time.Time) {
		remaining, finish := toDuration(answer.GetRemainingNs()), toDuration(answer.GetFinishNs())
		l.decision.Answered(now, lane, answer.GetId(), remaining, finish)
	})
}

// toDuration converts a message's duration in ns; negative values keep their special meaning.
func toDuration(ns int64) time.Duration {
	if ns < 0 {
		return -1
	}
	return control.Duration(ns)
}

// handleLostLane notes that a member's lane cannot be asked any more.
func (l *leaderless) handleLostLane(lane match.LaneID) {
	l.step(func(now time.Time) {
		delete(l.probers, lane)
		l.decision.Lost(now, lane)
	})
}

// watch passes time to the decision when timer fires, and begins the inquiries that kick asks for.
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

// wakeWatch makes watch's goroutine begin the inquiries that are due, so that the caller's
// goroutine need not.
func (l *leaderless) wakeWatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake(time.Now(), 0)
}

// step passes an event to the decision, carries out its actions, and hands its results to the
// gateway. The caller holds no lock.
func (l *leaderless) step(event func(now time.Time)) {
	l.mu.Lock()
	now := time.Now()
	event(now)
	l.carryOut(now)
	l.mu.Unlock()
	l.g.mu.Lock()
	l.g.takeDecisions()
	l.g.leaveCritical(false)
}

// carryOut carries out the decision's actions. The caller holds the lock.
func (l *leaderless) carryOut(now time.Time) {
	for do, ok := l.decision.Next(); ok; do, ok = l.decision.Next() {
		switch about := l.inquired[do.Query]; do.Kind {
		case inquire.AskLane:
			if !l.askLane(now, about, &do) {
				l.decision.Unasked(now, do.ID)
			}
		case inquire.ReleaseLane:
			l.release(do.Lane, do.ID)
		case inquire.LaneAnswered:
			about.traced.noteAnswer(l.agents[do.Lane], do.Finish)
		case inquire.LaneSilent:
			about.traced.noteSilence(l.agents[do.Lane])
		case inquire.SendQuery, inquire.NoLane:
			l.decided = append(l.decided, do)
		}
	}
	if at := l.decision.Wake(); !at.IsZero() {
		l.wake(now, at.Sub(now))
	}
}

// wake makes the timer fire after d at the latest. The caller holds the lock.
func (l *leaderless) wake(now time.Time, d time.Duration) {
	if at := now.Add(d); l.wakeAt.IsZero() || at.Before(l.wakeAt) {
		l.wakeAt = at
		l.timer.Reset(d)
	}
}

// askLane sends a question to a lane, and reports false if that is impossible. The caller holds the
// lock.
func (l *leaderless) askLane(now time.Time, q openInquiry, do *inquire.Action) bool {
	p := l.proberOf(do.Lane)
	if p == nil {
		return false
	}
	m := &control.ProbeRequest{
		Id: do.ID, Gateway: l.g.config.ID,
		Model: q.model, Version: q.version, BatchSize: q.batch, Bytes: q.bytes,
		Users: q.users, Values: q.values,
	}
	switch {
	case q.family != nil:
		m.Model, m.Version = do.Model.Split()
	case q.released != "":
		m.Model, m.Version = q.released.Split()
	}
	if q.Deadline != 0 {
		m.TimeLeftNs = int64(max(1, q.Deadline-l.g.timeOf(now)))
	}
	return p.send(m)
}

// release tells a lane that a reservation is not needed. The caller holds the lock.
func (l *leaderless) release(lane match.LaneID, reservation uint64) {
	if p := l.probers[lane]; p != nil {
		p.send(&control.ProbeRequest{Id: reservation, Gateway: l.g.config.ID, Release: true})
	}
}

// free does the same for an agent's lane, and takes the lock.
func (l *leaderless) free(agent names.AgentName, reservation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane, ok := l.lanes[agent]; ok {
		l.release(lane, reservation)
	}
}

// A leaderlessDecision is the result of an inquiry: a target, or the reason why there is none and
// when to inquire again.
type leaderlessDecision struct {
	query  *gatewayQuery
	target queries.Target
	again  time.Time
	why    string
}

// next returns the next result; false if there is none.
func (l *leaderless) next() (d leaderlessDecision, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.decided) == 0 {
		return d, false
	}
	do := l.decided[0]
	l.decided = l.decided[:copy(l.decided, l.decided[1:])]
	about := l.inquired[do.Query]
	delete(l.inquired, do.Query)
	d = leaderlessDecision{query: about.gatewayQuery, again: do.Again}
	switch {
	case do.Kind == inquire.SendQuery && l.agents[do.Lane] == "":
		d.why = "the agent that would have taken it has left"
	case do.Kind == inquire.SendQuery:
		d.target = queries.Target{Agent: l.agents[do.Lane], Reservation: do.ID, Took: do.Finish}
		if about.gatewayQuery.family != nil {
			d.target.ChosenVariant = queries.ChosenVariant{Model: do.Model, Accuracy: do.Accuracy}
		} else {
			d.target.ChosenVariant.Model = about.released
		}
	case do.Asked == 0:
		d.why = "no agent that takes queries holds the model"
	default:
		d.why = fmt.Sprintf("none of the %d agents asked could take it", do.Asked)
	}
	about.traced.endDecision(d.target, l.g.timeNow()-about.gatewayQuery.Arrival, d.why)
	return d, true
}
