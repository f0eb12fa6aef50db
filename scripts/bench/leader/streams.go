package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// newStreamFleet makes a fleet that is offered a fifth of what it serves: on a busy machine
// messages come late, and lanes idle meanwhile.
func newStreamFleet(of size, rate float64) *fleet {
	f := newFleet(of, 4*rate)
	f.rate = rate
	return f
}

// A loadMaker plays the gateways and agents of a fleet, over real streams to the process that is
// measured. Agents say that they have run what they are assigned after the time that it takes.
type loadMaker struct {
	control.UnimplementedControlServer
	f        *fleet
	agents   map[string]int // by address
	links    []chan *control.WorkerMessage
	linked   atomic.Int64
	gateways []*madeGateway
	answered atomic.Int64
}

type madeGateway struct {
	id       uint64
	stream   control.Control_MatchClient
	mu       sync.Mutex
	sequence uint64
	asked    map[uint64]*control.Submit
	cancel   []uint64
}

// listen makes an address for each agent.
func (m *loadMaker) listen() (addresses []string, err error) {
	server := grpc.NewServer(append(oip.ServerOptions(1<<20),
		grpc.Creds(direct.Credentials(insecure.NewCredentials())))...)
	control.RegisterControlServer(server, m)
	m.agents = map[string]int{}
	for i := range m.f.lanes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		m.agents[l.Addr().String()] = i
		m.links = append(m.links, make(chan *control.WorkerMessage, 1024))
		addresses = append(addresses, l.Addr().String())
		go server.Serve(l) // it ends with the process
	}
	return addresses, nil
}

// Link is an agent's end of the leader's stream.
func (m *loadMaker) Link(s control.Control_LinkServer) error {
	from, _ := peer.FromContext(s.Context())
	agent := m.agents[from.LocalAddr.String()]
	if _, err := s.Recv(); err != nil {
		return err
	}
	if err := s.Send(&control.WorkerMessage{
		Member: m.f.described(agent, from.LocalAddr.String()), RemainingNs: []int64{0},
	}); err != nil {
		return err
	}
	m.linked.Add(1)
	go func() {
		for {
			in, err := s.Recv()
			if err != nil {
				return
			}
			for _, e := range in.GetElection() {
				if election.MessageKind(e.GetKind()) == election.Heartbeat {
					m.links[agent] <- &control.WorkerMessage{Election: []*control.Election{{
						From: string(nameOf(agent)), Kind: uint32(election.Ack),
						Epoch: e.GetEpoch(), Rank: e.GetRank(), Leader: e.GetLeader(),
					}}}
				}
			}
		}
	}()
	for {
		select {
		case w := <-m.links[agent]:
			if err := s.Send(w); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// connect opens the gateways' streams.
func (m *loadMaker) connect(address string) error {
	for i := range m.f.gateways {
		conn, err := dial(address)
		if err != nil {
			return err
		}
		g := &madeGateway{id: uint64(i + 1), asked: map[uint64]*control.Submit{}}
		if g.stream, err = control.NewControlClient(conn).Match(context.Background()); err != nil {
			return err
		}
		if err := g.stream.Send(&control.GatewayMessage{Hello: &control.GatewayHello{
			Gateway: g.id, Protocol: control.Spoken.Oldest, NewestProtocol: control.Spoken.Newest,
			Agent: string(nameOf(i % m.f.lanes)),
		}}); err != nil {
			_, err = g.stream.Recv() // says why the stream has ended
			return err
		}
		m.gateways = append(m.gateways, g)
		go m.receive(g)
	}
	return nil
}

// receive has the agents run what the leader assigns.
func (m *loadMaker) receive(g *madeGateway) {
	for {
		in, err := g.stream.Recv()
		if err != nil {
			return
		}
		for _, a := range in.GetAssign() {
			var agent int
			if _, err := fmt.Sscanf(a.Agent, "agent%d", &agent); err != nil {
				continue
			}
			wait := time.Duration(a.WaitNs + a.ExecutionNs)
			time.AfterFunc(wait, func() { m.complete(g, agent, a) })
		}
	}
}

func (m *loadMaker) complete(g *madeGateway, agent int, a *control.Assign) {
	g.mu.Lock()
	q := g.asked[a.Sequence]
	delete(g.asked, a.Sequence)
	g.cancel = append(g.cancel, a.Sequence)
	g.mu.Unlock()
	if q == nil {
		return
	}
	m.answered.Add(1)
	m.links[agent] <- &control.WorkerMessage{Completed: []*control.Completed{{
		Gateway: g.id, Sequence: a.Sequence, Attempt: a.Attempt, Model: q.Model, Version: 1,
		BatchSize: q.BatchSize, ExecutionNs: a.ExecutionNs, QueueNs: 1000, ReceiveNs: 1000,
		LatencyNs: a.WaitNs + a.ExecutionNs, Bytes: 100,
	}}}
}

// send has gateways send messages of many submits for a while, at the fleet's rate.
func (m *loadMaker) send(during time.Duration) error {
	random := rand.New(rand.NewPCG(1, 2))
	at, end := time.Now(), time.Now().Add(during)
	for at.Before(end) {
		at = at.Add(time.Duration(random.ExpFloat64() * together / m.f.rate * 1e9))
		time.Sleep(time.Until(at))
		g := m.gateways[random.IntN(len(m.gateways))]
		out := &control.GatewayMessage{}
		g.mu.Lock()
		out.Cancel, g.cancel = g.cancel, nil
		for range together {
			g.sequence += 4
			q := &control.Submit{
				Sequence: g.sequence, Model: modelID(random.IntN(m.f.models)).Name,
				BatchSize: uint32(1 + random.IntN(maxBatch)), Bytes: 100,
				TimeLeftNs: int64(time.Minute), Splits: true,
			}
			g.asked[q.Sequence] = q
			out.Submit = append(out.Submit, q)
		}
		g.mu.Unlock()
		if err := g.stream.Send(out); err != nil {
			return fmt.Errorf("send a gateway's message: %w", err)
		}
	}
	return nil
}

// A cost is what a process takes in CPU time: for a query in us, by round, beside what it takes
// without queries, as a share of a core; and the share of the queries that were answered meanwhile.
type cost struct {
	us       []float64
	idle     float64
	answered float64
}

// measureStreams measures a process: a leader with its streams, or the bare relay. What it takes
// without queries (heartbeats) is measured first, and does not count for queries.
func measureStreams(f *fleet, what string, rounds int, during time.Duration,
	profile string) (c *cost, err error) {
	m := &loadMaker{f: f}
	agents, err := m.listen()
	if err != nil {
		return nil, err
	}
	said, err := json.Marshal(served{f.gateways, f.lanes, f.models, f.rate, agents, profile})
	if err != nil {
		return nil, err
	}
	p := exec.Command(os.Args[0], what)
	p.Stdin, p.Stderr, p.SysProcAttr = strings.NewReader(string(said)), os.Stderr,
		harness.ChildAttributes()
	p.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait() // its error says that it was stopped
	}()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", what, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	for m.linked.Load() < int64(f.lanes) {
		time.Sleep(100 * time.Millisecond)
	}
	if err := m.connect(strings.TrimSpace(address)); err != nil {
		return nil, err
	}
	time.Sleep(during) // links that served the election are opened again
	all := []*harness.Processes{{What: what, PIDs: []int{p.Process.Pid}}}
	used, err := harness.CPUTimesDuring(all, func() error { time.Sleep(during); return nil })
	if err != nil {
		return nil, err
	}
	idle := used[0]
	c = &cost{idle: idle.Seconds() / during.Seconds(), answered: 1}
	if err := m.send(during); err != nil { // buffers grow, and the leader learns
		return nil, err
	}
	for range rounds {
		from := m.answered.Load()
		used, err := harness.CPUTimesDuring(all, func() error { return m.send(during) })
		if err != nil {
			return nil, err
		}
		n := float64(m.answered.Load() - from)
		c.us = append(c.us, harness.Microseconds(used[0]-idle)/max(1, n))
		c.answered = min(c.answered, n/(f.rate*during.Seconds()))
	}
	return c, nil
}
