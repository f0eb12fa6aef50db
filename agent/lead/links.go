package lead

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
)

const (
	// idleLink is how long a link that was opened for election messages stays open after the last
	// message. Chosen: three times election.Config.Silence, so that an election that repeats its
	// messages opens each link once.
	idleLink = 3 * time.Second
	// A leader opens a broken link again after firstRedial; it doubles the wait at each failure, up
	// to lastRedial. Chosen: within linkGrace of the leader's state.
	firstRedial, lastRedial = 10 * time.Millisecond, 500 * time.Millisecond
	// maxElections is how many election messages may wait for a link; the oldest are dropped,
	// because the election repeats its messages.
	maxElections = 32
	// maxListBytes bounds the bytes of releases and of profiles in one message, unless a single one
	// is larger; the rest go in the next messages. With a placement's maxMemory it is well below
	// serve's minLimit, which every agent accepts.
	maxListBytes = 256 << 10
	// maxPriceBytes bounds the bytes of prices in one message, which a member takes as all prices:
	// types beyond them have none. It is enough for a thousand types, and half of maxListBytes.
	maxPriceBytes = 128 << 10
)

// links are the Link streams between this agent and the others, which carry election messages and
// the leader's control messages. An agent that leads has one link open to each member, itself
// included. Another agent sends an election message on a link that the receiver has opened, or
// opens a link for a while.
type links struct {
	fleet AgentDirectory
	log   *slog.Logger
	// elect passes a received message to the election; broken tells it of a link that broke or
	// could not be opened.
	elect  func(*control.Election)
	broken func(name names.AgentName)
	// serveOwn serves this agent's end of a link to itself, and blocks until that ends.
	serveOwn func(control.Stream[control.WorkerMessage, control.LeaderMessage]) error
	running  sync.WaitGroup

	mu  sync.Mutex
	ctx context.Context
	out map[names.AgentName]*link
	in  map[names.AgentName]*inbound
}

// An inbound is a link that another agent has opened.
type inbound struct{ send func(*control.Election) }

func newLinks(f AgentDirectory, log *slog.Logger) *links {
	return &links{
		fleet: f, log: log, out: map[names.AgentName]*link{}, in: map[names.AgentName]*inbound{},
	}
}

func (s *links) start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
}

// noteLinked notes a link that another agent has opened. The caller calls closed when it ends;
// closed reports whether no newer link of that agent has replaced it.
func (s *links) noteLinked(from names.AgentName,
	send func(*control.Election)) (closed func() bool) {
	in := &inbound{send}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in[from] = in
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		newest := s.in[from] == in
		if newest {
			delete(s.in, from)
		}
		return newest
	}
}

// send queues an election message for the agent called to, and opens a link if there is none. It
// does not block. m belongs to the links afterwards.
func (s *links) send(to names.AgentName, m *control.Election) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.out[to]
	if k == nil {
		if in := s.in[to]; in != nil {
			in.send(m)
			return
		}
		if k = s.open(to, nil); k == nil {
			return
		}
	}
	k.push(func(out *control.LeaderMessage) {
		out.Election = append(out.Election, m)
		if n := len(out.Election); n > maxElections {
			out.Election = out.Election[n-maxElections:]
		}
	})
}

// open starts a link. s.mu is held.
func (s *links) open(to names.AgentName, t *term) *link {
	if s.ctx == nil || s.ctx.Err() != nil {
		return nil
	}
	k := &link{links: s, to: to, term: t, wake: wakeup.New()}
	k.ctx, k.cancel = context.WithCancel(s.ctx)
	s.out[to] = k
	s.running.Go(k.run)
	return k
}

// openTermLinks opens a link to each described member to which the term has none yet.
func (s *links) openTermLinks(t *term) {
	members := s.fleet.View().GetMembers()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ctx.Err() != nil {
		return
	}
	for _, m := range members {
		if !hasDescription(m) {
			continue
		}
		k := s.out[m.AgentName()]
		if k != nil && k.term == t {
			continue
		}
		if fresh := s.open(m.AgentName(), t); k != nil && fresh != nil {
			k.handOver(fresh)
		}
	}
}

// stepDown wakes the writers of the links after a term has ended. The links stay open until they
// have been idle, for the election's last messages.
func (s *links) stepDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.out {
		k.wake.Send()
	}
}

// dropLink closes the link to an agent that is no longer a member.
func (s *links) dropLink(name names.AgentName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.out[name]; k != nil {
		delete(s.out, name)
		k.cancel()
	}
}

// addToAll calls add with the next message of each of the term's links.
func (s *links) addToAll(t *term, add func(*control.LeaderMessage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.out {
		if k.term == t {
			k.push(add)
		}
	}
}

// tellOne calls add with the next message of the term's link to one member, if there is one.
func (s *links) tellOne(t *term, name names.AgentName, add func(*control.LeaderMessage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.out[name]; k != nil && k.term == t {
		k.push(add)
	}
}

// reopenLink opens the link to a member again, which makes the member report what its lanes hold.
func (s *links) reopenLink(t *term, name names.AgentName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.out[name]; k != nil && k.term == t {
		k.endStream()
	}
}

// A link is a Link stream that this agent has opened to another agent, or to itself. Its goroutine,
// run, opens it again when it breaks.
type link struct {
	links  *links
	to     names.AgentName
	term   *term // the term that it serves; nil: it carries election messages only
	ctx    context.Context
	cancel context.CancelFunc
	wake   wakeup.Signal

	mu      sync.Mutex
	pending *control.LeaderMessage // the next message; nil: nothing
	refresh context.CancelFunc     // ends the current stream, for renew; nil: none is open
}

// push calls add with the next message to be sent, and wakes the writer. It does not block.
func (k *link) push(add func(*control.LeaderMessage)) {
	k.mu.Lock()
	if k.pending == nil {
		k.pending = &control.LeaderMessage{}
	}
	add(k.pending)
	k.mu.Unlock()
	k.wake.Send()
}

// takeMessage returns the next message to be sent, and removes it; nil if there is none.
func (k *link) takeMessage() *control.LeaderMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.pending
	k.pending = nil
	return m
}

// keepForNext moves the profiles and releases beyond maxListBytes from m to the next message, and
// leaves prices out beyond maxPriceBytes.
func (k *link) keepForNext(m *control.LeaderMessage) {
	m.Prices, _ = cutToLimit(m.Prices, maxPriceBytes)
	var profiles []*control.Profile
	if m.Profiles, profiles = cutToLimit(m.Profiles, maxListBytes); len(profiles) > 0 {
		k.push(func(out *control.LeaderMessage) {
			out.Profiles = mergeProfiles(profiles,
				out.Profiles)
		})
	}
	var releases []*control.Release
	if m.Releases, releases = cutToLimit(m.Releases, maxListBytes); len(releases) > 0 {
		k.push(func(out *control.LeaderMessage) {
			if len(out.Releases) == 0 { // otherwise the member has all of them, and newer ones
				out.Releases = releases
			}
		})
	}
}

// cutToLimit divides all into the first messages of at most limit bytes together, at least one, and
// the rest.
func cutToLimit[M proto.Message](all []M, limit int) (now, later []M) {
	size := 0
	for n, m := range all {
		if size += proto.Size(m); n > 0 && size > limit {
			return all[:n:n], all[n:]
		}
	}
	return all, nil
}

// mergeProfiles merges two lists of profiles; for a model and type in both it keeps that of later.
func mergeProfiles(earlier, later []*control.Profile) []*control.Profile {
	all := slices.DeleteFunc(slices.Clone(earlier), func(p *control.Profile) bool {
		return slices.ContainsFunc(later,
			func(q *control.Profile) bool { return p.Model == q.Model && p.Type == q.Type })
	})
	return append(all, later...)
}

// handOver moves the unsent election messages to the link that replaces k, and closes k.
func (k *link) handOver(to *link) {
	if m := k.takeMessage(); m != nil {
		to.push(func(out *control.LeaderMessage) {
			out.Election = append(m.Election, out.Election...)
		})
	}
	k.cancel()
}

// endStream ends the current stream. run then opens a new one, on which the member greets again.
func (k *link) endStream() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refresh != nil {
		k.refresh()
	}
}

// isServing reports whether the link belongs to a term that has not ended.
func (k *link) isServing() bool { return k.term != nil && k.term.ctx.Err() == nil }

// postToTerm makes the term's loop call do, unless the link has been closed by then: another link
// has replaced it, or the member has left.
func (k *link) postToTerm(do func()) {
	k.term.postToLoop(func() {
		if k.ctx.Err() == nil {
			do()
		}
	})
}

// retireIfIdle removes the link from links.out and reports true if nothing needs it. Later messages
// open a new link.
func (k *link) retireIfIdle() bool {
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isServing() || k.pending != nil {
		return false
	}
	if k.links.out[k.to] == k {
		delete(k.links.out, k.to)
	}
	return true
}

// errIdle is the reason for which a link that nothing needs is ended in order.
var errIdle = errors.New("idle")

// run keeps the link open, and opens it again when it breaks, until nothing needs it or it is
// cancelled.
func (k *link) run() {
	defer k.endLink()
	wait := firstRedial
	for {
		opened := time.Now()
		renewed, err := k.exchangeMessages()
		if k.ctx.Err() != nil || errors.Is(err, errIdle) {
			return
		}
		if renewed {
			continue
		}
		if time.Since(opened) > lastRedial {
			wait = firstRedial
		}
		k.links.broken(k.to)
		if !k.isServing() {
			return
		}
		k.links.log.Debug("the link to an agent broke", "agent", k.to, "error", err)
		gone := k.links.fleet.Gone(k.ctx, k.to)
		k.postToTerm(func() { k.term.linkBroken(k.to, gone, err) })
		select {
		case <-time.After(wait):
			wait = min(2*wait, lastRedial)
		case <-k.ctx.Done():
			return
		}
	}
}

func (k *link) endLink() {
	k.cancel()
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	if k.links.out[k.to] == k {
		delete(k.links.out, k.to)
	}
}

// exchangeMessages opens the stream, and sends and receives until it ends. renewed reports that
// renew has ended the stream, which is then no failure.
func (k *link) exchangeMessages() (renewed bool, err error) {
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	anew := false
	k.mu.Lock()
	k.refresh = func() { anew = true; cancel() }
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.refresh = nil
		renewed = anew
		k.mu.Unlock()
	}()
	var served sync.WaitGroup
	defer served.Wait()
	defer cancel()

	s, err := k.open(ctx, &served)
	if err != nil {
		return false, err
	}
	written := make(chan error, 1)
	served.Go(func() {
		err := k.write(ctx, s)
		written <- err
		if errors.Is(err, errIdle) && s.CloseSend() == nil {
			select {
			case <-ctx.Done(): // the member has sent its last message and ended the stream
			case <-time.After(idleLink):
			}
		}
		if !errors.Is(err, io.EOF) { // after EOF, Recv returns the stream's error
			cancel()
		}
	})
	greeted := false
	for {
		m, err := s.Recv()
		if err != nil {
			select {
			case werr := <-written:
				if !errors.Is(werr, io.EOF) {
					err = werr
				}
			default:
			}
			return false, err
		}
		if m.Member != nil {
			if err := members.CheckDescription(m.Member, k.to, control.Spoken); err != nil {
				return false, err
			}
		}
		for _, e := range m.GetElection() {
			k.links.elect(e)
		}
		if k.isServing() && (m.Member != nil || m.Completed != nil || m.RemainingNs != nil ||
			m.Layout != nil || m.Fleet != nil) {
			first := !greeted
			greeted = greeted || m.Member != nil
			if greeted {
				// The same as k.post, with one closure for each message instead of two.
				k.term.postToLoop(func() {
					if k.ctx.Err() == nil {
						k.term.handleMemberMessage(k.to, m, first)
					}
				})
			}
		}
	}
}

// open opens the stream. For this agent itself it starts a goroutine in served, which serves the
// other end in process until ctx ends.
func (k *link) open(ctx context.Context, served *sync.WaitGroup) (
	ClientStream[control.LeaderMessage, control.WorkerMessage], error) {
	if k.to == k.links.fleet.Self() {
		client, server := NewPipe[control.LeaderMessage, control.WorkerMessage](ctx)
		served.Go(func() { server.End(k.links.serveOwn(server)) })
		return client, nil
	}
	conn, err := k.links.fleet.Dial(k.to)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).Link(ctx)
}

// write sends the first message, which introduces this agent, and then each pending message. It
// returns errIdle when nothing needs the link any more, or why it could not send.
func (k *link) write(ctx context.Context,
	s control.Stream[control.LeaderMessage, control.WorkerMessage]) error {
	first := true
	idle := time.NewTimer(idleLink)
	defer idle.Stop()
	for {
		m := k.takeMessage()
		if m == nil && first {
			m = &control.LeaderMessage{}
		}
		if m != nil {
			if first {
				first = false
				m.From = string(k.links.fleet.Self())
				if k.isServing() {
					k.term.addInitialState(k.to, m)
				}
			}
			k.keepForNext(m)
			if err := s.Send(m); err != nil {
				return err
			}
			idle.Reset(idleLink)
		}
		select {
		case <-k.wake:
		case <-idle.C:
			if k.retireIfIdle() {
				return errIdle
			}
			idle.Reset(idleLink)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
