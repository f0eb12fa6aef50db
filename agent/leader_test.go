package agent

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// A leaderWorld is a fleet of leading halves and made-up workers, in virtual time.
// What they send takes oneWay.
type leaderWorld struct {
	t      *testing.T
	oneWay time.Duration

	mu     sync.Mutex
	nodes  map[string]*testNode
	change broadcast
}

// A testNode is an agent: a real leading half (nil if its role is never) and a
// worker with one lane that takes what latency says.
type testNode struct {
	world   *leaderWorld
	name    string
	leader  *leader
	cancel  context.CancelFunc
	stopped chan struct{}
	served  sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context // ends when it is killed
	member  *control.Member
	latency func(batch int) time.Duration
	queue   []*testAttempt
	running bool
	frozen  chan struct{}        // closed when it thaws; nil: it is not frozen
	links   map[string]*testLink // by who has opened them
	ran     int
}

type testAttempt struct {
	gateway           uint64
	sequence          uint64
	attempt           uint32
	model             *control.Model
	batch             int
	arrived, received time.Time
	bytes             uint64
	answer            func(error)
	ctx               context.Context
}

type testLink struct {
	from string
	out  chan *control.WorkerMessage
}

func newLeaderWorld(t *testing.T) *leaderWorld {
	return &leaderWorld{t: t, oneWay: 100 * time.Microsecond, nodes: map[string]*testNode{}}
}

func testModel(name string, target time.Duration) *control.Model {
	return &control.Model{Name: name, Version: 1, Newest: true, QosTargetNs: int64(target), QosPercentile: 0.99, DeadlineNs: int64(10 * target), LargestBatchSize: 100}
}

// logTo writes a test's log, without times that vary.
func logTo(t *testing.T, name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		t.Logf("%s %s", name, strings.TrimSpace(string(p)))
		return len(p), nil
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// add starts an agent; rank 0 never leads.
func (w *leaderWorld) add(name string, cores int, latency func(int) time.Duration, change ...func(*leaderConfig)) *testNode {
	w.t.Helper()
	rank := election.Rank(0)
	role := election.Never
	if cores >= 0 {
		role = election.May
		rank = election.RankOf(role, false, cores)
	}
	n := &testNode{world: w, name: name, latency: latency, stopped: make(chan struct{}), links: map[string]*testLink{}}
	n.member = &control.Member{
		Name: name, Address: name, Protocol: control.Protocol, InstanceType: "box", Provider: "cpu", Executor: "emulated", Lanes: 1, Cores: 1,
		Role: role.String(), Rank: uint32(rank), Models: []*control.Model{testModel("m", 100*time.Millisecond)},
	}
	n.ctx, n.cancel = context.WithCancel(w.t.Context())
	config := leaderConfig{
		Role: role, Rank: rank, StateDir: filepath.Join(w.t.TempDir(), name),
		Catalogue: profiles.DefaultCatalogue(), Library: profiles.ShippedLibrary(),
	}
	if len(w.all()) > 0 {
		config.JoinWait = 500 * time.Millisecond
	}
	for _, c := range change {
		c(&config)
	}
	var err error
	if n.leader, err = newLeader(config, n, newLeaderMetrics(prometheus.NewRegistry()), logTo(w.t, name)); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.nodes[name] = n
	w.mu.Unlock()
	go func() {
		defer close(n.stopped)
		if err := n.leader.run(n.ctx); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}()
	w.change.tell()
	return n
}

// kill ends an agent; its address refuses connections from then on. gossip says whether the
// others are told at once.
func (w *leaderWorld) kill(n *testNode, gossip bool) {
	n.cancel()
	<-n.stopped
	n.served.Wait()
	if gossip {
		w.mu.Lock()
		delete(w.nodes, n.name)
		w.mu.Unlock()
		w.change.tell()
	}
}

// stop ends all agents.
func (w *leaderWorld) stop() {
	for _, n := range w.all() {
		w.kill(n, false)
	}
}

func (w *leaderWorld) all() []*testNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*testNode
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		all = append(all, w.nodes[name])
	}
	return all
}

func (w *leaderWorld) node(name string) *testNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[name]
}

// leading returns who leads, nil if it is not one alone.
func (w *leaderWorld) leading() (leads *testNode) {
	for _, n := range w.all() {
		if n.ctx.Err() == nil && n.leader.reigning() != nil {
			if leads != nil {
				return nil
			}
			leads = n
		}
	}
	return leads
}

// The node's part as the fleet half.

func (n *testNode) self() string { return n.name }

func (n *testNode) view() *control.View {
	v := &control.View{Leadership: n.leader.leadership()}
	for _, o := range n.world.all() {
		o.mu.Lock()
		v.Members = append(v.Members, proto.CloneOf(o.member))
		o.mu.Unlock()
	}
	return v
}

func (n *testNode) changed() <-chan struct{} { return n.world.change.next() }

func (n *testNode) dial(name string) (grpc.ClientConnInterface, error) {
	if o := n.world.node(name); o != nil {
		return &testConn{o}, nil
	}
	return nil, status.Error(codes.Unavailable, "no such member")
}

func (n *testNode) gone(_ context.Context, name string) bool {
	o := n.world.node(name)
	return o == nil || o.ctx.Err() != nil
}

// thawed waits while the node is frozen.
func (n *testNode) thawed(ctx context.Context) {
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-ctx.Done():
		}
	}
}

func (n *testNode) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = make(chan struct{})
}

func (n *testNode) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.frozen)
	n.frozen = nil
}

func (n *testNode) link(s stream[control.WorkerMessage, control.LeaderMessage]) error {
	n.served.Add(1)
	defer n.served.Done()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	k := &testLink{out: make(chan *control.WorkerMessage, 1000)}
	ended := make(chan error, 1)
	go func() {
		var closed func()
		for {
			m, err := s.Recv()
			if err != nil {
				if closed != nil {
					closed()
				}
				ended <- err
				return
			}
			n.thawed(ctx)
			if closed == nil {
				k.from = m.From
				closed = n.leader.linked(m.From, func(e *control.Election) { k.out <- &control.WorkerMessage{Election: []*control.Election{e}} })
			}
			for _, e := range m.GetElection() {
				n.leader.elect(e)
			}
			if m.From != "" {
				n.greet(k)
			}
		}
	}()
	for {
		select {
		case m := <-k.out:
			n.thawed(ctx)
			if err := s.Send(m); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "killed")
		}
	}
}

func (n *testNode) greet(k *testLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := &control.WorkerMessage{Member: proto.CloneOf(n.member), RemainingNs: []int64{int64(n.remaining())}}
	for _, a := range n.queue {
		m.Held = append(m.Held, &control.Held{Gateway: a.gateway, Sequence: a.sequence, Attempt: a.attempt, Model: a.model.Name, Version: a.model.Version, BatchSize: uint32(a.batch)})
	}
	n.links[k.from] = k
	k.out <- m
}

// remaining is how long the lane is busy. n.mu is held.
func (n *testNode) remaining() (d time.Duration) {
	for _, a := range n.queue {
		d += n.latency(a.batch)
	}
	return d
}

// infer runs an attempt, as ModelInfer would: the payload takes its way, and so does the answer.
func (n *testNode) infer(ctx context.Context, a *testAttempt) error {
	time.Sleep(n.world.oneWay)
	if n.ctx.Err() != nil {
		return status.Error(codes.Unavailable, "connection refused")
	}
	n.thawed(ctx)
	done := make(chan error, 1)
	a.received, a.ctx, a.answer = time.Now(), ctx, func(err error) { done <- err }
	n.mu.Lock()
	n.queue = append(n.queue, a)
	n.start()
	n.mu.Unlock()
	select {
	case err := <-done:
		time.Sleep(n.world.oneWay)
		return err
	case <-n.ctx.Done():
		return status.Error(codes.Unavailable, "connection reset")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start runs the next attempt if the lane is free. n.mu is held.
func (n *testNode) start() {
	if n.running || len(n.queue) == 0 {
		return
	}
	n.running = true
	a := n.queue[0]
	started := time.Now()
	n.served.Go(func() {
		execution := n.latency(a.batch)
		refused := ""
		select {
		case <-time.After(execution):
		case <-n.ctx.Done():
			return
		}
		n.thawed(n.ctx)
		if n.ctx.Err() != nil {
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.running = false
		n.ran++
		n.queue = n.queue[1:]
		if reports := n.links[n.leader.leadership().GetLeader()]; reports != nil {
			c := &control.Completed{
				Gateway: a.gateway, Sequence: a.sequence, Attempt: a.attempt, RemainingNs: int64(n.remaining()), Model: a.model.Name, Version: a.model.Version,
				BatchSize: uint32(a.batch), QueueNs: int64(started.Sub(a.received)), ExecutionNs: int64(execution), LatencyNs: int64(time.Since(a.arrived)), Refused: refused, Bytes: a.bytes,
			}
			n.served.Go(func() {
				time.Sleep(n.world.oneWay)
				select {
				case reports.out <- &control.WorkerMessage{Completed: []*control.Completed{c}}:
				case <-n.ctx.Done():
				}
			})
		}
		a.answer(nil)
		n.start()
	})
}

// A testConn carries Link and Match to a node.
type testConn struct{ to *testNode }

func (c *testConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unimplemented, "no unary calls here")
}

func (c *testConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.to.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	switch method {
	case control.Control_Link_FullMethodName:
		client, server := newPipe[control.LeaderMessage, control.WorkerMessage](ctx)
		go func() { server.end(c.to.link(server)) }()
		return &testStream[control.LeaderMessage, control.WorkerMessage, *control.LeaderMessage, *control.WorkerMessage]{client: client}, nil
	}
	return nil, status.Error(codes.Unimplemented, method)
}

type message[M any] interface {
	*M
	proto.Message
}

// A testStream is a pipe as gRPC sees it.
type testStream[Up, Down any, PUp message[Up], PDown message[Down]] struct {
	client *pipeClient[Up, Down]
}

func (s *testStream[Up, Down, PUp, PDown]) SendMsg(m any) error {
	return s.client.Send(proto.CloneOf(m.(PUp)))
}
func (s *testStream[Up, Down, PUp, PDown]) RecvMsg(m any) error {
	got, err := s.client.Recv()
	if err != nil {
		return err
	}
	proto.Merge(m.(PDown), PDown(got))
	return nil
}
func (s *testStream[Up, Down, PUp, PDown]) Header() (metadata.MD, error) { return nil, nil }
func (s *testStream[Up, Down, PUp, PDown]) Trailer() metadata.MD         { return nil }
func (s *testStream[Up, Down, PUp, PDown]) CloseSend() error             { return s.client.CloseSend() }
func (s *testStream[Up, Down, PUp, PDown]) Context() context.Context     { return s.client.Context() }

// A testGateway submits queries to whoever leads and sends them where it is told.
type testGateway struct {
	world   *leaderWorld
	id      uint64
	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
	toSend  chan *control.GatewayMessage

	mu       sync.Mutex
	queries  map[uint64]*testQuery
	sequence uint64
	profiles map[string]*control.Profile
	prices   []*control.TypePrice
	answered int
	latency  []time.Duration
	rejected []*control.Reject
	offered  []*control.OfferAgain
	refused  []error // ends of streams
}

type testQuery struct {
	sequence uint64
	batch    int
	arrived  time.Time
	attempts uint32
	agent    string // where the live attempt is
	cancel   context.CancelFunc
}

func (w *leaderWorld) gateway(id uint64) *testGateway {
	g := &testGateway{world: w, id: id, queries: map[uint64]*testQuery{}, profiles: map[string]*control.Profile{}, toSend: make(chan *control.GatewayMessage, 1000)}
	g.ctx, g.cancel = context.WithCancel(w.t.Context())
	g.running.Go(func() {
		for g.ctx.Err() == nil {
			if n := w.leading(); n != nil {
				g.serve(n)
			} else {
				time.Sleep(time.Millisecond)
			}
		}
	})
	return g
}

func (g *testGateway) close() {
	g.cancel()
	g.running.Wait()
}

// serve keeps a stream to the leader.
func (g *testGateway) serve(n *testNode) {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	client, server := newPipe[control.GatewayMessage, control.MatchMessage](ctx)
	go func() { server.end(n.leader.match(server)) }()
	hello := &control.GatewayMessage{Hello: &control.GatewayHello{Gateway: g.id, Protocol: control.Protocol}}
	g.mu.Lock()
	for len(g.toSend) > 0 {
		<-g.toSend
	}
	for _, sequence := range slices.Sorted(maps.Keys(g.queries)) {
		hello.Submit = append(hello.Submit, g.submission(g.queries[sequence]))
	}
	g.mu.Unlock()
	if client.Send(hello) != nil {
		return
	}
	g.running.Go(func() {
		for {
			select {
			case m := <-g.toSend:
				time.Sleep(g.world.oneWay)
				n.thawed(ctx)
				if client.Send(m) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		m, err := client.Recv()
		if err != nil {
			g.mu.Lock()
			g.refused = append(g.refused, err)
			g.mu.Unlock()
			return
		}
		time.Sleep(g.world.oneWay)
		g.take(m)
	}
}

func (g *testGateway) submission(q *testQuery) *control.Submit {
	left := time.Second - time.Since(q.arrived)
	return &control.Submit{
		Sequence: q.sequence, Model: "m", BatchSize: uint32(q.batch), Bytes: uint64(1000 * q.batch), WaitedNs: int64(time.Since(q.arrived)),
		TimeLeftNs: int64(left), Attempts: q.attempts, Agent: q.agent,
	}
}

func (g *testGateway) take(m *control.MatchMessage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range m.GetProfiles() {
		g.profiles[p.GetModel()+" on "+p.GetType()] = p
	}
	if m.GetPrices() != nil {
		g.prices = m.GetPrices()
	}
	g.offered = append(g.offered, m.GetOfferAgain()...)
	for _, a := range m.GetAssign() {
		q := g.queries[a.Sequence]
		if q == nil {
			continue
		}
		if q.cancel != nil {
			q.cancel()
		}
		q.attempts, q.agent = a.Attempt, a.Agent
		ctx, cancel := context.WithCancel(g.ctx)
		q.cancel = cancel
		g.running.Go(func() {
			err := status.Error(codes.Unavailable, "no such agent")
			if n := g.world.node(a.Agent); n != nil {
				err = n.infer(ctx, &testAttempt{
					gateway: g.id, sequence: a.Sequence, attempt: a.Attempt, model: testModel("m", 0), batch: q.batch, arrived: q.arrived, bytes: uint64(1000 * q.batch),
				})
			}
			g.ended(q, a.Attempt, err)
		})
	}
	for _, r := range m.GetReject() {
		g.rejected = append(g.rejected, r)
		delete(g.queries, r.Sequence)
	}
}

func (g *testGateway) ended(q *testQuery, attempt uint32, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queries[q.sequence] != q {
		return
	}
	if err != nil {
		if q.attempts == attempt && g.ctx.Err() == nil && status.Code(err) == codes.Unavailable {
			q.agent = ""
		}
		return
	}
	delete(g.queries, q.sequence)
	g.answered++
	g.latency = append(g.latency, time.Since(q.arrived))
	g.send(&control.GatewayMessage{Cancel: []uint64{q.sequence}})
}

func (g *testGateway) send(m *control.GatewayMessage) {
	select {
	case g.toSend <- m:
	default:
		g.world.t.Error("the gateway's messages are not taken")
	}
}

// submit makes a query arrive.
func (g *testGateway) submit(batch int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sequence++
	q := &testQuery{sequence: g.sequence, batch: batch, arrived: time.Now()}
	g.queries[q.sequence] = q
	g.send(&control.GatewayMessage{Submit: []*control.Submit{g.submission(q)}})
}

// open is how many queries have no outcome.
func (g *testGateway) open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queries)
}

// soon waits, in virtual time, until what is said holds.
func soon(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for start := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(start) > within {
			t.Fatalf("after %v still not: %s", within, what)
		}
	}
}

func fixed(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// TestLeaderServes has one leader match the queries of two gateways to three lanes.
func TestLeaderServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		record := filepath.Join(t.TempDir(), "record.txt")
		w.add("a", 1, func(b int) time.Duration { return time.Duration(2+b/10) * time.Millisecond }, func(c *leaderConfig) { c.Record = record })
		w.add("b", -1, func(b int) time.Duration { return time.Duration(2+b/10) * time.Millisecond })
		w.add("c", -1, func(b int) time.Duration { return time.Duration(2+b/10) * time.Millisecond })
		soon(t, time.Second, "a leads", func() bool { return w.leading() != nil })
		one, two := w.gateway(1), w.gateway(2)
		defer one.close()
		defer two.close()
		for i := range 1000 {
			one.submit(1 + i%100)
			two.submit(1 + (7*i)%100)
			time.Sleep(10 * time.Millisecond)
		}
		soon(t, time.Second, "all are answered", func() bool { return one.open()+two.open() == 0 })
		for _, g := range []*testGateway{one, two} {
			if g.answered != 1000 || len(g.offered) > 0 {
				t.Errorf("%d queries answered, %d offered again, want 1000 and 0", g.answered, len(g.offered))
			}
			if late := slices.Max(g.latency[10:]); late > 40*time.Millisecond {
				t.Errorf("a query took %v, want less than 40ms", late)
			}
		}
		if len(one.prices) != 1 || one.prices[0].Type != "box/cpu/1" {
			t.Errorf("prices are %v, want one of box/cpu/1", one.prices)
		}
		var table profiles.Table
		if p := one.profiles["m/1 on box/cpu/1"]; p == nil || table.UnmarshalJSON(p.Table) != nil {
			t.Errorf("profiles are %v, want that of m/1 on box/cpu/1", one.profiles)
		} else if got := table.Mean(50); got < 6*time.Millisecond || got > 8*time.Millisecond || table.Origin() != profiles.Learned {
			t.Errorf("learned %v at batch size 50 (%s), want about 7ms, learned", got, table.Origin())
		}
		time.Sleep(10 * time.Millisecond) // for the last completions
		leader := w.node("a").leader
		s := &control.FleetStatus{}
		leader.status(s)
		if len(s.Agents) != 3 || len(s.Models) != 1 || s.Models[0].Answered != 2000 || s.Models[0].WithinQos < 0.99 || s.Rate < 150 || s.FluidLimit < 300 || len(s.Decisions) != decisionsKept {
			n := len(s.Decisions)
			s.Decisions = nil
			t.Errorf("status is %v with %d decisions", s, n)
		}
		if r := leader.reigning(); r.aheadSet < 150*time.Microsecond || r.aheadSet > 400*time.Microsecond {
			t.Errorf("decides %v ahead, want about two ways of %v", r.aheadSet, w.oneWay)
		}
		w.stop()
		f, err := os.Open(record)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if replayed, err := match.Replay(f); err != nil || replayed.Decisions < 2000 {
			t.Errorf("replayed %+v, %v", replayed, err)
		}
		book := profiles.NewBook(nil)
		if err := book.Load(leader.bookPath()); err != nil || len(book.Keys()) != 1 {
			t.Errorf("kept %v, %v, want one profile", book.Keys(), err)
		}
	})
}
