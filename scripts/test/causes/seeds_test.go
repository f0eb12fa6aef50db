//go:build fleet

package causes

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

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
			name: "takeover", want: []string{"takeover", "host"}, agent: -1, minLate: 2,
			fleet: with(emulated, func(f *fleet) { f.agents, f.targetMs, f.rate = 3, 75, 18 }),
			begin: func(r *round) (func(), error) { return r.killLeaders() },
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

// killLeaders kills the leader, and starts it again, again and again.
func (r *round) killLeaders() (func(), error) {
	done, ended := make(chan struct{}), make(chan struct{})
	kill := func() error {
		leader, _, err := r.fleet.Leader(r.ctx)
		if err != nil {
			return err
		}
		former := leader.Name
		// As a machine that dies: nobody is told.
		leader.Signal(syscall.SIGSTOP)
		if err := harness.Settle(r.ctx, 2*time.Second); err != nil {
			return err
		}
		leader.Kill()
		if err := r.fleet.Restart(leader); err != nil {
			return err
		}
		leader.Name, err = r.fleet.WaitBack(r.ctx, leader, former)
		return err
	}
	go func() {
		runtime.LockOSThread() // as TestCauses: it starts agents
		defer close(ended)
		for {
			if err := kill(); err != nil {
				r.Logf("kill the leader: %v", err)
			}
			select {
			case <-time.After(time.Second):
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
