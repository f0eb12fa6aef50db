package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
)

const (
	// describeTimeout bounds one question to an agent what it is.
	describeTimeout = 2 * time.Second
	// An agent that did not answer is asked again after this, doubled up to
	// the longest.
	describeAgain, describeAgainLongest = 100 * time.Millisecond, 10 * time.Second
	// Agents that have not said yet what they are get asked by so many goroutines.
	describers = 8
	// One of those that fail to say it is logged this often.
	sayUndescribed = time.Minute
	// goneTimeout bounds the look whether an agent's address refuses connections.
	goneTimeout = time.Second
)

// A roster is the fleet as this agent sees it: who is there, which gossip
// says, what each is and holds, which it is asked (Describe), how busy
// each is, which gossip says again, and what the leader says of prices and
// profiles. Its methods may be called concurrently.
//
// Whoever can send packets can have gossip name agents. So one that has not said what it is, by
// its address, is a stranger: listed, at most mostStrangers of them, but not dialled by anybody
// else nor told to the election.
//
// It has a goroutine for each other agent, which asks it what it is, a few that ask the strangers,
// and one for each that has gone while the connection to it closes; close ends them.
type roster struct {
	log     *slog.Logger
	network network
	local   grpc.ClientConnInterface // to this agent itself
	// leadership says whom this agent follows.
	leadership func() *control.Leadership
	// complete adds to a view, before anybody has it, the profiles that it lacks. What it adds may be
	// more each time that learned says another number.
	complete func(*control.View)
	learned  func() uint64
	// vouch is told of an agent that has said what it is.
	vouch func(gossip.Member)

	membersChanged, viewChanged broadcast
	running                     sync.WaitGroup
	closing                     context.Context

	mu      sync.Mutex
	own     *control.Member
	ownLoad control.HeardLoad // without a load: none yet
	others  map[string]*other
	// strangers are asked in the order of unasked, by asking goroutines.
	strangers map[string]*other
	unasked   []*other
	asking    int
	// lastUndescribed is when a stranger was last logged that fails to describe itself.
	lastUndescribed time.Time

	prices    []*control.TypePrice
	ahead     time.Duration
	profiles  map[profileKey]*control.Profile
	absent    profiles.Absence[profileKey]
	current   *control.View      // nil when it has to be built anew, from
	members   []*control.Member  // nil when they have to be gathered
	all       []*control.Profile // those that complete adds among them; nil when they have to be gathered
	learnedAt uint64             // what learned said when all was gathered
}

// profileKey says what a profile is about: model/version and instance type.
type profileKey struct{ model, typ string }

// An other is another agent.
type other struct {
	name      string
	address   string // of its gRPC
	said      meta
	described *control.Member   // nil: a stranger
	shown     *control.Member   // what member made of said and described; nil when that has changed
	load      control.HeardLoad // without a load: none yet
	ask       chan struct{}     // of size 1: it may be something else now
	conn      *grpc.ClientConn  // nil of a stranger
	left      context.Context
	leave     context.CancelFunc

	wait   time.Duration // of a stranger: until it is asked again
	logged bool          // that it fails to describe itself
	// refused is the member that gossip has no room for; nil of one that it has.
	refused *gossip.Member
}

func newRoster(closing context.Context, n network, local grpc.ClientConnInterface, log *slog.Logger) *roster {
	return &roster{
		log: log, network: n, local: local, closing: closing,
		leadership: func() *control.Leadership { return &control.Leadership{} }, complete: func(*control.View) {},
		learned: func() uint64 { return 0 }, vouch: func(gossip.Member) {}, strangers: map[string]*other{},
		own: &control.Member{}, others: map[string]*other{}, profiles: map[profileKey]*control.Profile{},
	}
}

// close forgets the others and waits for what asks them.
func (ms *roster) close() {
	ms.mu.Lock()
	for _, o := range ms.others {
		ms.drop(o)
	}
	for _, o := range ms.strangers {
		ms.forgetStranger(o)
	}
	ms.mu.Unlock()
	ms.running.Wait()
}

// self implements fleet.
func (ms *roster) self() string { return ms.describeSelf().GetName() }

// describeSelf is what this agent is; it must not be changed.
func (ms *roster) describeSelf() *control.Member {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.own
}

// changed implements fleet.
func (ms *roster) changed() <-chan struct{} { return ms.membersChanged.next() }

// view implements fleet. It has no loads: see loads. What has not changed since
// the last view is the same message as in that one.
func (ms *roster) view() *control.View {
	leadership := ms.leadership()
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.current == nil || ms.current.Leadership != leadership {
		ms.current = ms.build(leadership)
	}
	return ms.current
}

// loadedView is the view with loads as of now.
func (ms *roster) loadedView() *control.View {
	v := ms.view()
	return &control.View{Members: v.Members, Leadership: v.Leadership, Prices: v.Prices, Profiles: v.Profiles, AheadNs: v.AheadNs, Loads: ms.loads()}
}

// heardLoads are the newest loads of the members, in no order.
func (ms *roster) heardLoads() []control.HeardLoad {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	loads := make([]control.HeardLoad, 0, 1+len(ms.others))
	if ms.ownLoad.LaneLoad != nil {
		loads = append(loads, ms.ownLoad)
	}
	for _, o := range ms.others {
		if o.load.LaneLoad != nil {
			loads = append(loads, o.load)
		}
	}
	return loads
}

// loads are the same as messages, with their ages as of now, by name.
func (ms *roster) loads() []*control.LaneLoad {
	var loads []*control.LaneLoad
	now := time.Now()
	for _, l := range ms.heardLoads() {
		loads = append(loads, l.Now(now))
	}
	slices.SortFunc(loads, func(a, b *control.LaneLoad) int { return cmp.Compare(a.Agent, b.Agent) })
	return loads
}

// build makes the view. ms.mu is held.
func (ms *roster) build(leadership *control.Leadership) *control.View {
	if ms.members == nil {
		ms.members, ms.all = ms.gather(), nil
	}
	v := &control.View{Leadership: leadership, Prices: ms.prices, AheadNs: int64(ms.ahead), Members: ms.members, Profiles: ms.all}
	if ms.all == nil {
		ms.gatherProfiles(v)
	}
	return v
}

// gather lists the members by name. ms.mu is held.
func (ms *roster) gather() []*control.Member {
	members := make([]*control.Member, 1, 1+len(ms.others))
	members[0] = ms.own
	taken := map[string]bool{ms.own.GetAddress(): true}
	for _, o := range ms.others {
		taken[o.address] = true
		members = append(members, o.member())
	}
	for _, o := range ms.strangers {
		// Where another agent is known to be, this one has ended, or will say itself that it is there.
		if o.refused == nil && !taken[o.address] {
			members = append(members, o.member())
		}
	}
	slices.SortFunc(members, func(a, b *control.Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

// gatherProfiles gives v its profiles. ms.mu is held.
func (ms *roster) gatherProfiles(v *control.View) {
	v.Profiles = slices.AppendSeq(make([]*control.Profile, 0, len(ms.profiles)), maps.Values(ms.profiles)) // not nil, be there any or none
	ms.learnedAt = ms.learned()
	ms.complete(v)
	slices.SortFunc(v.Profiles, func(a, b *control.Profile) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Type, b.Type))
	})
	ms.all = v.Profiles
}

// completeAgain has the view have what this agent has learned since.
func (ms *roster) completeAgain() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.all == nil || ms.learned() == ms.learnedAt {
		return
	}
	before := ms.all
	ms.gatherProfiles(&control.View{Members: ms.members})
	if slices.EqualFunc(ms.all, before, func(a, b *control.Profile) bool { return a == b || proto.Equal(a, b) }) {
		ms.all = before
	} else {
		ms.touch()
	}
}

// member is what is known of o, as a message that does not change any more.
func (o *other) member() *control.Member {
	switch {
	case o.shown != nil:
	case o.described == nil:
		o.shown = &control.Member{
			Name: o.name, Address: o.said.address, Protocol: uint32(o.said.protocol), InstanceType: o.said.typ,
			Role: o.said.role, Draining: o.said.draining,
		}
	case o.said.draining && !o.described.Draining:
		o.shown = proto.CloneOf(o.described)
		o.shown.Draining = true
	default:
		o.shown = o.described
	}
	return o.shown
}

// member is what is known of an agent of that name, nil if there is none.
func (ms *roster) member(name string) *control.Member {
	for _, m := range ms.view().Members {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// noAgent says that there is no member of that name, and who is there.
func (ms *roster) noAgent(name string) error {
	var there []string
	for _, m := range ms.view().Members {
		there = append(there, m.Name)
	}
	return fmt.Errorf("agent %.255q: %w in the fleet; there are %s", name, outcome.ErrNoAgent, enumerated(there))
}

// noModel says that no member holds the model, or the version of it, and what they hold.
func (ms *roster) noModel(model string, version int64) error {
	var held, versions []string
	for _, member := range ms.view().Members {
		for _, m := range member.Models {
			held = append(held, m.Name)
			if m.Name == model {
				versions = append(versions, strconv.FormatInt(m.Version, 10))
			}
		}
	}
	switch {
	case len(held) == 0:
		return fmt.Errorf("%w on any agent: model %.255q; there are none", models.ErrNotFound, model)
	case len(versions) > 0:
		return fmt.Errorf("%w on any agent: version %d of model %q; there are %s", models.ErrNotFound, version, model, enumerated(versions))
	}
	return fmt.Errorf("%w on any agent: model %.255q; there are %s", models.ErrNotFound, model, enumerated(held))
}

// enumerated lists the names in order, the first ten of them.
func enumerated(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - 10; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:10], ", "), more)
	}
	return strings.Join(names, ", ")
}

// dial implements fleet.
func (ms *roster) dial(name string) (grpc.ClientConnInterface, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if name == ms.own.GetName() {
		return ms.local, nil
	}
	if o := ms.others[name]; o != nil {
		return o.conn, nil
	}
	return nil, status.Errorf(codes.Unavailable, "agent %q is no member of the fleet", name)
}

// gone implements fleet.
func (ms *roster) gone(ctx context.Context, name string) bool {
	ms.mu.Lock()
	o := ms.others[name]
	ms.mu.Unlock()
	if o == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	conn, err := ms.network.dial(ctx, o.address)
	if err == nil {
		_ = conn.Close() // it was only to see whether somebody is there
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// updateSelf says what this agent is now.
func (ms *roster) updateSelf(m *control.Member) {
	ms.mu.Lock()
	ms.own = m
	ms.touchMembers()
	ms.mu.Unlock()
	ms.membersChanged.tell()
}

// touch has the view built anew, and tells. ms.mu is held.
func (ms *roster) touch() {
	ms.current = nil
	ms.viewChanged.tell()
}

// touchMembers is touch where members have changed. ms.mu is held.
func (ms *roster) touchMembers() {
	ms.members = nil
	ms.touch()
}

// heardOwnLoad says how busy this agent is.
func (ms *roster) heardOwnLoad(l load) control.HeardLoad {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.ownLoad = control.HeardLoad{LaneLoad: laneLoad(ms.own.GetName(), l), At: time.Now()}
	return ms.ownLoad
}

func laneLoad(agent string, l load) *control.LaneLoad {
	m := &control.LaneLoad{Agent: agent, Waiting: uint32(l.waiting)}
	for _, d := range l.remaining {
		m.RemainingNs = append(m.RemainingNs, int64(d))
	}
	return m
}

// heard takes what gossip says of a member: that it is there, and its meta.
func (ms *roster) heard(name string, b []byte, joined bool) {
	said, err := decodeMeta(b)
	if err != nil || said.protocol != control.Protocol {
		return // gossip has refused it, and said so
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	o := ms.others[name]
	if o == nil {
		o = ms.strangers[name]
	}
	switch {
	case name == ms.own.GetName(), o == nil && !joined, ms.closing.Err() != nil:
		return
	case o == nil:
		ms.meet(name, said)
	case o.described == nil:
		o.said, o.shown, o.address, o.refused = said, nil, said.address, nil // it is asked anyhow
	case o.address != said.address:
		return // only a forger would
	default:
		o.said, o.shown = said, nil
		o.askAgain()
	}
	ms.touchMembers()
	ms.membersChanged.tell()
}

// meet notes a stranger, to be asked. ms.mu is held.
func (ms *roster) meet(name string, said meta) *other {
	o := &other{name: name, said: said, address: said.address, wait: describeAgain, ask: make(chan struct{}, 1)}
	o.left, o.leave = context.WithCancel(ms.closing)
	ms.strangers[name] = o
	ms.enqueue(o)
	return o
}

// refused has a member asked once what it is that gossip has no room for: if it says so, gossip
// makes room. It does not block.
func (ms *roster) refused(m gossip.Member) {
	said, err := decodeMeta(m.Meta)
	if err != nil {
		return // gossip asks before whether it is acceptable
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.others[m.Name] != nil || ms.strangers[m.Name] != nil || ms.closing.Err() != nil {
		return
	}
	if len(ms.strangers) >= 2*mostStrangers {
		for _, o := range ms.strangers { // in random order: nobody can keep the others out for good
			if o.refused != nil {
				ms.forgetStranger(o)
				break
			}
		}
	}
	ms.meet(m.Name, said).refused = &m
}

// askAgain has a member asked that may be something else now.
func (o *other) askAgain() {
	select {
	case o.ask <- struct{}{}:
	default:
	}
}

// lost takes out a member that has left, or has failed.
func (ms *roster) lost(name string, failed bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if o := ms.strangers[name]; o != nil {
		ms.forgetStranger(o)
	} else if o := ms.others[name]; o != nil {
		ms.drop(o)
		if failed {
			ms.log.Warn("agent failed: it is not heard any more", "agent", name, "address", o.address, eventKey, "failed")
		} else {
			ms.log.Info("agent left", "agent", name, eventKey, "left")
		}
	} else {
		return
	}
	ms.touchMembers()
	ms.membersChanged.tell()
}

// forgetStranger forgets one that is not to be asked any more. ms.mu is held.
func (ms *roster) forgetStranger(o *other) {
	delete(ms.strangers, o.name)
	ms.unasked = slices.DeleteFunc(ms.unasked, func(u *other) bool { return u == o })
	o.leave()
}

// enqueue has a stranger asked when its turn comes. ms.mu is held.
func (ms *roster) enqueue(o *other) {
	ms.unasked = append(ms.unasked, o)
	if ms.asking < describers {
		ms.asking++
		ms.running.Go(ms.askStrangers)
	}
}

// askStrangers asks strangers what they are as long as some wait for it.
func (ms *roster) askStrangers() {
	for {
		ms.mu.Lock()
		if len(ms.unasked) == 0 {
			ms.asking--
			ms.mu.Unlock()
			return
		}
		o := ms.unasked[0]
		ms.unasked = ms.unasked[1:]
		address := o.address
		ms.mu.Unlock()
		ms.askStranger(o, address)
	}
}

// askStranger makes a member of a stranger that says at the address what it is, or has it asked again.
func (ms *roster) askStranger(o *other, address string) {
	conn, err := ms.network.connect(address)
	var m *control.Member
	if err == nil {
		m, err = askDescription(o, conn)
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	switch {
	case ms.strangers[o.name] != o: // it has gone
	case o.refused != nil:
		ms.forgetStranger(o)
		if err == nil {
			ms.vouch(*o.refused)
		}
	case err == nil && o.address == address:
		delete(ms.strangers, o.name)
		ms.others[o.name] = o
		o.described, o.shown, o.conn = m, nil, conn
		ms.log.Info("agent joined", "agent", o.name, "address", address, eventKey, "joined")
		ms.replace(o)
		ms.touchMembers()
		ms.vouch(gossip.Member{Name: o.name})
		ms.membersChanged.tell()
		o.askAgain() // it may have changed meanwhile
		ms.running.Go(func() { ms.describe(o) })
		return
	default:
		if now := time.Now(); err != nil && !o.logged && now.Sub(ms.lastUndescribed) > sayUndescribed {
			ms.lastUndescribed, o.logged = now, true
			ms.warnUndescribed(o, err)
		}
		time.AfterFunc(o.wait, func() {
			ms.mu.Lock()
			defer ms.mu.Unlock()
			if ms.strangers[o.name] == o {
				ms.enqueue(o)
			}
		})
		o.wait = min(2*o.wait, describeAgainLongest)
	}
	if conn != nil {
		ms.running.Go(func() { _ = conn.Close() }) // as in drop
	}
}

func (ms *roster) warnUndescribed(o *other, err error) {
	ms.log.Warn("agent gossips but does not say what it serves; it gets no queries until it does, asking again",
		"agent", o.name, "address", o.address, "error", err, eventKey, "silent")
}

// drop forgets o. ms.mu is held.
func (ms *roster) drop(o *other) {
	delete(ms.others, o.name)
	o.leave()
	// What was under way fails, and is tried elsewhere. Closing says goodbye, which may block
	// on a connection that is stuck.
	ms.running.Go(func() { _ = o.conn.Close() })
}

// heardLoad takes what gossip says of how busy a member is, and returns it unless it is
// nonsense or of nobody. The view stays.
func (ms *roster) heardLoad(name string, b []byte, at time.Time) (control.HeardLoad, bool) {
	l, err := decodeLoad(b)
	if err != nil {
		return control.HeardLoad{}, false
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	o := ms.others[name]
	if o == nil {
		o = ms.strangers[name]
	}
	if o == nil || o.refused != nil {
		return control.HeardLoad{}, false
	}
	o.load = control.HeardLoad{LaneLoad: laneLoad(name, l), At: at}
	if l.revision > o.said.revision {
		o.said.revision = l.revision
		o.askAgain()
	}
	return o.load, true
}

// describe asks o what it is whenever gossip says that it may be something else,
// until it leaves.
func (ms *roster) describe(o *other) {
	failing, wait := false, describeAgain
	for {
		select {
		case <-o.ask:
		case <-o.left.Done():
			return
		}
		ms.mu.Lock()
		known := o.described.Revision == o.said.revision && o.described.Draining == o.said.draining
		ms.mu.Unlock()
		if known {
			continue
		}
		m, err := askDescription(o, o.conn)
		if err == nil {
			if failing {
				ms.log.Info("agent answers", "agent", o.name, "address", o.address, eventKey, "answers")
			}
			failing, wait = false, describeAgain
			ms.mu.Lock()
			if ms.others[o.name] == o {
				o.described, o.shown = m, nil
				ms.touchMembers()
			}
			ms.mu.Unlock()
			ms.membersChanged.tell()
			continue
		}
		if o.left.Err() != nil {
			return
		}
		if !failing {
			ms.warnUndescribed(o, err)
		}
		failing = true
		select {
		case <-time.After(wait):
		case <-o.left.Done():
			return
		}
		wait = min(2*wait, describeAgainLongest)
		o.askAgain()
	}
}

// replace drops those whose address o has, where it has just been found: they must have ended,
// though gossip may not know yet, or have said so again. ms.mu is held.
func (ms *roster) replace(o *other) {
	for _, former := range ms.others {
		if former != o && former.address == o.address {
			ms.log.Info("agent started anew", "agent", o.name, "former", former.name, "address", o.address, eventKey, "replaced")
			ms.drop(former)
		}
	}
}

// askDescription asks o by conn what it is. A stranger must be there, not come while it is waited for.
func askDescription(o *other, conn *grpc.ClientConn) (*control.Member, error) {
	ctx, cancel := context.WithTimeout(o.left, describeTimeout)
	defer cancel()
	m, err := control.NewControlClient(conn).Describe(localOnly(ctx), &control.DescribeRequest{}, grpc.WaitForReady(o.described != nil))
	if err != nil {
		return nil, err
	}
	return m, checkDescription(m, o.name)
}

// mostLanes is more than any agent has.
const mostLanes = 1 << 12

// checkDescription says what of a description cannot be true of the agent named,
// nil if nothing.
func checkDescription(m *control.Member, name string) error {
	notNegative := func(x float64) bool { return x >= 0 && x <= math.MaxFloat64 } // nor NaN
	switch {
	case m.GetName() != name:
		return fmt.Errorf("found agent %q at its address", m.GetName())
	case m.GetProtocol() != control.Protocol:
		return fmt.Errorf("it speaks version %d of the agents' protocol, want %d", m.GetProtocol(), control.Protocol)
	case m.GetLanes() > mostLanes:
		return fmt.Errorf("it says that it has %d lanes, want at most %d", m.GetLanes(), mostLanes)
	case !notNegative(m.GetPriceUsdPerHour()):
		return fmt.Errorf("it says that its price is %v $/hr, want a number >= 0", m.GetPriceUsdPerHour())
	}
	for _, model := range m.GetModels() {
		switch {
		case model.GetName() == "":
			return errors.New("it says that it holds a model without a name")
		case model.GetQosTargetNs() <= 0, !(model.GetQosPercentile() > 0 && model.GetQosPercentile() <= 1):
			return fmt.Errorf("it says that %v of the queries of model %q should be answered within %v, want a share above 0, at most 1, and a time > 0",
				model.GetQosPercentile(), model.GetName(), time.Duration(model.GetQosTargetNs()))
		case model.GetLargestBatchSize() < 1:
			return fmt.Errorf("it says that the largest batch size of model %q is 0, want 1 or more", model.GetName())
		}
	}
	return nil
}

// localOnly marks a call as one that is not to be passed on, and says for whom it is.
func localOnly(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(secure.ForCaller(ctx), control.LocalHeader, "1")
}

// isLocalOnly reports whether a call is not to be passed on.
func isLocalOnly(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, control.LocalHeader)) > 0
}

// toldByLeader takes what the leader that this agent obeys says of prices, profiles and the way to lanes.
func (ms *roster) toldByLeader(prices []*control.TypePrice, profiles []*control.Profile, ahead time.Duration) {
	if len(prices) == 0 && len(profiles) == 0 && ahead == 0 {
		return
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if len(prices) > 0 {
		ms.prices = prices
	}
	for _, p := range profiles {
		ms.profiles[profileKey{p.Model, p.Type}] = p
		ms.all = nil
	}
	if ahead > 0 {
		ms.ahead = ahead
	}
	ms.touch()
}

// keepTold is how long a profile is kept of lanes that no member has, or of a version that none of
// them holds: longer than the leader does, which tells it anew to lanes that are back later than
// that.
const keepTold = 2 * keepGone

// forget forgets what has been told of versions and lanes that are gone.
func (ms *roster) forget(now time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	there := map[profileKey]bool{}
	add := func(m *control.Member) {
		for _, held := range m.GetModels() {
			key := control.ModelKey(held.GetName(), held.GetVersion())
			there[profileKey{key, m.LaneType()}], there[profileKey{key, m.OwnLaneType()}] = true, true
		}
	}
	add(ms.own)
	for _, o := range ms.others {
		add(o.described)
	}
	gone := ms.absent.Over(now, keepTold, maps.Keys(ms.profiles), func(key profileKey) bool { return there[key] })
	for _, key := range gone {
		delete(ms.profiles, key)
	}
	if len(gone) > 0 {
		ms.all = nil
		ms.touch()
	}
}

// A broadcast wakes all who wait for the next time that something is told. Its
// zero value is ready.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// next is closed the next time that something is told.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
