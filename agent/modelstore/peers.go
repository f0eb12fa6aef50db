package modelstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/models/store"
)

const (
	// askAll is the time between two questions about a file to agents that neither have nor fetch
	// it. They say so by themselves when they begin to. Chosen: it only makes up for a message that
	// was lost, so the rarer the better, but many times while a large file comes.
	askAll = 30 * time.Second
	// maxAsked is how many of the agents that fetch a file are asked at a time how far they are.
	// Chosen: as many as maxReaders, so that each can find a source with room.
	maxAsked = 3
	askTime  = 5 * time.Second // for an answer
	// awaited is how long this agent waits for one that does not answer before it asks the store:
	// at the start of a fleet, agents hear of each other before they reach each other. Chosen:
	// three times askTime, so that one lost call does not send every agent to the store.
	awaited = 15 * time.Second
	// maxReaders is how many agents may read from one at a time. The fewer, the sooner each has a
	// part that it can give to others. Chosen: with one, a slow reader would keep the others
	// waiting; with many, all wait for the first part.
	maxReaders  = 3
	largestRead = 8 << 20
	message     = 256 << 10 // bytes of a message
)

// A PeerDialer is what a Peers needs of the agents.
type PeerDialer interface {
	Self() names.AgentName
	View() *control.View
	Dial(names.AgentName) (grpc.ClientConnInterface, error)
}

// Peers are the other agents of the fleet, for store.Fetcher.
type Peers struct {
	Fleet PeerDialer

	mu     sync.Mutex
	files  map[string]*askedPeer         // of those that are fetched, by SHA-256
	silent map[names.AgentName]time.Time // since when agents do not answer
}

// askedPeer is what the other agents have of one file, as far as they have said.
type askedPeer struct {
	last time.Time // when others were asked
	// when agents said that they neither have nor fetch the file
	lacks map[names.AgentName]time.Time
	has   map[names.AgentName]store.Has
}

// Self implements store.Peers.
func (p *Peers) Self() string { return string(p.Fleet.Self()) }

// Known implements store.Peers.
func (p *Peers) Known(f store.File) map[string]store.Has {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := map[string]store.Has{}
	if a := p.files[f.SHA256]; a != nil {
		for name, has := range a.has {
			known[string(name)] = has
		}
	}
	return known
}

// noteFetch takes note that an agent fetches a file.
func (p *Peers) noteFetch(sum string, agent names.AgentName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.files[sum]; a != nil {
		if _, ok := a.has[agent]; !ok && agent != p.Fleet.Self() {
			a.has[agent] = store.Has{}
			delete(a.lacks, agent)
		}
	}
}

// Ask implements store.Peers. It asks all members that it has not asked yet, and again some of
// those that have a part of the file.
func (p *Peers) Ask(ctx context.Context, f store.File) (all bool) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var group sync.WaitGroup
	all = true
	for _, name := range p.toAsk(f.SHA256) {
		group.Go(func() {
			state, err := p.fileState(ctx, name, f.SHA256)
			p.mu.Lock()
			defer p.mu.Unlock()
			a := p.files[f.SHA256]
			if a == nil {
				return
			}
			if err != nil { // it is asked again, and what it said last holds for a while
				if p.silent[name].IsZero() {
					p.silent[name] = time.Now()
				}
				if time.Since(p.silent[name]) > awaited {
					delete(a.has, name)
				} else {
					all = false
				}
				return
			}
			delete(p.silent, name)
			if !state.GetHas() {
				delete(a.has, name)
				a.lacks[name] = time.Now()
				return
			}
			a.has[name] = store.Has{
				All: state.GetAll(), Parts: state.GetParts(), Taking: state.GetTaking(),
			}
		})
	}
	group.Wait()
	return all
}

// toAsk are the agents to ask about a file now.
func (p *Peers) toAsk(sum string) (ask []names.AgentName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.files == nil {
		p.files, p.silent = map[string]*askedPeer{}, map[names.AgentName]time.Time{}
	}
	for sum, a := range p.files { // of files that are no longer fetched
		if time.Since(a.last) > 2*askAll {
			delete(p.files, sum)
		}
	}
	a := p.files[sum]
	if a == nil {
		a = &askedPeer{
			lacks: map[names.AgentName]time.Time{}, has: map[names.AgentName]store.Has{},
		}
		p.files[sum] = a
	}
	a.last = time.Now()
	var fetch []names.AgentName
	members := map[names.AgentName]bool{}
	for _, m := range p.Fleet.View().GetMembers() {
		name := m.AgentName()
		members[name] = true
		has, ok := a.has[name]
		switch {
		case name == p.Fleet.Self():
		case ok && !has.All:
			fetch = append(fetch, name)
		case !ok && time.Since(a.lacks[name]) > askAll:
			ask = append(ask, name)
		}
	}
	for _, of := range []map[names.AgentName]time.Time{a.lacks, p.silent} {
		maps.DeleteFunc(of, func(name names.AgentName, _ time.Time) bool { return !members[name] })
	}
	maps.DeleteFunc(a.has, func(name names.AgentName, _ store.Has) bool { return !members[name] })
	for _, i := range rand.Perm(len(fetch))[:min(len(fetch), maxAsked)] {
		ask = append(ask, fetch[i])
	}
	return ask
}

func (p *Peers) fileState(ctx context.Context, name names.AgentName,
	sum string) (*control.FileState,
	error) {
	conn, err := p.Fleet.Dial(name)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).File(ctx, &control.FileRequest{
		Sha256: sum, Agent: string(p.Fleet.Self()),
	})
}

// Open implements store.Peers.
func (p *Peers) Open(ctx context.Context, peer string, f store.File, offset, length int64) (
	io.ReadCloser, error) {
	conn, err := p.Fleet.Dial(names.AgentName(peer))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := control.NewControlClient(conn).ReadFile(ctx, &control.ReadFileRequest{
		Sha256: f.SHA256, Offset: offset, Length: length,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return &reader{stream: stream, cancel: cancel}, nil
}

type reader struct {
	stream grpc.ServerStreamingClient[control.FileBytes]
	cancel context.CancelFunc
	left   []byte
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		m, err := r.stream.Recv()
		if status.Code(err) == codes.ResourceExhausted {
			err = fmt.Errorf("%w: %w", store.ErrBusy, err)
		}
		if err != nil {
			return 0, err
		}
		r.left = m.GetData()
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

func (r *reader) Close() error {
	r.cancel()
	return nil
}

// A Server gives other agents what a Follower has. Its methods may be called concurrently.
type Server struct {
	follower *Follower
	readers  chan struct{}
	pacer    *pacer
}

// NewServer returns the Server of a Follower, which sends as much as the Follower may receive. The
// Server of a nil Follower, of an agent without a store, has nothing.
func NewServer(f *Follower) *Server {
	if f == nil {
		return &Server{}
	}
	return &Server{
		follower: f, readers: make(chan struct{}, maxReaders), pacer: newTransferPacer(&f.config),
	}
}

// DescribeFile answers the call of the control protocol. An agent that asks because it fetches the
// file is remembered.
func (s *Server) DescribeFile(req *control.FileRequest) *control.FileState {
	if s == nil || s.follower == nil {
		return &control.FileState{}
	}
	if peers := s.follower.config.Peers; peers != nil && req.GetAgent() != "" {
		peers.noteFetch(req.GetSha256(), names.AgentName(req.GetAgent()))
	}
	has, ok := s.follower.cache.Has(req.GetSha256())
	return &control.FileState{Has: ok, All: has.All, Parts: has.Parts, Taking: has.Taking}
}

// ReadFile answers the call of the control protocol.
func (s *Server) ReadFile(req *control.ReadFileRequest,
	stream grpc.ServerStreamingServer[control.FileBytes]) error {
	if s == nil || s.follower == nil {
		return status.Error(codes.NotFound, "this agent follows no model store")
	}
	length := req.GetLength()
	if length < 1 || length > largestRead || req.GetOffset() < 0 {
		return status.Errorf(codes.InvalidArgument,
			"offset %d, length %d: expected 0 or more, and 1 to %d", req.GetOffset(), length,
			largestRead)
	}
	select {
	case s.readers <- struct{}{}:
		defer func() { <-s.readers }()
	default:
		return status.Errorf(codes.ResourceExhausted, "%d agents read already", maxReaders)
	}
	data := make([]byte, min(message, length))
	for at := int64(0); at < length; {
		n := min(int64(len(data)), length-at)
		begin := time.Now()
		if err := s.follower.cache.ReadAt(req.GetSha256(), data[:n],
			req.GetOffset()+at); err != nil {
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, io.EOF) {
				return status.Error(codes.NotFound, err.Error())
			}
			return fmt.Errorf("read a file of the model store: %w", err)
		}
		if err := s.pacer.wait(stream.Context(), int(n), time.Since(begin)); err != nil {
			return status.FromContextError(err).Err()
		}
		if err := stream.Send(&control.FileBytes{Data: data[:n]}); err != nil {
			return err
		}
		s.follower.config.Metrics.sent.Add(float64(n))
		at += n
	}
	return nil
}
