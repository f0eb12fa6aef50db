package members

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
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
	"github.com/muster-serve/muster/api/queryconn"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/client/stream"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/profiles"
)

// goneTimeout bounds the connection attempt of Gone.
const goneTimeout = time.Second

// LeadershipSource tells which leader this agent follows. Its methods may be called concurrently
// and do not block.
type LeadershipSource interface {
	// Leadership returns the current leadership. It is never nil, and the caller must not change
	// it.
	Leadership() *control.Leadership
	// Changed returns a channel that is closed at the next change of leadership.
	Changed() <-chan struct{}
}

// Self is this agent, as Members tell the fleet of it. The methods may be called concurrently and
// do not block.
type Self interface {
	// Describe returns this agent's description, a new message with revision 0. apart
	// says of models that name a family and do not fit into it why; it is not nil, and
	// belongs to the caller.
	Describe() (m *control.Member, apart map[string]string)
	// TellMember is called with this agent's new description whenever it has changed.
	TellMember(*control.Member)
	// Load returns how many queries wait at this agent, and the remaining time of each lane.
	Load() (waiting int, remaining []time.Duration)
	// Complete adds to a view profiles that this agent has learned from queries on its own lanes,
	// for models and lanes without one. Nobody else has the view yet.
	Complete(*control.View)
	// Learned returns a number that changes whenever Complete may add other profiles than before.
	Learned() uint64
}

// A loadReceiver takes the loads of members.
type loadReceiver interface{ SetLoads([]*control.LaneLoad) }

// A Config holds what [Members] need of the rest of the agent. The functions must not block unless
// their comments say so, and may be called concurrently.
type Config struct {
	// Closing ends when the agent closes: Members then call no other agent.
	Closing context.Context
	// Spoken are the versions of the protocol that this agent speaks.
	Spoken control.Versions
	// Gossip is open. The caller of New closes it. Only Members may read its events.
	Gossip *gossip.Gossip
	// Connect returns a connection to an agent's gRPC address. It does not dial: the first call
	// does. Members own the connection.
	Connect func(address string) (*grpc.ClientConn, error)
	// Queries opens connections for queries to agents.
	Queries *queryconn.Dialer
	// Dial opens a TCP connection to an address, and may block until ctx ends. Members use it only
	// to see whether the address refuses connections.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Local is this agent's connection to itself, without sockets.
	Local   grpc.ClientConnInterface
	Leading LeadershipSource
	Log     *slog.Logger
}

// Members hold this agent's view of the fleet: which agents are in it and their loads, from gossip;
// their descriptions, from Describe calls to each; and the prices and profiles that the leader
// sends. The methods may be called concurrently.
//
// Anybody who can send packets can make gossip name agents that do not exist. An agent that has not
// described itself, at its own address, is therefore a stranger. At most MostStrangers strangers
// are listed in the view. Only a Describe call dials a stranger, and the election does not hear of
// it.
type Members struct {
	config Config
	self   Self         // set by Represent
	loads  loadReceiver // set by PublishLoads
	feed   feed
	secret []byte // of this process alone, for aliases

	selfChanged                 wakeup.Signal // wakes tellSelf
	membersChanged, viewChanged Broadcast
	running                     sync.WaitGroup

	mu     sync.Mutex
	own    *control.Member
	joined uint64 // control.Member's field of this name
	// hasJoined is closed once joined is not 0.
	hasJoined chan struct{}
	apart     map[string]string // by model, why it is not served as its model.yaml says
	ownLoad   control.HeardLoad // LaneLoad is nil before the first
	others    map[names.AgentName]*other
	// strangers holds the agents that have not described themselves. unasked queues those whose
	// Describe call is due; asking is how many goroutines make the calls.
	strangers map[names.AgentName]*other
	unasked   []*other
	asking    int
	failures  *rate.Limiter // bounds the rate of failed Describe calls to strangers
	// lastUndescribed is when a stranger's failed Describe call was last logged.
	lastUndescribed time.Time

	prices    []*control.TypePrice
	ahead     time.Duration
	plan      *control.Plan      // the last plan of a leader; nil: none
	proposal  *control.Proposal  // the last change of demand that a leader saw; nil: none
	placement *control.Placement // what the last leader told of the placement; nil: nothing
	releases  []*control.Release // by model
	profiles  map[names.TableKey]*control.Profile
	absent    profiles.Absence[names.TableKey]
	current   *control.View     // the view; nil if it has to be built anew, from members and all
	members   []*control.Member // sorted by name; nil if they have to be gathered
	families  map[string]string // of members' models, by model; nil: there are none
	// profiles, with those that Estimates add; nil if they must be gathered
	all       []*control.Profile
	learnedAt uint64 // Estimates.Learned when all was gathered
}

// An other is another agent, a member or a stranger. Members.mu guards its fields.
type other struct {
	name      names.AgentName
	address   string // of its gRPC server, host:port
	said      Meta
	described *control.Member   // its description; nil: it is a stranger
	shown     *control.Member   // the result of member; nil if said or described has changed since
	load      control.HeardLoad // LaneLoad is nil before the first
	ask       wakeup.Signal     // its description may have changed
	conn      *stream.Conn      // nil for a stranger
	left      context.Context
	leave     context.CancelFunc

	wait   time.Duration // until a stranger's next Describe call, after a failure
	logged bool          // its failure to describe itself has been logged
	// refused is the member that gossip has refused for lack of room; nil if gossip has accepted
	// it.
	refused *gossip.Member
}

// New returns Members that know nobody. Represent tells them of this agent, and Run finds the
// others; Close must be called at the end.
func New(config Config) *Members {
	ms := &Members{
		config: config, selfChanged: wakeup.New(), hasJoined: make(chan struct{}),
		others: map[names.AgentName]*other{}, strangers: map[names.AgentName]*other{},
		failures: rate.NewLimiter(failuresPerSecond, describers),
		profiles: map[names.TableKey]*control.Profile{}, secret: make([]byte, sha256.Size),
	}
	_, _ = rand.Read(ms.secret) // it never fails
	ms.feed.members = ms
	return ms
}

// Represent makes the Members tell the fleet of this agent. It must be called once, before Run and
// before what asks for this agent or the view.
func (ms *Members) Represent(self Self) {
	ms.self = self
	ms.own, ms.apart = ms.describeThisAgent()
}

// PublishLoads passes each load that gossip receives, and this agent's own, on to a receiver, which
// must not block. It must be called once, before Run.
func (ms *Members) PublishLoads(to loadReceiver) { ms.loads = to }

// Close forgets the other agents, closes their connections, and blocks until the goroutines that
// call them have ended.
func (ms *Members) Close() {
	ms.mu.Lock()
	for _, o := range ms.others {
		ms.dropMember(o)
	}
	for _, o := range ms.strangers {
		ms.forgetStranger(o)
	}
	ms.mu.Unlock()
	ms.running.Wait()
}

// Self returns the name of this agent.
func (ms *Members) Self() names.AgentName { return ms.Own().AgentName() }

// Alone reports whether the view has no other agent.
func (ms *Members) Alone() bool { return len(ms.View().Members) == 1 }

// Own returns this agent's description, which the caller must not change.
func (ms *Members) Own() *control.Member {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.own
}

// Changed returns a channel that is closed at the next change of the members or their descriptions.
func (ms *Members) Changed() <-chan struct{} { return ms.membersChanged.Next() }

// ViewChanged returns a channel that is closed at the next change of the view, except a change of
// its leadership, which Leading.Changed announces.
func (ms *Members) ViewChanged() <-chan struct{} { return ms.viewChanged.Next() }

// View returns the fleet as this agent knows it, this agent included. The caller must not change
// it. It has no loads; see Loads. Calls return the same message until the view changes, and then
// share the members and profiles that have not changed.
func (ms *Members) View() *control.View {
	leadership := ms.config.Leading.Leadership()
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.current == nil || ms.current.Leadership != leadership {
		ms.current = ms.buildView(leadership)
	}
	return ms.current
}

// LoadedView returns the view with the members' current loads.
func (ms *Members) LoadedView() *control.View {
	v := ms.View()
	return &control.View{
		Members: v.Members, Leadership: v.Leadership, Prices: v.Prices, Profiles: v.Profiles,
		AheadNs: v.AheadNs, Loads: ms.Loads(), Releases: v.Releases,
	}
}

// heardLoads returns the newest load of each member, in no order.
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

// Loads returns the newest load of each member, sorted by the member's name. Each says how old it
// is now.
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

// buildView makes a view with the given leadership. ms.mu is held.
func (ms *Members) buildView(leadership *control.Leadership) *control.View {
	if ms.members == nil {
		ms.members, ms.all = ms.sortedMembers(), nil
	}
	v := &control.View{
		Leadership: leadership, Prices: ms.prices, AheadNs: int64(ms.ahead), Members: ms.members,
		Profiles: ms.all, Releases: ms.releases,
	}
	if ms.all == nil {
		ms.gatherProfiles(v)
	}
	return v
}

// sortedMembers returns the members sorted by name, listed strangers included. ms.mu is held.
func (ms *Members) sortedMembers() []*control.Member {
	members := make([]*control.Member, 1, 1+len(ms.others))
	members[0] = ms.own
	taken := map[string]bool{ms.own.GetAddress(): true}
	for _, o := range ms.others {
		taken[o.address] = true
		members = append(members, o.viewEntry())
	}
	for _, o := range ms.strangers {
		// A stranger at a known member's address either has ended, or will describe itself and
		// replace the member.
		if o.refused == nil && !taken[o.address] {
			members = append(members, o.viewEntry())
		}
	}
	slices.SortFunc(members, func(a, b *control.Member) int { return cmp.Compare(a.Name, b.Name) })
	ms.families = nil
	for _, m := range members {
		for _, held := range m.Models {
			if held.Family != "" {
				if ms.families == nil {
					ms.families = map[string]string{}
				}
				ms.families[held.Name] = held.Family
			}
		}
	}
	return members
}

// Family returns the family of a model that members hold; "" if it has none.
func (ms *Members) Family(model string) string {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.members == nil {
		ms.members, ms.all = ms.sortedMembers(), nil
	}
	return ms.families[model]
}

// gatherProfiles sets v.Profiles, which need v.Members. ms.mu is held.
func (ms *Members) gatherProfiles(v *control.View) {
	// never nil, because nil means that ms.all is unset
	v.Profiles = slices.AppendSeq(make([]*control.Profile, 0, len(ms.profiles)),
		maps.Values(ms.profiles))
	ms.learnedAt = ms.self.Learned()
	ms.self.Complete(v)
	slices.SortFunc(v.Profiles, func(a, b *control.Profile) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Type, b.Type))
	})
	ms.all = v.Profiles
}

// completeAgain updates the view's profiles if this agent has learned something since they were
// gathered.
func (ms *Members) completeAgain() {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.all == nil || ms.self.Learned() == ms.learnedAt {
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
		ms.markChanged()
	}
}

// viewEntry returns o's entry in the view. The message is never changed afterwards. ms.mu is held.
func (o *other) viewEntry() *control.Member {
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

// Member returns the view's entry for the agent called name, or nil if there is none. The caller
// must not change it.
func (ms *Members) Member(name names.AgentName) *control.Member {
	for _, m := range ms.View().Members {
		if m.AgentName() == name {
			return m
		}
	}
	return nil
}

// Find returns the name of the agent that people call by its name or by its display name. If
// several have the display name, the error names them.
func (ms *Members) Find(name string) (names.AgentName, error) {
	var called []string
	for _, m := range ms.View().Members {
		if m.Name == name {
			return m.AgentName(), nil
		}
		if m.DisplayName == name && name != "" {
			called = append(called, m.Name)
		}
	}
	switch len(called) {
	case 0:
		return "", ms.NoAgent(names.AgentName(name))
	case 1:
		return names.AgentName(called[0]), nil
	}
	return "", fmt.Errorf("agent %.255q: %w as one agent: %s have this name, name one of these",
		name, outcome.ErrNoAgent, listNames(called))
}

// tellNamesakes warns of each other machine whose agent has this agent's display name, once.
// Agents of one machine have the host's name unless they are given others.
func (ms *Members) tellNamesakes(told map[string]bool) {
	own := ms.Own()
	host, _, _ := net.SplitHostPort(own.Address)
	for _, m := range ms.View().Members {
		other, _, _ := net.SplitHostPort(m.Address)
		if m.Name == own.Name || own.DisplayName == "" || m.DisplayName != own.DisplayName ||
			other == host || told[m.Name] {
			continue
		}
		told[m.Name] = true
		ms.config.Log.Warn("two agents have one display name: give each its own by --name",
			"name", own.DisplayName, "agent", own.Name, "other", m.Name, "address", m.Address)
	}
}

// Names returns the names of all agents in the view, this one included, sorted.
func (ms *Members) Names() []names.AgentName {
	var all []names.AgentName
	for _, m := range ms.View().Members {
		all = append(all, m.AgentName())
	}
	return all
}

// NoAgent returns the error for a request that names an agent that is not in the fleet. It lists
// the agents that are, and wraps outcome.ErrNoAgent.
func (ms *Members) NoAgent(name names.AgentName) error {
	return fmt.Errorf("agent %.255q: %w in the fleet; there are %s", name, outcome.ErrNoAgent,
		listNames(names.Strings(ms.Names())))
}

// NoModel returns the error for a request for a model, or a version of one, that no member holds.
// It lists the models or versions that members hold, and wraps models.ErrNotFound.
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
			models.ErrNotFound, version, model, listNames(versions))
	}
	return fmt.Errorf("%w on any agent: model %.255q; there are %s", models.ErrNotFound, model,
		listNames(held))
}

// listNames joins the first ten names in order, and says how many more there are. It sorts names
// in place.
func listNames(all []string) string {
	slices.Sort(all)
	all = slices.Compact(all)
	if more := len(all) - 10; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:10], ", "), more)
	}
	return strings.Join(all, ", ")
}

// Dial returns the connection to the member called name, or an UNAVAILABLE error if there is none.
// The connection is shared: the caller must not close it. Dial does not block.
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

// Gone reports whether the process of the member called name has ended, which it takes from a
// refused connection to the member's address. It blocks for at most goneTimeout.
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
		_ = conn.Close() // the connection has served its purpose: somebody listens
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// update replaces this agent's description in the view.
func (ms *Members) update(m *control.Member) {
	ms.mu.Lock()
	ms.own = m
	ms.touchMembers()
	ms.mu.Unlock()
	ms.membersChanged.Tell()
}

// markChanged makes the next View build the view anew, and announces the change. ms.mu is held.
func (ms *Members) markChanged() {
	ms.current = nil
	ms.viewChanged.Tell()
}

// touchMembers is touch for a change of the members. ms.mu is held.
func (ms *Members) touchMembers() {
	ms.members = nil
	ms.markChanged()
}

// heardOwnLoad stores this agent's own load, and returns it.
func (ms *Members) heardOwnLoad(l gossipedLoad) control.HeardLoad {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.ownLoad = control.HeardLoad{LaneLoad: laneLoad(ms.own.AgentName(), l), At: time.Now()}
	return ms.ownLoad
}

func laneLoad(agent names.AgentName, l gossipedLoad) *control.LaneLoad {
	m := &control.LaneLoad{Agent: string(agent), Waiting: uint32(l.waiting)}
	for _, d := range l.remaining {
		m.RemainingNs = append(m.RemainingNs, int64(d))
	}
	return m
}

// applyMeta handles the meta that gossip received for the agent called name. joined is set if
// gossip did not know the agent before.
func (ms *Members) applyMeta(name names.AgentName, b []byte, joined bool) {
	said, err := DecodeMeta(b, ms.config.Spoken)
	if err != nil || ms.config.Spoken.Understands(said.Versions) != nil {
		return // gossip has refused it and logged that
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
		ms.addStranger(name, said)
	case o.described == nil:
		// its Describe call is queued already
		o.said, o.shown, o.address, o.refused = said, nil, said.Address, nil
	case o.address != said.Address:
		return // an agent never changes its address, so the message is forged
	default:
		o.said, o.shown = said, nil
		o.askAgain()
	}
	ms.touchMembers()
	ms.membersChanged.Tell()
}

// askAgain makes o's goroutine call Describe again. It does not block.
func (o *other) askAgain() {
	o.ask.Send()
}

// removeLost removes an agent that has left gossip or, if failed is set, that gossip has found
// dead.
func (ms *Members) removeLost(name names.AgentName, failed bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if o := ms.strangers[name]; o != nil {
		ms.forgetStranger(o)
	} else if o := ms.others[name]; o != nil {
		ms.dropMember(o)
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

// dropMember removes the member o, and closes its connection on another goroutine. ms.mu is held.
func (ms *Members) dropMember(o *other) {
	delete(ms.others, o.name)
	o.leave()
	// Calls in progress fail, and their callers try other agents. Close sends a farewell, which may
	// block on a connection that does not move.
	ms.running.Go(func() { _ = o.conn.Close() })
}

// heardLoad stores an agent's load as gossip received it, encoded, at the given time. It reports
// false if the load is malformed or the agent is not in the view. The view does not change.
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

// ToldByLeader stores the leader's prices, profiles and plan in m, and the time before a
// lane is free at which the leader gives it the next query. Empty fields leave the stored values.
// The caller must have checked that this agent follows the sender, and must not change m
// afterwards.
func (ms *Members) ToldByLeader(m *control.LeaderMessage) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m.Plan != nil {
		ms.plan = m.Plan
	}
	if m.Proposal != nil {
		ms.proposal = m.Proposal
	}
	if m.Placement != nil {
		ms.placement = m.Placement
	}
	if len(m.Prices) == 0 && len(m.Profiles) == 0 && m.AheadNs == 0 {
		return
	}
	if len(m.Prices) > 0 {
		ms.prices = m.Prices
	}
	for _, p := range m.Profiles {
		ms.profiles[p.TableKey()] = p
		ms.all = nil
	}
	if m.AheadNs > 0 {
		ms.ahead = control.Duration(m.AheadNs)
	}
	ms.markChanged()
}

// SetReleases sets the releases that the view has, by model, without what only people need to know.
func (ms *Members) SetReleases(all []*control.Release) {
	short := make([]*control.Release, len(all))
	for i, r := range all {
		short[i] = &control.Release{
			Model: r.Model, Number: r.Number, Epoch: r.Epoch, Current: r.Current, Canary: r.Canary,
			Share: r.Share, Tolerance: r.Tolerance,
		}
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.releases = short
	ms.markChanged()
}

// Plan returns the last plan that a leader has sent to this agent; nil: none. The caller must not
// change it.
func (ms *Members) Plan() *control.Plan {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.plan
}

// Proposal returns the last change of demand that a leader has sent to this agent; nil: none. The
// caller must not change it.
func (ms *Members) Proposal() *control.Proposal {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.proposal
}

// Placement returns what the last leader has told this agent of the placement; nil: nothing. The
// caller must not change it.
func (ms *Members) Placement() *control.Placement {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.placement
}

// KeepTold is how long Members keep a profile after the last member with such lanes and such a
// model version has gone. The leader remembers for a shorter time that it has sent the profile, so
// it sends the profile again to lanes that come back after that. Chosen: longer than a restart of a
// machine with its agent takes, and the memory of a profile is some KiB.
const KeepTold = 10 * time.Minute

// KeyOf returns the key of the latency profile of the model m on the member's lanes. The member and
// the leader compute the same key.
func KeyOf(c *profiles.Catalogue, member *control.Member, m *control.Model) profiles.Key {
	on := profiles.LaneDescription{
		InstanceType: profiles.InstanceType(member.GetInstanceType()),
		Provider:     member.GetProvider(),
		Emulated:     member.GetExecutor() == "emulated", Lanes: int(member.GetLanes()),
		Cores: int(member.GetCores()),
	}
	if part := member.PartOf(m.GetName()); part != nil {
		on.Cores, on.Ways = int(member.CoresOf(part)), int(part.GetWays())
		on.Beside = member.Beside(part)
	}
	return profiles.KeyOf(c, m.GetName(), m.GetVersion(), m.GetChecksum(), on)
}

// Forget removes the leader's profiles of model versions and lanes that have been gone for
// KeepTold. It must be called from time to time.
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
		ms.markChanged()
	}
}

// Sizes calls tell with the number of entries of each table that Members keep, for tests that look
// for leaks.
func (ms *Members) Sizes(tell func(what string, n int)) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	tell("members: others", len(ms.others))
	tell("members: profiles", len(ms.profiles))
}
