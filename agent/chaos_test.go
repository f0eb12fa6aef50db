package agent_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/gossip/gossiptest"
)

var (
	chaosSeed  = flag.Uint64("chaos-seed", 1, "the first seed that TestChaos runs")
	chaosSeeds = flag.Uint64("chaos-seeds", 0,
		"how many seeds TestChaos runs; 0: 3, or 1 with -short")
)

// TestChaos has agents killed, drained, frozen, cut off, slowed down and started anew, load
// come in bursts and gossip keys change, at random, while a fleet of whole agents
// serves. Every query must have the one answer that is its own, or be refused for want of lanes;
// only those may be lost whose client could not reach their gateway. When all is quiet the
// fleet must be whole, follow one leader, hold one key, owe nothing and serve; and when its
// agents stop no goroutine may be left.
//
//	go test ./agent -run TestChaos -chaos-seeds 1000 -timeout 1h        many
//	go test ./agent -run TestChaos -chaos-seed 7 -chaos-seeds 1 -v   one again
//
// A seed determines the agents, the queries, and what happens to which host at which moment
// of virtual time. It does not determine how goroutines that are ready at the same moment take
// turns, what agents draw themselves (names, jitter, memberlist's peers), nor
// therefore who leads: a failure that hangs on these may take -count 20 to come back.
func TestChaos(t *testing.T) {
	var mu sync.Mutex
	outcomes := map[string]int{}
	seeds := *chaosSeeds
	switch {
	case seeds > 0:
	case testing.Short():
		seeds = 1
	default:
		seeds = 3
	}
	t.Run("seeds", func(t *testing.T) {
		for seed := *chaosSeed; seed < *chaosSeed+seeds; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				agenttest.InFleet(t, func(f *agenttest.Fleet) {
					w := &chaos{
						Fleet: f, Rand: rand.New(rand.NewPCG(seed, 0)), began: time.Now(),
						troubled: map[*agenttest.Member]time.Time{}, outcomes: map[string]int{},
					}
					defer func() {
						if f.Failed() {
							f.Logf(
								"again: go test ./agent -run TestChaos -chaos-seed %d "+
									"-chaos-seeds 1", seed)
							f.Logf("what happened:\n%s", strings.Join(w.events, "\n"))
						}
						mu.Lock()
						defer mu.Unlock()
						for what, n := range w.outcomes {
							outcomes[what] += n
						}
					}()
					w.run()
				})
			})
		}
	})
	t.Logf("queries: %v", outcomes)
}

// A chaos is a fleet that things happen to while it serves.
type chaos struct {
	*agenttest.Fleet
	*rand.Rand // draws what happens, when, and to whom
	began      time.Time
	sites      []*agenttest.Site
	sdk        *client.Client // knows them all
	happening  sync.WaitGroup // what goes on beside run
	rush       atomic.Int64   // queries that are to come without a pause

	mu       sync.Mutex
	troubled map[*agenttest.Member]time.Time // until when; while it lasts, never
	outcomes map[string]int
	events   []string
	// What must not go on at the same time.
	cut                bool
	rotating, draining int
}

var never = time.Unix(1<<40, 0)

// note keeps what happens, to be shown if the test fails.
func (w *chaos) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events,
		fmt.Sprintf("%v ", time.Since(w.began).Round(time.Millisecond))+
			fmt.Sprintf(format, args...))
}

// trouble says that queries to the sites may fail from now on, until calm.
func (w *chaos) trouble(sites ...*agenttest.Site) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range sites {
		w.troubled[s.Member] = never
	}
}

func (w *chaos) calm(sites ...*agenttest.Site) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range sites {
		w.troubled[s.Member] = time.Now()
	}
}

// chaosRow is the i-th row of the query with the given number, and what a model must
// answer to it.
func chaosRow(number, i int) (ids [4]int64, answer float32) {
	n := number*512 + i
	for k := range ids {
		ids[k] = int64(n % 28) // as many as a small NCF knows
		n /= 28
	}
	return ids, float32(ids[0] + 28*(ids[1]+28*(ids[2]+28*ids[3])))
}

// query sends one query, by the agent or, if a is nil, by the SDK, and judges how it ended.
func (w *chaos) query(a *agenttest.Member, number, batchSize int) {
	ids := make([]int64, 0, 4*batchSize)
	for i := range batchSize {
		row, _ := chaosRow(number, i)
		ids = append(ids, row[:]...)
	}
	input, err := tensor.Of("ids", ids, int64(batchSize), 4)
	if err != nil {
		w.Error(err)
		return
	}
	req := &oip.Request{Model: "ncf", ID: fmt.Sprint(number), Inputs: []tensor.Tensor{input}}
	start := time.Now()
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	resp, by := new(oip.Response), "the SDK"
	if a == nil {
		resp, err = w.sdk.Infer(ctx, req)
	} else {
		by = string(a.AgentName())
		err = a.Conn.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, req,
			resp)
	}
	took := time.Since(start)

	w.mu.Lock()
	defer w.mu.Unlock()
	outcome := "answered in time"
	switch {
	case err == nil && took > 5*time.Millisecond: // NCF's QoS target
		outcome = "answered late"
	case err == nil:
	case status.Code(err) == codes.ResourceExhausted || errors.Is(err, client.ErrOverloaded):
		outcome = "refused"
	case a != nil && !w.troubled[a].Before(start):
		outcome = "lost with its gateway"
	default:
		outcome = "lost"
		w.Errorf("%v query %d by %s failed after %v: %v", start.Sub(w.began), number, by, took, err)
	}
	w.outcomes[outcome]++
	if err != nil {
		return
	}
	defer resp.Release()
	if resp.ID != req.ID || resp.Model != "ncf" || len(resp.Outputs) != 1 ||
		len(resp.Outputs[0].Shape) != 2 || resp.Outputs[0].Shape[0] != int64(batchSize) {
		w.Errorf("query %d with batch size %d: got the answer to %q by %q, with outputs %v", number,
			batchSize, resp.ID, resp.Model, resp.Outputs)
		return
	}
	data := resp.Outputs[0].Data
	for i := range batchSize {
		got := math.Float32frombits(binary.LittleEndian.Uint32(data[i*len(data)/batchSize:]))
		if _, want := chaosRow(number, i); got != want {
			w.Errorf("query %d, row %d: got the answer %v, want %v", number, i, got, want)
			return
		}
	}
}

// open starts the fleet: three to five agents, of which one may be a GPU, and one may never lead.
func (w *chaos) open() {
	n := 3 + w.IntN(3)
	var join []string
	for i := range n {
		join = append(join, fmt.Sprintf("10.0.0.%d:7946", i+1))
	}
	gpu, follower := w.IntN(2*n), w.IntN(2*n)
	var addresses []string
	for i := range n {
		s := &agenttest.Site{Up: true}
		s.Slower.Store(1)
		s.Change = func(a agent.Inside) {
			a.Config().Join = join
			if i == gpu {
				a.Config().InstanceType = "g4dn.xlarge"
			}
			if i == follower {
				agenttest.NeverLeads(a)
			}
			a.Environment().OpenExecutor = s.OpenEmulator
		}
		s.Member = w.Start(agenttest.WithKeyFile, s.Change)
		w.sites = append(w.sites, s)
		addresses = append(addresses, s.Host+":8001")
	}
	dial := grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		return w.Network.Dial(ctx, "client", to)
	})
	var err error
	if w.sdk, err = client.New(addresses, client.WithDialOptions(dial)); err != nil {
		w.Fatal(err)
	}
}

// agents are those on all sites.
func (w *chaos) agents() (all []*agenttest.Member) {
	for _, s := range w.sites {
		all = append(all, s.Member)
	}
	return all
}

func (w *chaos) run() {
	w.open()
	defer w.sdk.Close()
	w.Settled(w.agents()...)
	w.Led(w.agents()...)

	stop, cancel := context.WithCancel(w.Context())
	defer cancel()
	var sending sync.WaitGroup
	draws := rand.New(rand.NewPCG(w.Uint64(), 0))
	sending.Go(func() { w.send(stop, draws) })
	for range 12 {
		time.Sleep(time.Duration(w.IntN(700)) * time.Millisecond)
		w.happen()
	}
	w.happening.Wait()
	cancel()
	sending.Wait()
	w.quiet()
}

// send sends queries until ctx ends, and waits for them.
func (w *chaos) send(ctx context.Context, draws *rand.Rand) {
	var sending sync.WaitGroup
	defer sending.Wait()
	for number := 0; ctx.Err() == nil; number++ {
		w.mu.Lock()
		s := w.sites[number%len(w.sites)]
		by := s.Member
		if !s.Up || draws.IntN(3) == 0 {
			by = nil
		}
		w.mu.Unlock()
		batchSize := 1 + int(min(draws.ExpFloat64()*30, 200))
		sending.Go(func() { w.query(by, number, batchSize) })
		if rush := w.rush.Add(-1); rush >= 0 {
			continue
		}
		time.Sleep(time.Duration(draws.ExpFloat64() * float64(5*time.Millisecond)))
	}
}

// happen has one thing happen.
func (w *chaos) happen() {
	s, other := w.sites[w.IntN(len(w.sites))], w.sites[w.IntN(len(w.sites))]
	what, some := w.IntN(10), w.IntN(6)
	long := time.Duration(50*math.Exp2(7*w.Float64())) * time.Millisecond // 50 ms to 6.4 s

	w.mu.Lock()
	defer w.mu.Unlock()
	free := 0
	for _, s := range w.sites {
		if !s.Busy {
			free++
		}
	}
	take := func(s *agenttest.Site) bool {
		if free < 2 || s.Busy {
			return false
		}
		s.Busy = true
		free--
		return true
	}
	switch what {
	case 0:
		if take(s) {
			w.happening.Go(func() { w.kill(s, long/4) })
		}
	case 1:
		// An agent that leaves while the keys change would need the new one to come back.
		if w.rotating == 0 && take(s) {
			w.draining++
			w.happening.Go(func() { w.drain(s, long/4) })
		}
	case 2, 3, 4:
		if w.cut || !take(s) {
			return
		}
		sites := []*agenttest.Site{s}
		if some%3 == 0 && take(other) {
			sites = append(sites, other)
		}
		w.cut = true
		w.happening.Go(func() { w.part(sites, long, some != 4, some != 5) })
	case 5:
		if w.draining == 0 && s.Up {
			w.rotating++
			w.happening.Go(func() { w.changeKey(s.Member) })
		}
	case 6, 7:
		host := s.Host
		w.happening.Go(func() { w.slow(s, host, []int64{2, 3, 3, 4, 10, 300}[some], long/2) })
	case 8:
		name := s.AgentName()
		w.happening.Go(func() {
			w.jam(string(name), time.Duration(1+some)*time.Millisecond, long/2)
		})
	case 9:
		w.rush.Store(int64(20 << some))
	}
}

// kill kills a site's agent and starts another after a while.
func (w *chaos) kill(s *agenttest.Site, after time.Duration) {
	w.note("kill %s for %v", s.AgentName(), after)
	w.trouble(s)
	w.Fleet.Kill(s.Member)
	w.happening.Go(func() { _ = s.Stop() }) // what is left of it
	w.restart(s, after)
}

// drain drains a site's agent and starts another after a while.
func (w *chaos) drain(s *agenttest.Site, after time.Duration) {
	w.note("drain %s, start after %v", s.AgentName(), after)
	w.trouble(s)
	if err := s.Stop(); err != nil {
		w.Errorf("drain %s: %v", s.AgentName(), err)
	}
	w.restart(s, after)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draining--
}

// restart runs another agent on a site, with the files of the one before.
func (w *chaos) restart(s *agenttest.Site, after time.Duration) {
	w.mu.Lock()
	s.Up = false
	w.mu.Unlock()
	time.Sleep(after)
	before := s.Config()
	again := w.StartOn(s.Host, s.Change,
		func(a agent.Inside) {
			a.Config().StateDir, a.Config().GossipKey = before.StateDir, before.GossipKey
		})
	w.note("start %s", again.AgentName())
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		resp, err := again.OIP.ServerReady(w.Context(), &inference.ServerReadyRequest{})
		if err == nil && resp.Ready {
			break
		}
		if time.Now().After(end) {
			w.Errorf("%s is not ready: %v", again.AgentName(), err)
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Member, s.Up, s.Busy = again, true, false
}

// part parts sites from the others, and from clients.
func (w *chaos) part(sites []*agenttest.Site, long time.Duration, queries, gossip bool) {
	part, addresses := map[string]int{}, []netip.AddrPort{}
	var names []string
	for _, s := range sites {
		part[string(s.AgentName())] = 1
		addresses = append(addresses, netip.MustParseAddrPort(s.Host+":7946"))
		names = append(names, string(s.AgentName()))
	}
	w.note("part %q for %v: queries %v, gossip %v", names, long, queries, gossip)
	if queries {
		w.trouble(sites...)
		w.Network.Partition(part)
	}
	if gossip {
		w.Fleet.Gossip.Partition(addresses)
	}
	time.Sleep(long)
	w.note("heal %q", names)
	w.Heal()
	if queries {
		w.calm(sites...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
	for _, s := range sites {
		s.Busy = false
	}
}

// changeKey changes the gossip key. It may be that it has to stop; what it leaves behind must work.
func (w *chaos) changeKey(by *agenttest.Member) {
	key := gossip.NewKey()
	w.note("change the key to %s by %s", gossip.Fingerprint(key), by.AgentName())
	stream, err := by.Control.RotateKeys(w.Context(), &control.RotateKeysRequest{Key: key})
	for err == nil {
		_, err = stream.Recv()
	}
	w.note("changed the key to %s: %v", gossip.Fingerprint(key), err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rotating--
}

// slow has the agents of a site take longer over each query.
func (w *chaos) slow(s *agenttest.Site, host string, factor int64, long time.Duration) {
	w.note("%s takes %d times as long for %v", host, factor, long)
	s.Slower.Store(factor)
	time.Sleep(long)
	s.Slower.Store(1)
}

// jam has what goes to and from an agent take longer, and packets of gossip be lost, doubled and
// overtaken.
func (w *chaos) jam(name string, delay, long time.Duration) {
	w.note("the network delays %s by %v for %v", name, delay, long)
	w.Network.Delay(name, delay)
	w.Fleet.Gossip.SetConditions(gossiptest.Conditions{
		Loss: 0.2, Duplicate: 0.1, Jitter: 10 * delay,
	})
	time.Sleep(long)
	w.Network.Delay(name, 0)
	w.Fleet.Gossip.SetConditions(gossiptest.Conditions{})
}

// quiet has nothing happen any more, and judges the fleet.
func (w *chaos) quiet() {
	w.note("quiet")
	agents := w.agents()
	w.Settled(agents...)
	first := w.Led(agents...)
	w.Eventually(10*time.Second, func() string {
		for _, a := range agents {
			if a != first && a.Leading().Leads() {
				return string(a.AgentName() + " leads beside " + first.AgentName())
			}
			if owed := owes(a); owed != "" {
				return owed
			}
		}
		return ""
	})
	time.Sleep(agenttest.RotationPause) // a change of the keys may have stopped
	if _, faults, err := w.Rotate(agents[0],
		&control.RotateKeysRequest{Key: agenttest.NewerKey, Without: agents[0].Gossip().Lost()},
		nil); err != nil {
		w.Errorf("change of the key when all is calm: %v, %q", err, faults)
	}
	w.Holds(agents, agenttest.NewerKey)
	w.Settled(agents...)
	// What was learned in the turmoil may have to be learned anew.
	in := 0
	for range 10 {
		before := w.outcomes["answered in time"]
		var sending sync.WaitGroup
		for i := range 60 {
			sending.Go(func() {
				w.query(slices.Concat(agents, []*agenttest.Member{nil})[i%(len(agents)+1)], i, 30)
			})
			time.Sleep(2 * time.Millisecond)
		}
		sending.Wait()
		if in = w.outcomes["answered in time"] - before; in >= 57 {
			return
		}
		time.Sleep(time.Second)
	}
	w.Errorf("when all is calm %d of 60 queries answered in time", in)
}

// owes says what an agent should have forgotten, "" if that is nothing.
func owes(a *agenttest.Member) string {
	held, owed := agenttest.Held(a.Inside, "worker: held"), ""
	if lanes := a.Worker().Lanes().Stats(); held > 0 || lanes.Waiting > 0 || lanes.Remaining > 0 {
		owed = fmt.Sprintf("%s holds %d attempts, %d queries wait, its lane is busy for %v; ",
			a.AgentName(), held, lanes.Waiting, lanes.Remaining)
	}
	a.Leading().Sizes(func(what string, n int) {
		if n > 0 &&
			slices.Contains(
				[]string{"state: waiting", "state: reserved", "state: queries", "state: parked"},
				what) {
			owed += fmt.Sprintf("the leader %s has %d queries %s; ", a.AgentName(), n,
				strings.TrimPrefix(what, "state: "))
		}
	})
	return owed
}
