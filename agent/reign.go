package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// heartbeat is how often a leader says something to each gateway.
	heartbeat = 50 * time.Millisecond
	// settleTime is how long after taking over the leader waits for a lane to greet
	// before it gives away a query that is said to be there.
	settleTime = 100 * time.Millisecond
	// turmoil is how long after taking over nothing is learned of how long a query's way is: everybody is connecting.
	// What the former leader has found holds until then.
	turmoil = time.Second
	// linkGrace is how long a broken link may take to come back before the lanes are lost.
	linkGrace = time.Second
	// A lane is overdue by so many 99 % quantiles, and at least overdueLeast; overdueDoubt
	// where its latency is hardly known.
	overdueQuantiles           = 3
	overdueLeast, overdueDoubt = 100 * time.Millisecond, time.Second
	// overdueAgain is how often an overdue lane is asked again what it holds.
	overdueAgain = 2 * time.Second
	// onTheWay is how long, beside twice the usual, a query may take to its lane after it was assigned, or its gateway
	// told where it is.
	onTheWay = 20 * time.Millisecond
	// decisionsKept is how many decisions `muster status` can show.
	decisionsKept = 64
)

// A reign is one leadership of this agent, from its election until it steps
// down. One goroutine, run's, owns the matcher and all that is below it here; everything else
// reaches it by post. Two more belong to a reign: one that learns and prices (study),
// and for each gateway one that writes to it.
type reign struct {
	leader *leader
	claim  election.Claim
	former *reign // has ended before this one begins; nil: there was none
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// inbox holds what has happened. It is deep enough that streams can go on reading
	// while the loop is in one step.
	inbox chan task
	study *study

	start    time.Time
	now      time.Time
	matcher  *match.Matcher
	next     time.Time // when the matcher wants to be stepped; zero: never
	recorder *match.Recorder
	record   *os.File

	workers  map[string]*worker
	lanes    map[match.LaneID]*lane
	lastLane match.LaneID
	models   map[string]*leaderModel // by key
	newest   map[string]int64        // version by name, of those on lanes that do not drain
	served   map[string]bool         // by key: the same

	gateways    map[uint64]*gateway // those connected
	numbers     map[uint64]uint32   // of gateways, connected or not
	byNumber    map[uint32]*gateway
	accounts    map[string]*account // of the clients with a name that have gateways
	lastNumber  uint32
	mostNumbers int        // when to look for some to forget
	lookedGone  time.Time  // when it was last done anyway
	touched     []*gateway // have something to be sent
	parked      []*parked
	gone        map[string]bool // members whose process is gone, and gossip does not know yet

	prices   []*control.TypePrice
	profiles map[tableKey]*control.Profile
	tables   map[tableKey]*known
	slow     map[string]string // the own type of those who have one, by agent
	factors  map[string]float64
	limit    float64 // fluid
	ahead    aheadEstimate
	aheadSet time.Duration

	arrived   ring
	decisions []match.Decision // the last, as a ring
	decided   int
}

// A task is something for the loop to do.
type task struct {
	at time.Time
	do func()
}

// tableKey names the profile of a model (name/version) on a type of lanes.
type tableKey struct{ model, typ string }

func (k tableKey) compare(o tableKey) int {
	return cmp.Or(cmp.Compare(k.model, o.model), cmp.Compare(k.typ, o.typ))
}

// A leaderModel is a version of a model that some member holds.
type leaderModel struct {
	key     string
	name    string
	version int64
	modelSettings

	perSecond [statusSeconds]tally
	total     tally
}

// modelSettings are what a model.yaml says of a model that a leader must know.
type modelSettings struct {
	target  time.Duration
	share   float64 // of the queries that should meet the target
	largest int
	late    bool // reject late queries
}

func settingsOf(m *control.Model) modelSettings {
	return modelSettings{
		target: max(time.Duration(m.GetQosTargetNs()), 1), share: m.GetQosPercentile(),
		largest: min(max(int(m.GetLargestBatchSize()), 1), match.MaxBatchSize), late: m.GetRejectLate(),
	}
}

// and are the settings of a model that some members serve by s and others by o, as they do while its
// model.yaml is changed on one after the other. What either allows is allowed, as at a gateway: so it
// does not matter in which order they are asked.
func (s modelSettings) and(o modelSettings) modelSettings {
	return modelSettings{max(s.target, o.target), min(s.share, o.share), max(s.largest, o.largest), s.late && o.late}
}

// A tally counts queries of a model.
type tally struct {
	second                  int64
	answered, late, refused uint64
}

// A worker is a member with its lanes.
type worker struct {
	name    string
	link    *link
	member  *control.Member // as it last described itself; nil before it has greeted
	lanes   []*lane
	typ     string
	models  []string  // keys
	lostAt  time.Time // when to give its lanes up, unless its link comes back; zero: it is there
	broken  error     // why its link broke
	current bool      // among reign.workers
	busy    ring      // ns
}

// A lane as the leader keeps it beside the matcher's.
type lane struct {
	id      match.LaneID
	worker  *worker
	index   uint32
	held    []attempt
	due     time.Time // when it should have answered; of no meaning while it holds nothing
	overdue bool
	silent  bool      // it has been overdue for so long that the log says so
	askedAt time.Time // when it was last asked what it holds
}

// An attempt is at a lane, or on its way there.
type attempt struct {
	query  match.QueryID
	number int
	// since is when this leader decided it, or heard of it from its gateway: it may still be on its way.
	// Zero: the lane has told of it.
	since     time.Time
	claimed   bool // this leader has heard of it from its gateway
	bytes     uint64
	execution time.Duration // predicted
	grace     time.Duration // how late it may be
}

// A known latency, as the loop needs it.
type known struct {
	profile *profiles.Table
	table   *match.Table // of profile, up to the largest batch size
	sure    bool
}

// A parked query is one that is said to be at a lane that has not greeted yet.
type parked struct {
	gateway *gateway
	submit  *control.Submit
	heardAt time.Time
	weight  int // in the account of its gateway, in bytes
}

func newReign(l *leader, claim election.Claim, former *reign) *reign {
	r := &reign{
		leader: l, claim: claim, former: former, done: make(chan struct{}), inbox: make(chan task, 256),
		workers: map[string]*worker{}, lanes: map[match.LaneID]*lane{}, models: map[string]*leaderModel{}, newest: map[string]int64{},
		gateways: map[uint64]*gateway{}, numbers: map[uint64]uint32{}, byNumber: map[uint32]*gateway{},
		accounts: map[string]*account{},
		profiles: map[tableKey]*control.Profile{}, tables: map[tableKey]*known{}, slow: map[string]string{}, factors: map[string]float64{},
		gone: map[string]bool{}, mostNumbers: mostNumbers,
	}
	r.ctx, r.cancel = context.WithCancel(l.ctx)
	r.study = newStudy(r)
	return r
}

// stop ends the reign; done is closed when it has ended.
func (r *reign) stop() { r.cancel() }

// post has the loop do something. It waits if the loop is behind, and does nothing once the reign has ended.
func (r *reign) post(do func()) {
	select {
	case r.inbox <- task{time.Now(), do}:
	case <-r.ctx.Done():
	}
}

// call has the loop do something and waits until it has, or the reign ends.
func (r *reign) call(do func()) {
	finished := make(chan struct{})
	r.post(func() { do(); close(finished) })
	select {
	case <-finished:
	case <-r.done:
	}
}

// run is the loop.
func (r *reign) run() {
	defer close(r.done)
	if r.former != nil {
		<-r.former.done
		r.former = nil
	}
	if !r.open() {
		return
	}
	defer r.close()
	studied := make(chan struct{})
	go func() {
		defer close(studied)
		r.study.run(r.ctx)
	}()
	defer func() { <-studied }()
	defer r.cancel()

	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case t := <-r.inbox:
			r.do(t)
		case <-timer.C:
		case <-beat.C:
			r.now = time.Now()
			r.beat()
		case <-r.ctx.Done():
			return
		}
		for range cap(r.inbox) { // what has queued meanwhile goes out together
			select {
			case t := <-r.inbox:
				r.do(t)
				continue
			default:
			}
			break
		}
		r.now = time.Now()
		if !r.next.IsZero() && !r.now.Before(r.next) {
			r.step(&match.Event{Kind: match.TimePassed})
		}
		r.flush()
		if r.next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(0, r.next.Sub(r.now)))
		}
	}
}

func (r *reign) do(t task) {
	r.now = time.Now()
	r.leader.metrics.loopDelay.Observe(r.now.Sub(t.at).Seconds())
	t.do()
}

// open makes the matcher and its recorder.
func (r *reign) open() bool {
	l := r.leader
	r.start = time.Now()
	r.now = r.start
	cfg := match.Config{Policy: l.config.Policy, Settle: settleTime, Seed: rand.Uint64()}
	var err error
	if r.matcher, err = match.New(cfg); err != nil {
		l.log.Error("cannot lead", "error", err) // the settings were checked
		return false
	}
	if l.config.Record != "" {
		if err := r.startRecording(&cfg); err != nil {
			l.log.Error("nothing is recorded", "file", l.config.Record, "error", err)
		}
	}
	r.step(&match.Event{Kind: match.TimePassed})
	r.study.suggest(l.fleet.view())
	r.ahead.fixed = control.Duration(l.fleet.view().GetAheadNs())
	r.viewChanged()
	r.tuneAhead()
	return true
}

func (r *reign) startRecording(cfg *match.Config) (err error) {
	if r.record, err = os.OpenFile(r.leader.config.Record, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return err
	}
	r.recorder, err = match.NewRecorder(r.record, cfg)
	return err
}

func (r *reign) close() {
	if r.record == nil {
		return
	}
	if r.recorder != nil {
		if err := r.recorder.Flush(); err != nil {
			r.leader.log.Error("the recording is not complete", "error", err)
		}
	}
	if err := r.record.Close(); err != nil {
		r.leader.log.Error("the recording is not complete", "error", err)
	}
}

// step steps the matcher and carries out what it decides.
func (r *reign) step(e *match.Event) {
	decisions, next, err := r.matcher.Step(r.now, e)
	r.next = next
	if err != nil {
		r.leader.log.Warn("an event makes no sense", "event", string(match.AppendEvent(nil, r.now.Sub(r.start), e)), "error", err)
	}
	if r.recorder != nil {
		if err := r.recorder.Step(r.now.Sub(r.start), e, decisions); err != nil {
			r.leader.log.Error("the recording ends here", "error", err)
			r.recorder = nil
		}
	}
	for i := range decisions {
		r.carryOut(&decisions[i])
	}
}

func (r *reign) carryOut(d *match.Decision) {
	if len(r.decisions) < decisionsKept {
		r.decisions = append(r.decisions, *d)
	} else {
		r.decisions[r.decided%decisionsKept] = *d
	}
	r.decided++
	r.leader.metrics.decided(d)
	g := r.byNumber[d.Query.Gateway]
	if g == nil {
		return // its queries have been forgotten
	}
	r.trace(g.queries[d.Query.Sequence], d)
	switch d.Action {
	case match.Assign:
		r.assign(g, d)
	case match.Reject:
		q := g.queries[d.Query.Sequence]
		g.forget(d.Query.Sequence)
		if q != nil && q.model != nil {
			q.model.count(r.now, tally{refused: 1})
		}
		r.reject(g, d, q)
	case match.OfferAgain:
		out := r.outbox(g)
		revoke(out, d.Query.Sequence, uint32(d.Attempt))
		out.OfferAgain = append(out.OfferAgain, &control.OfferAgain{Sequence: d.Query.Sequence, Attempt: uint32(d.Attempt), Reason: d.Reason.String()})
	}
}

func (r *reign) assign(g *gateway, d *match.Decision) {
	ln := r.lanes[d.Lane]
	a := attempt{query: d.Query, number: d.Attempt, since: r.now, execution: d.Latency, grace: overdueLeast}
	if q := g.queries[d.Query.Sequence]; q != nil {
		a.bytes = q.bytes
		q.submit.Attempts = uint32(d.Attempt)
		if q.model != nil {
			a.grace = r.grace(ln, q.model.key, q.batch)
		}
	}
	if len(ln.held) == 0 {
		ln.due = r.now.Add(d.Wait + a.execution + a.grace)
	}
	ln.held = append(ln.held, a)
	out := r.outbox(g)
	out.Assign = append(out.Assign, &control.Assign{
		Sequence: d.Query.Sequence, Attempt: uint32(d.Attempt), Agent: ln.worker.name, Lane: ln.index,
		WaitNs: int64(d.Wait), ExecutionNs: int64(d.Latency),
	})
}

// grace is by how much a query of the model may be late on the lane before the lane is overdue.
func (r *reign) grace(ln *lane, model string, batch int) time.Duration {
	k := r.tables[tableKey{model, ln.worker.typ}]
	if k == nil {
		return overdueDoubt
	}
	least := overdueLeast
	if !k.sure {
		least = overdueDoubt
	}
	return max(least, overdueQuantiles*k.profile.Quantile(0.99, batch))
}

func (r *reign) reject(g *gateway, d *match.Decision, q *leaderQuery) {
	message := "the leader refuses the query: " + strings.ReplaceAll(d.Reason.String(), "-", " ")
	switch {
	case d.Reason == match.UnknownModel:
		message = "no member of the fleet holds the model"
	case d.Reason == match.Late && q != nil && q.model != nil:
		message = fmt.Sprintf("the QoS target of %v can no longer be met, and the model rejects such queries", q.model.target)
	case d.Reason == match.Overloaded:
		all, _ := r.matcher.Waiting()
		message = fmt.Sprintf("overloaded: %d queries wait", all)
	case d.Reason == match.TooManyAttempts:
		message = fmt.Sprintf("%d attempts have failed", match.MaxAttempts)
	}
	out := r.outbox(g)
	out.Reject = append(out.Reject, &control.Reject{Sequence: d.Query.Sequence, Reason: d.Reason.String(), Message: message, RetryAfterNs: int64(d.Wait)})
}

// refuse tells a gateway that its query is none for the matcher.
func (r *reign) refuse(g *gateway, sequence uint64, reason match.Reason, message string) {
	out := r.outbox(g)
	out.Reject = append(out.Reject, &control.Reject{Sequence: sequence, Reason: reason.String(), Message: message})
}

// beat does what is due now and then.
func (r *reign) beat() {
	for _, name := range slices.Sorted(maps.Keys(r.workers)) {
		w := r.workers[name]
		if !w.lostAt.IsZero() && !r.now.Before(w.lostAt) {
			r.lose(w, fmt.Sprintf("its link has not come back, which broke: %v", w.broken))
			continue
		}
		for _, ln := range w.lanes {
			r.watch(ln)
		}
	}
	if r.now.Sub(r.start) >= settleTime {
		r.unpark(func(*parked) bool { return true })
	}
	for _, g := range r.gateways {
		r.outbox(g) // at least a heartbeat
	}
	if r.now.Sub(r.lookedGone) >= lookGone {
		r.lookedGone = r.now
		r.forgetNumbers()
	}
	r.tuneAhead()
}

// watch finds out whether a lane is overdue.
func (r *reign) watch(ln *lane) {
	switch {
	case len(ln.held) == 0 || r.now.Before(ln.due):
		return
	case !ln.overdue:
		ln.overdue = true
		r.leader.metrics.overdue.Inc()
		r.leader.log.Debug("lane is overdue", "agent", ln.worker.name, "lane", ln.index, "holds", len(ln.held), "by", r.now.Sub(ln.due).String())
		r.step(&match.Event{Kind: match.Overdue, Lane: ln.id})
	case r.now.Sub(ln.askedAt) < overdueAgain:
		return
	case !ln.silent:
		ln.silent = true
		r.leader.log.Warn("lane does not answer, it gets no queries until it does", "agent", ln.worker.name, "lane", ln.index,
			"holds", len(ln.held), "overdue_ms", r.now.Sub(ln.due).Milliseconds(), eventKey, "lane")
	}
	// What it holds may have been lost on the way: it says so when it greets again.
	ln.askedAt = r.now
	if ln.worker.link != nil {
		ln.worker.link.renew()
	}
}

// mostAhead bounds what is learned of the way to a lane: a quarter of the shortest QoS target of the models that
// lanes hold. A longer way, be it real or one of starved processes, is not hidden: to decide that early leaves no query in time.
func (r *reign) mostAhead() time.Duration {
	most := time.Duration(math.MaxInt64)
	for _, w := range r.workers {
		for _, key := range w.models {
			most = min(most, r.models[key].target/4)
		}
	}
	return most
}

// tuneAhead tells the matcher how long the way to a lane takes, when that has changed.
func (r *reign) tuneAhead() {
	ahead, ok := r.ahead.value()
	ahead = min(ahead, r.mostAhead())
	if diff := (ahead - r.aheadSet).Abs(); !ok || diff < 20*time.Microsecond || diff*10 < r.aheadSet {
		return
	}
	r.aheadSet = ahead
	r.leader.metrics.ahead.Set(ahead.Seconds())
	r.step(&match.Event{Kind: match.AheadChanged, Ahead: ahead})
	r.leader.links.tell(r, func(m *control.LeaderMessage) { m.AheadNs = int64(ahead) })
}

// viewChanged takes what the fleet's view says that links do not: who has left,
// and which models there are.
func (r *reign) viewChanged() {
	there := map[string]bool{}
	said := map[modelID]modelSettings{}
	for _, m := range r.leader.fleet.view().GetMembers() {
		there[m.GetName()] = true
		if w := r.workers[m.GetName()]; w != nil && w.member.GetRevision() > m.GetRevision() {
			m = w.member // its link is ahead of the view
		}
		for _, model := range m.GetModels() {
			id, settings := modelID{model.GetName(), model.GetVersion()}, settingsOf(model)
			if others, ok := said[id]; ok {
				settings = settings.and(others)
			}
			said[id] = settings
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(said), modelID.compare) {
		r.modelIs(id, said[id])
	}
	for _, name := range slices.Sorted(maps.Keys(r.workers)) {
		if w := r.workers[name]; !there[name] && name != r.leader.fleet.self() {
			r.lose(w, "it is no member any more")
		}
	}
	maps.DeleteFunc(r.gone, func(name string, _ bool) bool { return !there[name] })
	r.unpark(func(p *parked) bool { return !there[p.submit.GetAgent()] })
}

// A modelID names a version of a model.
type modelID struct {
	name    string
	version int64
}

func (id modelID) compare(o modelID) int {
	return cmp.Or(cmp.Compare(id.name, o.name), cmp.Compare(id.version, o.version))
}

// learnModel takes what a member says of a model. That other members do not say so any more shows
// when the view changes.
func (r *reign) learnModel(m *control.Model) *leaderModel {
	settings := settingsOf(m)
	if k := r.models[control.ModelKey(m.GetName(), m.GetVersion())]; k != nil {
		settings = settings.and(k.modelSettings)
	}
	return r.modelIs(modelID{m.GetName(), m.GetVersion()}, settings)
}

// modelIs tells the matcher of a model, if it is new or has changed.
func (r *reign) modelIs(id modelID, settings modelSettings) *leaderModel {
	key := control.ModelKey(id.name, id.version)
	k := r.models[key]
	switch {
	case k == nil:
		k = &leaderModel{key: key, name: id.name, version: id.version}
		r.models[key] = k
	case k.modelSettings == settings:
		return k
	case k.largest < settings.largest:
		r.lengthen(key, settings.largest)
	}
	k.modelSettings = settings
	r.step(&match.Event{Kind: match.ModelChanged, Model: key, QoSTarget: k.target, BatchSize: k.largest, RejectLate: k.late})
	r.poolChanged()
	return k
}

// lengthen has the matcher's tables of a model go up to a larger batch size, which is to become its
// largest: a table that ends before it would be forgotten.
func (r *reign) lengthen(model string, largest int) {
	for _, key := range slices.SortedFunc(maps.Keys(r.tables), tableKey.compare) {
		k := r.tables[key]
		if key.model != model || k.table.Largest() >= largest {
			continue
		}
		table, err := match.NewTable(k.profile, largest)
		if err != nil {
			continue // it was right up to fewer, and the study tells a new one
		}
		r.tables[key] = &known{profile: k.profile, table: table, sure: k.sure}
		r.step(&match.Event{Kind: match.ProfileChanged, Model: model, Type: key.typ, Table: table})
	}
}

// introduce adds to the first message of a link what a member must know, so that it
// follows this agent, if it does, before it greets.
func (r *reign) introduce(m *control.LeaderMessage) {
	m.Leadership = r.leader.leadership()
	m.Election = append(m.Election, r.leader.message(&election.Message{
		Kind: election.Heartbeat, Claim: r.claim, Successor: m.Leadership.GetSuccessor(),
	}))
	r.call(func() {
		m.Prices, m.AheadNs = r.prices, int64(r.aheadSet)
		m.Profiles = r.allProfiles()
	})
}

func (r *reign) allProfiles() []*control.Profile {
	all := slices.Collect(maps.Values(r.profiles))
	slices.SortFunc(all, func(a, b *control.Profile) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Type, b.Type))
	})
	return all
}

// heard takes what a member says on its link; greets if it is the first on this stream.
func (r *reign) heard(w *worker, m *control.WorkerMessage, greets bool) {
	if w.link != nil && w.link.reign != r {
		return
	}
	if m.Member != nil {
		if former := r.workers[w.name]; former != nil && former != w {
			r.lose(former, "it has a new link")
		}
		w.lostAt = time.Time{}
		delete(r.gone, w.name)
		r.describe(w, m)
	}
	for _, c := range m.GetCompleted() {
		r.completed(w, c)
	}
	if greets {
		r.reconcile(w, m)
		r.unpark(func(p *parked) bool { return p.submit.GetAgent() == w.name })
	} else if m.Member == nil || len(m.GetRemainingNs()) > 0 {
		for i, ns := range m.GetRemainingNs() {
			if i < len(w.lanes) {
				ln := w.lanes[i]
				remaining := control.Duration(ns)
				r.step(&match.Event{Kind: match.LaneRemaining, Lane: ln.id, Remaining: remaining})
				if len(ln.held) > 0 && !ln.overdue {
					ln.due = r.now.Add(remaining + ln.held[0].grace)
				}
			}
		}
	}
}

// describe takes what a member says it is and holds, and has its lanes join if
// they have not.
func (r *reign) describe(w *worker, m *control.WorkerMessage) {
	before := w.member
	w.member = m.Member
	models := []string{}
	for _, model := range w.member.GetModels() {
		models = append(models, r.learnModel(model).key)
	}
	slices.Sort(models)
	typ := w.member.LaneType()
	if own := r.slow[w.name]; own == w.member.OwnLaneType() {
		typ = own
	}
	changed := typ != w.typ || !slices.Equal(models, w.models)
	w.typ, w.models = typ, models
	if len(w.lanes) != int(w.member.GetLanes()) {
		if len(w.lanes) > 0 {
			r.lose(w, "it has other lanes now")
		}
		r.leader.log.Debug("lanes have joined", "agent", w.name, "instance_type", w.member.GetInstanceType(), "lanes", w.member.GetLanes(), "models", len(models))
		r.workers[w.name], w.current = w, true
		for i := range w.member.GetLanes() {
			r.lastLane++
			ln := &lane{id: r.lastLane, worker: w, index: i}
			w.lanes = append(w.lanes, ln)
			r.lanes[ln.id] = ln
			var remaining time.Duration
			if int(i) < len(m.GetRemainingNs()) {
				remaining = control.Duration(m.GetRemainingNs()[i])
			}
			r.step(&match.Event{Kind: match.LaneJoined, Lane: ln.id, Agent: w.name, Type: typ, Models: models, Remaining: remaining})
		}
		before, changed = nil, true
	} else if changed {
		for _, ln := range w.lanes {
			r.step(&match.Event{Kind: match.LaneModels, Lane: ln.id, Type: typ, Models: models})
		}
	}
	if w.member.GetDraining() && !before.GetDraining() {
		for _, ln := range w.lanes {
			r.step(&match.Event{Kind: match.LaneDraining, Lane: ln.id})
		}
		changed = true
	}
	if changed {
		r.poolChanged()
	}
}

// reconcile brings what the leader believes a worker's lanes hold in line with
// what they say that they hold: what they do not, they have never had, or their answer was lost,
// unless it may still be on its way to them.
func (r *reign) reconcile(w *worker, m *control.WorkerMessage) {
	type id struct {
		query  match.QueryID
		number int
	}
	there := map[id]bool{}
	for _, h := range m.GetHeld() {
		if int(h.GetLane()) >= len(w.lanes) {
			continue
		}
		ln := w.lanes[h.GetLane()]
		a := attempt{query: match.QueryID{Gateway: r.number(h.GetGateway()), Sequence: h.GetSequence()}, number: int(h.GetAttempt())}
		there[id{a.query, a.number}] = true
		key := control.ModelKey(h.GetModel(), h.GetVersion())
		if ln.find(a.query, a.number) >= 0 || r.models[key] == nil {
			continue
		}
		a.grace = r.grace(ln, key, int(h.GetBatchSize()))
		if len(ln.held) == 0 {
			ln.due = r.now.Add(a.grace)
			if int(h.GetLane()) < len(m.GetRemainingNs()) {
				ln.due = ln.due.Add(control.Duration(m.GetRemainingNs()[h.GetLane()]))
			}
		}
		ln.held = append(ln.held, a)
		r.step(&match.Event{Kind: match.Held, Query: a.query, Attempt: a.number, Lane: ln.id, Model: key, BatchSize: int(h.GetBatchSize())})
	}
	for i, ln := range w.lanes {
		var remaining time.Duration
		if i < len(m.GetRemainingNs()) {
			remaining = control.Duration(m.GetRemainingNs()[i])
		}
		for _, a := range slices.Clone(ln.held) {
			if !there[id{a.query, a.number}] && r.now.Sub(a.since) > onTheWay+2*r.aheadSet {
				r.answer(ln, match.Refused, a.query, a.number, remaining)
			}
		}
		r.step(&match.Event{Kind: match.LaneRemaining, Lane: ln.id, Remaining: remaining})
	}
}

func (ln *lane) find(q match.QueryID, number int) int {
	return slices.IndexFunc(ln.held, func(a attempt) bool { return a.query == q && a.number == number })
}

// answer tells the matcher that a lane has answered, and returns the attempt if the
// leader knew of it.
func (r *reign) answer(ln *lane, kind match.Kind, q match.QueryID, number int, remaining time.Duration) (a attempt, ok bool) {
	if i := ln.find(q, number); i >= 0 {
		a, ok = ln.held[i], true
		ln.held = slices.Delete(ln.held, i, i+1)
	}
	if ln.overdue {
		ln.overdue = false
		if ln.silent {
			ln.silent = false
			r.leader.log.Info("lane answers again", "agent", ln.worker.name, "lane", ln.index, eventKey, "lane")
		}
	}
	if len(ln.held) > 0 {
		var execution, grace time.Duration
		for _, h := range ln.held {
			execution += h.execution
			grace = max(grace, h.grace)
		}
		ln.due = r.now.Add(max(remaining, execution) + grace)
	}
	r.step(&match.Event{Kind: kind, Query: q, Attempt: number, Lane: ln.id, Remaining: remaining})
	return a, ok
}

// completed takes the end of an attempt at a worker.
func (r *reign) completed(w *worker, c *control.Completed) {
	if int(c.GetLane()) >= len(w.lanes) {
		return
	}
	ln := w.lanes[c.GetLane()]
	q := match.QueryID{Gateway: r.number(c.GetGateway()), Sequence: c.GetSequence()}
	remaining := control.Duration(c.GetRemainingNs())
	if c.GetRefused() != "" {
		r.leader.metrics.refusals.Inc()
		r.answer(ln, match.Refused, q, int(c.GetAttempt()), remaining)
		return
	}
	g := r.byNumber[q.Gateway]
	known := g != nil && g.queries[q.Sequence] != nil
	kind := match.Completed
	if known && ln.find(q, int(c.GetAttempt())) < 0 { // an attempt that was given up: the gateway says if it has the answer
		kind = match.Refused
	}
	a, ours := r.answer(ln, kind, q, int(c.GetAttempt()), remaining)
	execution, queued := control.Duration(c.GetExecutionNs()), control.Duration(c.GetQueueNs())
	if ours && !a.claimed && a.since.Sub(r.start) > turmoil {
		r.ahead.observe(r.now.Sub(a.since)-queued-execution, control.Duration(c.GetReceiveNs()), a.execution-execution, c.GetBytes())
	}
	w.busy.add(r.now, float64(execution))
	m := r.models[control.ModelKey(c.GetModel(), c.GetVersion())]
	if m == nil {
		return
	}
	t := tally{answered: 1}
	if control.Duration(c.GetLatencyNs()) > m.target {
		t.late = 1
	}
	m.count(r.now, t)
	if ours && known {
		g.forget(q.Sequence)
	}
	if !known && !ours { // it never came by here
		r.arrived.add(r.now, 1)
		r.study.arrived(m.key, int(c.GetBatchSize()), r.now)
	}
	r.study.observed(w.member, m, int(c.GetBatchSize()), execution, r.now)
}

// linkBroken takes it that a worker's link has broken, and perhaps its process is gone.
func (r *reign) linkBroken(w *worker, gone bool, err error) {
	if gone {
		r.gone[w.name] = true
		r.unpark(func(p *parked) bool { return p.submit.GetAgent() == w.name })
	}
	switch {
	case r.workers[w.name] != w:
	case gone:
		r.lose(w, "its process is gone")
	case w.lostAt.IsZero():
		w.lostAt = r.now.Add(linkGrace)
		w.broken = err
	}
}

// lose gives up a worker's lanes: what they hold is offered again.
func (r *reign) lose(w *worker, why string) {
	if r.workers[w.name] == w {
		delete(r.workers, w.name)
	}
	if len(w.lanes) == 0 {
		return
	}
	level := slog.LevelWarn
	if w.member.GetDraining() || !r.isMember(w.name) { // the log says so already
		level = slog.LevelDebug
	}
	r.leader.log.Log(r.ctx, level, "lanes are lost", "agent", w.name, "lanes", len(w.lanes), "why", why, eventKey, "lane")
	for _, ln := range w.lanes {
		delete(r.lanes, ln.id)
		r.step(&match.Event{Kind: match.LaneLost, Lane: ln.id})
	}
	w.lanes = nil
	r.poolChanged()
}

// poolChanged brings in line what follows from which lanes there are.
func (r *reign) poolChanged() {
	clear(r.newest)
	served := map[string]bool{}
	p := &pool{}
	for _, name := range slices.Sorted(maps.Keys(r.workers)) {
		w := r.workers[name]
		for _, key := range w.models {
			if m := r.models[key]; !w.member.GetDraining() {
				r.newest[m.name] = max(r.newest[m.name], m.version)
				served[key] = true
			}
		}
		p.members = append(p.members, poolMember{member: w.member, models: w.models, lanes: len(w.lanes)})
	}
	for _, key := range slices.Sorted(maps.Keys(r.models)) {
		m := r.models[key]
		p.models = append(p.models, poolModel{key: key, name: m.name, version: m.version, target: m.target, share: m.share, largest: m.largest})
	}
	r.study.poolIs(p)
	if !maps.Equal(served, r.served) {
		r.served = served
		r.toNewest()
	}
}

// forget forgets what the study has found to be gone, unless it is there again.
func (r *reign) forget(a *advice) {
	for _, key := range a.goneTables {
		if r.tables[key] != nil {
			delete(r.profiles, key)
			delete(r.tables, key)
			r.step(&match.Event{Kind: match.ProfileChanged, Model: key.model, Type: key.typ})
		}
	}
	asked := map[string]bool{}
	for _, w := range r.workers {
		for _, key := range w.models {
			asked[key] = true
		}
	}
	for _, m := range r.leader.fleet.view().GetMembers() {
		for _, held := range m.GetModels() {
			asked[control.ModelKey(held.GetName(), held.GetVersion())] = true
		}
	}
	for _, g := range r.gateways {
		for _, q := range g.queries {
			if q.model != nil {
				asked[q.model.key] = true
			}
		}
	}
	for _, key := range a.goneModels {
		if r.models[key] == nil || asked[key] {
			continue
		}
		delete(r.models, key)
		maps.DeleteFunc(r.profiles, func(k tableKey, _ *control.Profile) bool { return k.model == key })
		maps.DeleteFunc(r.tables, func(k tableKey, _ *known) bool { return k.model == key })
		r.step(&match.Event{Kind: match.ModelGone, Model: key})
	}
	r.poolChanged()
}

// advise takes what the study has found out.
func (r *reign) advise(a *advice) {
	for _, p := range a.profiles {
		key := tableKey{p.message.Model, p.message.Type}
		m := r.models[key.model]
		if m == nil || p.known.table.Largest() < m.largest {
			continue // of before the model changed
		}
		r.profiles[key], r.tables[key] = p.message, p.known
		r.step(&match.Event{Kind: match.ProfileChanged, Model: key.model, Type: key.typ, Table: p.known.table})
	}
	if a.factors != nil {
		r.factors, r.slow = a.factors, a.slow
		for _, name := range slices.Sorted(maps.Keys(r.workers)) {
			w := r.workers[name]
			typ := w.member.LaneType()
			if own := r.slow[name]; own == w.member.OwnLaneType() {
				typ = own
			}
			if typ == w.typ {
				continue
			}
			r.leader.log.Info("an agent departs from its type", "agent", name, "factor", r.factors[name], "own_profile", typ != w.member.LaneType(), eventKey, "lane")
			w.typ = typ
			for _, ln := range w.lanes {
				r.step(&match.Event{Kind: match.LaneModels, Lane: ln.id, Type: typ, Models: w.models})
			}
			r.poolChanged()
		}
	}
	if a.solution != nil {
		r.limit = a.solution.Rate
		r.leader.metrics.limit.Set(r.limit)
		if a.pricesChanged {
			r.prices = nil
			for _, p := range a.solution.Prices {
				r.prices = append(r.prices, &control.TypePrice{Type: p.Type, PerMs: p.PerMs, ServiceMs: float64(p.Service) / 1e6})
			}
			r.step(&match.Event{Kind: match.PricesChanged, Prices: slices.Clone(a.solution.Prices)})
		}
	}
	var profiles []*control.Profile
	for _, p := range a.profiles {
		profiles = append(profiles, p.message)
	}
	var prices []*control.TypePrice
	if a.pricesChanged {
		prices = r.prices
	}
	if len(profiles) == 0 && prices == nil {
		return
	}
	for _, g := range r.gateways {
		out := r.outbox(g)
		out.Profiles = newest(out.Profiles, profiles)
		if prices != nil {
			out.Prices = prices
		}
	}
	r.leader.links.tell(r, func(m *control.LeaderMessage) {
		m.Profiles = newest(m.Profiles, profiles)
		if prices != nil {
			m.Prices = prices
		}
	})
}

// tellLeadership tells the gateways who leads, and who will next.
func (r *reign) tellLeadership() {
	for _, g := range r.gateways {
		r.outbox(g).Leadership = r.leader.leadership()
	}
}

// samePrices reports whether two lists are alike but for 2 %.
func samePrices(a, b []fluid.Price) bool {
	near := func(x, y float64) bool { return max(x, y)-min(x, y) <= 0.02*max(x, y) }
	return slices.EqualFunc(a, b, func(p, q fluid.Price) bool {
		return p.Type == q.Type && near(p.PerMs, q.PerMs) && near(float64(p.Service), float64(q.Service))
	})
}
