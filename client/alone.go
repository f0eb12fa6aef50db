package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// mostDeciding goroutines decide about queries without a leader at a time.
	mostDeciding = 8
	// mostProbes bounds the members that are asked for one query: the best
	// match.DefaultProbes first, and if none of them can do it in time as many again.
	mostProbes = 2 * match.DefaultProbes
	// probeTimeout is the least time that a member has to answer a probe, soonTimeout where it is asked alone: then
	// others can be asked.
	probeTimeout = 20 * time.Millisecond
	soonTimeout  = 5 * time.Millisecond
	// avoidTime is how long a member that could not be asked, or has not answered, is not asked if there
	// are others, unless it answers meanwhile.
	avoidTime = time.Second
	// prepareInterval is how often a gateway that is led makes ready to decide alone: to read changed profiles
	// takes milliseconds, which are dear when the leader has just gone.
	prepareInterval = time.Second
	// keepGone is how long a profile is kept of lanes that no member has, or of a version that none
	// of them holds: longer than a leader does, which tells it anew to lanes that are back later
	// than that. It is looked for every lookGone.
	keepGone, lookGone = 10 * time.Minute, time.Minute
	// probeAgain is after how long a query that nobody takes is tried again.
	probeAgain = 20 * time.Millisecond
)

// An alone is how a gateway decides without a leader: by prices and profiles it
// ranks the members, asks the best when they would finish the query, and takes
// the cheapest that says in time.
type alone struct {
	g *Gateway

	mu       sync.Mutex
	view     *control.View
	loads    map[string]heardLoad // of members
	stale    bool                 // priced is not up to date with what follows
	arranged time.Time
	prices   []match.Price
	profiles map[profileKey]*profile
	absent   profiles.Absence[profileKey]
	looked   time.Time     // for what is absent
	priced   *match.Priced // nil: nothing can be decided
	lanes    map[string]match.LaneID
	agents   map[match.LaneID]string
	lastLane match.LaneID
	probers  map[string]*prober
	avoided  map[string]time.Time // members that are not asked until then if there are others
	lastID   uint64               // of probes
	usual    time.Duration
	// Counted for Stats.
	probes, unanswered uint64
}

type profileKey struct{ model, laneType string }

// A profile is read from its JSON when it is first needed.
type profile struct {
	json  []byte
	table *profiles.Table
	dense *match.Table
}

func newAlone(g *Gateway) *alone {
	return &alone{
		g: g, view: &control.View{}, loads: map[string]heardLoad{}, profiles: map[profileKey]*profile{},
		lanes: map[string]match.LaneID{}, agents: map[match.LaneID]string{}, probers: map[string]*prober{}, avoided: map[string]time.Time{},
	}
}

// viewed takes a new view of the fleet.
func (a *alone) viewed(v *control.View) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.view.GetMembers(), v.GetMembers()) {
		a.stale = true
	}
	a.view = v
	a.learn(v.GetPrices(), v.GetProfiles())
	present := map[string]bool{}
	for _, m := range v.GetMembers() {
		present[m.GetName()] = true
	}
	for name, p := range a.probers {
		if !present[name] {
			p.cancel()
		}
	}
	for name, lane := range a.lanes {
		if !present[name] {
			delete(a.lanes, name)
			delete(a.agents, lane)
		}
	}
	maps.DeleteFunc(a.avoided, func(name string, _ time.Time) bool { return !present[name] })
	maps.DeleteFunc(a.loads, func(name string, _ heardLoad) bool { return !present[name] })
	a.forget(time.Now())
}

// forget forgets now and then the profiles of versions and lanes that are gone. The lock is held.
func (a *alone) forget(now time.Time) {
	if now.Sub(a.looked) < lookGone {
		return
	}
	a.looked = now
	there := map[profileKey]bool{}
	for _, m := range a.view.GetMembers() {
		for _, held := range m.GetModels() {
			model := control.ModelKey(held.GetName(), held.GetVersion())
			there[profileKey{model, m.LaneType()}], there[profileKey{model, m.OwnLaneType()}] = true, true
		}
	}
	isThere := func(key profileKey) bool { return there[key] }
	for _, key := range a.absent.Over(now, keepGone, maps.Keys(a.profiles), isThere) {
		delete(a.profiles, key)
	}
}

// A heardLoad is how busy a member was.
type heardLoad struct {
	at        time.Time
	remaining time.Duration // until its first lane is free
}

// loaded takes loads as of now. Those of others than members, and older ones than are known, are passed over.
func (a *alone) loaded(loads []*control.LaneLoad) {
	known, now := a.g.members.Load().byName, time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range loads {
		if known[l.GetAgent()] == nil || len(l.GetRemainingNs()) == 0 {
			continue
		}
		heard := heardLoad{now.Add(-control.Duration(l.GetAgeNs())), control.Duration(slices.Min(l.GetRemainingNs()))}
		if heard.at.Before(a.loads[l.GetAgent()].at) {
			continue
		}
		a.loads[l.GetAgent()] = heard
		if lane, ok := a.lanes[l.GetAgent()]; ok && a.priced != nil {
			a.priced.Heard(lane, heard.at, heard.remaining)
		}
	}
	a.forget(now)
}

// told takes what the leader says of prices and profiles.
func (a *alone) told(prices []*control.TypePrice, profiles []*control.Profile) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learn(prices, profiles)
}

func (a *alone) learn(prices []*control.TypePrice, profiles []*control.Profile) {
	if len(prices) > 0 {
		before := a.prices
		a.prices = nil
		for _, p := range prices {
			a.prices = append(a.prices, match.Price{Type: p.GetType(), PerMs: p.GetPerMs(), Service: time.Duration(p.GetServiceMs() * float64(time.Millisecond))})
		}
		a.stale = a.stale || !slices.Equal(before, a.prices)
	}
	for _, p := range profiles {
		key := profileKey{p.GetModel(), p.GetType()}
		if known := a.profiles[key]; known == nil || !bytes.Equal(known.json, p.GetTable()) {
			a.profiles[key] = &profile{json: p.GetTable()}
			a.stale = true
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
func (a *alone) arrange() {
	if !a.stale {
		return
	}
	now := time.Now()
	a.stale, a.arranged = false, now
	known := a.g.members.Load()
	var models []match.Model
	for name, m := range known.models {
		for number, v := range m.versions {
			models = append(models, match.Model{Name: control.ModelKey(name, number),
				QoSTarget: max(v.qosTarget, time.Microsecond), LargestBatchSize: min(max(v.largest, 1), match.MaxBatchSize)})
		}
	}
	slices.SortFunc(models, func(x, y match.Model) int { return bytes.Compare([]byte(x.Name), []byte(y.Name)) })
	priced, err := match.NewPriced(models, rand.Uint64())
	if err != nil { // a member says nonsense of a model
		a.priced = nil
		return
	}
	unknown := make([]*match.Table, len(models))
	for i, m := range models {
		unknown[i], _ = match.NewTable(guess(m.QoSTarget), m.LargestBatchSize) // both are > 0
	}
	prices := slices.Clone(a.prices)
	for _, m := range a.view.GetMembers() {
		if m.GetDraining() {
			continue
		}
		// Every member is a type of its own, as it may have its own price and profiles.
		general, own := m.LaneType(), m.OwnLaneType()
		if i := a.price(general); i >= 0 && a.price(own) < 0 {
			prices = append(prices, match.Price{Type: own, PerMs: a.prices[i].PerMs, Service: a.prices[i].Service})
		}
		for i, model := range models {
			table := a.dense(profileKey{model.Name, own}, &model)
			if table == nil {
				table = a.dense(profileKey{model.Name, general}, &model)
			}
			if table == nil {
				table = unknown[i]
			}
			_ = priced.SetProfile(model.Name, own, table) // the model and its size are right
		}
		lane, ok := a.lanes[m.GetName()]
		if !ok {
			a.lastLane++
			lane = a.lastLane
			a.lanes[m.GetName()], a.agents[lane] = lane, m.GetName()
		}
		var holds []string
		for _, held := range m.GetModels() {
			holds = append(holds, control.ModelKey(held.GetName(), held.GetVersion()))
		}
		priced.Join(lane, own, holds)
	}
	priced.SetPrices(prices)
	for name, l := range a.loads {
		if lane, ok := a.lanes[name]; ok {
			priced.Heard(lane, l.at, l.remaining)
		}
	}
	a.priced = priced
}

// prepare does so ahead of need, now and then.
func (a *alone) prepare(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(now)
	if now.Sub(a.arranged) >= prepareInterval {
		a.arrange()
	}
}

func (a *alone) price(laneType string) int {
	return slices.IndexFunc(a.prices, func(p match.Price) bool { return p.Type == laneType })
}

// dense returns a profile as Priced reads it, nil if it is unknown.
func (a *alone) dense(key profileKey, m *match.Model) *match.Table {
	p := a.profiles[key]
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

// grace is how long beyond its predicted end an attempt of q may take.
func (a *alone) grace(q *query, agent string) time.Duration {
	known := a.g.members.Load()
	model, member := known.profileName(q), known.byName[agent]
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, laneType := range []string{member.OwnLaneType(), member.LaneType()} {
		if table := a.profiles[profileKey{model, laneType}].read(); table != nil {
			return max(leastOverdue, 3*table.Quantile(0.99, int(q.batch)))
		}
	}
	return leastOverdue
}

func (a *alone) counts() (probes, unanswered uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.probes, a.unanswered
}

// heard tells what a worker said of itself.
func (a *alone) heard(agent string, remaining time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if lane, ok := a.lanes[agent]; ok && a.priced != nil {
		a.priced.Heard(lane, time.Now(), remaining)
	}
}

// decide starts a goroutine that decides without a leader if there is something
// to decide and there are not enough. The gateway's lock is held.
func (g *Gateway) decide() {
	if g.closed || g.deciding >= mostDeciding {
		return
	}
	q := g.desk.alone(time.Now())
	if q == nil {
		return
	}
	g.deciding++
	g.running.Go(func() { g.decideAll(q) })
}

// decideAll decides about q and then about others, as long as there are any.
func (g *Gateway) decideAll(q *query) {
	g.mu.Lock()
	for q != nil {
		g.decide() // others beside this one
		asked := question{
			sequence: q.sequence, model: q.model, version: q.version, batch: q.batch, bytes: q.bytes,
			arrival: q.arrival, deadline: q.deadline, failed: slices.Clone(q.failed), profile: g.members.Load().profileName(q),
			traced: q.trace.decide(),
		}
		g.mu.Unlock()
		p, why := g.alone.choose(&asked)
		asked.traced.end(p, time.Since(asked.arrival), why)
		g.mu.Lock()
		if p.agent != "" {
			g.desk.decided(asked.sequence, p)
		} else {
			g.desk.undecided(asked.sequence, time.Now().Add(jitter(probeAgain)), why)
		}
		if q = nil; !g.closed {
			q = g.desk.alone(time.Now())
		}
		if q == nil {
			g.deciding--
		}
		g.leave(false)
		g.mu.Lock()
	}
	g.mu.Unlock()
}

// A question is what is asked about a query.
type question struct {
	sequence          uint64
	model, profile    string
	version           int64
	batch             uint32
	bytes             uint64
	arrival, deadline time.Time
	failed            []string
	traced            *decision
}

// choose asks members and returns where the query is to go; without an agent if
// nobody takes it now, for the reason given.
func (a *alone) choose(q *question) (chosen place, why string) {
	candidates := a.rank(q)
	if len(candidates) == 0 {
		return place{}, "no agent that takes queries holds the model"
	}
	var answers []match.Answer
	var probes []probe
	left := candidates
	for {
		n := a.more(q, len(candidates)-len(left), answers, left)
		if n == 0 {
			break
		}
		heard := a.ask(q, left[:n])
		left = left[n:]
		probes = append(probes, heard...)
		for _, p := range heard {
			answers = append(answers, match.Answer{Candidate: p.candidate, Finish: p.finish, Remaining: p.remaining})
		}
	}
	best := a.best(q, answers)
	for i, p := range probes {
		if i != best {
			a.release(place{agent: p.agent, reservation: p.id})
			continue
		}
		chosen = place{agent: p.agent, reservation: p.id, took: p.finish}
	}
	return chosen, fmt.Sprintf("none of the %d agents asked could take it", len(candidates)-len(left))
}

// more is how many of left to ask next, after so many that gave these answers. One that is asked alone counts as busy
// from now on.
func (a *alone) more(q *question, asked int, answers []match.Answer, left []ranked) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.priced == nil {
		return 0
	}
	now := time.Now()
	rest := make([]match.Candidate, len(left))
	for i, r := range left {
		rest[i] = r.candidate
	}
	n := a.priced.Ask(q.profile, now.Sub(q.arrival), a.usual, match.DefaultProbes, asked, answers, rest)
	if n == 1 {
		a.priced.Sent(rest[0].Lane, now, rest[0].Latency)
	}
	return n
}

// best is the index of the answer to take, whose member then counts as busy; -1: none.
func (a *alone) best(q *question, answers []match.Answer) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.priced == nil {
		return -1
	}
	now := time.Now()
	best := a.priced.Choose(q.profile, now.Sub(q.arrival), answers)
	if best >= 0 {
		a.priced.Sent(answers[best].Lane, now, answers[best].Latency)
	}
	return best
}

func (a *alone) target(q *question) time.Duration {
	if v, _, err := a.g.members.Load().find(q.model, ""); err == nil {
		return v.qosTarget
	}
	return 0
}

// A ranked is a member worth asking.
type ranked struct {
	agent     string
	candidate match.Candidate
}

// rank returns whom to ask, the best first.
func (a *alone) rank(q *question) []ranked {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arrange()
	if a.priced == nil {
		return nil
	}
	now := time.Now()
	var all, failed []ranked
	for _, c := range a.priced.Rank(now, q.profile, int(q.batch), now.Sub(q.arrival), mostProbes+len(q.failed)+len(a.avoided)) {
		r := ranked{a.agents[c.Lane], c}
		if slices.Contains(q.failed, r.agent) || now.Before(a.avoided[r.agent]) {
			failed = append(failed, r)
		} else {
			all = append(all, r)
		}
	}
	if len(all) == 0 { // nobody else could
		all = failed
	}
	return all[:min(mostProbes, len(all))]
}

// A probe is a member's answer that it can serve a query.
type probe struct {
	ranked
	id        uint64
	finish    time.Duration // from now, with the way there and back
	remaining time.Duration // until a lane is free for it, as it says
}

// ask asks members, and returns the answers of those who can serve the query
// and say so in time.
func (a *alone) ask(q *question, of []ranked) []probe {
	known := a.g.members.Load()
	heard := make(chan *control.ProbeAnswer, len(of)) // one each: nobody blocks
	byID := map[uint64]ranked{}
	asked := map[uint64]*prober{}
	sent := time.Now()
	a.mu.Lock()
	timeout := max(probeTimeout, 3*a.usual)
	if len(of) == 1 {
		timeout = max(soonTimeout, 3*a.usual)
	}
	for _, r := range of {
		a.probes++
		p := a.prober(known.byName[r.agent])
		if p == nil {
			continue
		}
		a.lastID++
		m := &control.ProbeRequest{
			Id: a.lastID, Gateway: a.g.config.ID, Model: q.model, Version: q.version, BatchSize: q.batch, Bytes: q.bytes,
		}
		if !q.deadline.IsZero() {
			m.TimeLeftNs = int64(max(1, q.deadline.Sub(sent)))
		}
		if p.ask(m, heard) {
			byID[m.Id] = r
			asked[m.Id] = p
		}
	}
	a.mu.Unlock()

	var probes []probe
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for range asked {
		var answer *control.ProbeAnswer
		select {
		case answer = <-heard:
		case <-timer.C:
		case <-a.g.context.Done():
		}
		if answer == nil {
			break
		}
		r := byID[answer.GetId()]
		delete(byID, answer.GetId())
		took := time.Since(sent)
		q.traced.heard(r.agent, answer, took)
		a.mu.Lock()
		a.usual += (took - a.usual) / 8
		lane, ok := a.lanes[r.agent]
		if ok && a.priced != nil && answer.GetRemainingNs() >= 0 {
			a.priced.Heard(lane, time.Now(), time.Duration(answer.GetRemainingNs()))
		}
		a.mu.Unlock()
		if answer.GetFinishNs() < 0 {
			continue
		}
		probes = append(probes, probe{r, answer.GetId(), time.Duration(answer.GetFinishNs()) + took, time.Duration(answer.GetRemainingNs())})
		if time.Since(q.arrival)+probes[len(probes)-1].finish <= a.target(q) {
			timer.Reset(max(time.Millisecond, 2*took)) // the others have not much longer
		}
	}
	if len(byID) > 0 {
		q.traced.silent(byID)
		a.mu.Lock()
		a.unanswered += uint64(len(byID))
		for id, r := range byID {
			asked[id].forget(id)
			a.avoid(r.agent)
		}
		a.mu.Unlock()
		// Those who have answered just now are released, too.
		for {
			select {
			case answer := <-heard:
				if answer.GetFinishNs() >= 0 {
					a.release(place{agent: byID[answer.GetId()].agent, reservation: answer.GetId()})
				}
				continue
			default:
			}
			break
		}
	}
	return probes
}

// avoid has a member not be asked for a while if there are others: it does not answer. The lock is held.
func (a *alone) avoid(agent string) { a.avoided[agent] = time.Now().Add(avoidTime) }

// silent notes that the leader does not answer.
func (a *alone) silent(leader string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.avoid(leader)
}

// answers notes that a member does, be it late.
func (a *alone) answers(agent string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.avoided, agent)
}

// release tells a member that a reservation is not needed.
func (a *alone) release(p place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if prober := a.probers[p.agent]; prober != nil {
		prober.send(&control.ProbeRequest{Id: p.reservation, Gateway: a.g.config.ID, Release: true})
	}
}

// A prober keeps the Probe stream to one member.
type prober struct {
	alone    *alone
	agent    string
	cancel   context.CancelFunc
	requests chan *control.ProbeRequest // as many as may be asked while the stream opens; more are not asked

	mu      sync.Mutex
	pending map[uint64]chan<- *control.ProbeAnswer
	ended   bool
}

// prober returns the prober of a member, which is started if need be; nil if
// there is no such member. The lock is held.
func (a *alone) prober(m *control.Member) *prober {
	if m == nil || a.g.context.Err() != nil {
		return nil
	}
	name := m.GetName()
	if p := a.probers[name]; p != nil {
		return p
	}
	p := &prober{alone: a, agent: name, requests: make(chan *control.ProbeRequest, 256), pending: map[uint64]chan<- *control.ProbeAnswer{}}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(a.g.context)
	a.probers[name] = p
	a.g.running.Go(func() {
		defer p.cancel()
		err := p.run(ctx, a.g.config.Transport, m)
		a.mu.Lock()
		if a.probers[name] == p {
			delete(a.probers, name)
			a.avoid(name)
		}
		a.mu.Unlock()
		p.end()
		a.g.log.Debug("probe stream has ended", "agent", name, "error", err)
	})
	return p
}

func (p *prober) run(ctx context.Context, transport Transport, m *control.Member) error {
	stream, err := transport.Probe(ctx, m)
	if err != nil {
		return err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for {
			select {
			case <-ctx.Done():
				return
			case r := <-p.requests:
				if stream.Send(r) != nil {
					return // Recv says why
				}
			}
		}
	}()
	defer func() { p.cancel(); <-written }()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		p.alone.answers(p.agent)
		p.mu.Lock()
		if to := p.pending[answer.GetId()]; to != nil {
			delete(p.pending, answer.GetId())
			to <- answer // has room
		} else if answer.GetFinishNs() >= 0 { // too late
			p.send(&control.ProbeRequest{Id: answer.GetId(), Gateway: p.alone.g.config.ID, Release: true})
		}
		p.mu.Unlock()
	}
}

// ask has a question sent, whose answer goes to the channel, which must have
// room for it. It reports false if the member cannot be asked.
func (p *prober) ask(r *control.ProbeRequest, answer chan<- *control.ProbeAnswer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	if !p.send(r) {
		return false
	}
	p.pending[r.GetId()] = answer
	return true
}

func (p *prober) send(r *control.ProbeRequest) bool {
	select {
	case p.requests <- r:
		return true
	default:
		return false
	}
}

// forget gives up waiting for an answer.
func (p *prober) forget(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, id)
}

// end tells those who wait that no answer comes.
func (p *prober) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for id, answer := range p.pending {
		answer <- &control.ProbeAnswer{Id: id, FinishNs: -1, RemainingNs: -1}
	}
	clear(p.pending)
}
