package dashboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
)

const (
	// quiet is how long no beat of a leader comes before the hub makes beats of what gossip knows.
	// Chosen: leaders send one each second, so two have not come, and a change of leaders, which
	// takes about a second, does not show.
	quiet = 2500 * time.Millisecond
	// maxEvents is how many events of the fleet are kept, maxToldEvents how many go with one beat.
	// Chosen: maxEvents fill a page several times and take at most 2 MB; five beats bring a new
	// viewer all of them.
	maxEvents, maxToldEvents = 1000, 200
	// maxUnread is how many messages may wait for a watcher before it is cut off. A viewer that
	// does not read for [writeTimeout] has been cut before. Chosen: three times the messages that
	// come in that time, one each second.
	maxUnread = 32
	// maxRows is how many rows of the past go into one message. Chosen: with 20 models such a
	// message has some hundred KB, and 24 hours come in eight that interleave with what is new.
	maxRows = 200
	// farSecond is beyond all seconds that a fleet counts to. It keeps a foreign number from
	// overflowing: 2^50 s are 36 million years, and sums of a few stay below 2^63.
	farSecond = 1 << 50
)

// Members are what a hub needs of the agent's view of the fleet.
type Members interface {
	// LoadedView returns the view with the loads that gossip last told.
	LoadedView() *control.View
	Dial(names.AgentName) (grpc.ClientConnInterface, error)
}

// Events are this agent's.
type Events interface {
	// After returns the events kept that have a higher sequence number, in order.
	After(sequence uint64) []*control.Event
	// Next returns a channel that is closed at the next event.
	Next() <-chan struct{}
}

// A HubConfig holds what a [Hub] needs of the rest of the agent.
type HubConfig struct {
	Self    names.AgentName
	Members Members
	Leading members.LeadershipSource
	Events  Events
	Log     *slog.Logger
}

// A Hub gathers the beats of the fleet's leader and passes them on to watchers: viewers of this
// agent's page, and other agents. The leader's hub gets them from its own term. The announced
// successor's hub follows the leader always, so that the past survives a takeover; any other's does
// while somebody watches, and follows the successor, so that the leader has one stream however many
// watch, and where. Each hub numbers the seconds on from what it has heard.
//
// Its methods may be called concurrently. Run has three goroutines at most, which have ended when
// it returns.
type Hub struct {
	config HubConfig
	wake   wakeup.Signal // somebody has begun to watch, or ceased

	mu       sync.Mutex
	rings    rings
	fleet    *control.Fleet // the last one; nil: none
	plan     *control.Plan
	planAt   time.Time
	last     uint64                 // the last second; 0: none
	lastAt   time.Time              // when it came
	ledAt    time.Time              // when a leader's beat came
	missed   *control.MissedQueries // of the last beat; nil: not known
	events   []*control.Event
	newest   map[string]uint64 // by agent: the sequence number of its newest event
	untold   []*control.Event  // those of the next beat that this agent makes
	watchers map[*watcher]bool
	watched  time.Time // since when somebody watches; zero: nobody does
	without  uint64    // how many fleets were made without a leader
	viewed   *control.View
}

// A watcher gets what is new from a hub.
type watcher struct {
	viewer bool         // a page reads it; otherwise another agent does
	out    chan *packet // closed when it is cut off
}

// A packet is what is new, for watchers. It is never changed but for frames.
type packet struct {
	fleet            *control.Fleet // as of now, and of the beat; nil: none is known
	beat             *control.Beat  // nil: none
	plan             *control.Plan  // another one; nil: as before
	seconds, minutes []row          // of the past
	events           []*control.Event

	mu     sync.Mutex
	frames map[viewerClass][]byte // by who may see what; see packet.frame
}

// NewHub returns a hub that has heard nothing.
func NewHub(config HubConfig) *Hub {
	return &Hub{
		config: config, wake: wakeup.New(), newest: map[string]uint64{},
		watchers: map[*watcher]bool{},
	}
}

// Led takes a message of this agent's own term. It does not block.
func (h *Hub) Led(m *control.PulseMessage) {
	if h.config.Leading.Leadership().GetLeader() != string(h.config.Self) {
		return // of a term that has ended
	}
	if err := h.deliverNew(m, true); err != nil {
		// cannot happen
		h.config.Log.Warn("this agent made an invalid sample of the fleet", "error", err)
	}
}

// deliverNew takes what is new. own says that this agent has made it, so its seconds have no
// numbers. It returns an error if the message makes no sense, and then takes nothing.
func (h *Hub) deliverNew(m *control.PulseMessage, own bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	fleet := m.GetFleet()
	if fleet == nil {
		fleet = h.fleet
	} else if err := fleet.Check(); err != nil {
		return err
	}
	if !own && fleet.GetLeaderless() != "" {
		return errors.New("a beat of no leader, though this agent has gossip of its own")
	}
	now := time.Now()
	if b := m.GetBeat(); b != nil {
		if err := checkBeat(b, fleet); err != nil {
			return err
		}
		if own {
			b.Row.Second = h.next(now)
			b.Events, h.untold = h.untold, nil
		}
	}
	h.fleet = fleet
	p := &packet{fleet: fleet, plan: m.GetPlan()}
	p.seconds, p.minutes = h.rings.put(m.GetSeconds(), m.GetMinutes())
	for _, r := range p.seconds {
		h.noteSecond(r.second, now)
	}
	for _, e := range m.GetEvents() {
		h.addEvent(e)
	}
	if m.GetPlan() != nil {
		h.plan, h.planAt = m.Plan, now.Add(-control.Duration(m.Plan.GetAgeNs()))
	}
	if b := m.GetBeat(); b != nil {
		second := b.GetRow().GetSecond()
		if second <= h.last || second > farSecond {
			b = nil // somebody else has told of this second
		} else {
			h.last, h.lastAt, h.missed = second, now, b.GetMissed()
			h.rings.add(rowOf(b.Row))
			if !own {
				b.Events = slices.DeleteFunc(b.Events,
					func(e *control.Event) bool { return !h.addEvent(e) })
			}
		}
		if p.beat = b; fleet.GetLeaderless() == "" {
			h.ledAt = now
		}
	}
	h.publishPacket(p)
	return nil
}

// noteSecond notes that somebody has counted to a second. h.mu is held.
func (h *Hub) noteSecond(second uint64, now time.Time) {
	if second > h.last && second < farSecond {
		h.last, h.lastAt = second, now
	}
}

// checkBeat returns what is wrong with a beat of the fleet.
func checkBeat(b *control.Beat, f *control.Fleet) error {
	if f == nil || b.GetFleet() != f.GetRevision() || b.GetRow() == nil {
		return fmt.Errorf("beat of fleet %d, the last one told is %d", b.GetFleet(),
			f.GetRevision())
	}
	if _, err := b.LanesOf(f); err != nil {
		return err
	}
	types, models := uint32(len(f.GetTypes())), uint32(len(f.GetModels()))
	for _, m := range b.GetModels() {
		if m.GetModel() >= models {
			return fmt.Errorf("beat of model %d of %d", m.GetModel(), models)
		}
	}
	for _, x := range b.GetHeat() {
		if x.GetType() >= types || x.GetModel() >= models || len(x.GetBins())%2 != 0 {
			return fmt.Errorf("beat with decisions for type %d of %d, model %d of %d, %d numbers",
				x.GetType(), types, x.GetModel(), models, len(x.GetBins()))
		}
	}
	shots := b.GetShots()
	if len(shots)%4 != 0 {
		return fmt.Errorf("beat with a sample of %d numbers, want four each", len(shots))
	}
	for ; len(shots) > 0; shots = shots[4:] {
		if shots[1] >= types || shots[2] >= models {
			return fmt.Errorf("beat with a sample of type %d of %d, model %d of %d", shots[1],
				types, shots[2], models)
		}
	}
	return nil
}

// next returns the number of the second that is now. Only the monotonic clock counts, so that it
// goes on by one a second whatever the machine's time does; the first of a fleet is Unix time.
// h.mu is held.
func (h *Hub) next(now time.Time) uint64 {
	if h.last == 0 {
		return uint64(max(1, now.Unix()))
	}
	if h.lastAt.IsZero() {
		return h.last + 1
	}
	return h.last + max(1, uint64(max(0, math.Round(now.Sub(h.lastAt).Seconds()))))
}

// addEvent keeps an event, and reports whether it is new. h.mu is held.
func (h *Hub) addEvent(e *control.Event) bool {
	if e.GetSequence() <= h.newest[e.GetAgent()] {
		return false
	}
	h.newest[e.GetAgent()] = e.GetSequence()
	h.events = append(h.events, e)
	if n := len(h.events) - maxEvents; n > 0 {
		h.events = slices.Delete(h.events, 0, n)
	}
	if len(h.newest) > maxEvents { // forget agents of which no event is left
		kept := map[string]uint64{}
		for _, e := range h.events {
			kept[e.GetAgent()] = e.GetSequence()
		}
		h.newest = kept
	}
	return true
}

// queueEvents takes events of an agent for the next beat that this agent makes.
func (h *Hub) queueEvents(events []*control.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if len(h.untold) < maxToldEvents && h.addEvent(e) {
			h.untold = append(h.untold, e)
		}
	}
}

// publishPacket passes a packet on to all watchers, and cuts off those that do not read. h.mu is
// held.
func (h *Hub) publishPacket(p *packet) {
	for w := range h.watchers {
		if p.fleet.GetLeaderless() != "" && !w.viewer {
			continue // other agents have gossip of their own
		}
		select {
		case w.out <- p:
		default:
			close(w.out)
			h.removeWatcher(w)
		}
	}
}

// watch adds a watcher, and returns what it must be told first: the fleet and the past after a
// second. leave removes it.
func (h *Hub) watch(viewer bool, after uint64) (w *watcher, first *packet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w = &watcher{viewer: viewer, out: make(chan *packet, maxUnread)}
	if len(h.watchers) == 0 {
		h.watched = time.Now()
	}
	h.watchers[w] = true
	h.wakeUp()
	if !viewer {
		h.noteSecond(after, time.Now()) // so that the seconds go on for the other agent, too
	}
	first = &packet{fleet: h.fleet, plan: h.plannedNow(), events: slices.Clone(h.events)}
	first.seconds, first.minutes = h.rings.rowsAfter(after, h.last)
	return w, first
}

// plannedNow returns the plan with its age; nil if there is none. h.mu is held.
func (h *Hub) plannedNow() *control.Plan {
	if h.plan == nil {
		return nil
	}
	return planAged(h.plan, time.Since(h.planAt))
}

func (h *Hub) stopWatching(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers[w] {
		h.removeWatcher(w)
	}
}

// removeWatcher removes a watcher. h.mu is held.
func (h *Hub) removeWatcher(w *watcher) {
	delete(h.watchers, w)
	if len(h.watchers) == 0 {
		h.watched = time.Time{}
	}
	h.wakeUp()
}

func (h *Hub) wakeUp() {
	h.wake.Send()
}

// countViewers returns how many pages watch.
func (h *Hub) countViewers() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		if w.viewer {
			n++
		}
	}
	return n
}

// Planned returns the last plan, with its age; nil if there is none.
func (h *Hub) Planned() *control.Plan {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.plannedNow()
}

// Described returns the fleet that the last beat was of; nil if there was none.
func (h *Hub) Described() *control.Fleet {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fleet
}

// missedQueries returns why queries of the minute before the last beat were late, nil if that is not
// known, and the beat's fleet.
func (h *Hub) missedQueries() (*control.MissedQueries, *control.Fleet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.missed, h.fleet
}

// Run follows the leader while that is needed, and tells it this agent's events, until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { h.tellEvents(ctx) })
	var sources []names.AgentName
	stop := func() {}
	defer func() { stop() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		changed := h.config.Leading.Changed()
		if wanted := h.sourcesInOrder(); !slices.Equal(wanted, sources) {
			stop()
			stop, sources = func() {}, wanted
			if len(wanted) > 0 {
				following, cancel := context.WithCancel(ctx)
				stop = cancel
				running.Go(func() { h.followSources(following, wanted) })
			}
		}
		select {
		case <-changed:
		case <-h.wake:
		case <-tick.C:
			h.beatAlone()
		case <-ctx.Done():
			return
		}
	}
}

// sourcesInOrder returns the agents whose beats this one should follow, the best first; none if it
// should follow nobody.
func (h *Hub) sourcesInOrder() []names.AgentName {
	l := h.config.Leading.Leadership()
	self := string(h.config.Self)
	h.mu.Lock()
	watched := len(h.watchers) > 0
	h.mu.Unlock()
	switch {
	case l.GetLeader() == "" || l.GetLeader() == self:
		return nil
	case l.GetSuccessor() == self:
		return []names.AgentName{names.AgentName(l.GetLeader())}
	case !watched:
		return nil
	case l.GetSuccessor() == "":
		return []names.AgentName{names.AgentName(l.GetLeader())}
	}
	return []names.AgentName{names.AgentName(l.GetSuccessor()), names.AgentName(l.GetLeader())}
}

// The hub follows another source after minPause, which doubles up to maxPause while sources fail.
// Chosen: a new leader is followed within the second in which it sends its first beat, and an agent
// without any source dials every two seconds.
const minPause, maxPause = 50 * time.Millisecond, 2 * time.Second

// followSources follows one of the sources, and the next when that one fails, until ctx ends.
func (h *Hub) followSources(ctx context.Context, sources []names.AgentName) {
	pause := minPause
	for i := 0; ctx.Err() == nil; i++ {
		began := time.Now()
		source := sources[i%len(sources)]
		err := h.followOne(ctx, source)
		if ctx.Err() != nil {
			return
		}
		h.config.Log.Debug("a stream of samples of the fleet ended", "from", source, "error", err)
		if time.Since(began) > quiet {
			pause = minPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxPause)
	}
}

var errSilent = errors.New("it sends no beats")

// followOne takes the messages of another agent until its stream ends or is silent for quiet.
func (h *Hub) followOne(ctx context.Context, source names.AgentName) error {
	conn, err := h.config.Members.Dial(source)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.mu.Lock()
	after := h.last
	h.mu.Unlock()
	silent := time.AfterFunc(2*quiet, func() { cancel(errSilent) })
	defer silent.Stop()
	stream, err := control.NewDashboardClient(conn).Pulse(ctx, &control.PulseRequest{After: after})
	for err == nil {
		var m *control.PulseMessage
		if m, err = stream.Recv(); err == nil {
			silent.Reset(quiet)
			err = h.deliverNew(m, false)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Pulse serves the stream of another agent that follows this one.
func (h *Hub) Pulse(req *control.PulseRequest, stream control.Dashboard_PulseServer) error {
	w, first := h.watch(false, req.GetAfter())
	defer h.stopWatching(w)
	// The fleet comes first: viewers cannot be told of the past without it.
	told := first.fleet
	if told.GetLeaderless() != "" {
		told = nil
	}
	if err := stream.Send(&control.PulseMessage{
		Fleet: told, Plan: first.plan, Events: first.events,
	}); err != nil {
		return err
	}
	for len(first.seconds)+len(first.minutes) > 0 {
		n, m := min(maxRows, len(first.seconds)), min(maxRows, len(first.minutes))
		past := &control.PulseMessage{
			Seconds: toRowMessages(first.seconds[:n]), Minutes: toRowMessages(first.minutes[:m]),
		}
		first.seconds, first.minutes = first.seconds[n:], first.minutes[m:]
		if err := stream.Send(past); err != nil {
			return err
		}
	}
	for {
		select {
		case p, ok := <-w.out:
			if !ok {
				return status.Error(codes.ResourceExhausted, "beats are not read in time")
			}
			m := &control.PulseMessage{
				Beat: p.beat, Plan: p.plan, Seconds: toRowMessages(p.seconds),
				Minutes: toRowMessages(p.minutes),
			}
			if p.fleet != told {
				m.Fleet, told = p.fleet, p.fleet
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func toRowMessages(rows []row) (all []*control.Row) {
	for i := range rows {
		all = append(all, rows[i].toMessage())
	}
	return all
}

// Tell takes events of another agent, if this one leads.
func (h *Hub) Tell(_ context.Context, req *control.TellRequest) (*control.TellResponse, error) {
	if h.config.Leading.Leadership().GetLeader() != string(h.config.Self) {
		return nil, status.Error(codes.FailedPrecondition, "this agent does not lead")
	}
	for _, e := range req.GetEvents() {
		if e.GetAgent() != req.GetAgent() {
			return nil, status.Errorf(codes.InvalidArgument, "agent %.64q tells events of %.64q",
				req.GetAgent(), e.GetAgent())
		}
	}
	h.queueEvents(req.GetEvents())
	return &control.TellResponse{}, nil
}

const (
	// tellTimeout bounds a call of Tell. Chosen: leaders answer in milliseconds, and what was not
	// told goes with the next call.
	tellTimeout = 2 * time.Second
	// maxTellEvents is how many events an agent tells at once: the last ones. Chosen: far more than
	// happen at once, but for a fault that repeats, and then the last ones tell it.
	maxTellEvents = 64
	// maxTellBytes is how many bytes they may have: an agent accepts messages of 64 KiB.
	maxTellBytes = 48 << 10
	// A new leader may not know what has happened in againTime before it led. All agents tell it,
	// within againSpread. Chosen: a leader is replaced after about a second, or some when several
	// fail in a row, and a second spreads a thousand agents' calls to one each ms.
	againTime, againSpread = 30 * time.Second, time.Second
)

// tellEvents tells the leader this agent's events, until ctx ends. Without one they go with this
// agent's own beats.
func (h *Hub) tellEvents(ctx context.Context) {
	told, to := uint64(0), ""
	for {
		more, changed := h.config.Events.Next(), h.config.Leading.Changed()
		leader := h.config.Leading.Leadership().GetLeader()
		if leader != to {
			to = leader
			if again := settledSequence(h.config.Events.After(0), time.Now()); again < told {
				told = again
			}
			select {
			case <-time.After(rand.N(againSpread)):
			case <-ctx.Done():
				return
			}
			continue
		}
		events := fitEvents(h.config.Events.After(told))
		var retry <-chan time.Time
		switch {
		case len(events) == 0:
		case leader == "" || leader == string(h.config.Self):
			h.queueEvents(events)
			told = events[len(events)-1].GetSequence()
		default:
			if err := h.tellLeader(ctx, leader, events); err != nil {
				retry = time.After(maxPause)
			} else {
				told = events[len(events)-1].GetSequence()
			}
		}
		select {
		case <-more:
			// What happens together goes together, and a storm of events is not one of calls.
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// fitEvents returns the last events that one call of Tell may have.
func fitEvents(events []*control.Event) []*control.Event {
	first, size := len(events), 0
	for first > 0 && len(events)-first < maxTellEvents {
		if size += proto.Size(events[first-1]); size > maxTellBytes {
			break
		}
		first--
	}
	return events[first:]
}

// settledSequence returns the sequence number of the last event that happened more than againTime
// ago; 0 if none did.
func settledSequence(events []*control.Event, now time.Time) (sequence uint64) {
	for _, e := range events {
		if now.Sub(time.Unix(0, e.GetTimeUnixNs())) <= againTime {
			break
		}
		sequence = e.GetSequence()
	}
	return sequence
}

func (h *Hub) tellLeader(ctx context.Context, leader string, events []*control.Event) error {
	conn, err := h.config.Members.Dial(names.AgentName(leader))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	_, err = control.NewDashboardClient(conn).Tell(ctx, &control.TellRequest{
		Agent: string(h.config.Self), Events: events,
	})
	return err
}

// beatAlone makes a beat of what gossip knows if viewers have waited for one of a leader for quiet.
func (h *Hub) beatAlone() {
	now := time.Now()
	h.mu.Lock()
	since := h.watched
	if h.ledAt.After(since) {
		since = h.ledAt
	}
	silent := !h.watched.IsZero() && now.Sub(since) > quiet
	h.mu.Unlock()
	if !silent || h.countViewers() == 0 {
		return
	}
	if err := h.deliverNew(h.gossipSample(), true); err != nil {
		// cannot happen
		h.config.Log.Warn("this agent made an invalid sample of the fleet", "error", err)
	}
}

// gossipSample returns a beat of what gossip knows, with the fleet if that has changed.
func (h *Hub) gossipSample() *control.PulseMessage {
	view := h.config.Members.LoadedView()
	why := "no leader is elected"
	if leader := view.GetLeadership().GetLeader(); leader == string(h.config.Self) {
		why = "this agent leads, and has not begun"
	} else if leader != "" {
		why = leader + " leads, and sends no beats"
	}
	m := &control.PulseMessage{}
	h.mu.Lock()
	fleet := h.fleet
	if fleet.GetLeaderless() != why || h.viewed == nil ||
		!slices.Equal(h.viewed.GetMembers(), view.GetMembers()) {
		fleet = control.NewFleet(view, nil, nil)
		fleet.Leaderless = why
		h.without++
		// in the upper half of an epoch's revisions: a leader's are in the lower
		fleet.Revision = view.GetLeadership().GetEpoch()<<20 | 1<<19 | h.without&(1<<19-1)
		h.viewed, m.Fleet = view, fleet
	}
	h.mu.Unlock()
	loads := map[string]*control.LaneLoad{}
	for _, l := range view.GetLoads() {
		loads[l.GetAgent()] = l
	}
	unknown := math.NaN()
	r := &control.Row{
		Beats: 1, Rate: unknown, Limit: unknown, Allowable: unknown, Busy: unknown,
		Price: fleet.Price(),
	}
	b := &control.Beat{
		Fleet: fleet.Revision, Epoch: view.GetLeadership().GetEpoch(), Row: r, Within: unknown,
		ShotWeight: 1,
	}
	for _, a := range fleet.GetAgents() {
		l := loads[a.GetName()]
		r.Waiting += l.GetWaiting()
		for i := range int(a.GetLanes()) {
			lane := control.LaneBeat{Busy: -1, Model: -1}
			if i < len(l.GetRemainingNs()) {
				lane.Free = control.Duration(l.RemainingNs[i]) - control.Duration(l.GetAgeNs())
			}
			if a.GetDraining() {
				lane.Flags |= control.LaneDraining
			}
			b.Lanes = control.AppendLane(b.Lanes, lane)
		}
	}
	m.Beat = b
	return m
}

// planAged returns a plan that says how old it is.
func planAged(p *control.Plan, age time.Duration) *control.Plan {
	aged := proto.CloneOf(p)
	aged.AgeNs = int64(age)
	return aged
}
