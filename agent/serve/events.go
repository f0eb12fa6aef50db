package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
)

// An event is a line of the log that has the attribute [eventKey], which says of what kind it is:
// whoever logs one, in any package, needs to know no more. The agent keeps the last ones, whatever
// level is logged, and tells them by the call Events.

const (
	// eventKey is the attribute that makes a line of the log an event. Its value is the kind: one
	// of a few words, never something that others chose, since each kind has a share of the ring.
	eventKey = "event"
	// whoKey and fromKey are the attributes that say who asked, and from which address.
	whoKey, fromKey = "who", "from"
)

const (
	// mostEvents are kept, and of one kind mostOfKind: so that what strangers can cause, such as
	// refusals, does not push out what they did not.
	mostEvents, mostOfKind = 1024, 256
	// mostEventBytes bounds the text of one event. So all take at most 2 MiB.
	mostEventBytes = 2048
)

// Events are the ring of the last events. Its methods may be called concurrently.
type Events struct {
	agent string
	told  members.Broadcast

	mu   sync.Mutex
	last uint64           // sequence number
	kept []*control.Event // by sequence number; they are not changed any more
	kind map[string]int   // how many are kept
}

// NewEvents returns the events of the agent named, of which there are none yet.
func NewEvents(agent string) *Events { return &Events{agent: agent, kind: map[string]int{}} }

// add keeps e, and forgets the oldest of its kind, or of all, if there are too many.
func (r *Events) add(e *control.Event) {
	r.mu.Lock()
	r.last++
	e.Agent, e.Sequence = r.agent, r.last
	drop := -1
	switch {
	case r.kind[e.Kind] == mostOfKind:
		drop = slices.IndexFunc(r.kept, func(old *control.Event) bool { return old.Kind == e.Kind })
	case len(r.kept) == mostEvents:
		drop = 0
	}
	if drop >= 0 {
		r.kind[r.kept[drop].Kind]--
		r.kept = slices.Delete(r.kept, drop, drop+1)
	}
	r.kept = append(r.kept, e)
	r.kind[e.Kind]++
	r.mu.Unlock()
	r.told.Tell()
}

// After are the events kept with a higher sequence number, by it.
func (r *Events) After(sequence uint64) []*control.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := slices.BinarySearchFunc(r.kept, sequence+1, func(e *control.Event, s uint64) int {
		return int(int64(e.Sequence) - int64(s))
	})
	return slices.Clone(r.kept[at:])
}

// Handler returns a handler of log lines that keeps the events among them, and logs all to next.
func (r *Events) Handler(next slog.Handler) slog.Handler {
	return &eventHandler{next: next, events: r}
}

// An eventHandler logs to next, and keeps the events among what it is given.
type eventHandler struct {
	next   slog.Handler
	events *Events
	attrs  []slog.Attr // of all lines
}

// Enabled implements [slog.Handler]: an event may be at any level from info on.
func (h *eventHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h *eventHandler) Handle(ctx context.Context, line slog.Record) error {
	if e := eventOf(line, h.attrs); e != nil {
		h.events.add(e)
	}
	if !h.next.Enabled(ctx, line.Level) {
		return nil
	}
	return h.next.Handle(ctx, line)
}

// WithAttrs implements [slog.Handler].
func (h *eventHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &eventHandler{h.next.WithAttrs(attrs), h.events, slices.Concat(h.attrs, attrs)}
}

// WithGroup implements [slog.Handler].
func (h *eventHandler) WithGroup(name string) slog.Handler {
	return &eventHandler{h.next.WithGroup(name), h.events, h.attrs}
}

// eventOf is the event that the line is, nil if it is none.
func eventOf(line slog.Record, common []slog.Attr) *control.Event {
	e := &control.Event{TimeUnixNs: line.Time.UnixNano()}
	left := mostEventBytes
	cut := func(s string) string { // to what has room, and to what messages of the protocol hold
		s = strings.ToValidUTF8(s[:min(len(s), left)], "\uFFFD")
		left = max(0, left-len(s))
		return s
	}
	e.What = cut(line.Message)
	take := func(a slog.Attr) bool {
		switch value := a.Value.Resolve(); {
		case a.Key == eventKey:
			e.Kind = value.String()
		case left == 0: // nothing more has room
		case a.Key == whoKey:
			e.Who = cut(value.String())
		case a.Key == fromKey:
			e.From = cut(value.String())
		default:
			e.Details = append(e.Details, &control.EventDetail{
				Key: cut(a.Key), Value: cut(value.String()),
			})
		}
		return true
	}
	for _, a := range common {
		take(a)
	}
	line.Attrs(take)
	if e.Kind == "" {
		return nil
	}
	return e
}

// audit logs, as an event, that somebody asked for a change, who it was, and what came of it.
func (s *Server) audit(ctx context.Context, kind, what string, err error, attrs ...any) {
	who, from := secure.Who(ctx)
	attrs = append(attrs, eventKey, kind, whoKey, who, fromKey, from)
	if err != nil {
		s.config.Log.Warn(what, append(attrs, "error", err)...)
		return
	}
	s.config.Log.Info(what, attrs...)
}

// short is as much of a name that a client chose as an event has room for.
func short(name string) string { return fmt.Sprintf("%.255s", name) }

// Events streams what has happened to this agent, or to all.
func (s controlService) Events(req *control.EventsRequest,
	stream control.Control_EventsServer) error {
	ctx := stream.Context()
	if req.GetFleet() && req.GetFollow() {
		return outcome.Invalid("events of the fleet cannot be followed, only those of one agent")
	}
	if req.GetFleet() && !members.IsLocalOnly(ctx) {
		for _, e := range s.fleetEvents(ctx) {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	}
	for last := uint64(0); ; {
		more := s.config.Events.told.Next()
		for _, e := range s.config.Events.After(last) {
			if err := stream.Send(e); err != nil {
				return err
			}
			last = e.Sequence
		}
		if !req.GetFollow() {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// eventsTimeout bounds how long an agent may take to tell its events.
const eventsTimeout = 2 * time.Second

// fleetEvents are those of all agents, by time. One that does not tell its events has one that
// says so, now.
func (s *Server) fleetEvents(ctx context.Context) []*control.Event {
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	var mu sync.Mutex
	var all []*control.Event
	var asking sync.WaitGroup
	for _, name := range s.config.Members.Names() {
		asking.Go(func() {
			var events []*control.Event
			var err error
			if name == s.config.Name {
				events = s.config.Events.After(0)
			} else if events, err = s.eventsOf(ctx, name); err != nil {
				events = append(events, &control.Event{
					Agent: string(name), TimeUnixNs: time.Now().UnixNano(), Kind: "silent",
					What: "agent does not tell its events",
					Details: []*control.EventDetail{
						{Key: "error", Value: strings.ToValidUTF8(err.Error(), "\uFFFD")},
					},
				})
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, events...)
		})
	}
	asking.Wait()
	slices.SortStableFunc(all, func(a, b *control.Event) int {
		return time.Unix(0, a.TimeUnixNs).Compare(time.Unix(0, b.TimeUnixNs))
	})
	return all
}

// eventsOf asks another agent for its events. It believes no more of them than this agent keeps
// of its own.
func (s *Server) eventsOf(ctx context.Context, name names.AgentName) (events []*control.Event,
	err error) {
	if spoken := s.config.Members.Member(name).Versions(); spoken.Newest < 3 {
		return nil, fmt.Errorf("it speaks %v of the agents' protocol: events came with version 3",
			spoken)
	}
	conn, err := s.config.Members.Dial(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := control.NewControlClient(conn).Events(members.LocalOnly(ctx),
		&control.EventsRequest{},
		grpc.MaxCallRecvMsgSize(4*mostEventBytes))
	if err != nil {
		return nil, err
	}
	for len(events) < mostEvents {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return events, err
		}
		if e.Agent != string(name) {
			return events, fmt.Errorf("found agent %.255q at its address", e.Agent)
		}
		events = append(events, e)
	}
	return events, nil
}
