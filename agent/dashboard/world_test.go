package dashboard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/profiles"
)

// A world is a fleet's agents, each with a hub alone, which reach each other in process.
type world struct {
	t      testing.TB
	agents map[names.AgentName]*testAgent

	mu         sync.Mutex
	leadership *control.Leadership
	news       members.Broadcast
}

// A testAgent implements what a hub needs of an agent.
type testAgent struct {
	world *world
	name  names.AgentName
	hub   *Hub
	stop  context.CancelFunc
	done  chan struct{}

	mu      sync.Mutex
	down    bool
	kept    []*control.Event
	more    members.Broadcast
	streams int // of Pulse that other agents have opened here, ever
	open    int // those that are open
	sent    int // messages on them
	tells   int // calls of Tell
	heard   int // events in them
}

func newWorld(t testing.TB, agents ...names.AgentName) *world {
	w := &world{
		t: t, agents: map[names.AgentName]*testAgent{}, leadership: &control.Leadership{},
	}
	for _, name := range agents {
		a := &testAgent{world: w, name: name, done: make(chan struct{})}
		a.hub = NewHub(HubConfig{Self: name, Members: a, Leading: a, Events: a, Log: quietLog})
		ctx, cancel := context.WithCancel(context.Background())
		a.stop = cancel
		w.agents[name] = a
		go func() { defer close(a.done); a.hub.Run(ctx) }()
	}
	t.Cleanup(func() {
		for _, a := range w.agents {
			a.stop()
			<-a.done
		}
	})
	return w
}

var quietLog = slog.New(slog.DiscardHandler)

// lead makes an agent the leader, with its successor.
func (w *world) lead(epoch uint64, leader, successor names.AgentName) {
	w.mu.Lock()
	w.leadership = &control.Leadership{
		Epoch: epoch, Leader: string(leader), Successor: string(successor),
	}
	w.mu.Unlock()
	w.news.Tell()
}

func (w *world) view() *control.View {
	v := &control.View{Leadership: w.agents[w.names()[0]].Leadership()}
	for _, name := range w.names() {
		v.Members = append(v.Members, &control.Member{
			Name: string(name), Lanes: 2, InstanceType: "box", PriceUsdPerHour: 0.5,
			Address: string(name) + ":8001",
			Models: []*control.Model{
				{Name: "ncf", Version: 1, QosTargetNs: 5e6, QosPercentile: 0.99},
				{Name: "secret", Version: 2, QosTargetNs: 9e6, QosPercentile: 0.99},
			},
		})
		v.Loads = append(v.Loads, &control.LaneLoad{
			Agent: string(name), RemainingNs: []int64{0, 40e6}, AgeNs: 10e6, Waiting: 3,
		})
	}
	return v
}

func (w *world) names() (all []names.AgentName) {
	for name := range w.agents {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// beat returns what the term of a leader tells its hub each second.
func (w *world) beat(answered uint64) *control.PulseMessage {
	f := control.NewFleet(w.view(), nil, nil)
	f.Revision = f.Leadership.GetEpoch()<<20 | 1
	b := &control.Beat{
		Fleet: f.Revision, Epoch: f.Leadership.GetEpoch(), ShotWeight: 2, Within: 0.99,
		Row: &control.Row{
			Beats: 1, Rate: 100, Limit: 200, Allowable: 190, Price: 1.5, Busy: 0.5,
			Answered: answered, Late: 1,
		},
		Heat: []*control.Heat{
			{Type: 0, Model: 0, Bins: []uint32{3, 7}}, {Model: 1, Bins: []uint32{1, 1}},
		},
		Shots: []uint32{350, 0, 0, 1, 12, 0, 1, 0},
	}
	for i, m := range f.Models {
		key := names.NewModelKey(m.Name, m.Version)
		b.Row.Models = append(b.Row.Models, &control.ModelRow{
			Model: string(key), Answered: answered, P50Ns: 1e6, P99Ns: 3e6,
		})
		b.Models = append(b.Models, &control.ModelBeat{Model: uint32(i), Rate: 50, Within: 1})
	}
	for i := range f.CountLanes() {
		b.Lanes = control.AppendLane(b.Lanes, control.LaneBeat{
			Free: 5e6, Busy: 0.5, Model: i % 2,
		})
	}
	return &control.PulseMessage{Fleet: f, Beat: b}
}

// LoadedView implements [Members].
func (a *testAgent) LoadedView() *control.View { return a.world.view() }

// Leadership and Changed implement [members.LeadershipSource].
func (a *testAgent) Leadership() *control.Leadership {
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	return a.world.leadership
}

func (a *testAgent) Changed() <-chan struct{} { return a.world.news.Next() }

// After and Next implement [Events].
func (a *testAgent) After(sequence uint64) (all []*control.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.kept {
		if e.Sequence > sequence {
			all = append(all, e)
		}
	}
	return all
}

func (a *testAgent) Next() <-chan struct{} { return a.more.Next() }

func (a *testAgent) happens(what string) {
	a.mu.Lock()
	a.kept = append(a.kept, &control.Event{
		Agent: string(a.name), Sequence: uint64(len(a.kept) + 1), What: what,
		TimeUnixNs: time.Now().UnixNano(),
	})
	a.mu.Unlock()
	a.more.Tell()
}

// told is how many events others have told.
func (a *testAgent) told() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.heard
}

var errDown = errors.New("nobody answers")

// Dial implements [Members].
func (a *testAgent) Dial(name names.AgentName) (grpc.ClientConnInterface, error) {
	to := a.world.agents[name]
	if to == nil {
		return nil, errDown
	}
	return conn{to}, nil
}

// A conn calls a hub in process.
type conn struct{ to *testAgent }

func (c conn) Invoke(ctx context.Context, _ string, args, _ any, _ ...grpc.CallOption) error {
	c.to.mu.Lock()
	down := c.to.down
	c.to.tells++
	c.to.heard += len(args.(*control.TellRequest).Events)
	c.to.mu.Unlock()
	if down {
		return errDown
	}
	_, err := c.to.hub.Tell(ctx, args.(*control.TellRequest))
	return err
}

func (c conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (
	grpc.ClientStream, error) {
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	if c.to.down {
		return nil, errDown
	}
	c.to.streams++
	return &stream{ctx: ctx, to: c.to, out: make(chan *control.PulseMessage, 4)}, nil
}

// A stream is both ends of a Pulse.
type stream struct {
	grpc.ClientStream
	ctx context.Context
	to  *testAgent
	out chan *control.PulseMessage
	err error
}

func (s *stream) CloseSend() error         { return nil }
func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) SendMsg(m any) error {
	s.to.mu.Lock()
	s.to.open++
	s.to.mu.Unlock()
	go func() {
		s.err = s.to.hub.Pulse(m.(*control.PulseRequest), &served{stream: s})
		s.to.mu.Lock()
		s.to.open--
		s.to.mu.Unlock()
		close(s.out)
	}()
	return nil
}

func (s *stream) RecvMsg(into any) error {
	select {
	case m, ok := <-s.out:
		if !ok {
			return errors.Join(s.err, io.EOF)
		}
		s.to.mu.Lock()
		down := s.to.down
		s.to.sent++
		s.to.mu.Unlock()
		if down {
			return errDown
		}
		out := into.(*control.PulseMessage)
		out.Fleet, out.Beat, out.Seconds, out.Minutes = m.Fleet, cloneBeat(
			m.Beat), m.Seconds, m.Minutes
		out.Events, out.Plan = m.Events, m.Plan
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// served is the end of a stream that a hub serves.
type served struct {
	grpc.ServerStream
	*stream
}

func (s *served) Context() context.Context { return s.ctx }
func (s *served) SendMsg(any) error        { panic("not used") }
func (s *served) RecvMsg(any) error        { panic("not used") }

func (s *served) Send(m *control.PulseMessage) error {
	select {
	case s.out <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// openGuard returns a guard that lets everybody do everything.
func openGuard(t testing.TB) *secure.Guard {
	g, err := secure.Open(secure.Config{}, secure.Options{Logger: quietLog})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// page returns the dashboard of an agent, whose guard lets everybody do everything.
func (a *testAgent) page() http.Handler { return a.guarded(openGuard(a.world.t)) }

func (a *testAgent) guarded(guard *secure.Guard) http.Handler {
	return guard.HTTP(New(Config{
		Hub: a.hub, Guard: guard, Software: "test", Closing: context.Background(),
		View: a.world.view, Library: profiles.ShippedLibrary(),
		FleetEvents: func(context.Context) []*control.Event { return a.After(0) },
		Fleet: func(context.Context) (*control.FleetState, error) {
			return &control.FleetState{Mode: "approve"}, nil
		},
		SetFleet: func(_ context.Context, req *control.SetFleetRequest) (*control.FleetState,
			error) {
			return &control.FleetState{Mode: "approve"}, nil
		},
	}))
}

// cloneBeat copies a beat, as a network would: hubs change what they receive.
func cloneBeat(b *control.Beat) *control.Beat {
	if b == nil {
		return nil
	}
	return proto.CloneOf(b)
}
