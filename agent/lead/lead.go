package lead

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/profiles"
)

// A Config says how an agent leads, if it does.
type Config struct {
	Role election.Role
	// Rank is what election.RankOf says of the agent.
	Rank election.Rank
	// JoinWait is how long the agent waits to hear a leader before it claims to be
	// it; 0 where it has nobody to join.
	JoinWait time.Duration
	// StateDir holds the last epoch and what was learned. It is made when first needed.
	StateDir string
	// Policy is one of match.Policies; "" is the default.
	Policy string
	// Record is the path of a file that gets all events and decisions; "" for none.
	Record string
	// Catalogue knows what the instance types are, Library the profiles that are known
	// from the start; neither may be nil.
	Catalogue *profiles.Catalogue
	Library   *profiles.Library
	// Clients knows who opens Match streams; nil: all may query everything, and have no name.
	Clients Clients
	// Tracer makes the spans of decisions; nil: there are none.
	Tracer trace.Tracer
	// Fleet, Registry and Log may not be nil.
	Fleet    Fleet
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// eventKey is the attribute of the log that makes a line an event.
const eventKey = "event"

// A Leader takes part in elections, and while it is elected there is a term. Besides the term's
// goroutines it has one for the election's timers, one that follows the fleet's members, one for
// each link that it has opened, and for moments those that write the epoch, or look whether the
// leader is no more. All have ended when run returns.
type Leader struct {
	config  Config
	fleet   Fleet
	log     *slog.Logger
	metrics *metrics
	links   *links
	book    *profiles.Book // the present term's
	running sync.WaitGroup
	wake    chan struct{} // of size 1: the election's next step has moved
	// forgetful is set where the book must not be saved: there is a file that it would write over.
	forgetful bool

	keeping sync.Mutex // serializes writes of the epoch
	kept    uint64     // the highest epoch that this agent has written, and not given up since
	failing bool       // the last one could not be written

	following atomic.Pointer[control.Leadership]
	news      members.Broadcast // of following
	began     chan struct{}     // closed when run has begun

	mu    sync.Mutex
	ctx   context.Context // of run; nil when it does not run
	node  *election.Node
	next  time.Time      // when it is to be stepped
	claim election.Claim // followed, or last followed; then it names no leader
	term  *term          // nil when this agent does not lead
}

// New returns what leads when elected. What it has persisted must be readable.
func New(config Config) (*Leader, error) {
	f, log := config.Fleet, config.Log
	epoch, err := readEpoch(config.StateDir)
	if err != nil {
		return nil, err
	}
	l := &Leader{
		config: config, fleet: f, log: log, metrics: newMetrics(config.Registry),
		book: profiles.NewBook(config.Library), wake: make(chan struct{}, 1),
		began: make(chan struct{}),
	}
	if l.node, err = election.New(election.Config{
		ID: f.Self(), Rank: config.Rank, Epoch: epoch, JoinWait: config.JoinWait,
	}); err != nil {
		return nil, err
	}
	l.restoreBook()
	l.following.Store(&control.Leadership{})
	l.links = newLinks(f, log)
	l.links.elect, l.links.broken = l.Elect, func(name names.AgentName) {
		l.step(&election.Event{Kind: election.StreamBroken, ID: name})
	}
	return l, nil
}

func (l *Leader) bookPath() string { return filepath.Join(l.config.StateDir, "profiles.json") }

// restoreBook begins with what was learned before. Nothing that the file may hold keeps the agent
// from starting, and nothing that it holds is lost.
func (l *Leader) restoreBook() {
	r, err := l.book.Restore(l.bookPath())
	switch {
	case err != nil && r.Kept == "":
		l.log.Error(
			"learned profiles cannot be read nor moved: what is learned from now on is not kept",
			"file", l.bookPath(), "error", err)
		l.forgetful = true
	case r.Fault != nil:
		l.log.Warn("learned profiles cannot be read: their file has another name now", "file",
			l.bookPath(), "kept_as", r.Kept, "error", r.Fault)
	case r.Kept != "":
		l.log.Info("learned profiles were of an older format: that file has another name now",
			"file", l.bookPath(), "kept_as", r.Kept)
		if err != nil { // it is tried again when more is learned
			l.log.Warn("what was learned is not kept", "error", err)
		}
	}
}

// Run takes part, and leads whenever this agent is the leader, until ctx ends.
func (l *Leader) Run(ctx context.Context) error {
	l.mu.Lock()
	l.ctx = ctx
	l.links.start(ctx)
	l.mu.Unlock()
	close(l.began)
	l.running.Go(func() { l.followMembers(ctx) })
	l.timers(ctx)

	l.mu.Lock()
	l.ctx = nil
	t := l.term
	l.term = nil
	l.mu.Unlock()
	if t != nil {
		t.stop()
		<-t.done
	}
	l.running.Wait()
	l.links.running.Wait()
	return nil
}

// timers steps the election when it wants to be.
func (l *Leader) timers(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
			l.step(&election.Event{Kind: election.TimePassed})
		}
		l.mu.Lock()
		next := l.next
		l.mu.Unlock()
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// followMembers tells the election who is a member.
func (l *Leader) followMembers(ctx context.Context) {
	known := map[names.AgentName]election.Rank{}
	for {
		changed := l.fleet.Changed()
		l.mu.Lock()
		t := l.term
		l.mu.Unlock()
		if t != nil {
			l.links.lead(t) // before the election has something to say to a new member
		}
		there := map[names.AgentName]bool{}
		for _, m := range l.fleet.View().GetMembers() {
			if !described(m) {
				continue
			}
			name, rank := m.AgentName(), rankOf(m)
			there[name] = true
			if before, ok := known[name]; !ok || before != rank {
				known[name] = rank
				if name != l.fleet.Self() {
					l.step(&election.Event{Kind: election.MemberUp, ID: name, Rank: rank})
				}
			}
		}
		for name := range known {
			if !there[name] {
				delete(known, name)
				l.step(&election.Event{Kind: election.MemberDown, ID: name})
				l.links.drop(name)
			}
		}
		if t != nil {
			t.post(t.viewChanged)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// described reports whether a member has said what it is: until then nothing but gossip, which
// anybody may have sent, says that it is there.
func described(m *control.Member) bool { return m.GetLanes() > 0 }

// rankOf is a member's rank; the least of its role if it does not say one.
func rankOf(m *control.Member) election.Rank {
	if m.GetRank() != 0 {
		return election.Rank(m.GetRank())
	}
	role, err := election.ParseRole(m.GetRole())
	if err != nil {
		return 0
	}
	return election.RankOf(role, false, 0)
}

// Elect takes an election message that came by such a Link. When it returns, leadership is what
// follows from the message; one that comes before run waits for it.
func (l *Leader) Elect(m *control.Election) {
	<-l.began
	if m.GetFrom() == "" || m.GetKind() > uint32(election.Resign) {
		return
	}
	claim := election.Claim{
		Epoch: m.GetEpoch(), Rank: election.Rank(m.GetRank()),
		Leader: names.AgentName(m.GetLeader()),
	}
	l.step(&election.Event{Kind: election.Received, ID: names.AgentName(m.GetFrom()),
		Message: election.Message{
			Kind: election.MessageKind(m.GetKind()), Claim: claim,
			Successor: names.AgentName(m.GetSuccessor()),
			Heard:     m.GetHeard(),
		}})
}

// step steps the election and does what it asks for.
func (l *Leader) step(e *election.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return
	}
	actions, next := l.node.Step(time.Now(), e)
	if !next.Equal(l.next) {
		l.next = next
		signal(l.wake)
	}
	for i := range actions {
		l.do(&actions[i])
	}
	l.publish()
}

// signal wakes whoever waits for a channel of size 1.
func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// do carries out an action of the election. l.mu is held.
func (l *Leader) do(a *election.Action) {
	switch a.Kind {
	case election.Send:
		l.links.send(a.To, l.message(&a.Message))
	case election.Persist:
		epoch := a.Claim.Epoch
		l.running.Go(func() {
			if !l.keepEpoch(epoch) {
				return
			}
			l.step(&election.Event{Kind: election.Persisted, Epoch: epoch})
		})
	case election.Lead:
		l.log.Info("leading the fleet", "epoch", a.Claim.Epoch, eventKey, "leader")
		l.metrics.elections.Inc()
		l.metrics.leads.Set(1)
		l.term = newTerm(l, a.Claim, l.term)
		l.running.Go(l.term.run)
		l.links.lead(l.term)
	case election.StepDown:
		l.log.Info("leading no more", "epoch", a.Claim.Epoch, eventKey, "leader")
		l.metrics.leads.Set(0)
		l.term.stop()
		l.links.stepDown()
	case election.Follow:
		l.claim = a.Claim
		if a.Claim.Leader != l.fleet.Self() {
			l.log.Info("following a leader", "leader", a.Claim.Leader, "epoch", a.Claim.Epoch,
				eventKey, "leader")
		}
		l.metrics.epoch.Set(float64(a.Claim.Epoch))
	case election.NoLeader:
		l.log.Warn("there is no leader", "former", l.claim.Leader, "epoch", l.claim.Epoch, "why",
			a.Reason.String(), eventKey, "leader")
		l.claim.Leader = ""
	case election.Look:
		ctx, name := l.ctx, a.To
		l.running.Go(func() { l.lookAt(ctx, name) })
	}
}

// keepEpoch makes an epoch durable, unless a higher one is: on a slow disk the election may go on
// to the next before the one before is written. It reports whether that was possible, and logs it
// the first time that it was not: without a leader it is tried every two seconds.
func (l *Leader) keepEpoch(epoch uint64) bool {
	l.keeping.Lock()
	defer l.keeping.Unlock()
	if epoch <= l.kept && !election.Beyond(l.kept, epoch) {
		return true
	}
	err := writeEpoch(l.config.StateDir, epoch)
	if err != nil && !l.failing {
		l.log.Error("cannot lead: keep the epoch, trying again", "epoch", epoch, "error", err,
			eventKey, "leader")
	}
	if l.failing = err != nil; l.failing {
		return false
	}
	l.kept = epoch
	return true
}

// message is an election message as it travels.
func (l *Leader) message(m *election.Message) *control.Election {
	return &control.Election{
		From: string(l.fleet.Self()), Kind: uint32(m.Kind), Epoch: m.Claim.Epoch,
		Rank: uint32(m.Claim.Rank), Leader: string(m.Claim.Leader),
		Successor: string(m.Successor), Heard: m.Heard,
	}
}

// publish tells of a changed leadership. l.mu is held.
func (l *Leader) publish() {
	known, successor := l.following.Load(), l.node.Successor()
	if known.Epoch == l.claim.Epoch && known.Leader == string(l.claim.Leader) &&
		known.Successor == string(successor) {
		return
	}
	l.following.Store(&control.Leadership{
		Epoch: l.claim.Epoch, Leader: string(l.claim.Leader), Successor: string(successor),
	})
	l.news.Tell()
	if t := l.term; t != nil {
		l.running.Go(func() { t.post(t.tellLeadership) })
	}
}

// Leadership says whom this agent follows; itself perhaps. It is never nil
// and must not be changed.
func (l *Leader) Leadership() *control.Leadership { return l.following.Load() }

// Changed returns a channel that is closed at the next change of leadership.
func (l *Leader) Changed() <-chan struct{} { return l.news.Next() }

// Linked tells that the agent named has opened a Link to this one: what the
// election has to say to that agent goes by send, which must not block, until
// closed is called, which tells whether the agent has ended the Link in order, or it broke.
// Only the first call counts.
func (l *Leader) Linked(from names.AgentName, send func(*control.Election)) (
	closed func(inOrder bool)) {
	forget := l.links.linked(from, send)
	return func(inOrder bool) {
		if newest := forget(); newest && !inOrder {
			l.step(&election.Event{Kind: election.StreamBroken, ID: from})
		}
	}
}

// looks is how often this agent looks whether another's process has ended, and lookAgain the wait
// after the first look, doubled each time: who notices early finds a host that does not refuse yet.
const (
	looks     = 4
	lookAgain = 5 * time.Millisecond
)

// lookAt tells the election if the agent's process has ended.
func (l *Leader) lookAt(ctx context.Context, name names.AgentName) {
	for i := range looks {
		if l.fleet.Gone(ctx, name) {
			l.step(&election.Event{Kind: election.ProcessEnded, ID: name})
			return
		}
		select {
		case <-time.After(lookAgain << i):
		case <-ctx.Done():
			return
		}
	}
}

// Resign hands the leadership over if this agent has it, or as soon as ctx ends just gives it up;
// it does not take it again. It returns when this agent does not lead.
func (l *Leader) Resign(ctx context.Context) {
	l.step(&election.Event{Kind: election.Resigned})
	for {
		changed := l.Changed()
		l.mu.Lock()
		leads := l.ctx != nil && l.node.Leading()
		l.mu.Unlock()
		if !leads {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// leads is the present term, nil if this agent does not lead.
func (l *Leader) leads() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == nil || l.term.ctx.Err() != nil {
		return nil
	}
	return l.term
}

// Status fills in what only the leader knows.
func (l *Leader) Status(s *control.FleetStatus) {
	if t := l.leads(); t != nil {
		t.call(func() { t.fillStatus(s) })
	}
}

// Demand fills in what only the leader knows, and reports whether this agent is it.
func (l *Leader) Demand(d *control.FleetDemand) bool {
	t := l.leads()
	return t != nil && t.learning.ask(func() { t.learning.fillDemand(d, time.Now()) })
}

// errNotLeading tells a gateway that this agent does not lead, and who does as far
// as it knows.
func (l *Leader) errNotLeading() error {
	l.mu.Lock() // a step of the election that goes on may end with another leader
	known := l.Leadership()
	l.mu.Unlock()
	message := fmt.Sprintf("agent %s does not lead", l.fleet.Self())
	if known.Leader != "" && known.Leader != string(l.fleet.Self()) {
		message += "; " + known.Leader + " does"
	}
	s := status.New(codes.FailedPrecondition, message)
	if detailed, err := s.WithDetails(known); err == nil {
		s = detailed
	}
	return s.Err()
}

func epochPath(dir string) string { return filepath.Join(dir, "epoch") }

// readEpoch returns the last epoch persisted, 0 if there is none.
func readEpoch(dir string) (uint64, error) {
	data, err := os.ReadFile(epochPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the last epoch: %w", err)
	}
	epoch, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 63)
	if err != nil {
		return 0, fmt.Errorf(
			"read the last epoch: %[1]s holds %.40[2]q, want a number below 2^63; to mend it, "+
				"write into it the fleet's epoch, "+
				"which \"muster status\" shows at any other agent, or remove it if there is no "+
				"other", epochPath(dir), data)
	}
	return epoch, nil
}

// writeEpoch makes an epoch durable.
func writeEpoch(dir string, epoch uint64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return replaceFile(epochPath(dir), fmt.Sprintln(epoch), 0o600)
}

// Leads reports whether this agent leads.
func (l *Leader) Leads() bool { return l.leads() != nil }

// Holds is what this agent, if it leads, believes a member's lane to have.
func (l *Leader) Holds(agent names.AgentName, lane int) (held []leader.Held) {
	if t := l.leads(); t != nil {
		t.call(func() { held = t.state.Holds(agent, lane) })
	}
	return held
}

// Sizes tells how much is remembered, by what it is, for tests of what is forgotten.
func (l *Leader) Sizes(add func(what string, n int)) {
	l.links.mu.Lock()
	add("links: out", len(l.links.out))
	add("links: in", len(l.links.in))
	l.links.mu.Unlock()
	t := l.leads()
	if t == nil {
		return
	}
	t.call(func() {
		for what, n := range t.state.Sizes() {
			add("state: "+what, n)
		}
		add("term: gateways", len(t.gateways))
		add("term: described", len(t.described)+len(t.viewed))
	})
	t.learning.ask(func() {
		for what, n := range t.learning.state.Sizes() {
			add("learning: "+what, n)
		}
	})
}
