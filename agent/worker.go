package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

const (
	// keepPlace is how long a probe's answer holds: a gateway that has heard its
	// answers sends the query at once.
	keepPlace = 20 * time.Millisecond
	// mostPlaces bounds the places that are kept for one Probe stream.
	mostPlaces = 1024
	// mostUnsaid bounds the ends of attempts that wait to be told to a leader. One that
	// does not read so many is better served by a new link, which begins with what is held.
	mostUnsaid = 1 << 16
	// mostProfiles bounds the profiles that are kept of one who does not lead, or not yet.
	mostProfiles = 1 << 12
)

// A station is an agent as a worker: it knows what attempts its lanes hold, keeps
// places for those who asked, and tells the leader that the agent follows what became of each. Its
// methods may be called concurrently. Its only goroutines are those of the streams that it serves.
type station struct {
	*Agent
	gateway  uint64 // this agent's own, as gateways are named
	callers  clients
	sequence atomic.Uint64

	mu      sync.Mutex
	held    map[*control.Held]bool
	tethers []*tether
	places  map[placeID]*runtime.Reservation
}

// A placeID names a place: the gateway that asked, and its probe.
type placeID struct{ gateway, probe uint64 }

func newStation(a *Agent, gateway uint64) *station {
	return &station{Agent: a, gateway: gateway, callers: callers{a.guard}, held: map[*control.Held]bool{}, places: map[placeID]*runtime.Reservation{}}
}

// isAttempt reports whether a query is an attempt of a gateway's: to be run
// here, and not to be passed on.
func isAttempt(ctx context.Context) bool {
	return len(headers(ctx, control.AttemptHeader)) > 0
}

// run runs an attempt. received is when its headers arrived. It owns req.
func (s *station) run(ctx context.Context, req *oip.Request, received time.Time) (resp *oip.Response, err error) {
	defer req.Release()
	header := ""
	if values := headers(ctx, control.AttemptHeader); len(values) > 0 {
		header = values[0]
	}
	t, err := s.begin(header, received)
	if err != nil {
		return nil, err
	}
	t.held.Model = req.Model
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(tracing.Attempt.Int(int(t.attempt.Attempt)), tracing.Ms(tracing.Waited, t.attempt.Waited))
	}
	defer func() { s.ended(t, err) }()
	resp, err = s.perform(ctx, req, t)
	if t.probed {
		remaining := strconv.FormatInt(int64(s.lanes.Remaining()), 10)
		_ = grpc.SetTrailer(ctx, metadata.Pairs(control.RemainingTrailer, remaining)) // only outside of a call does it fail
	}
	return resp, err
}

// begin is the trial of the attempt that a header names, which was received at the given time. It
// takes the attempt's reservation.
func (s *station) begin(header string, received time.Time) (*trial, error) {
	attempt, err := control.ParseAttempt(header)
	if err != nil {
		return nil, invalid("%w", err)
	}
	t := &trial{
		attempt: attempt, receive: time.Since(received), arrival: received,
		held: &control.Held{Gateway: attempt.Gateway, Sequence: attempt.Sequence, Attempt: attempt.Attempt, Lane: attempt.Lane},
	}
	if t.probed = attempt.Reservation != 0; t.probed {
		t.reservation = s.take(placeID{attempt.Gateway, attempt.Reservation})
	}
	s.metrics.attempts.Inc()
	return t, nil
}

// errCutOff ends an attempt whose call has ended before its query was here.
var errCutOff = fmt.Errorf("the call has ended before the query was received: %w", context.Canceled)

// cutOff tells the leader that the attempt that a header names is not run: its call has ended while
// the query was on its way, and the lane is not to be reserved for it any more.
func (s *station) cutOff(header string, received time.Time) {
	if t, err := s.begin(header, received); err == nil {
		s.lanes.Release(t.reservation)
		s.ended(t, errCutOff)
	}
}

// A trial is an attempt on its way through this agent.
type trial struct {
	attempt     control.Attempt
	held        *control.Held
	arrival     time.Time // of the query at its gateway
	receive     time.Duration
	reservation *runtime.Reservation
	probed      bool // a gateway chose this agent, not a leader
	bytes       int64
	result      *runtime.Result // nil unless it was run
}

// perform validates the query and runs it.
func (s *station) perform(ctx context.Context, req *oip.Request, t *trial) (*oip.Response, error) {
	loaded, err := s.acquire(req.Model, req.Version)
	if err != nil {
		if !errors.Is(err, errInvalid) {
			err = fmt.Errorf("%w: %w", errRefused, err)
		}
		return nil, err
	}
	defer loaded.Release()
	// Whoever says that a query has waited longer than anybody waits would spoil what is known of
	// latencies.
	t.arrival = t.arrival.Add(-min(t.attempt.Waited, loaded.Version.Config.Deadline))
	q, err := validate(loaded.Version, req)
	if err != nil {
		return nil, err
	}
	t.bytes = queryBytes(req)
	t.held.Model, t.held.Version, t.held.BatchSize = loaded.Version.Model, loaded.Version.Number, uint32(q.batchSize)
	if deadline, ok := ctx.Deadline(); ok {
		if remaining := s.lanes.Remaining(); t.reservation == nil && time.Until(deadline) < remaining {
			return nil, fmt.Errorf("%w: it would start after its deadline, a lane is free in %v", errRefused, remaining)
		}
	}
	s.hold(t, q.batchSize)
	result, err := s.execute(ctx, loaded, q, execution{timeout: req.Timeout, arrival: t.arrival, lane: int(t.attempt.Lane), reservation: t.reservation})
	if err != nil {
		var overloaded *runtime.OverloadedError
		if errors.As(err, &overloaded) || errors.Is(err, runtime.ErrDraining) || errors.Is(err, runtime.ErrClosed) {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		loaded.Model.counts.failed(err, time.Since(t.arrival))
		return nil, err
	}
	t.result = result
	loaded.Model.counts.answered(q.batchSize, time.Since(t.arrival), result.Queue, result.Execution, loaded.Version.Config.QoSTarget)
	return respond(loaded.Version, req, q, result), nil
}

// hold notes that the lanes are about to have an attempt. If no leader chose it,
// the leader is told how long the lanes are busy.
func (s *station) hold(t *trial, batchSize int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[t.held] = true
	if !t.probed {
		return
	}
	more := s.lanes.Estimate(control.ModelKey(t.held.Model, t.held.Version), batchSize) / time.Duration(s.config.lanes())
	s.tellLeader(func(m *control.WorkerMessage) {
		m.RemainingNs = s.remaining()
		for lane := range m.RemainingNs {
			m.RemainingNs[lane] += int64(more)
		}
	})
}

// ended tells the leader what became of an attempt.
func (s *station) ended(t *trial, err error) {
	s.mu.Lock()
	delete(s.held, t.held)
	s.mu.Unlock()
	c := &control.Completed{
		Gateway: t.attempt.Gateway, Sequence: t.attempt.Sequence, Attempt: t.attempt.Attempt, Lane: t.attempt.Lane,
		Model: t.held.Model, Version: t.held.Version, BatchSize: t.held.BatchSize,
		ReceiveNs: int64(t.receive), LatencyNs: int64(time.Since(t.arrival)), Bytes: uint64(t.bytes),
	}
	if t.result != nil {
		c.QueueNs, c.ExecutionNs = int64(t.result.Queue), int64(t.result.Execution)
	} else {
		c.Refused = "panic"
		if err != nil {
			f := classify(err)
			c.Refused = f.Reason
			s.metrics.refused.WithLabelValues(f.Reason).Inc()
		}
	}
	s.completed(c)
}

// completedAlone tells the leader, which is this agent, of a query that it
// served without asking anybody.
func (s *station) completedAlone(v *models.Version, batchSize int, bytes int64, arrival time.Time, result *runtime.Result) {
	s.completed(&control.Completed{
		Gateway: s.gateway, Sequence: s.sequence.Add(1), Attempt: 1, Model: v.Model, Version: v.Number, BatchSize: uint32(batchSize),
		QueueNs: int64(result.Queue), ExecutionNs: int64(result.Execution), LatencyNs: int64(time.Since(arrival)), Bytes: uint64(bytes),
	})
}

// completed tells the leader followed of the end of an attempt. Without one
// nobody hears of it, but for this agent's own estimates.
func (s *station) completed(c *control.Completed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if remaining := s.lanes.RemainingByLane(); int(c.Lane) < len(remaining) {
		c.RemainingNs = int64(remaining[c.Lane])
	}
	s.tellLeader(func(m *control.WorkerMessage) { m.Completed = append(m.Completed, c) })
}

// remaining is how long until each lane is free.
func (s *station) remaining() []int64 {
	byLane := s.lanes.RemainingByLane()
	ns := make([]int64, len(byLane))
	for lane, d := range byLane {
		ns[lane] = int64(d)
	}
	return ns
}

// A tether is a Link as its member sees it: the stream by which the agent that opened
// it leads, or wants to.
type tether struct {
	from string
	wake chan struct{} // of size 1: there is something to say

	mu       sync.Mutex
	unsaid   *control.WorkerMessage // nil: nothing
	overflow bool                   // of completions
	// What the other end has said, for when it is followed.
	prices   []*control.TypePrice
	profiles []*control.Profile
	ahead    time.Duration // 0: nothing new
}

// tellLeader tells the leader that this agent follows, on each of its links: one that it gave up for
// another may be served after that, and ends soon. s.mu is held.
func (s *station) tellLeader(add func(*control.WorkerMessage)) {
	leader := s.leading.leadership().GetLeader()
	for _, k := range s.tethers {
		if k.from == leader {
			k.say(add)
		}
	}
}

// say has something added to what the other end is told next. It does not block.
func (k *tether) say(add func(*control.WorkerMessage)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unsaid == nil {
		k.unsaid = &control.WorkerMessage{}
	}
	if len(k.unsaid.Completed) >= mostUnsaid {
		k.overflow = true
		k.unsaid.Completed = nil
	}
	add(k.unsaid)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// next takes what is to be said, nil if there is nothing.
func (k *tether) next() (*control.WorkerMessage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.overflow {
		return nil, fmt.Errorf("the link has not taken %d messages", mostUnsaid)
	}
	m := k.unsaid
	k.unsaid = nil
	return m, nil
}

// told keeps what the other end says of prices, profiles and the way to lanes.
func (k *tether) told(m *control.LeaderMessage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(m.Prices) > 0 {
		k.prices = m.Prices
	}
	k.profiles = append(k.profiles, m.Profiles...)
	k.profiles = k.profiles[max(0, len(k.profiles)-mostProfiles):]
	if m.AheadNs > 0 {
		k.ahead = control.Duration(m.AheadNs)
	}
}

// take returns what was said and not yet taken.
func (k *tether) take() (prices []*control.TypePrice, profiles []*control.Profile, ahead time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	prices, profiles, ahead = k.prices, k.profiles, k.ahead
	k.prices, k.profiles, k.ahead = nil, nil, 0
	return prices, profiles, ahead
}

// link serves a Link: it greets, passes on what the election says, obeys if the other end
// leads, and tells it what becomes of its attempts.
func (s *station) link(leader stream[control.WorkerMessage, control.LeaderMessage]) error {
	first, err := leader.Recv()
	if err != nil {
		return ended(err)
	}
	if first.From == "" {
		return invalid("the first message of a link names nobody")
	}
	k := &tether{from: first.From, wake: make(chan struct{}, 1)}
	unlinked := s.leading.linked(k.from, func(e *control.Election) {
		k.say(func(m *control.WorkerMessage) { m.Election = append(m.Election, e) })
	})
	defer unlinked(false)
	// A leader's first message says that it leads. Who follows it before greeting it
	// tells it all that ends after the greeting.
	for _, e := range first.Election {
		s.leading.elect(e)
	}
	s.mu.Lock()
	greeting := &control.WorkerMessage{Member: s.members.Own(), RemainingNs: s.remaining()}
	for held := range s.held {
		greeting.Held = append(greeting.Held, held)
	}
	s.tethers = append(s.tethers, k) // from here on attempts that end are told after the greeting
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tethers = slices.DeleteFunc(s.tethers, func(o *tether) bool { return o == k })
	}()
	if err := leader.Send(greeting); err != nil {
		return ended(err)
	}
	first.Election = nil

	heard := make(chan error, 1)
	go func() {
		m, err := first, error(nil)
		for ; err == nil; m, err = leader.Recv() {
			k.told(m)
			for _, e := range m.Election {
				s.leading.elect(e)
			}
			s.obey(k)
		}
		heard <- err
	}()
	for {
		news := s.leading.changed()
		s.obey(k)
		m, err := k.next()
		if err != nil {
			return err
		}
		if m != nil {
			if err := leader.Send(m); err != nil {
				return ended(err)
			}
			continue
		}
		select {
		case <-k.wake:
		case <-news:
		case err := <-heard:
			if !errors.Is(err, io.EOF) {
				return err
			}
			unlinked(true)
			m, err := k.next() // what was said until now
			if m != nil {
				err = leader.Send(m)
			}
			return err
		case <-leader.Context().Done():
			return ended(leader.Context().Err())
		}
	}
}

// ended is the error of a stream that ended with err, nil if in order.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// obey takes what k's other end says of prices, profiles and the way to lanes if it is the leader
// that this agent follows.
func (s *station) obey(k *tether) {
	if s.leading.leadership().GetLeader() == k.from {
		s.members.ToldByLeader(k.take())
	}
}

// tellMember tells all who lead, or may come to, what this agent is now.
func (s *station) tellMember(m *control.Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.tethers {
		k.say(func(w *control.WorkerMessage) { w.Member = m })
	}
}

// take is the place kept under id, if there is one, which is then gone.
func (s *station) take(id placeID) *runtime.Reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.places[id]
	delete(s.places, id)
	return r
}

// probe serves a Probe stream: each answer keeps a place for a while.
func (s *station) probe(gateway stream[control.ProbeAnswer, control.ProbeRequest]) error {
	var kept []placeID // in order of age
	defer func() {
		for _, id := range kept {
			s.lanes.Release(s.take(id))
		}
	}()
	for {
		req, err := gateway.Recv()
		if err != nil {
			return ended(err)
		}
		id := placeID{req.Gateway, req.Id}
		if req.Release {
			if slices.Contains(kept, id) { // another's is not given away
				s.lanes.Release(s.take(id))
			}
			continue
		}
		if len(kept) == mostPlaces {
			s.lanes.Release(s.take(kept[0]))
			kept = kept[1:]
		}
		kept = append(kept, id)
		if err := s.callers.MayQuery(gateway.Context(), req.Model); err != nil {
			return err
		}
		if err := gateway.Send(s.answer(gateway.Context(), id, req)); err != nil {
			return ended(err)
		}
	}
}

// answer says when a query would be answered, and keeps its place if it is
// in time.
func (s *station) answer(ctx context.Context, id placeID, req *control.ProbeRequest) *control.ProbeAnswer {
	s.metrics.probes.Inc()
	answer := &control.ProbeAnswer{Id: req.Id, FinishNs: -1}
	loaded, err := s.repository.Acquire(req.Model, req.Version)
	if err != nil || s.draining.Load() {
		if err == nil {
			loaded.Release()
		}
		return answer
	}
	defer loaded.Release()
	answer.RemainingNs = int64(s.lanes.Remaining())
	if req.BatchSize < 1 || int(req.BatchSize) > loaded.Version.Config.LargestBatchSize || s.intake.full(ctx) != nil ||
		req.TimeLeftNs > 0 && answer.RemainingNs > req.TimeLeftNs {
		return answer
	}
	if s.callers.Query(ctx, secure.Probed, 0) != nil {
		return answer
	}
	place := s.lanes.Reserve(loaded.Model.profile, int(req.BatchSize), keepPlace)
	s.mu.Lock()
	former := s.places[id]
	s.places[id] = place
	s.mu.Unlock()
	s.lanes.Release(former)
	answer.FinishNs = int64(place.Finish)
	return answer
}
