package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
)

// goneTimeout bounds the look whether an agent's address refuses connections.
const goneTimeout = time.Second

// Leading says whom this agent follows. Its methods may be called concurrently.
type Leading interface {
	// Leadership is never nil and must not be changed.
	Leadership() *control.Leadership
	// Changed returns a channel that is closed at the next change of leadership.
	Changed() <-chan struct{}
}

// Estimates are what this agent has learned of how long queries run. Its methods may be called
// concurrently.
type Estimates interface {
	// Complete adds to a view, before anybody has it, the profiles that it lacks.
	Complete(*control.View)
	// Learned is another number each time that Complete may add more.
	Learned() uint64
}

// A Config says what [Members] need of the rest of the agent. Functions must not block, and may be
// called concurrently.
type Config struct {
	// Closing ends when the agent closes: nobody is asked any more.
	Closing context.Context
	// Spoken are the versions of the protocol that this agent speaks.
	Spoken control.Versions
	// Gossip is open, and closed by its owner. Nobody else reads its events.
	Gossip *gossip.Gossip
	// Connect returns a connection to the gRPC address of an agent, which connects when first used.
	Connect func(address string) (*grpc.ClientConn, error)
	// Dial connects to an address; whether it is refused is all that counts.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Local is the connection to this agent itself.
	Local     grpc.ClientConnInterface
	Leading   Leading
	Estimates Estimates
	// Describe is what this agent is and holds, at revision 0.
	Describe func() *control.Member
	// Load is how many queries wait at this agent, and how long until each lane is free.
	Load func() (waiting int, remaining []time.Duration)
	// Described is told what this agent is, whenever that has changed.
	Described func(*control.Member)
	// Loaded is told how busy a member is, this agent among them, as soon as it is known.
	Loaded func(*control.LaneLoad)
	Log    *slog.Logger
}

// Members are the fleet as this agent sees it: who is there, which gossip says, what each is and
// holds, which it is asked (Describe), how busy each is, which gossip says again, and what the
// leader says of prices and profiles. Its methods may be called concurrently.
//
// Whoever can send packets can have gossip name agents. So one that has not said what it is, by
// its address, is a stranger: listed, at most MostStrangers of them, but not dialled by anybody
// else nor told to the election.
type Members struct {
	config Config
	feed   feed

	selfChanged                 chan struct{} // of size 1: what tellSelf waits for
	membersChanged, viewChanged Broadcast
	running                     sync.WaitGroup

	mu      sync.Mutex
	own     *control.Member
	ownLoad control.HeardLoad // without a load: none yet
	others  map[names.AgentName]*other
	// strangers are asked in the order of unasked, by asking goroutines.
	strangers map[names.AgentName]*other
	unasked   []*other
	asking    int
	failures  *rate.Limiter // of asking strangers; one more waits
	// lastUndescribed is when a stranger was last logged that fails to describe itself.
	lastUndescribed time.Time

	prices   []*control.TypePrice
	ahead    time.Duration
	proposal *control.Proposal // nil: none was told
	profiles map[names.TableKey]*control.Profile
	absent   profiles.Absence[names.TableKey]
	current  *control.View     // nil when it has to be built anew, from
	members  []*control.Member // nil when they have to be gathered
	// those that Estimates add among them; nil when they have to be gathered
	all       []*control.Profile
	learnedAt uint64 // what Learned said when all was gathered
}

// An other is another agent.
type other struct {
	name      names.AgentName
	address   string // of its gRPC
	said      Meta
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

// New returns the members as long as this agent knows of no other; Run finds them.
func New(config Config) *Members {
	ms := &Members{
		config: config, own: config.Describe(), selfChanged: make(chan struct{}, 1),
		others: map[names.AgentName]*other{}, strangers: map[names.AgentName]*other{},
		failures: rate.NewLimiter(failuresPerSecond, describers),
		profiles: map[names.TableKey]*control.Profile{},
	}
	ms.feed.members = ms
	return ms
}

// Close forgets the others and waits for what asks them.
func (ms *Members) Close() {
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

// Self is the name of this agent.
func (ms *Members) Self() names.AgentName { return ms.Own().AgentName() }

// Own is what this agent is; it must not be changed.
func (ms *Members) Own() *control.Member {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.own
}

// Changed returns a channel that is closed at the next change of the members.
func (ms *Members) Changed() <-chan struct{} { return ms.membersChanged.Next() }

// ViewChanged returns a channel that is closed at the next change of the view but for the
// leadership.
func (ms *Members) ViewChanged() <-chan struct{} { return ms.viewChanged.Next() }

// View is the fleet as this agent knows it, this agent included. It must not be changed. It has no
// loads: see Loads. What has not changed since the last view is the same message as in that one.
func (ms *Members) View() *control.View {
	leadership := ms.config.Leading.Leadership()
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.current == nil || ms.current.Leadership != leadership {
		ms.current = ms.build(leadership)
	}
	return ms.current
}

// LoadedView is the view with loads as of now.
func (ms *Members) LoadedView() *control.View {
	v := ms.View()
	return &control.View{
		Members: v.Members, Leadership: v.Leadership, Prices: v.Prices, Profiles: v.Profiles,
		AheadNs: v.AheadNs, Loads: ms.Loads(),
	}
}

// heardLoads are the newest loads of the members, in no order.
func (ms *Members) heardLoads() []control.HeardLoad {
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

// Loads are the same as messages, with their ages as of now, by name.
func (ms *Members) Loads() []*control.LaneLoad {
	var loads []*control.LaneLoad
	now := time.Now()
	for _, l := range ms.heardLoads() {
		loads = append(loads, l.Now(now))
	}
	slices.SortFunc(
		loads, func(a, b *control.LaneLoad) int { return cmp.Compare(a.Agent, b.Agent) })
	return loads
}

// build makes the view. ms.mu is held.
func (ms *Members) build(leadership *control.Leadership) *control.View {
	if ms.members == nil {
		ms.members, ms.all = ms.gather(), nil
	}
	v := &control.View{
		Leadership: leadership, Prices: ms.prices, AheadNs: int64(ms.ahead), Members: ms.members,
		Profiles: ms.all,
	}
	if ms.all == nil {
		ms.gatherProfiles(v)
	}
	return v
}

// gather lists the members by name. ms.mu is held.
func (ms *Members) gather() []*control.Member {
	members := make([]*control.Member, 1, 1+len(ms.others))
	members[0] = ms.own
	taken := map[string]bool{ms.own.GetAddress(): true}
	for _, o := range ms.others {
		taken[o.address] = true
		members = append(members, o.member())
	}
	for _, o := range ms.strangers {
		// Where another agent is known to be, this one has ended, or will say itself
		// that it is there.
		if o.refused == nil && !taken[o.address] {
			members = append(members, o.member())
		}
	}
	slices.SortFunc(members, func(a, b *control.Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

// gatherProfiles gives v its profiles. ms.mu is held.
func (ms *Members) gatherProfiles(v *control.View) {
	// not nil, be there any or none
	v.Profiles = slices.AppendSeq(make([]*control.Profile, 0, len(ms.profiles)),
		maps.Values(ms.profiles))
	ms.learnedAt = ms.config.Estimates.Learned()
	ms.config.Estimates.Complete(v)
	slices.SortFunc(v.Profiles, func(a, b *control.Profile) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Type, b.Type))
	})
	ms.all = v.Profiles
}

// completeAgain has the view have what this agent has learned since.
func (ms *Members) completeAgain() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.all == nil || ms.config.Estimates.Learned() == ms.learnedAt {
		return
	}
	before := ms.all
	ms.gatherProfiles(&control.View{Members: ms.members})
	if slices.EqualFunc(ms.all, before, func(a, b *control.Profile) bool {
		return a == b ||
			proto.Equal(a, b)
	}) {
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
			Name: string(o.name), Address: o.said.Address, Protocol: o.said.Versions.Oldest,
			NewestProtocol: o.said.Versions.Newest,
			InstanceType:   o.said.Type, Role: o.said.Role, Draining: o.said.Draining,
		}
	case o.said.Draining && !o.described.Draining:
		o.shown = proto.CloneOf(o.described)
		o.shown.Draining = true
	default:
		o.shown = o.described
	}
	return o.shown
}

// Member is what is known of an agent of that name, nil if there is none.
func (ms *Members) Member(name names.AgentName) *control.Member {
	for _, m := range ms.View().Members {
		if m.AgentName() == name {
			return m
		}
	}
	return nil
}

// Names are the agents of the fleet, this one too, in order.
func (ms *Members) Names() []names.AgentName {
	var all []names.AgentName
	for _, m := range ms.View().Members {
		all = append(all, m.AgentName())
	}
	return all
}

// NoAgent says that there is no member of that name, and who is there.
func (ms *Members) NoAgent(name names.AgentName) error {
	return fmt.Errorf("agent %.255q: %w in the fleet; there are %s", name, outcome.ErrNoAgent,
		enumerated(names.Strings(ms.Names())))
}

// NoModel says that no member holds the model, or the version of it, and what they hold.
func (ms *Members) NoModel(model string, version int64) error {
	var held, versions []string
	for _, member := range ms.View().Members {
		for _, m := range member.Models {
			held = append(held, m.Name)
			if m.Name == model {
				versions = append(versions, strconv.FormatInt(m.Version, 10))
			}
		}
	}
	switch {
	case len(held) == 0:
		return fmt.Errorf("%w on any agent: model %.255q; there are none", models.ErrNotFound,
			model)
	case len(versions) > 0:
		return fmt.Errorf("%w on any agent: version %d of model %q; there are %s",
			models.ErrNotFound, version, model, enumerated(versions))
	}
	return fmt.Errorf("%w on any agent: model %.255q; there are %s", models.ErrNotFound, model,
		enumerated(held))
}

// enumerated lists the names in order, the first ten of them.
func enumerated(all []string) string {
	slices.Sort(all)
	all = slices.Compact(all)
	if more := len(all) - 10; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:10], ", "), more)
	}
	return strings.Join(all, ", ")
}

// Dial returns the connection to a member, which is shared and not to be closed.
func (ms *Members) Dial(name names.AgentName) (grpc.ClientConnInterface, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if name == ms.own.AgentName() {
		return ms.config.Local, nil
	}
	if o := ms.others[name]; o != nil {
		return o.conn, nil
	}
	return nil, status.Errorf(codes.Unavailable, "agent %q is no member of the fleet", name)
}

// Gone reports whether a member's process has ended: its address refuses a connection.
func (ms *Members) Gone(ctx context.Context, name names.AgentName) bool {
	ms.mu.Lock()
	o := ms.others[name]
	ms.mu.Unlock()
	if o == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	conn, err := ms.config.Dial(ctx, o.address)
	if err == nil {
		_ = conn.Close() // it was only to see whether somebody is there
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// update says what this agent is now.
func (ms *Members) update(m *control.Member) {
	ms.mu.Lock()
	ms.own = m
	ms.touchMembers()
	ms.mu.Unlock()
	ms.membersChanged.Tell()
}

// touch has the view built anew, and tells. ms.mu is held.
func (ms *Members) touch() {
	ms.current = nil
	ms.viewChanged.Tell()
}

// touchMembers is touch where members have changed. ms.mu is held.
func (ms *Members) touchMembers() {
	ms.members = nil
	ms.touch()
}

// heardOwnLoad says how busy this agent is.
func (ms *Members) heardOwnLoad(l load) control.HeardLoad {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.ownLoad = control.HeardLoad{LaneLoad: laneLoad(ms.own.AgentName(), l), At: time.Now()}
	return ms.ownLoad
}

func laneLoad(agent names.AgentName, l load) *control.LaneLoad {
	m := &control.LaneLoad{Agent: string(agent), Waiting: uint32(l.waiting)}
	for _, d := range l.remaining {
		m.RemainingNs = append(m.RemainingNs, int64(d))
	}
	return m
}

// heard takes what gossip says of a member: that it is there, and its meta.
func (ms *Members) heard(name names.AgentName, b []byte, joined bool) {
	said, err := DecodeMeta(b, ms.config.Spoken)
	if err != nil || ms.config.Spoken.Understands(said.Versions) != nil {
		return // gossip has refused it, and said so
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	o := ms.others[name]
	if o == nil {
		o = ms.strangers[name]
	}
	switch {
	case name == ms.own.AgentName(), o == nil && !joined, ms.config.Closing.Err() != nil:
		return
	case o == nil:
		ms.meet(name, said)
	case o.described == nil:
		o.said, o.shown, o.address, o.refused = said, nil, said.Address, nil // it is asked anyhow
	case o.address != said.Address:
		return // only a forger would
	default:
		o.said, o.shown = said, nil
		o.askAgain()
	}
	ms.touchMembers()
	ms.membersChanged.Tell()
}

// askAgain has a member asked that may be something else now.
func (o *other) askAgain() {
	select {
	case o.ask <- struct{}{}:
	default:
	}
}

// lost takes out a member that has left, or has failed.
func (ms *Members) lost(name names.AgentName, failed bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if o := ms.strangers[name]; o != nil {
		ms.forgetStranger(o)
	} else if o := ms.others[name]; o != nil {
		ms.drop(o)
		if failed {
			ms.config.Log.Warn("agent failed: it is not heard any more", "agent", name, "address",
				o.address, "event", "failed")
		} else {
			ms.config.Log.Info("agent left", "agent", name, "event", "left")
		}
	} else {
		return
	}
	ms.touchMembers()
	ms.membersChanged.Tell()
}

// drop forgets o. ms.mu is held.
func (ms *Members) drop(o *other) {
	delete(ms.others, o.name)
	o.leave()
	// What was under way fails, and is tried elsewhere. Closing says goodbye, which may block
	// on a connection that is stuck.
	ms.running.Go(func() { _ = o.conn.Close() })
}

// heardLoad takes what gossip says of how busy a member is, and returns it unless it is
// nonsense or of nobody. The view stays.
func (ms *Members) heardLoad(name names.AgentName, b []byte, at time.Time) (control.HeardLoad,
	bool) {
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
	if l.revision > o.said.Revision {
		o.said.Revision = l.revision
		o.askAgain()
	}
	return o.load, true
}

// ToldByLeader takes what the leader that this agent obeys says of prices, profiles, the way to
// lanes and what it proposes.
func (ms *Members) ToldByLeader(m *control.LeaderMessage) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m.Proposal != nil {
		ms.proposal = m.Proposal
	}
	if len(m.Prices) == 0 && len(m.Profiles) == 0 && m.AheadNs == 0 {
		return
	}
	if len(m.Prices) > 0 {
		ms.prices = m.Prices
	}
	for _, p := range m.Profiles {
		ms.profiles[p.Key()] = p
		ms.all = nil
	}
	if m.AheadNs > 0 {
		ms.ahead = control.Duration(m.AheadNs)
	}
	ms.touch()
}

// Proposal is the last plan that a leader has told this agent; nil: none. It must not be changed.
func (ms *Members) Proposal() *control.Proposal {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.proposal
}

// KeepTold is how long a profile is kept of lanes that no member has, or of a version that none of
// them holds: longer than the leader does, which tells it anew to lanes that are back later than
// that.
const KeepTold = 10 * time.Minute

// KeyOf names the profile of a model that a member holds, on the member's lanes: for the member
// itself as for whoever leads.
func KeyOf(c *profiles.Catalogue, member *control.Member, m *control.Model) profiles.Key {
	return profiles.KeyOf(c, m.GetName(), m.GetVersion(), m.GetChecksum(), profiles.Lane{
		InstanceType: profiles.InstanceType(member.GetInstanceType()),
		Provider:     member.GetProvider(),
		Emulated:     member.GetExecutor() == "emulated", Lanes: int(member.GetLanes()),
		Cores: int(member.GetCores()),
	})
}

// Forget forgets what has been told of versions and lanes that are gone.
func (ms *Members) Forget(now time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	there := map[names.TableKey]bool{}
	ms.own.ProfileKeys(there)
	for _, o := range ms.others {
		o.described.ProfileKeys(there)
	}
	gone := ms.absent.Over(now, KeepTold, maps.Keys(ms.profiles),
		func(key names.TableKey) bool { return there[key] })
	for _, key := range gone {
		delete(ms.profiles, key)
	}
	if len(gone) > 0 {
		ms.all = nil
		ms.touch()
	}
}

// Sizes tells of how many things the members keep, for tests that look for what grows.
func (ms *Members) Sizes(tell func(what string, n int)) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	tell("members: others", len(ms.others))
	tell("members: profiles", len(ms.profiles))
}
