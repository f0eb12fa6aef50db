package lead

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
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
	change members.Broadcast
}

// A testNode is an agent: a real leading half (nil if its role is never) and a
// worker with one lane that takes what latency says.
type testNode struct {
	world   *leaderWorld
	name    string
	leader  *Leader
	cancel  context.CancelFunc
	stopped chan struct{}
	served  sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context // ends when it is killed
	member  *control.Member
	latency func(batch int) time.Duration
	queue   []*testAttempt
	running bool
	frozen  chan struct{} // closed when it thaws; nil: it is not frozen
	links   []*testLink
	told    []*control.LeaderMessage
	linked  atomic.Int32 // so many were opened
	ran     atomic.Int64
	accepts atomic.Int32 // so many looks after its end find its address open yet
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
	return &control.Model{
		Name: name, Version: 1, Newest: true, QosTargetNs: int64(target), QosPercentile: 0.99,
		DeadlineNs: int64(10 * target), LargestBatchSize: 100,
	}
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
func (w *leaderWorld) add(name string, cores int, latency func(int) time.Duration,
	change ...func(*Config)) *testNode {
	w.t.Helper()
	rank := election.Rank(0)
	role := election.Never
	if cores >= 0 {
		role = election.May
		rank = election.RankOf(role, false, cores)
	}
	n := &testNode{world: w, name: name, latency: latency, stopped: make(chan struct{})}
	n.member = &control.Member{
		Name: name, Address: name, Protocol: control.Spoken.Oldest, InstanceType: "box",
		Provider: "cpu", Executor: "emulated", Lanes: 1, Cores: 1,
		Role: role.String(), Rank: uint32(rank), Models: []*control.Model{
			testModel("m", 100*time.Millisecond),
		},
	}
	n.ctx, n.cancel = context.WithCancel(w.t.Context())
	config := Config{
		Role: role, Rank: rank, StateDir: filepath.Join(w.t.TempDir(), name),
		Catalogue: profiles.DefaultCatalogue(), Library: profiles.ShippedLibrary(),
	}
	if len(w.all()) > 0 {
		config.JoinWait = 500 * time.Millisecond
	}
	config.Worker = n
	config.Fleet, config.Registry, config.Log = n, prometheus.NewRegistry(), logTo(w.t, name)
	config.Counts = &testCounts{failed: map[string]uint64{}}
	config.Leadership = &members.LeadershipWatch{}
	for _, c := range change {
		c(&config)
	}
	var err error
	if n.leader, err = New(config); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.nodes[name] = n
	w.mu.Unlock()
	go func() {
		defer close(n.stopped)
		if err := n.leader.Run(n.ctx); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}()
	w.change.Tell()
	return n
}

// testCounts are Counts. Failures are by "model/version reason".
type testCounts struct {
	mu      sync.Mutex
	arrived int
	failed  map[string]uint64
	missed  uint64
}

func (c *testCounts) CountMissed(_ string, _ lateness.Cause, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missed += n
}

func (c *testCounts) Arrived(string, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived++
}

func (c *testCounts) CountFailed(model string, version int64, reason string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed[fmt.Sprintf("%s/%d %s", model, version, reason)] += n
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
		w.change.Tell()
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
		if n.ctx.Err() == nil && n.leader.currentTerm() != nil {
			if leads != nil {
				return nil
			}
			leads = n
		}
	}
	return leads
}

// The node's part as the fleet half.

func (n *testNode) Self() names.AgentName { return names.AgentName(n.name) }

func (n *testNode) View() *control.View {
	v := &control.View{Leadership: n.leader.Leadership()}
	for _, o := range n.world.all() {
		o.mu.Lock()
		v.Members = append(v.Members, proto.CloneOf(o.member))
		o.mu.Unlock()
	}
	return v
}

func (n *testNode) Changed() <-chan struct{} { return n.world.change.Next() }

func (n *testNode) Placement() *control.Placement { return nil }

// Plan is the last that a leader told on a link.
func (n *testNode) Plan() (p *control.Plan) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.told {
		if m.Plan != nil {
			p = m.Plan
		}
	}
	return p
}

// Proposal is the last change of demand that a leader told on a link.
func (n *testNode) Proposal() (p *control.Proposal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.told {
		if m.Proposal != nil {
			p = m.Proposal
		}
	}
	return p
}

func (n *testNode) Dial(name names.AgentName) (grpc.ClientConnInterface, error) {
	if o := n.world.node(string(name)); o != nil {
		return &testConn{o}, nil
	}
	return nil, status.Error(codes.Unavailable, "no such member")
}

func (n *testNode) Gone(_ context.Context, name names.AgentName) bool {
	o := n.world.node(string(name))
	return o == nil || o.ctx.Err() != nil && o.accepts.Add(-1) < 0
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

// freeze stops a node that is running a query, and reports whether it was.
func (n *testNode) freeze() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.running {
		return false
	}
	n.frozen = make(chan struct{})
	return true
}

func (n *testNode) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.frozen)
	n.frozen = nil
}

func (n *testNode) Link(s control.Stream[control.WorkerMessage, control.LeaderMessage],
	elections control.Elections) error {
	n.served.Add(1)
	defer n.served.Done()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	k := &testLink{out: make(chan *control.WorkerMessage, 1000)}
	n.linked.Add(1)
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.links = slices.DeleteFunc(n.links, func(o *testLink) bool { return o == k })
	}()
	ended := make(chan error, 1)
	go func() {
		var closed func(bool)
		for {
			m, err := s.Recv()
			if err != nil {
				if closed != nil {
					closed(err == io.EOF)
				}
				ended <- err
				return
			}
			n.thawed(ctx)
			n.mu.Lock()
			n.told = append(n.told, m)
			n.mu.Unlock()
			if closed == nil {
				k.from = m.From
				closed = n.leader.Linked(names.AgentName(m.From),
					func(e *control.Election) {
						k.out <- &control.WorkerMessage{
							Election: []*control.Election{e},
						}
					})
			}
			for _, e := range m.GetElection() {
				n.leader.Elect(e)
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
	m := &control.WorkerMessage{
		Member: proto.CloneOf(n.member), RemainingNs: []int64{int64(n.remaining())},
	}
	for _, a := range n.queue {
		m.Held = append(m.Held, &control.Held{
			Gateway: a.gateway, Sequence: a.sequence, Attempt: a.attempt, Model: a.model.Name,
			Version: a.model.Version, BatchSize: uint32(a.batch),
		})
	}
	if !slices.Contains(n.links, k) {
		n.links = append(n.links, k)
	}
	k.out <- m
}

// toLeader is the links of the leader, of which one may be about to end. n.mu is held.
func (n *testNode) toLeader() (links []*testLink) {
	for _, k := range n.links {
		if k.from == n.leader.Leadership().GetLeader() {
			links = append(links, k)
		}
	}
	return links
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
	execution := n.latency(a.batch)
	started := time.Now()
	n.served.Go(func() {
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
		n.ran.Add(1)
		n.queue = n.queue[1:]
		for _, reports := range n.toLeader() {
			c := &control.Completed{
				Gateway: a.gateway, Sequence: a.sequence, Attempt: a.attempt,
				RemainingNs: int64(n.remaining()), Model: a.model.Name, Version: a.model.Version,
				BatchSize: uint32(a.batch), QueueNs: int64(started.Sub(a.received)),
				ExecutionNs: int64(execution), LatencyNs: int64(time.Since(a.arrived)),
				Refused: refused, Bytes: a.bytes,
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

func (c *testConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string,
	_ ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.to.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	switch method {
	case control.Control_Link_FullMethodName:
		client, server := NewPipe[control.LeaderMessage, control.WorkerMessage](ctx)
		go func() { server.End(c.to.Link(server, c.to.leader)) }()
		return &testStream[control.LeaderMessage, control.WorkerMessage, *control.LeaderMessage,
			*control.WorkerMessage]{client: client}, nil
	}
	return nil, status.Error(codes.Unimplemented, method)
}

type message[M any] interface {
	*M
	proto.Message
}

// A testStream is a pipe as gRPC sees it.
type testStream[Up, Down any, PUp message[Up], PDown message[Down]] struct {
	client *PipeClient[Up, Down]
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
func (s *testStream[Up, Down, PUp, PDown]) CloseSend() error {
	return s.client.CloseSend()
}
func (s *testStream[Up, Down, PUp, PDown]) Context() context.Context { return s.client.Context() }

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
	g := &testGateway{
		world: w, id: id, queries: map[uint64]*testQuery{}, profiles: map[string]*control.Profile{},
		toSend: make(chan *control.GatewayMessage, 1000),
	}
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
	client, server := NewPipe[control.GatewayMessage, control.MatchMessage](ctx)
	go func() { server.End(n.leader.Match(server)) }()
	hello := &control.GatewayMessage{
		Hello: &control.GatewayHello{Gateway: g.id, Protocol: control.Spoken.Oldest},
	}
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
		Sequence: q.sequence, Model: "m", BatchSize: uint32(q.batch), Bytes: uint64(1000 * q.batch),
		WaitedNs:   int64(time.Since(q.arrived)),
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
					gateway: g.id, sequence: a.Sequence, attempt: a.Attempt,
					model: testModel("m", 0), batch: q.batch, arrived: q.arrived,
					bytes: uint64(1000 * q.batch),
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
		w.add("a", 1, func(b int) time.Duration { return time.Duration(2+b/10) * time.Millisecond },
			func(c *Config) { c.Record = record })
		w.add(
			"b", -1, func(b int) time.Duration { return time.Duration(2+b/10) * time.Millisecond })
		w.add(
			"c", -1, func(b int) time.Duration { return time.Duration(2+b/10) * time.Millisecond })
		soon(t, time.Second, "all follow a",
			func() bool { return w.leading() != nil && slices.Equal(epochs(w), []uint64{1}) })
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
				t.Errorf("%d queries answered, %d offered again, want 1000 and 0", g.answered,
					len(g.offered))
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
		} else if got := table.Mean(50); got < 6*time.Millisecond || got > 8*time.Millisecond ||
			table.Origin() != profiles.Learned {
			t.Errorf("learned %v at batch size 50 (%s), want about 7ms, learned", got,
				table.Origin())
		}
		time.Sleep(10 * time.Millisecond) // for the last completions
		leads := w.node("a").leader
		s := &control.FleetStatus{}
		leads.Status(s)
		if len(s.Agents) != 3 || len(s.Models) != 1 || s.Models[0].Answered != 2000 ||
			s.Models[0].GetWithinQos() < 0.99 || s.Rate < 150 || s.FluidLimit < 300 ||
			len(s.Decisions) != leader.DecisionsKept ||
			!strings.Contains(s.Decisions[0], " agent=") {
			n := len(s.Decisions)
			s.Decisions = nil
			t.Errorf("status is %v with %d decisions", s, n)
		}
		var ahead time.Duration
		term := leads.currentTerm()
		term.callInLoop(func() { ahead = term.state.Ahead() })
		if ahead < 150*time.Microsecond || ahead > 700*time.Microsecond {
			t.Errorf("decides %v ahead, want two ways of %v and a little", ahead, w.oneWay)
		}
		w.stop()
		f, err := os.Open(record)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if replayed, err := leader.Replay(f); err != nil || replayed.Decisions < 2000 {
			t.Errorf("replayed %+v, %v", replayed, err)
		}
		book := profiles.NewBook(nil)
		if err := book.Load(leads.bookPath()); err != nil || len(book.Keys()) != 1 {
			t.Errorf("kept %v, %v, want one profile", book.Keys(), err)
		}
	})
}

func linear(b int) time.Duration {
	return 2*time.Millisecond + time.Duration(b)*100*time.Microsecond
}

// load submits queries at a steady rate for a while.
func (g *testGateway) load(rate int, during time.Duration) {
	for start := time.Now(); time.Since(start) < during; time.Sleep(time.Second /
		time.Duration(rate)) {
		g.submit(1 + int(g.sequence*37%100))
	}
}

// allAnswered checks that every query got its answer.
func (g *testGateway) allAnswered(t *testing.T) {
	t.Helper()
	soon(t, 3*time.Second, "every query has its answer", func() bool { return g.open() == 0 })
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.answered != int(g.sequence) {
		t.Errorf("%d of %d queries answered, %d rejected, the first %v", g.answered, g.sequence,
			len(g.rejected), g.rejected[:min(1, len(g.rejected))])
	}
}

func epochs(w *leaderWorld) (all []uint64) {
	for _, n := range w.all() {
		if e := n.leader.Leadership().GetEpoch(); n.ctx.Err() == nil && !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all
}

// TestLeaderFails kills leaders while they work: the announced successor takes over, and no query
// is lost or takes much longer.
func TestLeaderFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		for i, name := range []string{"a", "b", "c", "d"} {
			w.add(name, 4-i, linear)
			time.Sleep(20 * time.Millisecond)
		}
		soon(t, time.Second, "a leads all",
			func() bool { return w.leading() == w.node("a") && len(epochs(w)) == 1 })
		g := w.gateway(7)
		defer g.close()
		g.load(200, time.Second)
		for _, gone := range []string{"a", "b"} {
			next := string(gone[0] + 1)
			soon(t, time.Second, next+" is to be next",
				func() bool { return w.node("d").leader.Leadership().GetSuccessor() == next })
			g.load(200, 300*time.Millisecond)
			w.kill(w.node(gone), false)
			killed := time.Now()
			g.load(200, time.Second)
			if leads := w.leading(); leads != w.node(next) {
				t.Fatalf("%v after the leader's end %v leads, want %s", time.Since(killed), leads,
					next)
			}
		}
		g.allAnswered(t)
		if n := countSlower(g.latency, 250*time.Millisecond); n > 0 {
			t.Errorf("%d of %d queries took longer than 250ms", n, g.answered)
		}
	})
}

// TestLeaderSupersedesPlan: a plan that is in force is not shown as in force once another agent
// leads, until that one has planned.
func TestLeaderSupersedesPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		for _, name := range []string{"a", "b", "c"} {
			w.add(name, 1, linear)
			time.Sleep(20 * time.Millisecond)
		}
		soon(t, time.Second, "a leads all",
			func() bool { return w.leading() == w.node("a") && len(epochs(w)) == 1 })
		told := &control.Plan{Number: 7, State: "in force", Change: true, Approve: 7,
			Reason: "the fleet is the best"}
		for _, n := range w.all() {
			n.mu.Lock()
			n.told = append(n.told, &control.LeaderMessage{Plan: told})
			n.mu.Unlock()
		}
		w.kill(w.node("a"), false)
		soon(t, 5*time.Second, "another leads",
			func() bool { return w.leading() != nil && w.leading() != w.node("a") })
		for _, name := range []string{"b", "c"} {
			soon(t, time.Second, name+" is told that the plan is superseded", func() bool {
				p := w.node(name).Plan()
				return p.GetState() == "superseded" && !p.GetChange() && p.GetApprove() == 0 &&
					strings.Contains(p.GetReason(), told.Reason)
			})
		}
		if told.State != "in force" {
			t.Error("the message of the leader before was changed")
		}
	})
}

// TestLeaderLearnsNoTurmoil has answers come late while a leader takes over: it does not learn
// from them how long a query's way is.
func TestLeaderLearnsNoTurmoil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		g := w.gateway(1)
		defer g.close()
		for range 60 {
			g.submit(10)
			soon(t, time.Second, "a is frozen while it runs a query", a.freeze)
			time.Sleep(10 * time.Millisecond)
			a.thaw()
			soon(t, time.Second, "the query is answered", func() bool { return g.open() == 0 })
		}
		learned := func() (ahead time.Duration) {
			term := a.leader.currentTerm()
			term.callInLoop(func() { ahead = term.state.Ahead() })
			return ahead
		}
		if ahead := learned(); ahead != 0 {
			t.Errorf("decides %v ahead, want 0, as nothing is known yet", ahead)
		}
		time.Sleep(leader.Turmoil)
		g.load(100, time.Second)
		if ahead := learned(); ahead < 150*time.Microsecond || ahead > 700*time.Microsecond {
			t.Errorf("decides %v ahead, want two ways of %v and a little", ahead, w.oneWay)
		}
	})
}

// TestLeaderFollowsLanes has lanes freeze, thaw, die and drain while queries come.
func TestLeaderFollowsLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		w.add("a", 1, linear)
		busiest := []*testNode{
			w.add("b", -1, linear), w.add("c", -1, linear), w.add("d", -1, linear),
		}
		soon(t, time.Second, "all follow a",
			func() bool { return w.leading() != nil && slices.Equal(epochs(w), []uint64{1}) })
		g := w.gateway(7)
		defer g.close()
		g.load(400, time.Second)
		slices.SortFunc(busiest,
			func(x, y *testNode) int { return int(y.ran.Load() - x.ran.Load()) })
		b, c, d := busiest[0], busiest[1], busiest[2]

		for range 8 {
			g.submit(50)
		}
		soon(t, 100*time.Millisecond, b.name+" is frozen while it runs a query", b.freeze)
		g.load(300, time.Second)
		slow, _, offered := g.outcome()
		if len(offered) == 0 || offered[0].Reason != match.LaneOverdue.String() {
			t.Errorf("offered again while %s is frozen: %v", b.name, offered)
		}
		b.thaw()
		time.Sleep(2500 * time.Millisecond) // it is asked what it holds now and then
		ran := b.ran.Load()
		g.load(400, time.Second)
		if b.ran.Load() < ran+20 {
			t.Errorf("after it thawed b ran %d queries, want its share", b.ran.Load()-ran)
		}
		g.outcome()
		w.kill(c, false)
		g.load(200, time.Second)
		if _, _, offered := g.outcome(); len(offered) > 3 {
			t.Errorf("%d queries offered again when c died, want those it held: %v", len(offered),
				offered)
		}

		d.mu.Lock()
		d.member.Draining = true
		for _, k := range d.toLeader() {
			k.out <- &control.WorkerMessage{Member: proto.CloneOf(d.member)}
		}
		d.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		ran = d.ran.Load()
		g.load(200, time.Second)
		if d.ran.Load() != ran {
			t.Errorf("draining, d was given %d queries", d.ran.Load()-ran)
		}
		g.allAnswered(t)
		if n := countSlower(slow, 250*time.Millisecond); n > 0 {
			t.Errorf("%d of %d queries took longer than 250ms while b was frozen", n, len(slow))
		}
	})
}

// TestLeaderKnowsSlowAgents has one of three like agents run slower than the others: it gets a
// profile of its own, and loses it when it has been as fast again for a minute.
func TestLeaderKnowsSlowAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a, b := w.add("a", 1, linear), w.add("b", -1, linear)
		c := w.add("c", -1, func(b int) time.Duration { return linear(b) * 2 })
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		g := w.gateway(7)
		defer g.close()
		g.load(250, 4*time.Second)
		s := &control.FleetStatus{}
		a.leader.Status(s)
		if f := s.Agents[2].Factor / s.Agents[1].Factor; f < 1.8 || f > 2.2 {
			t.Errorf("c is %.2f times as slow as b, want 2: %v", f, s.Agents)
		}
		if c.ran.Load() >= b.ran.Load()*9/10 {
			t.Errorf("the slow agent ran %d queries, the others %d and %d", c.ran.Load(),
				a.ran.Load(), b.ran.Load())
		}
		g.mu.Lock()
		if g.profiles["m/1 on box/cpu/1@c"] == nil {
			t.Errorf("gateways know profiles of %v, want one of c's own",
				slices.Sorted(maps.Keys(g.profiles)))
		}
		g.mu.Unlock()
		c.mu.Lock()
		c.latency = linear
		c.mu.Unlock()
		g.load(250, 5*time.Second)
		g.load(20, 65*time.Second)
		s = &control.FleetStatus{}
		a.leader.Status(s)
		if f := s.Agents[2].Factor; f < 0.95 || f > 1.05 || typeOf(a, "c") != "box/cpu/1" {
			t.Errorf("as fast as the others, c has the factor %v and counts as %s", f,
				typeOf(a, "c"))
		}
		g.allAnswered(t)
	})
}

// typeOf is what the leader takes a worker's lanes for.
func typeOf(leader *testNode, worker names.AgentName) (typ names.LaneType) {
	term := leader.leader.currentTerm()
	term.callInLoop(func() {
		for _, a := range term.state.Status().Agents {
			if a.Name == worker {
				typ = a.Type
			}
		}
	})
	return typ
}

// outcome returns what has become of the queries since it was last asked.
func (g *testGateway) outcome() (latency []time.Duration, rejected []*control.Reject,
	offered []*control.OfferAgain) {
	g.mu.Lock()
	defer g.mu.Unlock()
	latency, rejected, offered = g.latency, g.rejected, g.offered
	g.latency, g.rejected, g.offered = nil, nil, nil
	return latency, rejected, offered
}

func countSlower(latency []time.Duration, than time.Duration) (n int) {
	for _, l := range latency {
		if l > than {
			n++
		}
	}
	return n
}

// TestLeaderOverloaded offers three times what the lanes can do: the excess is refused
// at once and says when to come again, most of the rest is in time, and soon after all is well.
func TestLeaderOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		w.add("a", 1, fixed(10*time.Millisecond))
		w.add("b", -1, fixed(10*time.Millisecond))
		soon(t, time.Second, "all follow a",
			func() bool { return w.leading() != nil && slices.Equal(epochs(w), []uint64{1}) })
		g := w.gateway(7)
		defer g.close()
		g.load(150, 2*time.Second)
		g.outcome()
		const during = 5 * time.Second
		g.load(600, during)
		latency, rejected, _ := g.outcome()
		onTime := len(latency) - countSlower(latency, 100*time.Millisecond)
		if rate := float64(onTime) / during.Seconds(); rate < 160 {
			t.Errorf("on time are %.0f queries/s, want at least 80 %% of 200", rate)
		}
		if len(rejected) < 1500 {
			t.Errorf("%d queries refused, want most of the excess of 2000", len(rejected))
		}
		dropped := 0
		for _, r := range rejected {
			switch {
			case r.Reason == match.DeadlinePassed.String():
				dropped++
			case r.RetryAfterNs <= 0 || r.Reason != match.Overloaded.String():
				t.Fatalf("refused: %v, want overloaded with a time to come again", r)
			}
		}
		if dropped > 300 {
			t.Errorf("%d queries waited until their deadline, want few", dropped)
		}
		time.Sleep(2 * time.Second)
		g.outcome()
		g.load(150, 2*time.Second)
		time.Sleep(100 * time.Millisecond)
		latency, rejected, _ = g.outcome()
		if late := countSlower(latency, 100*time.Millisecond); len(rejected) > 0 || late > 0 ||
			g.open() > 0 {
			t.Errorf("2s later %d queries are refused, %d late, %d open", len(rejected), late,
				g.open())
		}
	})
}

// A goneStream is that of a gateway which has gone before its hello is read.
type goneStream struct {
	ctx   context.Context
	hello *control.GatewayMessage // nil once it is read
}

func (s *goneStream) Send(*control.MatchMessage) error { return s.ctx.Err() }
func (s *goneStream) Context() context.Context         { return s.ctx }
func (s *goneStream) Recv() (*control.GatewayMessage, error) {
	m := s.hello
	if s.hello = nil; m == nil {
		return nil, s.ctx.Err()
	}
	return m, nil
}

// TestLeaderForgetsGateway has a gateway go while it connects: nothing is left of it and its
// queries.
func TestLeaderForgetsGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, fixed(10*time.Millisecond))
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.leader.Match(&goneStream{ctx, &control.GatewayMessage{
			Hello:  &control.GatewayHello{Gateway: 7, Protocol: control.Spoken.Oldest},
			Submit: []*control.Submit{{Sequence: 1, Model: "no lane's", BatchSize: 1}},
		}}); err == nil {
			t.Error("the stream of a gateway that has gone ends without an error")
		}
		synctest.Wait()
		left := 0
		term := a.leader.currentTerm()
		term.callInLoop(func() { left = len(term.gateways) + term.state.Sizes()["gateways"] })
		if left > 0 {
			t.Errorf("the leader writes to %d gateways, want none", left)
		}
	})
}

// TestLeaderBeats counts the messages that a gateway gets from its leader: few while it has no
// queries, and one each 50 ms or less otherwise.
func TestLeaderBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 1, fixed(10*time.Millisecond))
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		end, server := NewPipe[control.GatewayMessage, control.MatchMessage](ctx)
		go func() { server.End(a.leader.Match(server)) }()
		if err := end.Send(&control.GatewayMessage{Hello: &control.GatewayHello{
			Gateway: 7, Protocol: control.Spoken.Oldest,
		}}); err != nil {
			t.Fatal(err)
		}
		var got atomic.Int64
		go func() {
			for _, err := end.Recv(); err == nil; _, err = end.Recv() {
				got.Add(1)
			}
		}()
		time.Sleep(2 * time.Second) // of virtual time
		count := func(what string, least, most int64) {
			t.Helper()
			got.Store(0)
			time.Sleep(2 * time.Second)
			if n := got.Load(); n < least || n > most {
				t.Errorf("%s: %d messages in 2 s, want %d to %d", what, n, least, most)
			}
		}
		count("a gateway without queries", 9, 11)
		// a query for which there is no lane
		if err := end.Send(&control.GatewayMessage{Submit: []*control.Submit{{
			Sequence: 4, Model: "m", BatchSize: 1, Attempts: 1, Agent: "who is not there yet",
		}}}); err != nil {
			t.Fatal(err)
		}
		count("a gateway that has just asked", 20, 60)
		cancel()
		synctest.Wait()
	})
}

// TestLeaderResigns hands the leadership over without a pause.
func TestLeaderResigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a, b := w.add("a", 2, linear), w.add("b", 1, linear)
		soon(t, time.Second, "b follows a",
			func() bool { return w.leading() == a && a.leader.Leadership().GetSuccessor() == "b" })
		g := w.gateway(7)
		defer g.close()
		g.load(200, time.Second)
		resigned := make(chan struct{})
		go func() {
			defer close(resigned)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			a.leader.Resign(ctx)
		}()
		g.load(200, time.Second)
		select {
		case <-resigned:
		default:
			t.Error("a has not resigned after 1s")
		}
		if w.leading() != b || a.leader.Leadership().GetLeader() != "b" {
			t.Errorf("%v leads, and a follows %q, want b", w.leading(),
				a.leader.Leadership().GetLeader())
		}
		g.mu.Lock()
		last := g.refused[len(g.refused)-1]
		g.mu.Unlock()
		var told *control.Leadership
		for _, d := range status.Convert(last).Details() {
			told, _ = d.(*control.Leadership)
		}
		if status.Code(last) != codes.FailedPrecondition || told.GetLeader() != "b" {
			t.Errorf(
				"the gateway's stream ended with %v, %v, want FAILED_PRECONDITION and who leads",
				last, told)
		}
		g.allAnswered(t)
		if n := countSlower(g.latency, 100*time.Millisecond); n > 0 {
			t.Errorf("%d of %d queries were late", n, g.answered)
		}
	})
}

// TestLeaderLinksOnce has members join a leader: it opens one link to each.
func TestLeaderLinksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a := w.add("a", 2, linear)
		soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
		b := w.add("b", 1, linear)
		soon(t, time.Second, "b follows a",
			func() bool { return a.leader.Leadership().GetSuccessor() == "b" })
		time.Sleep(time.Second)
		if n := b.linked.Load(); n != 1 {
			t.Errorf("a has opened %d links to b, want 1", n)
		}
	})
}

// TestLeaderGone kills a leader: its successor, whose epoch is on the disk by then, leads as soon
// as the dead one's address refuses connections, or 10 ms later, when it claims again, if the other
// follower's link to the dead one breaks only after it has read the first claim.
func TestLeaderGone(t *testing.T) {
	for _, tt := range []struct {
		accepts int32
		within  time.Duration
	}{{0, 12 * time.Millisecond}, {2, 30 * time.Millisecond}, {100, 80 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			w := newLeaderWorld(t)
			defer w.stop()
			a, b, c := w.add("a", 3, linear), w.add("b", 2, linear), w.add("c", 1, linear)
			soon(t, time.Second, "b and c follow a", func() bool {
				return b.leader.Leadership().GetSuccessor() == "b" &&
					c.leader.Leadership().GetSuccessor() == "b"
			})
			synctest.Wait()
			if epoch, err := readEpoch(
				b.leader.config.StateDir); epoch != a.leader.Leadership().GetEpoch()+1 ||
				err != nil {
				t.Errorf("the successor has epoch %d, %v on its disk, want the next", epoch, err)
			}
			a.accepts.Store(tt.accepts)
			w.kill(a, false)
			soon(t, tt.within, "c follows b",
				func() bool { return c.leader.Leadership().GetLeader() == "b" })
		})
	}
}

// TestLeaderLinkEnds: a follower takes the leader's link for broken unless it ended in order, or a
// newer one had come.
func TestLeaderLinkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newLeaderWorld(t)
		defer w.stop()
		a, b := w.add("a", 2, linear), w.add("b", 1, linear)
		soon(t, time.Second, "b follows a",
			func() bool { return w.leading() == a && a.leader.Leadership().GetSuccessor() == "b" })
		broken := func() bool {
			b.leader.mu.Lock()
			defer b.leader.mu.Unlock()
			// A leader that is only silent gets longer.
			return b.leader.claim.Leader == "" || time.Until(b.leader.next) < 150*time.Millisecond
		}
		link := func() func(bool) { return b.leader.Linked("a", func(*control.Election) {}) }
		replaced, newer := link(), link()
		if replaced(false); broken() {
			t.Error("broken, though a newer one is there")
		}
		if newer(true); broken() {
			t.Error("broken, though it ended in order")
		}
		if newer(false); broken() {
			t.Error("broken, though it had ended in order")
		}
		if link()(false); !broken() {
			t.Error("not broken, though it was the only one and did not end in order")
		}
	})
}

// TestLeaderRestarts keeps the epoch rising over restarts.
func TestLeaderRestarts(t *testing.T) {
	dir := t.TempDir()
	for want := uint64(1); want <= 3; want++ {
		synctest.Test(t, func(t *testing.T) {
			w := newLeaderWorld(t)
			defer w.stop()
			a := w.add("a", 1, linear, func(c *Config) { c.StateDir = dir })
			soon(t, time.Second, "a leads", func() bool { return w.leading() == a })
			if got := a.leader.Leadership(); got.Epoch != want || got.Leader != "a" ||
				got.Successor != "" {
				t.Errorf("leadership is %v, want epoch %d of a", got, want)
			}
		})
	}
	if err := os.WriteFile(epochPath(dir), []byte("seven\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{
		StateDir: dir, Fleet: &testNode{name: "a"}, Log: slog.New(slog.DiscardHandler),
		Leadership: &members.LeadershipWatch{},
	})
	for _, want := range []string{epochPath(dir), `"seven\n"`, "muster status", "or remove it"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a damaged epoch gives %v, want an error that says %s", err, want)
		}
	}
}

// TestLeaderKeepsHighestEpoch writes an epoch late, after a higher one.
func TestLeaderKeepsHighestEpoch(t *testing.T) {
	l := &Leader{config: Config{StateDir: t.TempDir()}}
	for _, epoch := range []uint64{9, 5} {
		l.do(&election.Action{Kind: election.Persist, Claim: election.Claim{Epoch: epoch}})
		l.running.Wait()
	}
	if got, err := readEpoch(l.config.StateDir); got != 9 || err != nil {
		t.Errorf("kept epoch %d, %v, want 9", got, err)
	}
	for _, epoch := range []uint64{1 << 62, 10} { // a lie, and when it was found out
		if l.keepEpoch(epoch); l.kept != epoch {
			t.Errorf("kept is epoch %d, want %d", l.kept, epoch)
		}
	}
	if got, err := readEpoch(l.config.StateDir); got != 10 || err != nil {
		t.Errorf("kept epoch %d, %v, want 10", got, err)
	}
}

// TestImpossibleEpoch: an epoch that a lie has left, with which an agent could never
// be elected, is named.
func TestImpossibleEpoch(t *testing.T) {
	dir := t.TempDir()
	for epoch, want := range map[string]string{
		"18446744073709551615": "epoch holds \"18446744073709551615\\n\", want a number below 2^63",
		"9223372036854775808":  "want a number below 2^63",
		"9223372036854775807":  "",
		"one":                  "want a number below 2^63",
	} {
		if err := os.WriteFile(epochPath(dir), []byte(epoch+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readEpoch(dir); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", epoch, err, want)
		}
	}
}

// TestLeaderCannotKeepEpoch: a state directory that cannot be written is told once.
func TestLeaderCannotKeepEpoch(t *testing.T) {
	target, dir := filepath.Join(t.TempDir(), "target"), filepath.Join(t.TempDir(), "state")
	if err := os.Symlink(target, dir); err != nil { // to nowhere
		t.Fatal(err)
	}
	lines := 0
	l := &Leader{config: Config{StateDir: dir},
		log: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			t.Logf("%s", p)
			lines++
			return len(p), nil
		}), nil))}
	persist := func(epoch uint64) {
		l.do(&election.Action{Kind: election.Persist, Claim: election.Claim{Epoch: epoch}})
		l.running.Wait()
	}
	for epoch := range uint64(5) {
		persist(epoch + 1)
	}
	if lines != 1 {
		t.Errorf("logged %d times, want once", lines)
	}
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	persist(6)
	if got, err := readEpoch(dir); got != 6 || err != nil {
		t.Errorf("kept epoch %d, %v, want 6", got, err)
	}
}
