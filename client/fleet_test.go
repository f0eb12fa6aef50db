package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
)

// A testFleet is a few agents in memory that follow a script. The one that leads
// assigns queries in turn.
type testFleet struct {
	t        *testing.T
	agents   []*testAgent
	metadata *inference.ModelMetadataResponse // of the model, as members tell it

	mu         sync.Mutex
	leadership *control.Leadership
	changed    chan struct{}
}

// A testAgent serves one lane, on which a query takes the given time.
type testAgent struct {
	fake
	control.UnimplementedControlServer
	name     string
	fleet    *testFleet
	takes    time.Duration
	listener *bufconn.Listener
	server   *grpc.Server
	served   chan struct{}
	gone     bool // from the view; by the fleet's lock
	watched  atomic.Int64
	loseEach atomic.Int64 // 0: none
	old      atomic.Bool  // it knows of no changes

	mu       sync.Mutex
	frozen   chan struct{}     // closed when it thaws; nil: it is not frozen
	seen     []control.Attempt // attempts that came
	ran      map[uint64]int    // by sequence: how often it ran to the end
	reserved map[uint64]bool   // by probe
	probed   int
	cancels  []uint64
	unused   []*control.Assign
	submits  []*control.Submit
	assign   func(s *control.Submit, n int) *control.MatchMessage // in place of turns
	turn     int
	muteAck  bool
	busy     time.Duration // what it tells those who probe
	metadata []metadata.MD // of attempts
	refuse   error
}

func newFleet(t *testing.T, n int) *testFleet {
	f := &testFleet{t: t, leadership: &control.Leadership{}, changed: make(chan struct{})}
	for i := range n {
		a := &testAgent{
			name: fmt.Sprintf("agent-%d", i), fleet: f, takes: time.Millisecond,
			ran: map[uint64]int{}, reserved: map[uint64]bool{},
		}
		a.fake.name = a.name
		a.fake.infer = a.infer
		f.agents = append(f.agents, a)
		a.start()
		t.Cleanup(a.stop)
	}
	return f
}

func (a *testAgent) start() {
	a.listener = bufconn.Listen(1 << 20)
	a.server = grpc.NewServer(oip.ServerOptions(32 << 20)...)
	oip.RegisterServer(a.server, a)
	control.RegisterControlServer(a.server, a)
	a.served = make(chan struct{})
	go func() { defer close(a.served); a.server.Serve(a.listener) }()
}

// stop kills the agent.
func (a *testAgent) stop() {
	a.thaw()
	a.server.Stop()
	<-a.served
}

// leave has the others not see the agent any more.
func (a *testAgent) leave() {
	a.fleet.mu.Lock()
	defer a.fleet.mu.Unlock()
	a.gone = true
}

// freeze keeps the agent from saying or doing anything more, its connections
// open.
func (a *testAgent) freeze() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.frozen = make(chan struct{})
}

func (a *testAgent) thaw() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.frozen != nil {
		close(a.frozen)
		a.frozen = nil
	}
}

// pause returns when the agent is not frozen.
func (a *testAgent) pause(ctx context.Context) {
	for {
		a.mu.Lock()
		frozen := a.frozen
		a.mu.Unlock()
		if frozen == nil {
			return
		}
		select {
		case <-frozen:
		case <-ctx.Done():
			return
		}
	}
}

func (f *testFleet) lead(leader, successor string) {
	f.elect(leader, successor)
	f.tell()
}

// elect has an agent lead whom gateways do not hear of yet.
func (f *testFleet) elect(leader, successor string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leadership = &control.Leadership{
		Epoch: f.leadership.Epoch + 1, Leader: leader, Successor: successor,
	}
}

// tell has gateways hear of the leader.
func (f *testFleet) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *testFleet) view() *control.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := &control.View{Leadership: f.leadership}
	for _, a := range f.agents {
		if a.gone {
			continue
		}
		v.Members = append(v.Members, &control.Member{
			Name: a.name, Address: "passthrough:///" + a.name, Protocol: control.Spoken.Oldest,
			InstanceType: "local", Lanes: 1, Cores: 1,
			NewestProtocol: control.Spoken.Newest,
			Models: []*control.Model{{Name: "sum", Version: 1, Newest: true,
				QosTargetNs: int64(50 * time.Millisecond),
				DeadlineNs:  int64(5 * time.Second), LargestBatchSize: 1000,
				Metadata: f.metadata}},
		})
	}
	return v
}

func (f *testFleet) agent(name string) *testAgent {
	for _, a := range f.agents {
		if a.name == name {
			return a
		}
	}
	return nil
}

func (f *testFleet) dial(ctx context.Context, name string) (net.Conn, error) {
	a := f.agent(name)
	if a == nil {
		return nil, errors.New("no such host")
	}
	return a.listener.DialContext(ctx)
}

func (f *testFleet) dialOptions() []grpc.DialOption {
	return append(oip.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(f.dial))
}

// gateway starts a gateway that knows the fleet, by bufconn.
func (f *testFleet) gateway() *Gateway {
	conns := map[string]*grpc.ClientConn{}
	for _, a := range f.agents {
		conn, err := grpc.NewClient("passthrough:///"+a.name, f.dialOptions()...)
		if err != nil {
			f.t.Fatal(err)
		}
		conns[a.name] = conn
	}
	g, err := NewGateway(
		GatewayConfig{ID: 7,
			Logger: slog.New(slog.NewTextHandler(testLog{f.t}, &slog.HandlerOptions{
				Level: slog.LevelDebug,
			})),
			Transport: Remote{
				Dial: func(m *control.Member) (grpc.ClientConnInterface, error) {
					return conns[m.GetName()], nil
				},
			}})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		g.Close()
		for _, conn := range conns {
			conn.Close()
		}
	})
	g.SetView(f.view())
	return g
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%v %s", time.Now().Format("05.000000"), p)
	return len(p), nil
}

// infer is the worker's side: queries on the lane wait for each other.
func (a *testAgent) infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	a.pause(ctx)
	md, _ := metadata.FromIncomingContext(ctx)
	header := md.Get(control.AttemptHeader)
	if len(header) != 1 {
		return a.sum(req) // as a gateway
	}
	attempt, err := control.ParseAttempt(header[0],
		strings.Join(md.Get(control.PartHeader), ","),
		strings.Join(md.Get(control.MergeHeader), ","))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	a.mu.Lock()
	a.seen = append(a.seen, attempt)
	a.metadata = append(a.metadata, md)
	delete(a.reserved, attempt.Reservation)
	refuse := a.refuse
	a.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	select {
	case <-time.After(a.takes):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	a.pause(ctx)
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	a.mu.Lock()
	a.ran[attempt.Sequence]++
	a.mu.Unlock()
	grpc.SetTrailer(ctx, control.RemainingTrailer(0))
	return a.sum(req)
}

func (a *testAgent) Match(s grpc.BidiStreamingServer[control.GatewayMessage,
	control.MatchMessage]) error {
	a.pause(s.Context())
	f := a.fleet
	f.mu.Lock()
	l, changed := f.leadership, f.changed
	f.mu.Unlock()
	if l.Leader != a.name {
		s.Send(&control.MatchMessage{Leadership: l})
		return status.Errorf(codes.FailedPrecondition, "agent %q does not lead", a.name)
	}
	s.Send(&control.MatchMessage{Leadership: l})
	in := make(chan *control.GatewayMessage)
	received := make(chan error, 1)
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				received <- err
				return
			}
			select {
			case in <- m:
			case <-s.Context().Done():
			}
		}
	}()
	heartbeat := time.NewTicker(50 * time.Millisecond)
	defer heartbeat.Stop()
	var n uint64
	for {
		out := &control.MatchMessage{}
		select {
		case err := <-received:
			if err == io.EOF {
				err = nil
			}
			return err
		case <-changed:
			a.pause(s.Context())
			return status.Errorf(codes.FailedPrecondition, "agent %q does not lead any more",
				a.name)
		case <-heartbeat.C:
		case m := <-in:
			a.mu.Lock()
			a.cancels = append(a.cancels, m.Cancel...)
			a.unused = append(a.unused, m.Unused...)
			for _, submit := range m.Submit {
				a.submits = append(a.submits, submit)
				n++
				if a.assign != nil {
					if reply := a.assign(submit, len(a.submits)); reply != nil {
						out.Split = append(out.Split, reply.Split...)
						out.Assign = append(out.Assign, reply.Assign...)
						out.Reject = append(out.Reject, reply.Reject...)
						out.OfferAgain = append(out.OfferAgain, reply.OfferAgain...)
					}
				} else if submit.Agent == "" {
					out.Assign = append(out.Assign,
						&control.Assign{Sequence: submit.Sequence, Attempt: submit.Attempts + 1,
							Agent:       f.agents[a.turn%len(f.agents)].name,
							ExecutionNs: int64(a.takes)})
					a.turn++
				}
			}
			if !a.muteAck {
				out.Received = n
			}
			a.mu.Unlock()
		}
		a.pause(s.Context())
		if err := s.Send(out); err != nil {
			return err
		}
	}
}

func (a *testAgent) Probe(s grpc.BidiStreamingServer[control.ProbeRequest,
	control.ProbeAnswer]) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		a.pause(s.Context())
		a.mu.Lock()
		if r.Release {
			delete(a.reserved, r.Id)
			a.mu.Unlock()
			continue
		}
		a.probed++
		answer := &control.ProbeAnswer{
			Id: r.Id, FinishNs: int64(a.busy + a.takes), RemainingNs: int64(a.busy),
		}
		if a.busy < 0 {
			answer.FinishNs = -1
			answer.RemainingNs = 0
		} else {
			a.reserved[r.Id] = true
		}
		a.mu.Unlock()
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

// Watch tells of changes who asks for them, and loses one of them in every loseEach.
func (a *testAgent) Watch(req *control.WatchRequest,
	s grpc.ServerStreamingServer[control.View]) error {
	a.watched.Add(1)
	var changes control.Changes
	inChanges := req.GetChanges() && !a.old.Load()
	for n := 1; ; n++ {
		a.pause(s.Context())
		a.fleet.mu.Lock()
		changed := a.fleet.changed
		a.fleet.mu.Unlock()
		v := a.fleet.view()
		if inChanges && n == 1 {
			changes.Next(v)
			v = changes.Whole(time.Now())
		} else if inChanges {
			if v = changes.Next(v); v == nil {
				v = changes.NextLoads(nil, time.Now())
			}
			if each := int(a.loseEach.Load()); each > 0 && n%each == 0 {
				v = changes.NextLoads(nil, time.Now())
			}
		}
		if err := s.Send(v); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-s.Context().Done():
			return nil
		}
	}
}

func (a *testAgent) ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
	*inference.ServerMetadataResponse, error) {
	return &inference.ServerMetadataResponse{
		Name: a.name, Extensions: []string{FleetExtension},
	}, nil
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, n int, test func(t *testing.T, f *testFleet)) {
	synctest.Test(t, func(t *testing.T) { test(t, newFleet(t, n)) })
}

// settle lets everything happen that needs no time.
func settle() { synctest.Wait() }

// good wants a query to be answered, and right.
func good(t *testing.T, g *Gateway, ctx context.Context) {
	t.Helper()
	req := sumQuery(3)
	defer req.Release()
	resp, err := g.Infer(ctx, req, time.Now())
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Release()
	if out, ok := resp.Output("sum"); !ok || !slices.Equal(out.Shape, []int64{3, 1}) {
		t.Errorf("got outputs %v", resp.Outputs)
	}
}

func TestGatewayAnswers(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		g := f.gateway()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-1-2-01")
		settle()
		for range 9 {
			good(t, g, ctx)
		}
		for _, a := range f.agents {
			if len(a.seen) != 3 || len(a.cancels)+len(a.unused) > 0 {
				t.Errorf("%s: got attempts %v, cancels %v, unused %v; want 3 attempts", a.name,
					a.seen, a.cancels, a.unused)
			}
			for _, md := range a.metadata {
				if got := md.Get("traceparent"); !slices.Equal(got, []string{"00-1-2-01"}) {
					t.Errorf("trace context is %q", got)
				}
			}
		}
		if s := g.Stats(); s.Queries != 9 || s.Submits != 9 || s.Attempts != 9 ||
			s.Leaderless != 0 {
			t.Errorf("stats are %+v", s)
		}
	})
}
