package demo

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// startPatience is how long agents may take to serve, or to elect a leader, on a busy machine.
const startPatience = time.Minute

// A fleet is a number of emulated agents. It owns their processes, and a goroutine for each that
// waits for its end.
type fleet struct {
	// ctx ends with parent, and when an agent ends by itself; its cause then has the agent's log.
	ctx    context.Context
	cancel context.CancelCauseFunc
	parent context.Context

	config Config
	dir    string // of states and logs
	models string
	alone  bool // the agents do not join each other
	agents []*agent
}

func newFleet(ctx context.Context, c Config, name, models string) *fleet {
	f := &fleet{parent: ctx, config: c, dir: filepath.Join(c.Dir, name), models: models}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	return f
}

// An agent is a `muster agent` process.
type agent struct {
	instanceType                profiles.InstanceType
	name                        string // in the fleet; set by awaitReady
	http, grpc, metrics, gossip string // addresses
	log                         string // its file

	process *exec.Cmd
	ending  atomic.Bool   // it was told to end
	exited  chan struct{} // closed when the process has ended
}

// start starts one more agent.
func (f *fleet) start(t profiles.InstanceType) error {
	a := &agent{instanceType: t, exited: make(chan struct{})}
	name := fmt.Sprintf("agent-%d", len(f.agents))
	a.log = filepath.Join(f.dir, name+".log")
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	log, err := os.Create(a.log)
	if err != nil {
		return err
	}
	defer log.Close() // the process has a copy
	// The last one shows the dashboard, where users look for it if they can.
	if f.alone || len(f.agents) < len(Machines)-1 || !a.takeDefaultPorts() {
		ports, err := findPorts(4, isFree)
		if err != nil {
			return err
		}
		a.setAddresses(ports)
	}
	a.process = exec.Command(f.config.Program, "agent", "--executor", "emulated", "--profile",
		"shipped", "--instance-type", string(t), "--model-dir", f.models,
		"--state-dir", filepath.Join(f.dir, name),
		"--http", a.http, "--grpc", a.grpc, "--metrics", a.metrics, "--gossip", a.gossip)
	if !f.alone && len(f.agents) > 0 {
		a.process.Args = append(a.process.Args, "--join", f.agents[0].gossip)
	}
	a.process.Dir = f.dir // without a muster.yaml
	a.process.Env = slices.DeleteFunc(slices.Clone(f.config.Env),
		func(v string) bool { return strings.HasPrefix(v, "MUSTER_") })
	a.process.Stdout, a.process.Stderr = log, log
	a.process.SysProcAttr = childAttributes()
	if err := a.process.Start(); err != nil {
		return fmt.Errorf("start an agent: %w", err)
	}
	f.agents = append(f.agents, a)
	go func() {
		err := a.process.Wait()
		close(a.exited)
		if !a.ending.Load() {
			f.cancel(fmt.Errorf("the agent on %s ended by itself: %w; its log ends:\n%s", t, err,
				a.endOfLog()))
		}
	}()
	return nil
}

// endOfLog is the last lines of the agent's log.
func (a *agent) endOfLog() []byte {
	text, err := os.ReadFile(a.log)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-10):], []byte("\n"))
}

const host = "127.0.0.1"

// takeDefaultPorts gives the agent the ports that agents have by default; false if one is taken.
func (a *agent) takeDefaultPorts() bool {
	ports := []int{8000, 8001, 8002, 7946}
	for _, port := range ports {
		if !isFree(port) {
			return false
		}
	}
	a.setAddresses(ports)
	return true
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if err == nil {
		l.Close()
	}
	return err == nil
}

// nextPort is where findPorts looks next. It is below the ports that the system gives to outgoing
// connections: one of those could take a port between the look and the agent's start.
var nextPort = 10000 + rand.IntN(20000)

// findPorts finds n free ports that it has not found before.
func findPorts(n int, isFree func(port int) bool) (ports []int, err error) {
	const tries = 1000 // so many programs hardly listen in a row
	for range tries {
		nextPort++
		if isFree(nextPort) {
			ports = append(ports, nextPort)
		}
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("an agent needs %d TCP ports of %s, of %d up to %d only %d are free", n,
		host, tries, nextPort, len(ports))
}

func (a *agent) setAddresses(ports []int) {
	for i, to := range []*string{&a.http, &a.grpc, &a.metrics, &a.gossip} {
		*to = net.JoinHostPort(host, fmt.Sprint(ports[i]))
	}
}

// stop ends all agents at once, since emulated ones have nothing to keep, and returns when they
// have ended.
func (f *fleet) stop() {
	for _, a := range f.agents {
		a.killProcess()
	}
	for _, a := range f.agents {
		<-a.exited
	}
	f.cancel(nil)
}

// killProcess ends the agent's process without a warning.
func (a *agent) killProcess() {
	a.ending.Store(true)
	_ = a.process.Process.Kill() // an error says that it has ended
}

// agentAddresses are the agents' gRPC addresses.
func (f *fleet) agentAddresses() (all []string) {
	for _, a := range f.agents {
		all = append(all, a.grpc)
	}
	return all
}

// watch calls see with the agent's view of the fleet, whenever that changes, until see says that
// the view is the wanted one.
func (f *fleet) watch(ctx context.Context, a *agent, see func(*control.View) bool) error {
	conn, err := grpc.NewClient(a.grpc,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// It tries again at once while the agent starts.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{},
		grpc.WaitForReady(true))
	for err == nil {
		var view *control.View
		if view, err = stream.Recv(); err == nil && see(view) {
			return nil
		}
	}
	return orCause(ctx, err)
}

// awaitReady waits until every agent serves the model and sees all that it should: itself, or the
// whole fleet and a leader. show is called with the number of agents that do.
func (f *fleet) awaitReady(show func(ready int)) error {
	ctx, cancel := context.WithTimeoutCause(f.ctx, startPatience,
		fmt.Errorf("the agents do not serve after %v; see their logs", startPatience))
	defer cancel()
	for i, a := range f.agents {
		show(i)
		if err := f.watch(ctx, a,
			func(v *control.View) bool { return f.isComplete(a, v) }); err != nil {
			return err
		}
	}
	return nil
}

// isComplete reports whether the view of a has what awaitReady waits for. It notes the agents'
// names.
func (f *fleet) isComplete(a *agent, v *control.View) bool {
	whole := 0
	for _, m := range v.GetMembers() {
		i := slices.IndexFunc(f.agents, func(o *agent) bool { return o.grpc == m.GetAddress() })
		if i < 0 || f.alone && f.agents[i] != a {
			continue
		}
		f.agents[i].name = m.GetName()
		if slices.ContainsFunc(m.GetModels(),
			func(held *control.Model) bool { return held.GetName() == Model }) {
			whole++
		}
	}
	if f.alone {
		return whole == 1
	}
	return whole == len(f.agents) && f.find(v.GetLeadership().GetLeader()) != nil
}

// find is the agent of this name, or nil.
func (f *fleet) find(name string) *agent {
	i := slices.IndexFunc(f.agents, func(a *agent) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return f.agents[i]
}

// killLeader ends the leader's process without a warning, waits until another leads, and tells what
// has happened.
func (f *fleet) killLeader() (story string, err error) {
	survivor := f.agents[len(f.agents)-1]
	var leader *agent
	var epoch uint64
	if err := f.watch(f.ctx, survivor, func(v *control.View) bool {
		leader, epoch = f.find(v.GetLeadership().GetLeader()), v.GetLeadership().GetEpoch()
		return leader != nil
	}); err != nil {
		return "", err
	}
	if leader == survivor {
		survivor = f.agents[0]
	}
	ctx, cancel := context.WithTimeoutCause(f.ctx, startPatience,
		fmt.Errorf("no agent leads %v after the leader was killed", startPatience))
	defer cancel()
	var next *agent
	var took time.Duration
	var killed time.Time
	err = f.watch(ctx, survivor, func(v *control.View) bool {
		if killed.IsZero() { // the watch has begun
			killed = time.Now()
			leader.killProcess()
			return false
		}
		l := v.GetLeadership()
		if next = f.find(l.GetLeader()); next == nil || next == leader || l.GetEpoch() <= epoch {
			return false
		}
		took = time.Since(killed)
		return true
	})
	if err != nil {
		return "", err
	}
	<-leader.exited
	f.agents = slices.DeleteFunc(f.agents, func(a *agent) bool { return a == leader })
	return fmt.Sprintf("%s (%s) was killed; %d ms later %s (%s) led", leader.name,
		leader.instanceType, took.Milliseconds(), next.name, next.instanceType), nil
}
