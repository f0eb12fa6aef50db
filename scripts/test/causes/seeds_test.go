//go:build fleet

package causes

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// emulated are agents that wait instead of computing, so that a busy machine disturbs them little.
var emulated = fleet{agents: 2, targetMs: 400, batch: 500, rate: 12}

// computing are agents that run the model, each on a CPU of its own.
var computing = fleet{agents: 1, real: true, targetMs: 150, batch: 1000, rate: 8}

// seeds are the causes. The second agent is the one that has it.
func seeds() []seed {
	with := func(f fleet, change func(*fleet)) fleet {
		change(&f)
		return f
	}
	return []seed{
		{
			name: "hog", want: []string{"cpu"}, fleet: computing,
			begin: func(r *round) (func(), error) { return r.hog(0, 24) },
		},
		{
			name: "quota", want: []string{"throttled"}, fleet: computing,
			begin: func(r *round) (func(), error) {
				calm, err := r.overload(0.75) // more than half
				if err != nil {
					return nil, err
				}
				end, err := r.limitCPU(0)
				return func() { calm(); end() }, err
			},
		},
		{
			name: "overload", want: []string{"lane"}, agent: -1, short: true, fleet: emulated,
			begin: func(r *round) (func(), error) { return r.overload(1.3) },
		},
		{
			name: "way", want: []string{"way"}, agent: -1, short: true,
			fleet: with(emulated, func(f *fleet) {
				f.targetMs, f.args = 200, relayed(0, 1)
			}),
			begin: func(r *round) (func(), error) { return r.delay(80 * time.Millisecond), nil },
		},
		{
			name: "between", want: []string{"way"}, agent: 1, short: true,
			fleet: with(emulated, func(f *fleet) {
				f.plain, f.targetMs, f.rate, f.args = true, 150, 32, relayed(1)
			}),
			begin: func(r *round) (func(), error) { return r.delay(80 * time.Millisecond), nil },
		},
		{
			name: "client", want: []string{"client"}, agent: -1, short: true,
			fleet: with(emulated, func(f *fleet) { f.process = true }),
			begin: func(r *round) (func(), error) { return r.freezeClient(), nil },
		},
		{
			name: "cold", want: []string{"cold"}, agent: -1, short: true,
			fleet: with(emulated, func(f *fleet) { f.agents = 1 }),
			begin: func(r *round) (func(), error) { return r.unload() },
		},
		{
			name: "limit", want: []string{"limit"}, agent: -1, short: true,
			fleet: with(emulated, func(f *fleet) {
				f.agents, f.rate, f.plain, f.clientKey, f.args = 1, 6, true, limitedKey, limited
			}),
			begin: func(r *round) (func(), error) {
				r.rate.Store(25_000) // more than a second of them may come
				return func() {}, nil
			},
		},
		{
			name: "paging", want: []string{"paging"}, minLate: 3,
			fleet: with(computing, func(f *fleet) {
				f.scale = "0.05" // 180 MB
				f.args = func(int, *round) []string { return []string{"--model-data", "mapped"} }
			}),
			begin: func(r *round) (func(), error) { return r.dropPages(0) },
		},
		{
			name: "gpu", want: []string{"gpu"}, short: true,
			fleet: with(emulated, func(f *fleet) { // another agent would take its queries
				f.agents, f.targetMs, f.args = 1, 200, withCard(0)
			}),
			begin: func(r *round) (func(), error) { return r.heatCard() },
		},
		{
			// A takeover makes no query late: gateways choose lanes themselves 10 ms after the leader is
			// silent. Of 4,300 queries in 6 rounds, with targets of 2.5 and 3 times a run, none was.
			name: "takeover", want: []string{"takeover", "host"}, agent: -1, minLate: 2, harmless: true,
			fleet: with(emulated, func(f *fleet) { f.agents, f.targetMs, f.rate = 3, 120, 40 }),
			begin: func(r *round) (func(), error) { return r.killLeader() },
		},
		{
			name: "hog+quota", want: []string{"cpu", "throttled"}, also: []string{"cpu"}, fleet: computing,
			begin: func(r *round) (func(), error) {
				end, err := r.hog(0, 24)
				if err != nil {
					return nil, err
				}
				limit, err := r.limitCPU(0)
				return func() { end(); limit() }, err
			},
		},
		{
			name: "overload+way", want: []string{"lane", "way", "several"},
			also: []string{"way", "lane"}, agent: -1, short: true,
			fleet: with(emulated, func(f *fleet) { f.args = relayed(1) }),
			begin: func(r *round) (func(), error) {
				undelay := r.delay(300 * time.Millisecond)
				end, err := r.overload(1.3)
				return func() { undelay(); end() }, err
			},
		},
		{
			name: "client+way", want: []string{"client", "way"}, also: []string{"client", "way"}, agent: -1,
			fleet: with(emulated, func(f *fleet) { f.process, f.args = true, relayed(1) }),
			begin: func(r *round) (func(), error) {
				undelay := r.delay(300 * time.Millisecond)
				thaw := r.freezeClient()
				return func() { undelay(); thaw() }, nil
			},
		},
	}
}

// hog runs programs that compute on the CPU of an agent.
func (r *round) hog(agent, programs int) (func(), error) {
	return startHogs(r.group, agent, programs)
}

// limitCPU gives an agent half a CPU.
func (r *round) limitCPU(agent int) (func(), error) {
	return r.group.limit(r.fleet.Nodes[agent].PID())
}

// overload has clients send a multiple of the fleet's fluid limit.
func (r *round) overload(factor float64) (func(), error) {
	ran, err := r.fleet.Executed(r.ctx, r.fleet.Models[0])
	if err != nil {
		return nil, err
	}
	sum := harness.ExecutionCount{}
	for _, e := range ran {
		sum.Count += e.Count
		sum.Time += e.Time
	}
	if sum.Time == 0 {
		return nil, errors.New("nothing has run")
	}
	limit := float64(len(ran)) * float64(sum.Count) / sum.Time.Seconds() // each has one lane
	r.Logf("the limit is %.1f queries/s", limit)
	before := r.rate.Swap(int64(1000 * factor * limit))
	return func() { r.rate.Store(before) }, nil
}

// delay has the relays pass everything on later.
func (r *round) delay(d time.Duration) func() {
	for _, relay := range r.relays {
		relay.delay.Store(int64(d))
	}
	return func() {
		for _, relay := range r.relays {
			relay.delay.Store(0)
		}
	}
}

// freezeClient stops the client for a second at a time.
func (r *round) freezeClient() func() {
	done := make(chan struct{})
	go func() {
		for stopped := false; ; stopped = !stopped {
			s := syscall.SIGSTOP
			if stopped {
				s = syscall.SIGCONT
			}
			_ = r.client.Process.Signal(s)
			select {
			case <-time.After(time.Second):
			case <-done:
				_ = r.client.Process.Signal(syscall.SIGCONT)
				return
			}
		}
	}()
	return func() { close(done) }
}

// unload unloads the model, as it is while it loads.
func (r *round) unload() (func(), error) {
	post := func(what string) error {
		resp, err := http.Post(fmt.Sprintf("http://%s/v2/repository/models/%s/%s",
			r.fleet.Nodes[0].HTTP, r.fleet.Models[0], what), "application/json", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	return func() { _ = post("load") }, post("unload")
}

// killLeader kills the leader as a machine that dies: it stands still first, and nobody is told.
func (r *round) killLeader() (func(), error) {
	leader, _, err := r.fleet.Leader(r.ctx)
	if err != nil {
		return nil, err
	}
	leader.Signal(syscall.SIGSTOP)
	err = harness.Settle(r.ctx, 3*time.Second)
	leader.Kill()
	return func() {}, err
}

// The API keys of agents that limited starts: of the clients, which may send 10 queries a second,
// and of the test.
const limitedKey, adminKey = "limited-limited-limited", "admin-admin-admin-admin"

// limited are the arguments of an agent whose clients have a limit.
func limited(_ int, r *round) []string {
	keys, access := filepath.Join(r.dir, "keys"), filepath.Join(r.dir, "access.yaml")
	err := errors.Join(
		os.WriteFile(keys, []byte("clients: "+limitedKey+"\nadmin: "+adminKey+"\n"), 0o600),
		os.WriteFile(access, []byte("clients:\n"+
			"  admin: {models: [\"*\"], control: [load, unload, plan, events, metrics, fleet]}\n"+
			"  clients: {models: [\"*\"], limits: {queries_per_second: 10}}\n"), 0o600))
	if err != nil {
		r.Fatal(err)
	}
	r.fleet.APIKey = adminKey
	return []string{"--api-keys", keys, "--access", access}
}

// withCard are the arguments of agents of which one has a card of a driver that is made up.
func withCard(agent int) func(i int, r *round) []string {
	return func(i int, r *round) []string {
		if i != agent {
			return nil
		}
		dir := filepath.Join(r.dir, "driver")
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			r.driver, err = fakenvidia.Build(dir)
		}
		if err == nil {
			err = r.driver.Set(fakenvidia.State{Cards: []fakenvidia.Card{card}})
		}
		if err != nil {
			r.Fatal(err)
		}
		for _, variable := range r.driver.Environment() { // agents inherit them
			name, value, _ := strings.Cut(variable, "=")
			r.setenv(name, value)
		}
		return []string{"--gpu", card.UUID}
	}
}

var card = fakenvidia.Card{UUID: "GPU-0", Name: "Fake T4", Memory: 15 << 30}

// heatCard has the card of withCard be slowed by heat, as NVML says it: runs take longer.
func (r *round) heatCard() (func(), error) {
	hot := card
	hot.Throttled, hot.Celsius = 0x40, 97 // nvmlClocksThrottleReasonHwThermalSlowdown
	set := func(c fakenvidia.Card) error {
		return r.driver.Set(fakenvidia.State{Cards: []fakenvidia.Card{c}})
	}
	return func() { _ = set(card) }, set(hot)
}

// dropPages drops the mapped data of an agent's models from memory, again and again, as the kernel
// does when memory is short.
func (r *round) dropPages(agent int) (func(), error) {
	pid := r.fleet.Nodes[agent].PID()
	if err := pageOut(pid, ".onnx.data"); err != nil {
		return nil, skip{err}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-time.After(50 * time.Millisecond):
				_ = pageOut(pid, ".onnx.data")
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }, nil
}

// relayed are the arguments of agents that others and clients reach by a relay.
func relayed(agents ...int) func(i int, r *round) []string {
	return func(i int, r *round) []string {
		if !slices.Contains(agents, i) {
			return nil
		}
		ports, err := harness.FreePorts("127.0.0.1", 1)
		if err != nil {
			r.Fatal(err)
		}
		return []string{
			"--insecure", "--gossip", fmt.Sprintf("0.0.0.0:%d", ports[0]),
			"--advertise", fmt.Sprintf("%s:%d", relayHost, ports[0]),
		}
	}
}

// relayHost is where the relay of an agent listens, on the port of the agent.
const relayHost = "127.0.0.2"

// relay puts a relay before an agent that was started with the arguments of relayed.
func (r *round) relay(n *harness.Node, args []string) error {
	at := slices.Index(args, "--gossip")
	if at < 0 {
		return nil
	}
	_, gossip, _ := net.SplitHostPort(args[at+1])
	_, port, err := net.SplitHostPort(n.GRPC)
	if err != nil {
		return err
	}
	relay, err := newRelay(net.JoinHostPort(relayHost, port), n.GRPC)
	if err != nil {
		return err
	}
	r.relays = append(r.relays, relay)
	n.GRPC, n.Gossip = net.JoinHostPort(relayHost, port), net.JoinHostPort("127.0.0.1", gossip)
	return nil
}

// skip says why a cause cannot be seeded here.
type skip struct{ error }

// writeFile writes a file of a control group.
func writeFile(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
}
