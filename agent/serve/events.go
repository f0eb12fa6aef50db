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

// An event is a log line with the attribute [eventKey], whose value is the event's kind. Any
// package makes an event by logging such a line, with fixed words that have a sentence in
// [control.Event.Sentence]. The agent keeps its last events in memory, whatever the log level, and
// returns them to the call Events. Its log has the sentence in place of the fixed words.

const (
	// eventKey is the log attribute that makes a line an event. Its value, the kind, must be one of
	// a few fixed words and never a text from outside: each kind has a share of the memory for
	// events.
	eventKey = "event"
	// whoKey and fromKey are the log attributes with the caller's name, which may be empty, and
	// address. In a line without whoKey nobody asked, and fromKey says something else.
	whoKey, fromKey = "who", "from"
)

const (
	// maxEvents is how many events are kept, and maxOfKind how many of one kind, so that events
	// that outsiders can cause, such as refusals, do not displace all others. Chosen: an agent has
	// some dozen events a day, so they go back for weeks; they bound the memory with maxEventBytes.
	maxEvents, maxOfKind = 1024, 256
	// maxEventBytes bounds the text of one event, so that all events take at most 2 MiB.
	maxEventBytes = 2048
)

// Events holds the last events of an agent. Its methods may be called concurrently.
type Events struct {
	agent string
	told  members.Broadcast

	mu   sync.Mutex
	last uint64           // the sequence number of the newest event; the first is 1
	kept []*control.Event // ordered by sequence number; the messages are never changed
	kind map[string]int   // how many events of each kind are in kept
}

// NewEvents returns Events without an event, for the agent called agent.
func NewEvents(agent string) *Events { return &Events{agent: agent, kind: map[string]int{}} }

// add stores e with the next sequence number. If there are too many, it removes the oldest of e's
// kind, or the oldest of all.
func (r *Events) add(e *control.Event) {
	r.mu.Lock()
	r.last++
	e.Agent, e.Sequence = r.agent, r.last
	drop := -1
	switch {
	case r.kind[e.Kind] == maxOfKind:
		drop = slices.IndexFunc(r.kept, func(old *control.Event) bool { return old.Kind == e.Kind })
	case len(r.kept) == maxEvents:
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

// After returns the stored events with a sequence number above sequence, in order. The caller owns
// the slice but must not change the events.
func (r *Events) After(sequence uint64) []*control.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := slices.BinarySearchFunc(r.kept, sequence+1, func(e *control.Event, s uint64) int {
		return int(int64(e.Sequence) - int64(s))
	})
	return slices.Clone(r.kept[at:])
}

// Next returns a channel that is closed at the next event.
func (r *Events) Next() <-chan struct{} { return r.told.Next() }

// Handler returns a handler that stores the events among the log lines, and passes every line to
// next.
func (r *Events) Handler(next slog.Handler) slog.Handler {
	return &eventHandler{next: next, events: r}
}

// An eventHandler passes log lines to next, and stores those that are events.
type eventHandler struct {
	next   slog.Handler
	events *Events
	attrs  []slog.Attr // the attributes of every line, from WithAttrs
}

// Enabled implements [slog.Handler]. It accepts every line from level info on, because any could be
// an event.
func (h *eventHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h *eventHandler) Handle(ctx context.Context, line slog.Record) error {
	if e := eventOf(line, h.attrs); e != nil {
		h.events.add(e)
		line.Message = e.Sentence() // as `muster events` and the dashboard say it
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

// eventOf returns the event that a log line makes, or nil if the line is no event. common are the
// attributes of all lines.
func eventOf(line slog.Record, common []slog.Attr) *control.Event {
	e := &control.Event{TimeUnixNs: line.Time.UnixNano()}
	left := maxEventBytes
	cut := func(s string) string { // to the bytes left, and to valid UTF-8, which protobuf demands
		s = strings.ToValidUTF8(s[:min(len(s), left)], "\uFFFD")
		left = max(0, left-len(s))
		return s
	}
	e.What = cut(line.Message)
	asked := false
	line.Attrs(func(a slog.Attr) bool {
		asked = asked || a.Key == whoKey
		return !asked
	})
	take := func(a slog.Attr) bool {
		switch value := a.Value.Resolve(); {
		case a.Key == eventKey:
			e.Kind = value.String()
		case left == 0: // no room is left
		case a.Key == whoKey:
			e.Who = cut(value.String())
		case a.Key == fromKey && asked:
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

// logRequest logs, as an event of the given kind, that a caller asked for a change: what it was,
// the caller's name and address, and err, the outcome.
func (s *Server) logRequest(ctx context.Context, kind, what string, err error, attrs ...any) {
	who, from := secure.Who(ctx)
	attrs = append(attrs, eventKey, kind, whoKey, who, fromKey, from)
	if err != nil {
		s.config.Log.Warn(what, append(attrs, "error", err)...)
		return
	}
	s.config.Log.Info(what, attrs...)
}

// cutName cuts a name that a client chose to 255 characters, so that it fits into an event.
func cutName(name string) string { return fmt.Sprintf("%.255s", name) }

// Events streams the stored events of this agent, or of all agents. If asked to follow, it blocks
// and streams new events of this agent until the call ends.
func (s controlService) Events(req *control.EventsRequest,
	stream control.Control_EventsServer) error {
	ctx := stream.Context()
	if req.GetFleet() && req.GetFollow() {
		return outcome.Invalid("events of the fleet cannot be followed, only those of one agent")
	}
	if req.GetFleet() && !members.IsLocalOnly(ctx) {
		for _, e := range s.FleetEvents(ctx) {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	}
	for last := uint64(0); ; {
		more := s.config.Events.Next()
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

// eventsTimeout bounds the answers of other agents to Events. Chosen: agents answer in
// milliseconds, and a user waits no longer for one that does not.
const eventsTimeout = 2 * time.Second

// FleetEvents returns the events of all agents, ordered by time. For an agent that does not answer,
// it adds an event that says so. It blocks at most eventsTimeout.
func (s *Server) FleetEvents(ctx context.Context) []*control.Event {
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

// eventsOf returns the events of another agent, at most maxEvents, so that a faulty agent cannot
// fill this one's memory.
func (s *Server) eventsOf(ctx context.Context, name names.AgentName) (events []*control.Event,
	err error) {
	conn, err := s.config.Members.Dial(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := control.NewControlClient(conn).Events(members.LocalOnly(ctx),
		&control.EventsRequest{},
		grpc.MaxCallRecvMsgSize(4*maxEventBytes))
	if err != nil {
		return nil, err
	}
	for len(events) < maxEvents {
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
