package lead

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
)

// A term is the time for which this agent leads, from its election until it steps down. The
// goroutine of run owns state and all fields below it; other goroutines reach them by post and
// call. A term has more goroutines, those of learning, planning, placing, beating and noding, and
// Match runs one for each gateway.
type term struct {
	leader *Leader
	claim  election.Claim
	former *term // run waits until this one has ended; nil: there was none
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// inbox queues functions for the loop. Its size lets streams go on reading while the loop is in
	// one step.
	inbox    chan task
	learning *profileLearner
	planning *fleetPlanner
	placing  *placementPump
	beating  *sampler
	missed   missedPump
	noding   *nodeManager

	start time.Time
	now   time.Time
	state *leader.State
	// the event of the current step; a field, so that it is not allocated each time
	event    leader.Event
	recorder *leader.Recorder
	record   *os.File

	gateways map[uint64]*gateway // the connected gateways, by id
	touched  []*gateway          // gateways whose out is not nil
	plan     *control.Plan       // the last one, by this agent or the leader before; nil: none
	proposal *control.Proposal   // the same for the last change of demand
	// the last description of each member that has greeted, by name
	described map[names.AgentName]*control.Member
	viewed    map[*control.Member]*leader.Member
	floors    map[string]float64 // the least accuracies that members state, by family
	ranked    ranking            // of the members in viewed
	// what each member holds and could hold, if it has said so
	layouts map[names.AgentName]*control.LayoutState
	// rentClasses measure demand that only some variants may answer. What rents owns them.
	rentClasses choose.ClassMeter
	released    wakeup.Signal // a release was made
}

// A task is a function for the loop to call, and when it was posted.
type task struct {
	at time.Time
	do func()
}

func newTerm(l *Leader, claim election.Claim, former *term) *term {
	t := &term{
		leader: l, claim: claim, former: former, done: make(chan struct{}),
		inbox:    make(chan task, 256),
		gateways: map[uint64]*gateway{}, described: map[names.AgentName]*control.Member{},
		layouts: map[names.AgentName]*control.LayoutState{}, released: wakeup.New(),
	}
	t.ctx, t.cancel = context.WithCancel(l.ctx)
	t.learning, t.planning, t.beating = newLearning(t), newPlanning(t), newBeating(t)
	t.placing, t.noding = newPlacing(t), newNoding(t)
	t.missed.term = t
	return t
}

// stop makes the term end. It does not block; done is closed when the term has ended.
func (t *term) stop() { t.cancel() }

// postToLoop makes the loop call do. It blocks while the inbox is full, and drops do once the term
// has ended.
func (t *term) postToLoop(do func()) {
	select {
	case t.inbox <- task{time.Now(), do}:
	case <-t.ctx.Done():
	}
}

// callInLoop makes the loop call do, and blocks until do has returned or the term has ended. It
// must not be called by the loop.
func (t *term) callInLoop(do func()) {
	finished := make(chan struct{})
	t.postToLoop(func() { do(); close(finished) })
	select {
	case <-finished:
	case <-t.done:
	}
}

// askLoop returns what the loop gets from look; the zero value once the term ends. Unlike with
// call, the caller may be a goroutine that the term waits for.
func askLoop[T any](t *term, look func() T) (none T) {
	answer := make(chan T, 1)
	t.postToLoop(func() { answer <- look() })
	select {
	case a := <-answer:
		return a
	case <-t.ctx.Done():
		return none
	}
}

// run is the term's loop. It waits for the former term to end, and returns after stop.
func (t *term) run() {
	defer close(t.done)
	if t.former != nil {
		<-t.former.done
		t.former = nil
	}
	if !t.open() {
		return
	}
	defer t.close()
	var beside sync.WaitGroup
	beside.Go(func() { t.learning.run(t.ctx) })
	beside.Go(func() { t.planning.run(t.ctx) })
	beside.Go(func() { t.beating.run(t.ctx) })
	beside.Go(func() { t.placing.run(t.ctx) })
	beside.Go(func() { t.noding.run(t.ctx) })
	if r := t.leader.config.Rent; r != nil {
		beside.Go(func() { r.Run(t.ctx, t.rentTerm()) })
	}
	if r := t.leader.config.Releases; r != nil {
		beside.Go(func() { r.Run(t.ctx, t.releaseTerm()) })
	}
	defer beside.Wait()
	defer t.cancel()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case x := <-t.inbox:
			t.do(x)
		case <-t.released:
			t.now = time.Now()
			t.followReleases()
		case <-timer.C:
		case <-t.ctx.Done():
			return
		}
		for range cap(t.inbox) { // handle all queued tasks before one flush
			select {
			case x := <-t.inbox:
				t.do(x)
				continue
			default:
			}
			break
		}
		t.now = time.Now()
		if t.now.Sub(t.start) >= t.state.Next() {
			t.step(leader.Event{Kind: leader.TimePassed})
		}
		t.flush()
		t.beating.handOverCounts(t.now.Sub(t.start))
		timer.Reset(max(0, t.state.Next()-t.now.Sub(t.start)))
	}
}

func (t *term) do(x task) {
	t.now = time.Now()
	t.leader.metrics.loopDelay.Observe(t.now.Sub(x.at).Seconds())
	x.do()
}

// open makes the state and, if asked for, its recorder. It reports false if the agent cannot lead.
func (t *term) open() bool {
	l := t.leader
	t.start = time.Now()
	t.now = t.start
	view := l.fleet.View()
	config := leader.Config{
		Self: l.fleet.Self(), Policy: l.config.Policy, Seed: rand.Uint64(),
		Ahead: control.Duration(view.GetAheadNs()),
	}
	if l.config.Record != "" {
		if err := t.startRecording(&config); err != nil {
			l.log.Error("cannot open the recording; the leader records nothing", "file",
				l.config.Record, "error", err)
		}
	}
	var err error
	if t.state, err = leader.NewState(config); err != nil {
		l.log.Error("cannot lead", "error", err) // cannot happen: the settings were checked
		return false
	}
	t.learning.startFrom(view)
	t.proposal = l.fleet.Proposal()
	if t.plan = supersededPlan(l.fleet.Plan()); t.plan != nil {
		l.metrics.setPlan(t.plan)
	}
	t.viewChanged()
	t.followReleases()
	t.step(leader.Event{Kind: leader.TimePassed})
	return true
}

func (t *term) startRecording(config *leader.Config) (err error) {
	if t.record, err = os.OpenFile(t.leader.config.Record, os.O_CREATE|os.O_WRONLY|os.O_APPEND,
		0o644); err != nil {
		return err
	}
	t.recorder, err = leader.NewRecorder(t.record, config)
	return err
}

func (t *term) close() {
	if t.record == nil {
		return
	}
	if t.recorder != nil {
		if err := t.recorder.Flush(); err != nil {
			t.leader.log.Error("the recording is not complete", "error", err)
		}
	}
	if err := t.record.Close(); err != nil {
		t.leader.log.Error("the recording is not complete", "error", err)
	}
}

// step passes an event to the state, records it, and carries out the actions that the state
// returns.
func (t *term) step(e leader.Event) {
	t.event = e
	now := t.now.Sub(t.start)
	actions := t.state.Step(now, &t.event)
	if t.recorder != nil {
		if err := t.recorder.Step(now, &t.event, actions); err != nil {
			t.leader.log.Error("cannot write the recording; it ends here", "error", err)
			t.recorder = nil
		}
	}
	for i := range actions {
		t.carryOut(&actions[i])
	}
}

// carryOut does what one action of the state asks for: it sends messages, logs, or counts.
func (t *term) carryOut(a *leader.Action) {
	l := t.leader
	switch a.Kind {
	case leader.Assign, leader.Reject, leader.OfferAgain, leader.Split:
		t.sendDecision(a)
	case leader.Welcome:
		if g := t.gateways[a.Gateway]; g != nil {
			out := t.nextMessage(g)
			out.Leadership = l.Leadership()
			out.Prices, out.Profiles = pricesOf(t.state.Prices()), profilesOf(t.state.Latencies())
		}
	case leader.Heartbeat:
		for _, g := range t.gateways {
			t.addHeartbeat(g)
		}
	case leader.TellLatencies:
		profiles := profilesOf(a.Latencies)
		for _, g := range t.gateways {
			out := t.nextMessage(g)
			out.Profiles = mergeProfiles(out.Profiles, profiles)
		}
		l.links.addToAll(
			t, func(m *control.LeaderMessage) { m.Profiles = mergeProfiles(m.Profiles, profiles) })
	case leader.TellPrices:
		prices := pricesOf(a.Prices)
		for _, g := range t.gateways {
			t.nextMessage(g).Prices = prices
		}
		l.links.addToAll(t, func(m *control.LeaderMessage) { m.Prices = prices })
	case leader.TellAhead:
		ahead := int64(a.Duration)
		l.metrics.ahead.Set(a.Duration.Seconds())
		l.links.addToAll(t, func(m *control.LeaderMessage) { m.AheadNs = ahead })
	case leader.AskHeld:
		l.links.reopenLink(t, a.Agent)
	case leader.Arrived:
		t.learning.addArrival(learn.Arrival{Model: a.Model, BatchSize: a.BatchSize, At: t.now})
	case leader.Observed, leader.ObservedCut:
		t.learning.addObservation(learn.Observation{
			Member: a.Member, Model: a.Model, BatchSize: a.BatchSize, Users: a.Users,
			Values: a.Values, Execution: a.Duration,
			Cut: a.Kind == leader.ObservedCut, At: t.now,
		})
	case leader.PoolChanged:
		t.learning.poolIs(a.Pool)
	case leader.LanesJoined:
		typ := t.described[a.Agent].GetInstanceType()
		l.log.Debug("lanes have joined", "agent", a.Agent, "instance_type", typ, "lanes", a.N)
	case leader.LanesLost:
		level := slog.LevelWarn
		if a.Known {
			level = slog.LevelDebug
		}
		l.log.Log(t.ctx, level, "lanes are lost", "agent", a.Agent, "lanes", a.N, "why", a.Message,
			eventKey, "lane")
	case leader.LaneOverdue:
		l.metrics.overdue.Inc()
		l.log.Debug("a lane is overdue", "agent", a.Agent, "lane", a.Lane, "holds", a.N, "by",
			a.Duration.String())
	case leader.LaneSilent:
		l.log.Warn("lane does not answer, it gets no queries until it does", "agent", a.Agent,
			"lane", a.Lane,
			"holds", a.N, "overdue_ms", a.Duration.Milliseconds(), eventKey, "lane")
	case leader.LaneAnswers:
		l.log.Info("lane answers again", "agent", a.Agent, "lane", a.Lane, eventKey, "lane")
	case leader.Departs:
		l.log.Info("an agent departs from its type", "agent", a.Agent, "factor", a.Factor,
			"own_profile", a.Known, eventKey, "lane")
	case leader.TargetUnmet:
		t.targetUnmet(a)
	case leader.Nonsense:
		l.log.Warn("an event makes no sense", "event", a.Message)
	}
}

// targetUnmet logs that a model misses its QoS target whatever is decided, or no more.
func (t *term) targetUnmet(a *leader.Action) {
	if a.Share == 0 {
		t.leader.log.Info("a model can meet its QoS target again", "model", a.Model.Name, "version",
			a.Model.Version, eventKey, "target")
		return
	}
	t.leader.log.Warn("a model cannot meet its QoS target", "model", a.Model.Name, "version",
		a.Model.Version, "share_of_queries", math.Round(1000*a.Share)/1000, "why", a.Message,
		eventKey, "target")
}

// sendDecision counts and traces a decision, and adds it to the next message to the query's
// gateway.
func (t *term) sendDecision(a *leader.Action) {
	d := &a.Decision
	t.leader.metrics.countDecision(d)
	t.beating.countDecision(a)
	t.traceDecision(a)
	g := t.gateways[d.Query.Gateway]
	if g == nil {
		return
	}
	out := t.nextMessage(g)
	switch a.Kind {
	case leader.Assign:
		assign := &control.Assign{
			Sequence: d.Query.Sequence, Attempt: uint32(d.Attempt), Agent: string(a.Agent),
			Lane:   uint32(a.Lane),
			WaitNs: int64(d.Wait), ExecutionNs: int64(d.Latency),
			Merge: d.Merge, Merged: uint32(d.Merged),
			WaitedNs: proto.Int64(int64(max(0, d.Waited-t.state.SubmitWay()))),
		}
		if d.Family != "" || a.Known {
			assign.Model, assign.Version, assign.Accuracy = a.Model.Name, a.Model.Version,
				d.Accuracy
		}
		out.Assign = append(out.Assign, assign)
	case leader.Reject:
		out.Reject = append(out.Reject, &control.Reject{
			Sequence: d.Query.Sequence, Reason: d.Reason.String(),
			Message:      a.Message + t.loadTimeOf(a.Loadable),
			RetryAfterNs: int64(d.Wait), Loadable: a.Loadable != leader.ModelID{},
		})
	case leader.Split:
		split := &control.Split{Sequence: d.Query.Sequence, Rows: make([]uint32, len(d.Rows))}
		for i, n := range d.Rows {
			split.Rows[i] = uint32(n)
		}
		if d.Family != "" || a.Known {
			split.Model, split.Version, split.Accuracy = a.Model.Name, a.Model.Version, d.Accuracy
		}
		out.Split = append(out.Split, split)
	case leader.OfferAgain:
		revokeAssignment(out, d.Query.Sequence, uint32(d.Attempt))
		out.OfferAgain = append(out.OfferAgain, &control.OfferAgain{
			Sequence: d.Query.Sequence, Attempt: uint32(d.Attempt), Reason: d.Reason.String(),
		})
	}
}

// pricesOf converts prices. If they are more than maxPriceBytes, it leaves the classes out:
// members and gateways then go by the prices of the types.
func pricesOf(prices []fluid.Price) (all []*control.TypePrice) {
	size := 0
	for _, p := range prices {
		told := &control.TypePrice{
			Type: string(p.Type), PerMs: p.PerMs, ServiceMs: float64(p.Service) / 1e6,
		}
		for _, c := range p.Classes {
			told.Classes = append(told.Classes, &control.ClassPrice{
				Models: names.Strings(c.Models), PerMs: c.PerMs,
				ServiceMs: float64(c.Service) / 1e6,
			})
		}
		size += proto.Size(told)
		all = append(all, told)
	}
	if size > maxPriceBytes {
		for _, told := range all {
			told.Classes = nil
		}
	}
	return all
}

func profilesOf(latencies []*leader.Latency) (all []*control.Profile) {
	for _, l := range latencies {
		all = append(all, &control.Profile{
			Model: string(l.Model), Type: string(l.Type), Table: l.Told,
			RowsPerUser: l.Law.PerUser, RowsPerValue: l.Law.PerValue, WorkTable: l.ToldWork,
		})
	}
	return all
}

// viewChanged passes the members of the fleet's view to the state. It converts only members that
// have changed since the last call.
func (t *term) viewChanged() {
	members := t.leader.fleet.View().GetMembers()
	if stated := statedFloors(members); !maps.Equal(stated, t.floors) {
		t.floors, t.viewed = stated, nil // all are to be converted anew
	}
	if ranked := rankingOf(members); !ranked.equals(t.ranked) {
		t.ranked, t.viewed = ranked, nil
	}
	seen := make(map[*control.Member]*leader.Member, len(members))
	there := make(map[names.AgentName]bool, len(members))
	said := make([]*leader.Member, len(members))
	for i, m := range members {
		if said[i] = t.viewed[m]; said[i] == nil {
			said[i] = memberOf(t.leader.config.Catalogue, m)
			t.ranked.removeUnserved(m, said[i])
			t.requireFloors(said[i])
		}
		seen[m], there[m.AgentName()] = said[i], true
	}
	t.viewed = seen
	t.step(leader.Event{Kind: leader.ViewChanged, Members: said})
	maps.DeleteFunc(t.described,
		func(name names.AgentName, _ *control.Member) bool { return !there[name] })
	maps.DeleteFunc(t.layouts,
		func(name names.AgentName, _ *control.LayoutState) bool { return !there[name] })
	t.placing.wake.Send()
}

// statedFloors are the least accuracies that members state for families, by name.
func statedFloors(members []*control.Member) map[string]float64 {
	floors := map[string]float64{}
	for family, of := range control.BestVariants(members) {
		if of.Stated > 0 {
			floors[family] = of.Stated
		}
	}
	return floors
}

// requireFloors has a member's models state what any member does for their families.
func (t *term) requireFloors(m *leader.Member) {
	for _, models := range [][]leader.HeldModel{m.Models, m.Loadable} {
		for i := range models {
			models[i].MinAccuracy = max(models[i].MinAccuracy, t.floors[models[i].Family])
		}
	}
}

// askGoroutine has the goroutine that takes functions from asks call do, and blocks until do has
// returned. It reports false, without calling do, if the term has ended.
func (t *term) askGoroutine(asks chan<- func(), do func()) bool {
	done := make(chan struct{})
	select {
	case asks <- func() { do(); close(done) }:
		<-done
		return true
	case <-t.ctx.Done():
		return false
	}
}

// addInitialState adds the leadership, prices and profiles to the first message of a link, so that
// a member that accepts this leader follows it before the member greets.
func (t *term) addInitialState(to names.AgentName, m *control.LeaderMessage) {
	m.Placement = t.placing.introductionTo(to)
	m.Leadership = t.leader.Leadership()
	if r := t.leader.config.Rent; r != nil {
		m.Fleet = r.Message()
	}
	if r := t.leader.config.Releases; r != nil {
		m.Releases = r.All()
	}
	m.Election = append(m.Election, t.leader.toMessage(&election.Message{
		Kind: election.Heartbeat, Claim: t.claim,
		Successor: names.AgentName(m.Leadership.GetSuccessor()),
	}))
	t.callInLoop(func() {
		m.Prices, m.AheadNs = pricesOf(t.state.Prices()), int64(t.state.Ahead())
		m.Plan, m.Proposal = t.plan, t.proposal
		m.Profiles = profilesOf(t.state.Latencies())
	})
}

// handleMemberMessage handles a message of a member. greets is set for the first message of the
// member on its current stream, which lists what its lanes hold.
func (t *term) handleMemberMessage(name names.AgentName, m *control.WorkerMessage, greets bool) {
	free := toDurations(m.GetRemainingNs())
	if greets || m.GetFleet() != nil {
		t.noteDesired(name, m.GetFleet())
	}
	if r := t.leader.config.Releases; r != nil {
		// releases of a leader that this agent has not followed, if newer
		r.AdoptReleases(m.GetReleases())
	}
	if m.Member != nil {
		t.described[name] = m.Member
		described := memberOf(t.leader.config.Catalogue, m.Member)
		t.ranked.removeUnserved(m.Member, described)
		t.requireFloors(described)
		t.step(leader.Event{Kind: leader.Described, Member: described, Free: free})
	}
	if m.Layout != nil {
		t.layouts[name] = m.Layout
		t.placing.wake.Send()
	}
	for _, c := range m.GetCompleted() {
		t.handleCompletion(name, c)
	}
	if greets {
		holds := make([]leader.Held, len(m.GetHeld()))
		for i, h := range m.GetHeld() {
			holds[i] = leader.Held{
				Gateway: h.GetGateway(), Sequence: h.GetSequence(),
				Attempt: int(h.GetAttempt()), Lane: int(h.GetLane()),
				Model:     leader.ModelID{Name: h.GetModel(), Version: h.GetVersion()},
				BatchSize: int(h.GetBatchSize()),
			}
		}
		t.step(leader.Event{Kind: leader.Greeted, Agent: name, Holds: holds, Free: free})
	} else if len(free) > 0 {
		t.step(leader.Event{Kind: leader.LanesFree, Agent: name, Free: free})
	}
}

func (t *term) handleCompletion(name names.AgentName, c *control.Completed) {
	if !c.GetShadow() {
		t.beating.countCompletion(name, c)
		t.noding.countCompletion(name, c)
		t.missed.countLate(c)
	}
	t.step(leader.Event{
		Kind: leader.Completed, Agent: name, Lane: int(c.GetLane()),
		Gateway: c.GetGateway(), Sequence: c.GetSequence(), Attempt: int(c.GetAttempt()),
		Remaining: control.Duration(c.GetRemainingNs()), Refused: c.GetRefused() != "",
		Model:     leader.ModelID{Name: c.GetModel(), Version: c.GetVersion()},
		BatchSize: int(c.GetBatchSize()), Bytes: c.GetBytes(),
		Users: int(c.GetUsers()), Values: countOf(c.GetValues()),
		MergedUsers: int(c.GetMergedUsers()), MergedValues: countOf(c.GetMergedValues()),
		Execution: control.Duration(c.GetExecutionNs()), Queue: control.Duration(c.GetQueueNs()),
		Receive: control.Duration(c.GetReceiveNs()), Latency: control.Duration(c.GetLatencyNs()),
		Merged: int(c.GetMerged()), Divided: c.GetDivided(), Shadow: c.GetShadow(),
		NonFinite: c.GetNonFinite(), NoAnswer: c.GetNoAnswer(),
	})
}

// linkBroken tells the state that the link to a member broke with err, and whether the member's
// process has ended.
func (t *term) linkBroken(name names.AgentName, gone bool, err error) {
	t.step(leader.Event{Kind: leader.LinkBroken, Agent: name, Gone: gone, Why: err.Error()})
}

// toDurations converts nanoseconds that a member sent; nil if there are none.
func toDurations(ns []int64) []time.Duration {
	if len(ns) == 0 {
		return nil
	}
	all := make([]time.Duration, len(ns))
	for i, x := range ns {
		all[i] = control.Duration(x)
	}
	return all
}

// applyAdvice passes the learning loop's advice to the state.
func (t *term) applyAdvice(a *leader.Advice) {
	if a.Priced {
		t.leader.metrics.limit.Set(a.Limit)
		t.leader.metrics.unmetAre(a.Unmet)
	}
	t.step(leader.Event{Kind: leader.Learned, Advice: a})
}

// sendProposal sends a change of demand to all members. The loop calls it.
func (t *term) sendProposal(p *control.Proposal) {
	t.proposal = p
	t.leader.links.addToAll(t, func(m *control.LeaderMessage) { m.Proposal = p })
}

// tellLeadership sends the gateways the leader and its successor.
func (t *term) tellLeadership() {
	for _, g := range t.gateways {
		t.nextMessage(g).Leadership = t.leader.Leadership()
	}
	t.placing.tellSuccessor()
}

// maxValues bounds how many values of ragged inputs a query is taken to have: numbers come from other
// machines, and work is computed of them. Chosen: 64 values for each of the largest batch.
const maxValues = 64 * profiles.MaxBatchSize

func countOf(values uint64) int { return int(min(values, maxValues)) }
