package agenttest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/gossip/gossiptest"
)

// A Fleet is a fleet of whole agents in virtual time on an in-memory network.
type Fleet struct {
	*testing.T
	Dir     string // the model repository
	Gossip  *gossiptest.Network
	Network *hosts
	Agents  []*Member
	// credentials are used by clients; nil: without TLS.
	credentials credentials.TransportCredentials
}

// InFleet runs test in a bubble of virtual time, and stops the agents that it has started.
func InFleet(t *testing.T, test func(*Fleet)) {
	dir, err := NCFDir()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f := &Fleet{T: t, Dir: dir, Gossip: gossiptest.NewNetwork(1), Network: newHosts()}
		defer f.end()
		test(f)
	})
}

func (f *Fleet) end() {
	f.Heal()
	var ending sync.WaitGroup
	for _, a := range f.Agents {
		ending.Go(func() {
			if err := a.Stop(); err != nil {
				f.Errorf("agent %s: %v", a.AgentName(), err)
			}
		})
	}
	ending.Wait()
	time.Sleep(10 * time.Second) // memberlist's last goroutines end by their timeouts
	if f.Failed() {
		for _, a := range f.Agents {
			f.Logf("log of %s:\n%s", a.Host, a.Log)
		}
	}
}

// A Member is an agent of a testFleet.
type Member struct {
	agent.Inside
	Fleet   *Fleet
	Host    string // its IP address
	Wire    *gossiptest.Transport
	Log     *LogBuffer
	Conn    *grpc.ClientConn // to it
	OIP     inference.GRPCInferenceServiceClient
	Control control.ControlClient
	Stop    func() error // drains the agent, and returns Run's error
	Drain   context.CancelFunc
}

// Start runs an agent on a host of its own, 10.0.0.1 and so on, which joins the first agent. It
// emulates an r5n.large.
func (f *Fleet) Start(changes ...func(agent.Inside)) *Member {
	f.Helper()
	return f.StartOn(fmt.Sprintf("10.0.0.%d", len(f.Agents)+1), changes...)
}

func (f *Fleet) StartOn(host string, changes ...func(agent.Inside)) *Member {
	f.Helper()
	config := agent.DefaultConfig()
	config.HTTPAddress, config.GRPCAddress = host+":8000", host+":8001"
	config.MetricsAddress, config.GossipAddress = host+":8002", host+":7946"
	config.Insecure = true
	config.Name = "on-" + host
	config.ModelDir, config.StateDir = f.Dir, f.TempDir()
	config.Executor, config.Profile, config.InstanceType = "emulated", "shipped", "r5n.large"
	config.Cores = 1
	if len(f.Agents) > 0 {
		config.Join = []string{"10.0.0.1:7946"}
	}
	a := &Member{Fleet: f, Host: host, Log: &LogBuffer{}}
	inner, err := agent.New(config,
		slog.New(slog.NewTextHandler(a.Log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		f.Fatal(err)
	}
	a.Inside = agent.Inside{Agent: inner}
	// How busy the machine of the tests is has nothing to do with them.
	a.Environment().ReadThreadTimes = func() (ran, waited time.Duration, err error) {
		return 0, 0, errors.ErrUnsupported
	}
	a.Environment().Network = agent.Network{
		Listen: func(_, address string) (net.Listener, error) {
			return f.Network.listen(string(a.AgentName()), address)
		},
		Dial: func(ctx context.Context, to string) (net.Conn, error) {
			return f.Network.Dial(ctx, string(a.AgentName()), to)
		},
		Gossip: func(c *gossip.Config) {
			a.Wire = f.Gossip.Listen(host + ":7946")
			c.Transport = a.Wire
		},
	}
	for _, change := range changes {
		change(a.Inside)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	a.Drain = cancel
	a.Stop = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		_ = a.Conn.Close() // a test may have closed it
		return err
	})
	client := agent.Network{
		Credentials: f.credentials,
		Dial: func(ctx context.Context, to string) (net.Conn, error) {
			return f.Network.Dial(ctx, "client", to)
		},
	}
	if a.Conn, err = client.Connect(host + ":8001"); err != nil {
		f.Fatal(err)
	}
	a.OIP, a.Control = inference.NewGRPCInferenceServiceClient(a.Conn), control.NewControlClient(a.Conn)
	f.Agents = append(f.Agents, a)
	return a
}

// Kill closes a's connections without a farewell, so that no other agent hears of it any more. Its
// goroutines run on until the end of the test, and let go of what the kernel would.
func (f *Fleet) Kill(a *Member) {
	a.Abandon()
	f.Network.kill(string(a.AgentName()))
	_ = a.Wire.Shutdown() // it cannot fail
}

// Partition divides the network: agents of one part reach only each other, and all agents not named
// are one more part. Connections stay open and stall, like those of a frozen process.
func (f *Fleet) Partition(parts ...[]*Member) {
	var addresses [][]netip.AddrPort
	part := map[string]int{}
	for i, agents := range parts {
		addresses = append(addresses, nil)
		for _, a := range agents {
			addresses[i] = append(addresses[i], netip.MustParseAddrPort(a.Host+":7946"))
			part[string(a.AgentName())] = i + 1
		}
	}
	f.Gossip.Partition(addresses...)
	f.Network.Partition(part)
}

func (f *Fleet) Heal() { f.Partition() }

// Eventually waits until good returns "". After limit it fails the test with the last text.
func (f *Fleet) Eventually(limit time.Duration, good func() string) {
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

// Settled waits until each of the agents sees exactly these agents, with their models.
func (f *Fleet) Settled(agents ...*Member) {
	f.Helper()
	var want []string
	for _, a := range agents {
		want = append(want, string(a.AgentName()))
	}
	slices.Sort(want)
	f.Eventually(time.Minute, func() string {
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

// Send sends n queries of 1.1 ms to the agents in turn, one every interval. It returns how many
// failed, by code and message.
func (f *Fleet) Send(n int, interval time.Duration, agents ...*Member) map[string]int {
	f.Helper()
	var sent sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	for i := range n {
		sent.Go(func() {
			ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
			defer cancel()
			if _, err := agents[i%len(agents)].OIP.ModelInfer(ctx, NCFRequest(100)); err != nil {
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

// Follows is the leader that the agent follows; none until it has started.
func (a *Member) Follows() *control.Leadership { return a.Followed() }

// Led waits until all of the agents follow the same leader, and returns it.
func (f *Fleet) Led(agents ...*Member) (leader *Member) {
	f.Helper()
	f.Eventually(20*time.Second, func() string {
		name := agents[0].Follows().GetLeader()
		for _, a := range agents {
			if l := a.Follows(); l.GetLeader() != name || name == "" {
				return fmt.Sprintf("%s follows %q, %s follows %q", agents[0].Host, name, a.Host,
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

// NeverLeads keeps an agent from leading.
func NeverLeads(a agent.Inside) { a.Config().Leader = "never" }

// Lately sends queries of 1.1 ms by the agents in turn, one every interval, while meanwhile
// runs; it returns how many were sent, how long the slowest took, how many took
// longer than the QoS target of 5 ms, and how many failed, by code and message.
func (f *Fleet) Lately(interval time.Duration, meanwhile func(),
	agents ...*Member) (sent int, slowest time.Duration, late int, failed map[string]int) {
	f.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		meanwhile()
	}()
	var sending sync.WaitGroup
	var mu sync.Mutex
	failed = map[string]int{}
	for {
		select {
		case <-done:
			sending.Wait()
			return sent, slowest, late, failed
		case <-time.After(interval):
		}
		a := agents[sent%len(agents)]
		sent++
		sending.Go(func() {
			began := time.Now()
			req := NCFRequest(100)
			// us
			req.Parameters = map[string]*inference.InferParameter{
				"timeout": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1e6}},
			}
			_, err := a.OIP.ModelInfer(f.Context(), req)
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, took)
			if took > 5*time.Millisecond {
				late++
			}
			if err != nil {
				failed[err.Error()]++
			}
		})
	}
}

// Pace is the time between two queries under load. Under the race detector, which goes with -short,
// a query takes ten times the CPU time.
func Pace() time.Duration {
	if testing.Short() {
		return 10 * time.Millisecond
	}
	return time.Millisecond
}

// Paced is how many queries come at that pace while n come at one a millisecond.
func Paced(n int) int { return n / int(Pace()/time.Millisecond) }

// Others are the agents but one.
func Others(of []*Member, but *Member) (rest []*Member) {
	for _, a := range of {
		if a != but {
			rest = append(rest, a)
		}
	}
	return rest
}

// SDK returns a client of the agents that has found the fleet. The caller closes it.
func (f *Fleet) SDK(agents ...*Member) *client.Client {
	f.Helper()
	var addresses []string
	for _, a := range agents {
		addresses = append(addresses, a.Host+":8001")
	}
	dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		return f.Network.Dial(ctx, "client", to)
	})
	c, err := client.New(addresses, client.WithDialOptions(dial,
		grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		f.Fatal(err)
	}
	f.Eventually(10*time.Second, func() string {
		if g := c.Gateway(); g == nil || g.Leader() == "" {
			return "the SDK has no leader"
		}
		return ""
	})
	return c
}

// ForgedAlive is memberlist's word that an agent of that name is there.
func ForgedAlive(name, grpc string) []byte {
	packed := func(b, value []byte) []byte {
		return append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(value))), value...)
	}
	b := []byte{4, 0x86} // an alive message, a map of six
	b = append(packed(b, []byte("Incarnation")), 1)
	b = packed(packed(b, []byte("Node")), []byte(name))
	b = packed(packed(b, []byte("Addr")), net.IPv4(10, 9, 9, 9).To4())
	b = append(packed(b, []byte("Port")), 0xcd, 0x1f, 0x0a)
	b = packed(packed(b, []byte("Meta")),
		members.Meta{Versions: control.Spoken, Address: grpc, Role: "must"}.Encode())
	return packed(packed(b, []byte("Vsn")), []byte{1, 5, 2, 0, 0, 0})
}
