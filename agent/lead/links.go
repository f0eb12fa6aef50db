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
)

const (
	// idleLink is how long a link that an election needed stays open unused.
	idleLink = 3 * time.Second
	// A broken link of a leader is opened again at once, then after this, doubled up to the
	// longest.
	firstRedial, lastRedial = 10 * time.Millisecond, 500 * time.Millisecond
	// mostElections bounds the election messages that wait for a link; older ones
	// are dropped, as each is said again.
	mostElections = 32
	// mostProfileBytes is how much of profiles one message has, or one profile; the others
	// follow. It is well below leastLimit.
	mostProfileBytes = 256 << 10
)

// links are the streams between this agent and the others that carry control. An
// agent that leads has one open to each member, itself included. One that has something
// to say in an election uses the link that the other has opened, or opens one for a while.
type links struct {
	fleet Fleet
	log   *slog.Logger
	// elect and broken tell the election of a message, and of a link that broke or
	// could not be opened.
	elect   func(*control.Election)
	broken  func(name names.AgentName)
	running sync.WaitGroup

	mu  sync.Mutex
	ctx context.Context
	out map[names.AgentName]*link
	in  map[names.AgentName]*inbound
}

// An inbound is a link that another agent has opened.
type inbound struct{ send func(*control.Election) }

func newLinks(f Fleet, log *slog.Logger) *links {
	return &links{
		fleet: f, log: log, out: map[names.AgentName]*link{}, in: map[names.AgentName]*inbound{},
	}
}

func (s *links) start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
}

// linked notes a link that another has opened. closed reports whether it was still the newest.
func (s *links) linked(from names.AgentName, send func(*control.Election)) (closed func() bool) {
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

// send has an election message sent, as soon as there is a link.
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
		if n := len(out.Election); n > mostElections {
			out.Election = out.Election[n-mostElections:]
		}
	})
}

// open starts a link. s.mu is held.
func (s *links) open(to names.AgentName, t *term) *link {
	if s.ctx == nil || s.ctx.Err() != nil {
		return nil
	}
	k := &link{links: s, to: to, term: t, wake: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(s.ctx)
	s.out[to] = k
	s.running.Go(k.run)
	return k
}

// lead opens a link to each member that the term has none to.
func (s *links) lead(t *term) {
	members := s.fleet.View().GetMembers()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ctx.Err() != nil {
		return
	}
	for _, m := range members {
		if !described(m) {
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

// stepDown leaves the links open for what the election still has to say.
func (s *links) stepDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.out {
		signal(k.wake)
	}
}

// drop closes the link to one that is no member any more.
func (s *links) drop(name names.AgentName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.out[name]; k != nil {
		delete(s.out, name)
		k.cancel()
	}
}

// tell has something sent to all members that the term has links to.
func (s *links) tell(t *term, add func(*control.LeaderMessage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.out {
		if k.term == t {
			k.push(add)
		}
	}
}

// renew has the member asked anew what it holds.
func (s *links) renew(t *term, name names.AgentName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.out[name]; k != nil && k.term == t {
		k.renew()
	}
}

// A link is one that this agent has opened to another, or to itself.
type link struct {
	links  *links
	to     names.AgentName
	term   *term // nil: only an election needs it
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}

	mu      sync.Mutex
	pending *control.LeaderMessage // what is to be sent; nil: nothing
	refresh context.CancelFunc     // ends the present stream
}

// push adds to what is to be sent.
func (k *link) push(add func(*control.LeaderMessage)) {
	k.mu.Lock()
	if k.pending == nil {
		k.pending = &control.LeaderMessage{}
	}
	add(k.pending)
	k.mu.Unlock()
	signal(k.wake)
}

// take is what is to be sent next, nil for nothing.
func (k *link) take() *control.LeaderMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.pending
	k.pending = nil
	return m
}

// keep leaves profiles that are too many for m to the next message.
func (k *link) keep(m *control.LeaderMessage) {
	n, size := 0, 0
	for ; n < len(m.Profiles); n++ {
		if size += proto.Size(m.Profiles[n]); n > 0 && size > mostProfileBytes {
			break
		}
	}
	if rest := m.Profiles[n:]; len(rest) > 0 {
		m.Profiles = m.Profiles[:n:n]
		k.push(func(out *control.LeaderMessage) { out.Profiles = newest(rest, out.Profiles) })
	}
}

// newest is the profiles told earlier and later, of each the last.
func newest(earlier, later []*control.Profile) []*control.Profile {
	all := slices.DeleteFunc(slices.Clone(earlier), func(p *control.Profile) bool {
		return slices.ContainsFunc(later,
			func(q *control.Profile) bool { return p.Model == q.Model && p.Type == q.Type })
	})
	return append(all, later...)
}

// handOver gives what is to be sent to the link that takes k's place.
func (k *link) handOver(to *link) {
	if m := k.take(); m != nil {
		to.push(func(out *control.LeaderMessage) {
			out.Election = append(m.Election, out.Election...)
		})
	}
	k.cancel()
}

// renew has the link opened anew, so that the member greets again.
func (k *link) renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refresh != nil {
		k.refresh()
	}
}

// serves reports whether the link is one of a term that lasts.
func (k *link) serves() bool { return k.term != nil && k.term.ctx.Err() == nil }

// post has the term's loop do something, unless the link has been closed by then: another has taken
// its place, or the member is none any more.
func (k *link) post(do func()) {
	k.term.post(func() {
		if k.ctx.Err() == nil {
			do()
		}
	})
}

// retire takes the link out of use and reports true, if nobody needs it: what is to be sent from
// then on goes by another.
func (k *link) retire() bool {
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.serves() || k.pending != nil {
		return false
	}
	if k.links.out[k.to] == k {
		delete(k.links.out, k.to)
	}
	return true
}

// errIdle ends, in order, a link that nobody needs any more.
var errIdle = errors.New("idle")

// run keeps the link open for as long as it is needed.
func (k *link) run() {
	defer k.end()
	wait := firstRedial
	for {
		opened := time.Now()
		renewed, err := k.exchange()
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
		if !k.serves() {
			return
		}
		k.links.log.Debug("link has broken", "agent", k.to, "error", err)
		gone := k.links.fleet.Gone(k.ctx, k.to)
		k.post(func() { k.term.linkBroken(k.to, gone, err) })
		select {
		case <-time.After(wait):
			wait = min(2*wait, lastRedial)
		case <-k.ctx.Done():
			return
		}
	}
}

func (k *link) end() {
	k.cancel()
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	if k.links.out[k.to] == k {
		delete(k.links.out, k.to)
	}
}

// exchange opens the stream and sends and receives until it ends, which is
// nobody's fault if it was renewed.
func (k *link) exchange() (renewed bool, err error) {
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
			case <-ctx.Done(): // the member has said its last and ended the stream
			case <-time.After(idleLink):
			}
		}
		if !errors.Is(err, io.EOF) { // otherwise Recv says why
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
		if k.serves() && (m.Member != nil || m.Completed != nil || m.RemainingNs != nil) {
			first := !greeted
			greeted = greeted || m.Member != nil
			if greeted {
				// as post does, with one function for each query instead of two
				k.term.post(func() {
					if k.ctx.Err() == nil {
						k.term.heard(k.to, m, first)
					}
				})
			}
		}
	}
}

// open opens the stream; what serves it in process ends with ctx.
func (k *link) open(ctx context.Context, served *sync.WaitGroup) (
	ClientStream[control.LeaderMessage, control.WorkerMessage], error) {
	if k.to == k.links.fleet.Self() {
		client, server := NewPipe[control.LeaderMessage, control.WorkerMessage](ctx)
		served.Go(func() { server.End(k.links.fleet.Link(server)) })
		return client, nil
	}
	conn, err := k.links.fleet.Dial(k.to)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).Link(ctx)
}

// write sends the first message, and then what there is to send.
func (k *link) write(ctx context.Context,
	s Stream[control.LeaderMessage, control.WorkerMessage]) error {
	first := true
	idle := time.NewTimer(idleLink)
	defer idle.Stop()
	for {
		m := k.take()
		if m == nil && first {
			m = &control.LeaderMessage{}
		}
		if m != nil {
			if first {
				first = false
				m.From = string(k.links.fleet.Self())
				if k.serves() {
					k.term.introduce(m)
				}
			}
			k.keep(m)
			if err := s.Send(m); err != nil {
				return err
			}
			idle.Reset(idleLink)
		}
		select {
		case <-k.wake:
		case <-idle.C:
			if k.retire() {
				return errIdle
			}
			idle.Reset(idleLink)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
