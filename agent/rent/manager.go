package rent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
)

// A Config says how an agent rents while it leads.
type Config struct {
	// StateDir is where an agent that rents keeps what is desired.
	StateDir string
	// Policy is the text of fleet.yaml, for a fleet that has none yet; "": this agent does not
	// rent.
	Policy string
	// Find returns an error if this machine lacks what the provider that a policy names needs. nil:
	// it has all.
	Find func(*policy.Policy) error
	// Open returns the provider that a policy names. It may be called again for another policy, and
	// must not be nil if Policy is not "". A provider with a method Close is closed when it is not
	// used any more.
	Open func(*policy.Policy) (cloud.Provider, error)
	// Changed is called when what is desired has changed, and must not block; nil: nothing is.
	Changed  func()
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// eventKey is the log attribute that makes a line an event, as in package serve.
const eventKey = "event"

// A Manager is an agent's. Its methods may be called concurrently, and only Run blocks, but for
// writing a small file.
type Manager struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	wake    wakeup.Signal // there is news for Run
	// first is the policy of the agent's own file.
	first    *policy.Policy
	electors electors // of Run's goroutine

	mu      sync.Mutex
	desired *control.DesiredFleet // the newest known; never changed, only replaced; nil: none
	// storedAt is when desired was told, or written to disk by the process before this one.
	storedAt time.Time
	// said is, by member, what the member has said in the term saidIn that it knows to be desired.
	// heard is closed when a member says so again.
	said    map[string]*control.DesiredFleet
	saidIn  uint64
	heard   chan struct{}
	resumes time.Time // when a pause ends that is not for good
	term    *loop     // nil while Run does not run
}

// New returns a Manager that knows what StateDir has. It returns an error if the policy has faults,
// or the file of what is desired cannot be read.
func New(config Config) (*Manager, error) {
	r := &Manager{config: config, log: config.Log, wake: wakeup.New(),
		heard: make(chan struct{})}
	if config.Policy == "" {
		return r, nil
	}
	var err error
	if r.first, err = policy.Parse("rent", config.Policy); err != nil {
		return nil, err
	}
	if err := r.findProvider(r.first); err != nil {
		return nil, fmt.Errorf("rent: %w", err)
	}
	text, err := os.ReadFile(r.statePath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the desired fleet: %w", err)
	default:
		d := &control.DesiredFleet{}
		// A later version may have written more.
		err := protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, d)
		if err != nil {
			return nil, fmt.Errorf("read the desired fleet: %s: %w", r.statePath(), err)
		}
		r.desired = d
		if info, err := os.Stat(r.statePath()); err == nil {
			r.storedAt = info.ModTime()
		}
		// When the pause began is not known any more: it may last longer, never shorter.
		r.resumes = time.Now().Add(time.Duration(d.GetPausedNs()))
	}
	r.metrics = newMetrics(config.Registry)
	return r, nil
}

func (r *Manager) findProvider(p *policy.Policy) error {
	if r.config.Find == nil {
		return nil
	}
	return r.config.Find(p)
}

func (r *Manager) statePath() string { return filepath.Join(r.config.StateDir, "desired.json") }

// Rents reports whether this agent can rent.
func (r *Manager) Rents() bool { return r.first != nil }

// Desired returns the newest of what is desired that this agent knows; nil: nothing is. The caller
// must not change it.
func (r *Manager) Desired() *control.DesiredFleet {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.desired
}

// Accuracies are what the fleet.yaml in force states for families, by name; nil if this agent does
// not rent.
func (r *Manager) Accuracies() (all []*control.FamilyAccuracy) {
	if !r.Rents() {
		return nil
	}
	p := r.first
	if text := r.Desired().GetPolicy(); text != "" {
		now, err := policy.Parse("fleet.yaml", text)
		if err != nil {
			return nil // of a later version of Muster, as the log says
		}
		p = now
	}
	for _, family := range slices.Sorted(maps.Keys(p.Families)) {
		a := p.Families[family]
		all = append(all, &control.FamilyAccuracy{
			Family: family, MinAccuracy: a.Min, TargetAccuracy: a.Target,
		})
	}
	return all
}

// sinceStored is for how long what is desired has been known.
func (r *Manager) sinceStored() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, time.Since(r.storedAt))
}

// Heard takes over what another agent says is desired, if that is newer than what this agent knows,
// and reports whether it is. The caller must not change it afterwards.
func (r *Manager) Heard(d *control.DesiredFleet) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d == nil || !isNewer(d, r.desired) {
		return false
	}
	r.storeDesired(d)
	return true
}

// Greet adds what is desired to a message to a leader.
func (r *Manager) Greet(m *control.WorkerMessage) { m.Fleet = r.Message() }

// Hear takes what the leader says is desired. It reports whether the leader said anything: then it
// waits for what this agent knows.
func (r *Manager) Hear(m *control.LeaderMessage) (answers bool) {
	r.Heard(m.GetFleet())
	return m.GetFleet() != nil
}

// Said takes what a member says in a term of this agent's that it knows to be desired, as it does
// when it greets its leader and when it was told: nil where it knows nothing. It reports whether
// that is newer than what this agent knows. The caller must not change d afterwards.
func (r *Manager) Said(epoch uint64, member string, d *control.DesiredFleet) bool {
	r.mu.Lock()
	if epoch > r.saidIn {
		r.saidIn, r.said = epoch, map[string]*control.DesiredFleet{}
	}
	if epoch == r.saidIn {
		r.said[member] = d
		close(r.heard)
		r.heard = make(chan struct{})
	}
	r.mu.Unlock()
	return r.Heard(d)
}

// keepWait is how long a change waits for most of the agents that may lead. Chosen: they answer in
// milliseconds, and one that does not is replaced as a leader within a second or two.
const keepWait = 3 * time.Second

// countKnowing returns how many agents may lead, and how many of these have said in this term that they
// countKnowing d or what is newer; if d is nil, that have said anything. This agent is one of them.
func (l *loop) countKnowing(d *control.DesiredFleet) (know, all int) {
	members, r := l.term.View().GetMembers(), l.manager
	r.mu.Lock()
	defer r.mu.Unlock()
	addresses := map[string]bool{}
	for _, address := range r.desired.GetElectors() {
		addresses[address] = true
	}
	for _, m := range members {
		if m.GetLanes() == 0 || !isElector(m) {
			continue
		}
		addresses[m.GetAddress()] = true
		said, ok := r.said[m.GetName()]
		if m.GetName() == l.term.Self || ok && r.saidIn == l.term.Epoch && !isNewer(d, said) {
			know++
		}
	}
	return know, len(addresses)
}

// knowsMost reports whether most of the agents that may lead have said what they know to be
// desired. This leader then knows the newest that most of them have known.
func (l *loop) knowsMost() bool {
	know, all := l.countKnowing(nil)
	return 2*know > all
}

// awaitMajority waits until most of the agents that may lead know d, or have said what they know if
// d is nil. It returns how many do, and false where that are too few for too long.
func (l *loop) awaitMajority(d *control.DesiredFleet) (know, all int, ok bool) {
	timeout := time.NewTimer(keepWait)
	defer timeout.Stop()
	for {
		l.manager.mu.Lock()
		heard, leads := l.manager.heard, l.manager.term == l
		l.manager.mu.Unlock()
		know, all = l.countKnowing(d)
		if 2*know > all || !leads {
			return know, all, leads
		}
		select {
		case <-heard:
		case <-timeout.C:
			return know, all, false
		}
	}
}

// isNewer reports whether a is newer than b.
func isNewer(a, b *control.DesiredFleet) bool {
	return a.GetEpoch() > b.GetEpoch() ||
		a.GetEpoch() == b.GetEpoch() && a.GetVersion() > b.GetVersion()
}

// storeDesired replaces what is desired, and writes it to disk if this agent rents. r.mu is held.
func (r *Manager) storeDesired(d *control.DesiredFleet) {
	if paused := d.GetPausedNs(); paused > 0 && r.desired.GetPausedNs() != paused {
		r.resumes = time.Now().Add(time.Duration(paused))
	}
	r.desired, r.storedAt = d, time.Now()
	if r.Rents() {
		text, err := protojson.MarshalOptions{Multiline: true}.Marshal(d)
		if err == nil {
			if err = os.MkdirAll(r.config.StateDir, 0o755); err == nil {
				err = files.Replace(r.statePath(), text, 0o600)
			}
		}
		if err != nil {
			r.log.Error("the desired fleet cannot be written to disk", "error", err)
		}
	}
	r.wake.Send()
	if r.config.Changed != nil {
		r.config.Changed()
	}
}

// State returns what this agent rents as the leader; UNAVAILABLE if it does not lead.
func (r *Manager) State() (*control.FleetState, error) {
	r.mu.Lock()
	l, d := r.term, r.desired
	r.mu.Unlock()
	if l == nil {
		return nil, status.Error(codes.Unavailable, "the fleet has no leader now, and only a "+
			"leader knows the rented machines")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := proto.CloneOf(l.shown)
	s.Desired = withoutHistory(d)
	s.Exact = s.Exact && l.of == d // there has been a step for it
	return s, nil
}

// Paid returns what the machines of agents are rented at, in $/hour, as of the last step of this
// agent as the leader; nil if there was none. The caller must not change it.
func (r *Manager) Paid() map[string]float64 {
	r.mu.Lock()
	l := r.term
	r.mu.Unlock()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paid
}

// errCannot is for a leader that is no keeper.
var errCannot = status.Error(codes.FailedPrecondition,
	"the leader cannot rent machines: start the "+
		"agents that may lead with --rent FILE, and all others with --leader never")

// Set changes what is desired, or says what would follow.
func (r *Manager) Set(req *control.SetFleetRequest) (*control.FleetState, error) {
	r.mu.Lock()
	l := r.term
	r.mu.Unlock()
	switch {
	case l == nil:
		return r.State()
	case !r.Rents():
		return nil, errCannot
	}
	if know, all, ok := l.awaitMajority(nil); !ok {
		return nil, status.Errorf(codes.Unavailable,
			"the leader changes nothing before most agents that may lead have reported which "+
				"machines they know to be desired: %d of %d have", know, all)
	}
	d := r.Desired()
	if req.GetExpectedVersion() > 0 && req.GetExpectedVersion() != d.GetVersion() {
		return nil, status.Errorf(codes.Aborted, "the desired fleet is now version %d, not %d: "+
			"review it and try again", d.GetVersion(), req.GetExpectedVersion())
	}
	next := proto.CloneOf(d)
	if next == nil {
		next = &control.DesiredFleet{}
	}
	next.By = req.GetBy()
	if err := l.applyRequest(next, req); err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		return l.dryRun(next), nil
	}
	if err := l.setDesired(d, next); err != nil {
		return nil, err
	}
	l.mu.Lock()
	if textOf(next.Counts) != textOf(d.GetCounts()) || next.Known != d.GetKnown() {
		l.shown.Proposal, l.shown.Outlook = nil, "" // both are of a change to what was desired
	}
	l.mu.Unlock()
	if know, all, ok := l.awaitMajority(next); !ok {
		return nil, status.Errorf(codes.DeadlineExceeded,
			"version %d is desired, but only %d of the "+
				"%d agents that may lead have said that they know: it may be lost with this leader",
			next.GetVersion(), know, all)
	}
	if pause := next.GetPausedNs(); pause > 0 {
		r.mu.Lock()
		r.resumes = time.Now().Add(time.Duration(pause))
		r.mu.Unlock()
	}
	return r.State()
}

// setDesired makes next what is desired, unless that has changed since before.
func (l *loop) setDesired(before, next *control.DesiredFleet) error {
	if !l.knowsMost() {
		return status.Error(codes.Unavailable, "this leader does not know yet what most know")
	}
	l.mu.Lock()
	learned := withAge(l.learned, time.Since(l.learnedAt))
	l.mu.Unlock()
	l.manager.mu.Lock()
	defer l.manager.mu.Unlock()
	if l.manager.desired != before {
		return status.Error(codes.Aborted, "the desired fleet has changed meanwhile: try again")
	}
	next.Epoch, next.Version = l.term.Epoch, before.GetVersion()+1
	if learned != nil {
		next.Learned = learned
	}
	l.manager.storeDesired(next)
	l.term.Tell(next)
	if textOf(before.GetCounts()) != textOf(next.Counts) || before.GetPolicy() != next.Policy ||
		before.GetPausedNs() != next.PausedNs {
		l.manager.log.Info("the fleet is to be another", "desired", textOf(next.Counts), "version",
			next.Version, "why", next.Why, "by", next.By, eventKey, "fleet")
	}
	return nil
}

// applyRequest applies a request to what is desired.
func (l *loop) applyRequest(d *control.DesiredFleet, req *control.SetFleetRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.policy
	if p == nil {
		return status.Errorf(codes.FailedPrecondition, "%s", l.fault)
	}
	switch c := req.GetChange().(type) {
	case *control.SetFleetRequest_Counts:
		if !p.Mode.Acts() {
			return status.Errorf(codes.FailedPrecondition, "the mode is %s, in which nothing is "+
				"rented or returned: apply a fleet.yaml with mode approve or auto first", p.Mode)
		}
		counts, err := countsOf(c.Counts.GetCounts())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if err := p.Allows(counts, l.prices); err != nil {
			return status.Error(codes.OutOfRange, err.Error())
		}
		d.Counts, d.Known, d.Why = toCounts(counts), true, "set"
		d.Destroyed = false
	case *control.SetFleetRequest_Policy:
		next, err := policy.Parse("fleet.yaml", c.Policy)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if next.Fleet != p.Fleet {
			return status.Errorf(codes.InvalidArgument, "fleet: %q, but this fleet is %q: its "+
				"instances carry the name", next.Fleet, p.Fleet)
		}
		if err := next.Affords(l.prices); err != nil {
			return status.Error(codes.OutOfRange, err.Error())
		}
		if err := l.manager.findProvider(next); err != nil {
			return status.Errorf(codes.FailedPrecondition, "the leader cannot rent by this "+
				"fleet.yaml: %s", err)
		}
		d.Policy, d.Why = c.Policy, "another fleet.yaml"
		d.Destroyed = false
	case *control.SetFleetRequest_Approve:
		proposal := l.shown.GetProposal()
		switch {
		case proposal == nil:
			return status.Error(codes.FailedPrecondition, "the leader has no proposal now")
		case proposal.GetNumber() != c.Approve:
			return status.Errorf(codes.Aborted, "the proposal is now %d, not %d: review it and "+
				"try again", proposal.GetNumber(), c.Approve)
		case !p.Mode.Acts():
			return status.Errorf(codes.FailedPrecondition, "the mode is %s, in which nothing is "+
				"rented or returned: apply a fleet.yaml with mode approve or auto first", p.Mode)
		}
		d.Counts, d.Known, d.Why = proposal.GetCounts(), true, proposal.GetWhy()
		d.Destroyed = false
	case *control.SetFleetRequest_PauseNs:
		pause := c.PauseNs
		if pause > 0 && pause == d.PausedNs {
			pause++ // other agents must see that it begins anew
		}
		d.PausedNs, d.Why = pause, "paused"
		if pause == 0 {
			d.Why = "resumed"
		}
	case *control.SetFleetRequest_Adopt:
		others := l.identities()
		others = slices.DeleteFunc(others, func(id string) bool { return id == d.Identity })
		if len(others) > 1 {
			return status.Errorf(codes.FailedPrecondition, "the instances with this fleet's name "+
				"are of %d other fleets, and one can be adopted: %q", len(others), others)
		}
		if len(others) == 1 {
			d.Identity = others[0]
		}
		if !d.Known {
			counts := map[rent.Kind]int{}
			for _, i := range l.list {
				if i.State < rent.Stopping {
					counts[i.Slot.Kind]++
				}
			}
			d.Counts, d.Known = toCounts(counts), len(counts) > 0
		}
		d.Why = "adopted"
	case *control.SetFleetRequest_Destroy:
		if !p.Mode.Acts() {
			return status.Errorf(codes.FailedPrecondition, "the mode is %s, in which nothing is "+
				"returned: apply a fleet.yaml with mode approve first", p.Mode)
		}
		d.Counts, d.Known, d.Why, d.PausedNs = nil, true, "destroyed", 0
		d.Destroyed = true
	default:
		return status.Error(codes.InvalidArgument,
			"no change: want counts, a policy, an approval, "+
				"a pause, adopt or destroy")
	}
	return nil
}

// newIdentity returns a new identity of a fleet.
func newIdentity() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

func countsOf(all []*control.FleetCount) (map[rent.Kind]int, error) {
	counts := map[rent.Kind]int{}
	for _, c := range all {
		kind, err := rent.ParseKind(c.GetKind())
		if err != nil {
			return nil, err
		}
		if c.GetCount() > 1<<16 {
			return nil, fmt.Errorf("%d of %s, want at most %d", c.GetCount(), kind, 1<<16)
		}
		counts[kind] += int(c.GetCount())
	}
	return counts, nil
}

func toCounts(counts map[rent.Kind]int) (all []*control.FleetCount) {
	for kind, n := range counts {
		if n > 0 {
			all = append(all, &control.FleetCount{Kind: kind.String(), Count: uint32(n)})
		}
	}
	slices.SortFunc(all, func(a, b *control.FleetCount) int {
		if a.Kind < b.Kind {
			return -1
		}
		return 1
	})
	return all
}

func textOf(all []*control.FleetCount) string {
	counts, err := countsOf(all)
	if err != nil {
		return err.Error()
	}
	return choose.Text(counts)
}
