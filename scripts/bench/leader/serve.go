package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/leader/election"
	"github.com/muster-serve/muster/profiles"
)

// A served is what a process that is measured is told: the fleet, and where its agents listen.
type served struct {
	Gateways, Lanes, Models int
	Rate                    float64
	Agents                  []string
	Profile                 string // file for a CPU profile; "": none
}

const ownType = "r5n.large" // the instance type of all agents

// serveMain runs a leader, or a bare relay, of the fleet that stdin names. It prints its address.
func serveMain(bare bool) error {
	var s served
	if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&s); err != nil {
		return err
	}
	f := newStreamFleet(size{s.Gateways, s.Lanes, s.Models}, s.Rate)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var serve control.ControlServer
	if bare {
		serve, err = newRelay(s.Agents)
	} else {
		serve, err = newLeading(f, s.Agents)
	}
	if err != nil {
		return err
	}
	server := grpc.NewServer(append(oip.ServerOptions(1<<20),
		grpc.Creds(direct.Credentials(insecure.NewCredentials())))...)
	control.RegisterControlServer(server, serve)
	if s.Profile != "" {
		out, err := os.Create(s.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		server.Stop()
	}()
	fmt.Println(l.Addr())
	return server.Serve(l)
}

func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address, append(oip.DialOptions(),
		grpc.WithTransportCredentials(direct.Credentials(insecure.NewCredentials())))...)
}

// A relay answers the submits of gateways with assignments to the agents in turn, and reads what
// agents say: the same messages as those of a leader, without a decision.
type relay struct {
	control.UnimplementedControlServer
	mu   sync.Mutex
	next int
	all  int
}

func newRelay(agents []string) (*relay, error) {
	r := &relay{all: len(agents)}
	for _, address := range agents {
		conn, err := dial(address)
		if err != nil {
			return nil, err
		}
		s, err := control.NewControlClient(conn).Link(context.Background())
		if err != nil {
			return nil, err
		}
		if err := s.Send(&control.LeaderMessage{From: "relay"}); err != nil {
			return nil, err
		}
		go func() {
			for {
				if _, err := s.Recv(); err != nil {
					return
				}
			}
		}()
	}
	return r, nil
}

func (r *relay) Match(s control.Control_MatchServer) error {
	received := uint64(0)
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		out := &control.MatchMessage{}
		for _, q := range m.GetSubmit() {
			received++
			r.mu.Lock()
			agent := r.next % r.all
			r.next++
			r.mu.Unlock()
			waited := int64(1000)
			out.Assign = append(out.Assign, &control.Assign{
				Sequence: q.Sequence, Attempt: 1, Agent: string(nameOf(agent)),
				ExecutionNs: int64(time.Millisecond), WaitedNs: &waited,
			})
		}
		if out.Received = received; len(out.Assign) > 0 {
			if err := s.Send(out); err != nil {
				return err
			}
		}
	}
}

// A leading is an agent's leading half, in a fleet of agents that are elsewhere.
type leading struct {
	control.UnimplementedControlServer
	leader *lead.Leader
	watch  members.LeadershipWatch
	news   members.Broadcast
	view   []*control.Member
	conns  map[names.AgentName]*grpc.ClientConn
}

func newLeading(f *fleet, agents []string) (*leading, error) {
	l := &leading{conns: map[names.AgentName]*grpc.ClientConn{}}
	for i, address := range agents {
		conn, err := dial(address)
		if err != nil {
			return nil, err
		}
		l.conns[nameOf(i)] = conn
		l.view = append(l.view, f.described(i, address))
	}
	library, err := f.library()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-leader-")
	if err != nil {
		return nil, err
	}
	l.leader, err = lead.New(lead.Config{
		Role: election.Must, Rank: election.RankOf(election.Must, false, 1), StateDir: dir,
		Catalogue: profiles.DefaultCatalogue(), Library: library, Counts: noCounts{}, Fleet: l,
		Registry: prometheus.NewRegistry(), Leadership: &l.watch,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	go l.leader.Run(context.Background()) // it never ends
	for !l.leader.Leads() {
		time.Sleep(10 * time.Millisecond)
	}
	return l, nil
}

func (l *leading) Match(s control.Control_MatchServer) error { return l.leader.Match(s) }

func (l *leading) Self() names.AgentName { return "leader" }

func (l *leading) View() *control.View {
	return &control.View{Leadership: l.watch.Leadership(), Members: l.view}
}

func (l *leading) Changed() <-chan struct{} { return l.news.Next() }

func (*leading) Plan() *control.Plan { return nil }

func (*leading) Proposal() *control.Proposal { return nil }

func (*leading) Placement() *control.Placement { return nil }

func (l *leading) Dial(name names.AgentName) (grpc.ClientConnInterface, error) {
	if c := l.conns[name]; c != nil {
		return c, nil
	}
	return nil, errors.New("no such agent")
}

func (*leading) Gone(context.Context, names.AgentName) bool { return false }

type noCounts struct{}

func (noCounts) Arrived(string, int64)                      {}
func (noCounts) CountFailed(string, int64, string, uint64)  {}
func (noCounts) CountMissed(string, lateness.Cause, uint64) {}

// described is an agent as its description has it.
func (f *fleet) described(agent int, address string) *control.Member {
	m := &control.Member{
		Name: string(nameOf(agent)), Address: address, Protocol: control.Spoken.Oldest,
		NewestProtocol: control.Spoken.Newest, InstanceType: ownType, Provider: "cpu",
		Executor: "emulated", Lanes: 1, Cores: 1, Role: election.Never.String(), Ready: true,
	}
	for _, k := range f.held[agent] {
		m.Models = append(m.Models, &control.Model{
			Name: modelID(k).Name, Version: 1, Newest: true, QosTargetNs: int64(f.target()),
			QosPercentile: 0.99, DeadlineNs: int64(time.Minute), LargestBatchSize: maxBatch,
		})
	}
	return m
}

// library has the latencies of all models on ownType.
func (f *fleet) library() (*profiles.Library, error) {
	var infos []profiles.ModelInfo
	var tables []*profiles.Table
	for model := range f.models {
		l := latency{f.base}
		knot := func(batch int) profiles.Knot {
			d := l.Mean(batch)
			return profiles.Knot{BatchSize: batch, Mean: d, P50: d, P90: d, P99: d}
		}
		name := modelID(model).Name
		t, err := profiles.NewTable(
			profiles.Key{Model: name, InstanceType: ownType, Provider: "cpu"},
			profiles.Measured, "bench", []profiles.Knot{knot(1), knot(maxBatch)})
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
		infos = append(infos, profiles.ModelInfo{
			Name: name, QoSTarget: f.target(), LargestBatchSize: maxBatch,
		})
	}
	return profiles.NewLibrary("bench", "scripts/bench/leader", infos, tables)
}
