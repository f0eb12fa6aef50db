package agent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/gossip/gossiptest"
)

// A testFleet is a fleet of whole agents in virtual time on an in-memory network.
type testFleet struct {
	*testing.T
	dir     string // the model repository
	gossip  *gossiptest.Network
	network *hosts
	agents  []*fleetAgent
	// credentials are used by clients; nil: without TLS.
	credentials credentials.TransportCredentials
}

// testInFleet runs test in a bubble of virtual time, and stops the agents that it has started.
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
				f.Errorf("agent %s: %v", a.AgentName(), err)
			}
		})
	}
	ending.Wait()
	time.Sleep(10 * time.Second) // memberlist's last goroutines end by their timeouts
	if f.Failed() {
		for _, a := range f.agents {
			f.Logf("log of %s:\n%s", a.host, a.log)
		}
	}
}

// A fleetAgent is an agent of a testFleet.
type fleetAgent struct {
	Inside
	fleet *testFleet
	host  string // its IP address
	wire  *gossiptest.Transport
	log   *logBuffer
	conn  *grpc.ClientConn // to it
	oip   inference.GRPCInferenceServiceClient
	ctl   control.ControlClient
	stop  func() error // drains the agent, and returns Run's error
	drain context.CancelFunc
}

// start runs an agent on a host of its own, 10.0.0.1 and so on, which joins the first agent. It
// emulates an r5n.large.
func (f *testFleet) start(changes ...func(Inside)) *fleetAgent {
	f.Helper()
	return f.startOn(fmt.Sprintf("10.0.0.%d", len(f.agents)+1), changes...)
}

func (f *testFleet) startOn(host string, changes ...func(Inside)) *fleetAgent {
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
	agent, err := New(config,
		slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		f.Fatal(err)
	}
	a.Inside = Inside{agent}
	a.Environment().Network = Network{
		Listen: func(_, address string) (net.Listener, error) {
			return f.network.listen(string(a.AgentName()), address)
		},
		Dial: func(ctx context.Context, to string) (net.Conn, error) {
			return f.network.dial(ctx, string(a.AgentName()), to)
		},
		Gossip: func(c *gossip.Config) {
			a.wire = f.gossip.Listen(host + ":7946")
			c.Transport = a.wire
		},
	}
	for _, change := range changes {
		change(a.Inside)
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
	client := Network{
		Credentials: f.credentials,
		Dial: func(ctx context.Context, to string) (net.Conn, error) {
			return f.network.dial(ctx, "client", to)
		},
	}
	if a.conn, err = client.Connect(host + ":8001"); err != nil {
		f.Fatal(err)
	}
	a.oip, a.ctl = inference.NewGRPCInferenceServiceClient(a.conn), control.NewControlClient(a.conn)
	f.agents = append(f.agents, a)
	return a
}

// kill closes a's connections without a farewell, so that no other agent hears of it any more. Its
// goroutines run on until the end of the test, and let go of what the kernel would.
func (f *testFleet) kill(a *fleetAgent) {
	a.Abandon()
	f.network.kill(string(a.AgentName()))
	_ = a.wire.Shutdown() // it cannot fail
}

// partition divides the network: agents of one part reach only each other, and all agents not named
// are one more part. Connections stay open and stall, like those of a frozen process.
func (f *testFleet) partition(parts ...[]*fleetAgent) {
	var addresses [][]netip.AddrPort
	part := map[string]int{}
	for i, agents := range parts {
		addresses = append(addresses, nil)
		for _, a := range agents {
			addresses[i] = append(addresses[i], netip.MustParseAddrPort(a.host+":7946"))
			part[string(a.AgentName())] = i + 1
		}
	}
	f.gossip.Partition(addresses...)
	f.network.partition(part)
}

func (f *testFleet) heal() { f.partition() }

// eventually waits until good returns "". After limit it fails the test with the last text.
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

// settled waits until each of the agents sees exactly these agents, with their models.
func (f *testFleet) settled(agents ...*fleetAgent) {
	f.Helper()
	var want []string
	for _, a := range agents {
		want = append(want, string(a.AgentName()))
	}
	slices.Sort(want)
	f.eventually(time.Minute, func() string {
		for _, a := range agents {
			if a.Members() == nil {
				return string(a.AgentName() + " has not started")
			}
			var got []string
			for _, m := range a.Members().View().Members {
				got = append(got, m.Name)
				if len(m.Models) == 0 {
					return fmt.Sprintf("%s sees no models at %s", a.AgentName(), m.Name)
				}
			}
			if !slices.Equal(got, want) {
				return fmt.Sprintf("%s sees %q, want %q", a.AgentName(), got, want)
			}
		}
		return ""
	})
}

// TestFleetForms: three agents join and have the same view, and each answers for the models of all.
func TestFleetForms(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		agents := []*fleetAgent{f.start(), f.start(), f.start()}
		f.settled(agents...)
		for _, a := range agents {
			resp, err := a.oip.ModelMetadata(f.Context(), &inference.ModelMetadataRequest{
				Name: "ncf",
			})
			if err != nil || resp.GetPlatform() != "emulated" {
				f.Errorf("metadata of %s: %v, %v", a.host, resp, err)
			}
			m, err := a.ctl.Describe(f.Context(), &control.DescribeRequest{})
			if err != nil || m.GetName() != a.Name() || m.GetAddress() != a.host+":8001" ||
				m.GetInstanceType() != "r5n.large" || m.GetPriceUsdPerHour() != 0.149 {
				f.Errorf("%s describes itself as %v, %v", a.host, m, err)
			}
		}
	})
}

// TestWatch: a watcher sees an agent join and leave.
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

// TestQueriesWhileStarting: a starting agent answers a query for a model of the fleet with "not
// ready", never with "not found", until it can answer it.
func TestQueriesWhileStarting(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a := f.start()
		f.settled(a)
		b := f.start()
		answered := false
		for range 5000 {
			_, err := b.oip.ModelInfer(f.Context(), ncfRequest(10))
			if code := status.Code(err); code != codes.OK && code != codes.Unavailable {
				f.Fatalf("an agent that starts answers %v, want %v", err, codes.Unavailable)
			}
			if answered = err == nil; answered {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
		if !answered {
			f.Errorf("an agent that starts does not answer")
		}
	})
}

// send sends n queries of 1.1 ms to the agents in turn, one every interval. It returns how many
// failed, by code and message.
func (f *testFleet) send(n int, interval time.Duration, agents ...*fleetAgent) map[string]int {
	f.Helper()
	var sent sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	for i := range n {
		sent.Go(func() {
			ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
			defer cancel()
			if _, err := agents[i%len(agents)].oip.ModelInfer(ctx, ncfRequest(100)); err != nil {
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

// follows is the leader that the agent follows; none until it has started.
func (a *fleetAgent) follows() *control.Leadership { return a.Followed() }

// led waits until all of the agents follow the same leader, and returns it.
func (f *testFleet) led(agents ...*fleetAgent) (leader *fleetAgent) {
	f.Helper()
	f.eventually(20*time.Second, func() string {
		name := agents[0].follows().GetLeader()
		for _, a := range agents {
			if l := a.follows(); l.GetLeader() != name || name == "" {
				return fmt.Sprintf("%s follows %q, %s follows %q", agents[0].host, name, a.host,
					l.GetLeader())
			}
			if a.Name() == name {
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
func neverLeads(a Inside) { a.Config().Leader = "never" }

// TestFleetAnswers: a query to any agent is answered, with a leader or without one, and all agents
// share the work.
func TestFleetAnswers(t *testing.T) {
	for name, changes := range map[string][]func(Inside){
		"led": nil, "without a leader": {neverLeads},
	} {
		t.Run(name, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				agents := []*fleetAgent{
					f.start(changes...), f.start(changes...), f.start(changes...),
				}
				f.settled(agents...)
				if name == "led" {
					f.led(agents...)
				}
				if failed := f.send(300, time.Millisecond/2, agents...); len(failed) > 0 {
					f.Errorf("failed: %v", failed)
				}
				attempts, submits := 0.0, uint64(0)
				for _, a := range agents {
					ran := a.counted("muster_attempts_total")
					if ran < 30 {
						f.Errorf("%s had %v attempts of 300 queries", a.host, ran)
					}
					attempts += ran
					submits += a.Gateway().Stats().Submits
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

// TestFleetLosesNoQuery: whatever happens to one agent, the queries of the other agents' clients
// are answered.
func TestFleetLosesNoQuery(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(f *testFleet, victim *fleetAgent)
		// back means that the affected agent is a member again at the end.
		back bool
	}{
		{"killed", func(f *testFleet, victim *fleetAgent) { f.kill(victim) }, false},
		{"frozen and back", func(f *testFleet, victim *fleetAgent) {
			f.partition([]*fleetAgent{victim})
			time.Sleep(300 * time.Millisecond)
			f.heal()
		}, true},
		{"cut off and back", func(f *testFleet, victim *fleetAgent) {
			f.partition([]*fleetAgent{victim})
			time.Sleep(20 * time.Second) // by then gossip has found the agent failed
			f.heal()
		}, true},
		{"drained", func(f *testFleet, victim *fleetAgent) {
			if err := victim.stop(); err != nil {
				f.Error(err)
			}
		}, false},
	} {
		for _, who := range []string{"worker", "leader"} {
			t.Run(who+" "+tt.name, func(t *testing.T) {
				testInFleet(t, func(f *testFleet) {
					agents := []*fleetAgent{f.start(), f.start(), f.start()}
					f.settled(agents...)
					victim := f.led(agents...)
					if who == "worker" {
						victim = agents[(slices.Index(agents, victim)+1)%3]
					}
					rest := slices.DeleteFunc(slices.Clone(agents),
						func(a *fleetAgent) bool { return a == victim })
					var done sync.WaitGroup
					done.Go(func() {
						time.Sleep(50 * time.Millisecond)
						tt.do(f, victim)
					})
					if failed := f.send(paced(1000), pace(), rest...); len(failed) > 0 {
						f.Errorf("failed: %v", failed)
					}
					done.Wait()
					if !tt.back {
						f.settled(rest...)
						f.led(rest...)
						return
					}
					f.settled(agents...)
					f.led(agents...)
					before := victim.counted("muster_attempts_total")
					n := 300
					if testing.Short() {
						n = 60
					}
					if failed := f.send(n, time.Millisecond/2, rest...); len(failed) > 0 {
						f.Errorf("failed afterwards: %v", failed)
					}
					if ran := victim.counted("muster_attempts_total") -
						before; ran < float64(n)/10 {
						f.Errorf("back again, it ran %v of %d queries", ran, n)
					}
				})
			})
		}
	}
}

// TestFleetSDK: a client of several agents loses no query when its gateway is killed.
func TestFleetSDK(t *testing.T) {
	for _, options := range [][]client.Option{nil, {client.WithoutFleet()}} {
		testInFleet(t, func(f *testFleet) {
			agents := []*fleetAgent{f.start(), f.start(), f.start()}
			f.settled(agents...)
			f.led(agents...)
			dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.network.dial(ctx, "client", to)
			})
			c, err := client.New([]string{agents[0].host + ":8001", agents[1].host + ":8001"},
				append(options,
					client.WithDialOptions(dial,
						grpc.WithTransportCredentials(insecure.NewCredentials())))...)
			if err != nil {
				f.Fatal(err)
			}
			defer c.Close()
			var sent sync.WaitGroup
			for i := range 400 {
				if i == 100 {
					f.kill(agents[0])
				}
				sent.Go(func() {
					ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
					defer cancel()
					ids, err := tensor.Of("ids", ncfIDs(20), 20, 4)
					if err != nil {
						f.Error(err)
						return
					}
					if _, err := c.Infer(ctx,
						&oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}}); err != nil {
						f.Errorf("query %d: %v", i, err)
					}
				})
				time.Sleep(time.Millisecond)
			}
			sent.Wait()
		})
	}
}

// TestSameHostRestarted: a restarted agent replaces its former process, although no agent has
// noticed that process's end.
func TestSameHostRestarted(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a, b := f.start(), f.start()
		f.settled(a, b)
		f.kill(b)
		again := f.startOn(b.host)
		f.settled(a, again)
		if log := a.log.String(); !strings.Contains(log, "agent started anew") ||
			strings.Contains(log, "is not heard any more") {
			f.Errorf("log: %s", log)
		}
	})
}

// TestFormerAgentHeardOf: an agent that has ended does not replace a live member when gossip speaks
// of it again, as a member that was cut off makes it do.
func TestFormerAgentHeardOf(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a, b := f.start(), f.start()
		f.settled(a, b)
		forger := f.gossip.Listen("10.0.0.99:7946")
		defer forger.Shutdown()
		for _, at := range []*fleetAgent{a, b} {
			if _, err := forger.WriteTo(forgedAlive(string("former-"+at.AgentName()), at.host+":8001"),
				a.wire.Addr().String()); err != nil {
				f.Error(err)
			}
		}
		f.eventually(time.Second, func() string {
			if n := len(a.Gossip().Members()); n != 4 {
				return fmt.Sprintf("gossip of %s has %d members, want 4", a.AgentName(), n)
			}
			return ""
		})
		for range 100 {
			if m := a.Members().View().Members; len(m) != 2 ||
				a.Members().Member(names.AgentName(b.AgentName())) == nil ||
				len(a.Members().Member(names.AgentName(b.AgentName())).Models) == 0 {
				f.Fatalf("%s sees %v, want itself and %s with its model", a.AgentName(), m, b.AgentName())
			}
			time.Sleep(100 * time.Millisecond)
		}
		if failed := f.send(20, time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
	})
}

// TestStrangers: agents with another key or of another version cannot join; both sides log the
// reason, and the fleet is not disturbed.
func TestStrangers(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		key := func(b byte) func(Inside) {
			return func(a Inside) {
				a.Config().GossipKey = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b},
					gossip.KeySize))
			}
		}
		a, b, stranger := f.start(key(1)), f.start(key(1)), f.start(key(2))
		f.settled(a, b)
		f.settled(stranger)
		time.Sleep(time.Minute)
		f.settled(a, b)
		for _, x := range []*fleetAgent{a, stranger} {
			if !strings.Contains(x.log.String(), "key") ||
				!strings.Contains(x.log.String(), "level=WARN") {
				f.Errorf("%s does not say that the key is another: %s", x.host, x.log)
			}
		}
		if failed := f.send(20, time.Millisecond, a, b, stranger); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
	})
	beyond := control.Spoken.Newest + 1
	for _, c := range []struct {
		other      control.Versions
		says, mend string
	}{
		{control.VersionsOf(beyond, beyond), fmt.Sprintf("it speaks version %d", beyond), fmt.Sprintf(
			"upgrade this agent to a version of Muster that speaks version %d", beyond)},
		{control.VersionsOf(3, 6), "it speaks versions 3 to 6",
			"upgrade it to a version of Muster that speaks version 7"},
	} {
		testInFleet(t, func(f *testFleet) {
			a := f.start()
			f.settled(a)
			log := &logBuffer{}
			other := members.Meta{Versions: c.other, Address: "10.0.0.9:8001"}
			g, err := gossip.Open(f.Context(), gossip.Config{
				Name: "of-another-version", Seeds: []string{"10.0.0.1:7946"}, Meta: other.Encode(),
				Transport: f.gossip.Listen("10.0.0.9:7946"),
				Accept: func(m gossip.Member) error {
					if v, _ := binary.Uvarint(m.Meta); uint32(v) != c.other.Oldest {
						return fmt.Errorf("it speaks version %d", v)
					}
					return nil
				},
				Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			if err != nil {
				f.Fatal(err)
			}
			time.Sleep(time.Minute)
			f.settled(a)
			if want := fmt.Sprintf("%s of the agents' protocol, this agent %v: %s", c.says,
				control.Spoken, c.mend); !strings.Contains(a.log.String(), want) {
				f.Errorf("log of the agent: %s\nwant %q", a.log, want)
			}
			if want := fmt.Sprintf("it speaks version %d", control.Spoken.Oldest); !strings.Contains(
				log.String(), want) {
				f.Errorf("log of the other: %s\nwant %q", log, want)
			}
			if err := g.Close(); err != nil {
				f.Error(err)
			}
		})
	}
}

// TestDrainByCall: an agent makes another drain by its name; with an unknown name none drains.
func TestDrainByCall(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a, b := f.start(), f.start()
		f.settled(a, b)
		if _, err := a.ctl.Drain(f.Context(),
			&control.DrainRequest{
				Agents: []string{string(b.AgentName()), "nobody"},
			}); status.Code(err) != codes.NotFound {
			f.Errorf("drain nobody: %v", err)
		}
		resp, err := a.ctl.Drain(f.Context(), &control.DrainRequest{
			Agents: []string{string(b.AgentName())},
		})
		if err != nil || !slices.Equal(resp.GetDraining(), []string{string(b.AgentName())}) {
			f.Fatalf("drain: %v, %v", resp, err)
		}
		f.settled(a)
		if err := b.stop(); err != nil {
			f.Error(err)
		}
		s, err := a.ctl.Status(f.Context(), &control.StatusRequest{})
		if err != nil || len(s.GetAgents()) != 1 {
			f.Errorf("status: %v, %v", s, err)
		}
	})
}

// TestNewestDrains: while the only agent with a model's newest version drains, the version before
// answers queries that name no version.
func TestNewestDrains(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		newer := f.copyModels()
		f.toVersion2(newer)
		a, b := f.start(), f.start()
		c := f.start(func(a Inside) { a.Config().ModelDir = newer })
		f.settled(a, b, c)
		f.led(a, b, c)
		version := func() string {
			resp, err := a.oip.ModelInfer(f.Context(), ncfRequest(1))
			if err != nil {
				f.Errorf("query without a version: %v", err)
			}
			return resp.GetModelVersion()
		}
		if got := version(); got != "2" {
			f.Errorf("version %q answered, want 2", got)
		}
		c.drain()
		for range 30 {
			time.Sleep(10 * time.Millisecond)
			// in process, because its servers may have closed
			here := inference.NewGRPCInferenceServiceClient(c.Local())
			if resp, err := here.ModelReady(f.Context(),
				&inference.ModelReadyRequest{Name: "ncf"}); err != nil || !resp.Ready {
				f.Errorf("the model is not ready: %v", err)
			}
			if got := version(); f.Failed() {
				f.Fatalf("while the agent with version 2 drains %q answers", got)
			}
		}
		if got := version(); got != "1" {
			f.Errorf("version %q answered in the end, want 1", got)
		}
	})
}

// TestReadyWhileDraining: a model that only a draining agent has is not ready, by REST as by gRPC.
func TestReadyWhileDraining(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		newer := f.copyModels()
		f.toVersion2(newer)
		a, b := f.start(), f.start(func(b Inside) { b.Config().ModelDir = newer })
		f.settled(a, b)
		ready := func() (bool, int) {
			resp, err := a.oip.ModelReady(f.Context(),
				&inference.ModelReadyRequest{Name: "ncf", Version: "2"})
			if err != nil {
				f.Fatal(err)
			}
			rest := httptest.NewRecorder()
			a.Server().REST().ServeHTTP(rest,
				httptest.NewRequest("GET", "/v2/models/ncf/versions/2/ready", nil))
			return resp.Ready, rest.Code
		}
		if is, code := ready(); !is || code != 200 {
			f.Errorf("before: %v by gRPC, %d by REST", is, code)
		}
		b.drain()
		f.eventually(time.Second, func() string {
			is, code := ready()
			if is != (code == 200) {
				f.Errorf("while the agent drains: %v by gRPC, %d by REST", is, code)
			}
			if code == 200 {
				return "it is still ready"
			}
			return ""
		})
	})
}

// TestNewVersion: a query that names no version, and waits for a lane while its version is
// replaced, is answered with the new version.
func TestNewVersion(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		f.dir = f.copyModels()
		a, b := f.start(), f.start()
		f.settled(a, b)
		f.led(a, b)
		var done sync.WaitGroup
		done.Go(func() {
			time.Sleep(100 * time.Millisecond)
			f.toVersion2(f.dir)
			if _, err := a.oip.RepositoryModelLoad(f.Context(),
				&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
				f.Error(err)
			}
		})
		for range 25 {
			if failed := f.send(40, 0, a, b); len(failed) > 0 {
				f.Errorf("failed: %v", failed)
			}
		}
		done.Wait()
		if resp, err := a.oip.ModelInfer(f.Context(), ncfRequest(1)); err != nil ||
			resp.GetModelVersion() != "2" {
			f.Errorf("version %q answered, want 2: %v", resp.GetModelVersion(), err)
		}
	})
}

// copyModels returns a directory with a copy of the fleet's models, which a test may change.
func (f *testFleet) copyModels() string {
	f.Helper()
	dir := f.TempDir()
	if err := os.CopyFS(dir, os.DirFS(f.dir)); err != nil {
		f.Fatal(err)
	}
	return dir
}

// toVersion2 makes version 1 of ncf in a repository version 2.
func (f *testFleet) toVersion2(dir string) {
	f.Helper()
	if err := os.Rename(filepath.Join(dir, "ncf", "1"), filepath.Join(dir, "ncf", "2")); err != nil {
		f.Error(err)
	}
}

// TestModelsEverywhere: a model is unloaded and loaded on the named agent or on all agents, and
// queries go to the agents that hold it.
func TestModelsEverywhere(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		a, b := f.start(), f.start()
		f.settled(a, b)
		unload := func(agent string) {
			f.Helper()
			req := &inference.RepositoryModelUnloadRequest{ModelName: "ncf",
				Parameters: map[string]*inference.ModelRepositoryParameter{
					"agent": {
						ParameterChoice: &inference.ModelRepositoryParameter_StringParam{
							StringParam: agent,
						},
					},
				}}
			if _, err := a.oip.RepositoryModelUnload(f.Context(), req); err != nil {
				f.Fatalf("unload on %s: %v", agent, err)
			}
		}
		holders := func(want int) {
			f.Helper()
			f.eventually(5*time.Second, func() string {
				for _, x := range []*fleetAgent{a, b} {
					n := 0
					for _, m := range x.Members().View().Members {
						n += len(m.Models)
					}
					if n != want {
						return fmt.Sprintf("%s sees %d holders, want %d", x.host, n, want)
					}
				}
				return ""
			})
		}
		unload(string(a.AgentName()))
		holders(1)
		if failed := f.send(20, 3*time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		if m, err := a.oip.ModelMetadata(f.Context(),
			&inference.ModelMetadataRequest{Name: "ncf"}); err != nil || len(m.GetInputs()) == 0 {
			f.Errorf("metadata of what only the other holds: %v, %v", m, err)
		}
		unload("all")
		holders(0)
		if _, err := a.oip.ModelInfer(f.Context(), ncfRequest(1)); status.Code(
			err) != codes.NotFound {
			f.Errorf("query for a model that nobody holds: %v", err)
		}
		if _, err := a.oip.RepositoryModelLoad(f.Context(),
			&inference.RepositoryModelLoadRequest{ModelName: "ncf"}); err != nil {
			f.Fatal(err)
		}
		holders(2)
	})
}
