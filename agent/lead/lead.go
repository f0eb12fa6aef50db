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
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/release"
	"github.com/muster-serve/muster/agent/rent"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/profiles"
)

// A Config says how an agent takes part in elections, and how it leads when elected.
type Config struct {
	Role election.Role
	// Rank orders this agent among the candidates; election.RankOf computes it.
	Rank election.Rank
	// JoinWait is how long the agent waits for a message of an existing leader before it stands for
	// election itself; 0 for an agent that joins no other.
	JoinWait time.Duration
	// StateDir is the directory for the last epoch and the learned latency profiles. The Leader
	// makes it when first needed.
	StateDir string
	// Policy is one of match.Policies; "" means match.DefaultPolicy.
	Policy string
	// Record is the path of a file to which a term appends all events and decisions; "" records
	// nothing.
	Record string
	// Catalogue lists the instance types with their prices; Library holds the profiles known before
	// anything is learned. Neither may be nil.
	Catalogue *profiles.Catalogue
	Library   *profiles.Library
	// Slowdowns are the factors from which profiles of models beside others start; nil: none.
	Slowdowns profiles.Slowdowns
	// Clients identifies the callers that open Match streams; nil: every caller may query every
	// model, without a name.
	Clients Clients
	// Beat takes what a term shows each second, and the plans that it makes. It must not block, and
	// owns the message; nil: nothing is shown.
	Beat func(*control.PulseMessage)
	// Replanner makes what decides on the placement; nil: replan.New. Tests replace it.
	Replanner func(replan.Config, replan.Memory) (Replanner, error)
	// Worker serves the link to this agent itself while it leads.
	Worker Worker
	// Counts counts the queries of gateways without an agent.
	Counts QueryCounter
	// Rent rents machines while this agent leads; nil: nothing is rented.
	Rent *rent.Manager
	// Releases decides about canaries while this agent leads; nil: the newest versions serve.
	Releases *release.Releases
	// Tracer makes the spans of decisions; nil: the leader makes none.
	Tracer trace.Tracer
	// Leadership is where the Leader publishes the leadership that this agent follows.
	Leadership *members.LeadershipWatch
	// Leadership, Fleet, Registry and Log may not be nil.
	Fleet    AgentDirectory
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// eventKey is the log attribute that makes a line an event, as in package serve.
const eventKey = "event"

// A Leader takes part in elections, and runs a term while this agent is elected. Its methods may be
// called concurrently. None but Run, Elect, Resign, Status, Demand and Match blocks for longer than
// a step of the election takes.
//
// Besides the term's goroutines it has one for the election's timers, one that follows the fleet's
// members, one for each link that it has opened, one for each plan that is solved, and short-lived
// ones that write the epoch or find out whether the leader's process has ended. All have ended when
// Run returns.
type Leader struct {
	config  Config
	fleet   AgentDirectory
	log     *slog.Logger
	metrics *metrics
	links   *links
	book    *profiles.Book // learned profiles; a term's learning loop uses it
	running sync.WaitGroup
	wake    wakeup.Signal // next has changed
	// forgetful means that the book must not be saved: a file that could neither be read nor
	// renamed would be overwritten.
	forgetful bool

	keeping sync.Mutex // serializes writes of the epoch
	kept    uint64     // the highest epoch that this agent has written
	failing bool       // the last write has failed

	following *members.LeadershipWatch // Config.Leadership; only publish writes it
	began     chan struct{}            // closed when Run has begun

	mu   sync.Mutex
	ctx  context.Context // that of Run; nil before and after
	node *election.Node
	next time.Time // when node wants its next step
	// the claim that this agent follows; without a leader, the last one with Leader ""
	claim election.Claim
	term  *term // nil when this agent does not lead
}

// New returns a Leader that takes part in elections once Run is called. It reads the last epoch and
// the learned profiles from StateDir. It returns an error if the epoch's file cannot be read or
// parsed; unreadable profiles are only logged.
func New(config Config) (*Leader, error) {
	f, log := config.Fleet, config.Log
	epoch, err := readEpoch(config.StateDir)
	if err != nil {
		return nil, err
	}
	if config.Beat == nil {
		config.Beat = func(*control.PulseMessage) {}
	}
	l := &Leader{
		config: config, fleet: f, log: log, metrics: newMetrics(config.Registry),
		book: profiles.NewBook(config.Library), wake: wakeup.New(),
		began: make(chan struct{}), following: config.Leadership,
	}
	if l.node, err = election.New(election.Config{
		ID: f.Self(), Rank: config.Rank, Epoch: epoch, JoinWait: config.JoinWait,
	}); err != nil {
		return nil, err
	}
	l.book.SetSlowdowns(config.Slowdowns)
	l.restoreBook()
	l.links = newLinks(f, log)
	l.links.serveOwn = func(s control.Stream[control.WorkerMessage, control.LeaderMessage]) error {
		return config.Worker.Link(s, l)
	}
	l.links.elect, l.links.broken = l.Elect, func(name names.AgentName) {
		l.step(&election.Event{Kind: election.StreamBroken, ID: name})
	}
	config.Registry.MustRegister(prometheus.CollectorFunc(l.collectMetrics))
	return l, nil
}

func (l *Leader) bookPath() string { return filepath.Join(l.config.StateDir, "profiles.json") }

// worksPath is the file of what the leader has learned of the work of queries beside the book's
// profiles by rows. It loses little if it is lost: a law is learned anew from some hundred runs.
func (l *Leader) worksPath() string { return filepath.Join(l.config.StateDir, "works.json") }

// restoreBook loads the profiles that were learned before. An unreadable file keeps no agent from
// starting; the file is renamed, so that its contents are not lost.
func (l *Leader) restoreBook() {
	r, err := l.book.Restore(l.bookPath())
	switch {
	case err != nil && r.Kept == "":
		l.log.Error(
			"cannot read the learned profiles nor rename their file; the leader saves none",
			"file", l.bookPath(), "error", err)
		l.forgetful = true
	case r.Fault != nil:
		l.log.Warn("cannot read the learned profiles; the leader renamed their file", "file",
			l.bookPath(), "kept_as", r.Kept, "error", r.Fault)
	case r.Kept != "":
		l.log.Info("the learned profiles had an older format; the leader renamed their file",
			"file", l.bookPath(), "kept_as", r.Kept)
		if err != nil { // the next save tries again
			l.log.Warn("cannot save the learned profiles", "error", err)
		}
	}
}

// Run takes part in elections, and leads whenever this agent is elected, until ctx ends. It blocks
// until all goroutines of the Leader have ended, and always returns nil. It may be called once.
func (l *Leader) Run(ctx context.Context) error {
	l.mu.Lock()
	l.ctx = ctx
	l.links.start(ctx)
	l.mu.Unlock()
	close(l.began)
	l.running.Go(func() { l.followMembers(ctx) })
	l.stepTimers(ctx)

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

// stepTimers steps the election at the times that it asks for, until ctx ends.
func (l *Leader) stepTimers(ctx context.Context) {
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

// followMembers tells the election, the links and the term of every change of the fleet's members,
// until ctx ends.
func (l *Leader) followMembers(ctx context.Context) {
	known := map[names.AgentName]election.Rank{}
	for {
		changed := l.fleet.Changed()
		l.mu.Lock()
		t := l.term
		l.mu.Unlock()
		if t != nil {
			// first, so that the election's message to a new member uses the term's link
			l.links.openTermLinks(t)
		}
		there := map[names.AgentName]bool{}
		for _, m := range l.fleet.View().GetMembers() {
			if !hasDescription(m) {
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
				l.links.dropLink(name)
			}
		}
		if t != nil {
			t.postToLoop(t.viewChanged)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// hasDescription reports whether a member has described itself. Before that, only gossip says that
// the member exists, and anybody may have sent that.
func hasDescription(m *control.Member) bool { return m.GetLanes() > 0 }

// rankOf returns a member's rank; if its description has none, the lowest rank of its role.
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

// Elect handles an election message from another agent. When it returns, Leadership reflects the
// message. It blocks until Run has begun, and ignores malformed messages.
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

// step passes an event to the election and carries out the actions that it returns. It does nothing
// while Run does not run.
func (l *Leader) step(e *election.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return
	}
	actions, next := l.node.Step(time.Now(), e)
	if !next.Equal(l.next) {
		l.next = next
		l.wake.Send()
	}
	for i := range actions {
		l.do(&actions[i])
	}
	l.publishLeadership()
}

// do carries out an action of the election. l.mu is held.
func (l *Leader) do(a *election.Action) {
	switch a.Kind {
	case election.Send:
		l.links.send(a.To, l.toMessage(&a.Message))
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
		l.links.openTermLinks(l.term)
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

// keepEpoch writes an epoch to disk, unless a higher one is there already: on a slow disk, the
// election may have moved on to the next epoch. It reports whether the epoch is on disk. It logs
// the first of a row of failures only, because an agent without a leader tries again every two
// seconds.
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

// toMessage returns an election message in the form in which it is sent.
func (l *Leader) toMessage(m *election.Message) *control.Election {
	return &control.Election{
		From: string(l.fleet.Self()), Kind: uint32(m.Kind), Epoch: m.Claim.Epoch,
		Rank: uint32(m.Claim.Rank), Leader: string(m.Claim.Leader),
		Successor: string(m.Successor), Heard: m.Heard,
	}
}

// publishLeadership makes a changed leadership visible to the other parts and the gateways. l.mu is
// held.
func (l *Leader) publishLeadership() {
	known, successor := l.Leadership(), l.node.Successor()
	if known.Epoch == l.claim.Epoch && known.Leader == string(l.claim.Leader) &&
		known.Successor == string(successor) {
		return
	}
	l.following.Publish(&control.Leadership{
		Epoch: l.claim.Epoch, Leader: string(l.claim.Leader), Successor: string(successor),
	})
	if t := l.term; t != nil {
		l.running.Go(func() { t.postToLoop(t.tellLeadership) })
	}
}

// Leadership returns what Config.Leadership has.
func (l *Leader) Leadership() *control.Leadership { return l.following.Leadership() }

// Linked notes that the agent called from has opened a Link to this agent. Until closed is called,
// the election's messages to that agent go through send, which must not block. inOrder tells closed
// whether the agent has ended the Link in order; otherwise it broke. Only the first call of closed
// counts.
func (l *Leader) Linked(from names.AgentName, send func(*control.Election)) (
	closed func(inOrder bool)) {
	forget := l.links.noteLinked(from, send)
	return func(inOrder bool) {
		if newest := forget(); newest && !inOrder {
			l.step(&election.Event{Kind: election.StreamBroken, ID: from})
		}
	}
}

// looks is how many times this agent tests whether another agent's process has ended, and lookAgain
// the wait after the first test, doubled after each. A dying process may refuse no connection at
// the first test. Chosen: 35 ms in all.
const (
	looks     = 4
	lookAgain = 5 * time.Millisecond
)

// lookAt tests whether the process of the agent called name has ended, and tells the election if it
// has. It blocks until the last test.
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

// Resign hands the leadership to another agent if this agent leads, and keeps this agent from being
// elected again. If ctx ends first, this agent gives up the leadership without a successor. Resign
// blocks until this agent does not lead or ctx ends.
func (l *Leader) Resign(ctx context.Context) {
	l.step(&election.Event{Kind: election.Resigned})
	for {
		changed := l.following.Changed()
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

// currentTerm returns the current term, or nil if this agent does not lead.
func (l *Leader) currentTerm() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == nil || l.term.ctx.Err() != nil {
		return nil
	}
	return l.term
}

// Status adds to s the rates, queues, recent decisions and causes of lateness that only the leader
// knows; it adds nothing if this agent does not lead. The causes are of the time that s.Missed
// names. It waits for the term's loop.
func (l *Leader) Status(s *control.FleetStatus) {
	if t := l.currentTerm(); t != nil {
		last := control.Duration(s.GetMissed().GetLastNs())
		t.callInLoop(func() {
			t.fillStatus(s)
			s.Missed = t.missed.summary(last)
		})
		t.placing.fillStatus(s)
	}
}

// effectiveAccuracy is what the metric of this name describes.
var effectiveAccuracy = prometheus.NewDesc("muster_family_accuracy",
	"The effective accuracy of a family in the whole fleet: the mean of the accuracies of its "+
		"answers of the last 10 s. Only the leader has it.",
	[]string{"family"}, nil)

// collectMetrics adds the metrics that only a leader has, as of now.
func (l *Leader) collectMetrics(metrics chan<- prometheus.Metric) {
	t := l.currentTerm()
	if t == nil {
		return
	}
	var families []leader.FamilyStatus
	t.callInLoop(func() { families = t.state.Families() })
	for _, f := range families {
		if f.Accuracy > 0 { // there were answers
			metrics <- prometheus.MustNewConstMetric(effectiveAccuracy, prometheus.GaugeValue,
				f.Accuracy, f.Name)
		}
	}
}

// Demand adds to d the models' demand and the learned profiles, which only the leader knows. It
// reports false, and adds nothing, if this agent does not lead. It waits for the learning loop.
func (l *Leader) Demand(d *control.FleetDemand) bool {
	t := l.currentTerm()
	return t != nil && t.learning.askLoop(func() { t.learning.fillDemand(d, time.Now()) })
}

// errNotLeading is the error for a gateway that takes this agent for the leader:
// FAILED_PRECONDITION, with the leadership that this agent knows.
func (l *Leader) errNotLeading() error {
	l.mu.Lock() // waits for a step in progress, which may change the leader
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

// readEpoch returns the last epoch that was written to dir; 0 if none was.
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

// writeEpoch writes an epoch to disk, and makes dir if there is none. It is durable when writeEpoch
// returns nil.
func writeEpoch(dir string, epoch uint64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return files.Replace(epochPath(dir), []byte(fmt.Sprintln(epoch)), 0o600)
}

// Leads reports whether this agent leads.
func (l *Leader) Leads() bool { return l.currentTerm() != nil }

// Holds returns the attempts that this agent, if it leads, believes a member's lane to hold; nil if
// it does not lead. For tests.
func (l *Leader) Holds(agent names.AgentName, lane int) (held []leader.Held) {
	if t := l.currentTerm(); t != nil {
		t.callInLoop(func() { held = t.state.Holds(agent, lane) })
	}
	return held
}

// Sizes calls add with the number of entries of each table that the Leader keeps, for tests that
// look for leaks.
func (l *Leader) Sizes(add func(what string, n int)) {
	l.links.mu.Lock()
	add("links: out", len(l.links.out))
	add("links: in", len(l.links.in))
	l.links.mu.Unlock()
	t := l.currentTerm()
	if t == nil {
		return
	}
	t.callInLoop(func() {
		for what, n := range t.state.Sizes() {
			add("state: "+what, n)
		}
		add("term: gateways", len(t.gateways))
		add("term: described", len(t.described)+len(t.viewed))
	})
	t.learning.askLoop(func() {
		for what, n := range t.learning.state.Sizes() {
			add("learning: "+what, n)
		}
	})
}
