package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/gossip/gossiptest"
)

// A testFleet is a fleet of whole agents in virtual time, on a network in memory.
type testFleet struct {
	*testing.T
	dir     string // of the models
	gossip  *gossiptest.Network
	network *hosts
	agents  []*fleetAgent
}

// testInFleet runs test in a bubble of virtual time and ends what it started.
func testInFleet(t *testing.T, test func(*testFleet)) {
	dir, err := ncfDir()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f := &testFleet{T: t, dir: dir, gossip: gossiptest.NewNetwork(1), network: newHosts()}
		defer f.end()
		test(f)
	})
}

func (f *testFleet) end() {
	f.heal()
	var ending sync.WaitGroup
	for _, a := range f.agents {
		ending.Go(func() {
			if err := a.stop(); err != nil {
				f.Errorf("agent %s: %v", a.name, err)
			}
		})
	}
	ending.Wait()
	time.Sleep(10 * time.Second) // what memberlist has not waited for ends by its timeouts
	if f.Failed() {
		for _, a := range f.agents {
			f.Logf("log of %s:\n%s", a.host, a.log)
		}
	}
}

// A fleetAgent is an agent of a testFleet.
type fleetAgent struct {
	*Agent
	fleet *testFleet
	host  string // its IP address
	log   *logBuffer
	conn  *grpc.ClientConn // to it
	oip   inference.GRPCInferenceServiceClient
	ctl   control.ControlClient
	stop  func() error // drains it, and returns what Run returned
	drain context.CancelFunc
}

// start runs an agent on a host of its own, 10.0.0.1 and so on, that
// joins by the first one's address. It plays an r5n.large.
func (f *testFleet) start(changes ...func(*Agent)) *fleetAgent {
	f.Helper()
	return f.startOn(fmt.Sprintf("10.0.0.%d", len(f.agents)+1), changes...)
}

func (f *testFleet) startOn(host string, changes ...func(*Agent)) *fleetAgent {
	f.Helper()
	config := DefaultConfig()
	config.HTTPAddress, config.GRPCAddress = host+":8000", host+":8001"
	config.MetricsAddress, config.GossipAddress = host+":8002", host+":7946"
	config.Insecure = true
	config.ModelDir, config.StateDir = f.dir, f.TempDir()
	config.Executor, config.Profile, config.InstanceType = "emulated", "shipped", "r5n.large"
	config.Cores = 1
	if len(f.agents) > 0 {
		config.Join = []string{"10.0.0.1:7946"}
	}
	a := &fleetAgent{fleet: f, host: host, log: &logBuffer{}}
	var err error
	a.Agent, err = New(config, slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		f.Fatal(err)
	}
	a.Agent.network = network{
		listen: func(_, address string) (net.Listener, error) { return f.network.listen(address) },
		dial:   func(ctx context.Context, to string) (net.Conn, error) { return f.network.dial(ctx, host, to) },
		gossip: func(c *gossip.Config) { c.Transport = f.gossip.Listen(host + ":7946") },
	}
	for _, change := range changes {
		change(a.Agent)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	a.drain = cancel
	a.stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		_ = a.conn.Close() // a test may have closed it
		return err
	})
	client := network{dial: func(ctx context.Context, to string) (net.Conn, error) { return f.network.dial(ctx, "client", to) }}
	if a.conn, err = client.connect(host + ":8001"); err != nil {
		f.Fatal(err)
	}
	a.oip, a.ctl = inference.NewGRPCInferenceServiceClient(a.conn), control.NewControlClient(a.conn)
	f.agents = append(f.agents, a)
	return a
}

// kill ends a's connections without a goodbye: nobody hears of it any more.
// (What it runs goes on, unheard, to the end of the test.)
func (f *testFleet) kill(a *fleetAgent) {
	f.network.kill(a.host)
	f.partition([]*fleetAgent{a})
}

// partition parts the agents named from the others, and from each other's parts.
// Connections stay open and stall, as those of a frozen process do.
func (f *testFleet) partition(parts ...[]*fleetAgent) {
	var addresses [][]netip.AddrPort
	part := map[string]int{}
	for i, agents := range parts {
		addresses = append(addresses, nil)
		for _, a := range agents {
			addresses[i] = append(addresses[i], netip.MustParseAddrPort(a.host+":7946"))
			part[a.host] = i + 1
		}
	}
	f.gossip.Partition(addresses...)
	f.network.partition(part)
}

func (f *testFleet) heal() { f.partition() }

// eventually waits until good returns "", at most for limit, and then fails with
// what it returned.
func (f *testFleet) eventually(limit time.Duration, good func() string) {
	f.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		synctest.Wait()
		bad := good()
		if bad == "" {
			return
		}
		if time.Now().After(end) {
			f.Fatalf("after %v: %s", limit, bad)
		}
	}
}

// settled waits until every one of the agents sees exactly all of them, with their
// models.
func (f *testFleet) settled(agents ...*fleetAgent) {
	f.Helper()
	var want []string
	for _, a := range agents {
		want = append(want, a.name)
	}
	slices.Sort(want)
	f.eventually(time.Minute, func() string {
		for _, a := range agents {
			if a.roster == nil {
				return a.name + " has not started"
			}
			var got []string
			for _, m := range a.roster.view().Members {
				got = append(got, m.Name)
				if len(m.Models) == 0 {
					return fmt.Sprintf("%s sees no models at %s", a.name, m.Name)
				}
			}
			if !slices.Equal(got, want) {
				return fmt.Sprintf("%s sees %q, want %q", a.name, got, want)
			}
		}
		return ""
	})
}

// TestFleetForms: three agents join, see the same, and each answers for what
// all hold.
func TestFleetForms(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(), f.start(), f.start()}
		f.settled(agents...)
		for _, a := range agents {
			resp, err := a.oip.ModelMetadata(f.Context(), &inference.ModelMetadataRequest{Name: "ncf"})
			if err != nil || resp.GetPlatform() != "emulated" {
				f.Errorf("metadata of %s: %v, %v", a.host, resp, err)
			}
			m, err := a.ctl.Describe(f.Context(), &control.DescribeRequest{})
			if err != nil || m.GetName() != a.name || m.GetAddress() != a.host+":8001" || m.GetInstanceType() != "r5n.large" || m.GetPriceUsdPerHour() != 0.149 {
				f.Errorf("%s describes itself as %v, %v", a.host, m, err)
			}
		}
	})
}

// TestWatch: whoever watches sees an agent join, and leave.
func TestWatch(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a := f.start()
		f.settled(a)
		ctx, cancel := context.WithCancel(f.Context())
		defer cancel()
		stream, err := a.ctl.Watch(ctx, &control.WatchRequest{})
		if err != nil {
			f.Fatal(err)
		}
		next := func(what string, members int) {
			f.Helper()
			for {
				v, err := stream.Recv()
				if err != nil {
					f.Fatalf("watch: %v, want %s", err, what)
				}
				if len(v.GetMembers()) == members {
					return
				}
			}
		}
		next("one agent", 1)
		b := f.start()
		next("two agents", 2)
		f.settled(a, b)
		if err := b.stop(); err != nil {
			f.Error(err)
		}
		next("one agent again", 1)
		if !strings.Contains(a.log.String(), "agent left") {
			f.Errorf("log of the agent that stays: %s", a.log)
		}
	})
}

// send has each of the agents answer queries of 1.1 ms in turn, one every interval, and
// returns how many failed, by code and message.
func (f *testFleet) send(n int, interval time.Duration, agents ...*fleetAgent) map[string]int {
	f.Helper()
	var sent sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	for i := range n {
		sent.Go(func() {
			if _, err := agents[i%len(agents)].oip.ModelInfer(f.Context(), ncfRequest(100)); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[err.Error()]++
			}
		})
		time.Sleep(interval)
	}
	sent.Wait()
	return failed
}

// led waits until all of the agents follow the same leader, which it returns.
func (f *testFleet) led(agents ...*fleetAgent) (leader *fleetAgent) {
	f.Helper()
	f.eventually(20*time.Second, func() string {
		name := agents[0].leading.leadership().GetLeader()
		for _, a := range agents {
			if l := a.leading.leadership(); l.GetLeader() != name || name == "" {
				return fmt.Sprintf("%s follows %q, %s follows %q", agents[0].host, name, a.host, l.GetLeader())
			}
			if a.name == name {
				leader = a
			}
		}
		if leader == nil {
			return fmt.Sprintf("they follow %q, who is none of them", name)
		}
		return ""
	})
	return leader
}

// neverLeads keeps an agent from leading.
func neverLeads(a *Agent) { a.config.Leader = "never" }

// TestFleetAnswers: any agent has the fleet answer, with a leader or without one, and
// the work is shared.
func TestFleetAnswers(t *testing.T) {
	for name, changes := range map[string][]func(*Agent){"led": nil, "without a leader": {neverLeads}} {
		t.Run(name, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				agents := []*fleetAgent{f.start(changes...), f.start(changes...), f.start(changes...)}
				f.settled(agents...)
				if name == "led" {
					f.led(agents...)
				}
				if failed := f.send(300, time.Millisecond/2, agents...); len(failed) > 0 {
					f.Errorf("failed: %v", failed)
				}
				attempts, submits := 0.0, uint64(0)
				for _, a := range agents {
					ran := total(a.metrics.attempts)
					if ran < 30 {
						f.Errorf("%s had %v attempts of 300 queries", a.host, ran)
					}
					attempts += ran
					submits += a.gateway.Stats().Submits
				}
				if attempts < 300 || attempts > 310 {
					f.Errorf("%v attempts for 300 queries", attempts)
				}
				if led := name == "led"; led != (submits > 0) {
					f.Errorf("%d submits to a leader", submits)
				}
			})
		})
	}
}
