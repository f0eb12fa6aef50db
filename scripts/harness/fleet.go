package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/models/zoo"
)

// patience is how long a fleet may take to come together, find a leader, or have an agent back.
const patience = time.Minute

// A Fleet is agents that find each other. One goroutine uses it, but for Nodes' processes.
type Fleet struct {
	Muster       string   // the binary
	Dir          string   // for models, state and logs
	Models       []string // that every agent is to serve
	Args         []string // of every agent
	DefaultPorts bool     // the agents have them, where they are free
	Network      *Network // whose namespaces the agents are in, one each; nil: loopback
	Certificates *Certificates
	// Nodes are the agents that should be alive.
	Nodes []*Node

	count int
}

// A Node is an agent of a fleet, whichever process it is at the time.
type Node struct {
	*Agent
	InstanceType string
	Index        int    // in the order of starting
	Name         string // as the fleet knows it; known once the fleet was complete

	config Config
}

func (n *Node) String() string { return fmt.Sprintf("agent %d (%s)", n.Index, n.InstanceType) }

// Emulated are the arguments of agents that wait as long as a measured latency profile says.
func Emulated() []string { return []string{"--executor", "emulated", "--profile", "shipped"} }

// GenerateSmall makes the models for agents that emulate them. Their inputs are NCF's, four numbers
// an item: what moves larger ones through one client on this machine would be measured, and not the
// fleet.
func (f *Fleet) GenerateSmall(ctx context.Context) error {
	models, small := filepath.Join(f.Dir, "models"), filepath.Join(f.Dir, "small")
	if err := errors.Join(os.RemoveAll(models), os.RemoveAll(small)); err != nil {
		return err
	}
	if _, err := zoo.Generate(ctx, small, "ncf", zoo.Options{Scale: zoo.Small}); err != nil {
		return err
	}
	for _, model := range f.Models {
		if _, err := zoo.Generate(ctx, models, model, zoo.Options{Scale: zoo.Small}); err != nil {
			return err
		}
		version := filepath.Join(models, model, "1")
		if err := os.RemoveAll(version); err != nil {
			return err
		}
		if err := os.CopyFS(version, os.DirFS(filepath.Join(small, "ncf", "1"))); err != nil {
			return err
		}
		// Of the model's own settings those that say nothing of inputs and outputs.
		config := filepath.Join(models, model, "model.yaml")
		text, err := os.ReadFile(config)
		if err != nil {
			return err
		}
		settings, _, _ := strings.Cut(string(text), "inputs:")
		if err := os.WriteFile(config, []byte(settings), 0o644); err != nil {
			return err
		}
	}
	return os.RemoveAll(small)
}

// Add starts one more agent, of the given instance type or, if that is empty, of this machine's.
// Its arguments come after the fleet's, and so before them in rank.
func (f *Fleet) Add(ctx context.Context, instanceType string, args ...string) (*Node, error) {
	n := &Node{InstanceType: instanceType, Index: f.count}
	state := filepath.Join(f.Dir, fmt.Sprintf("state-%d", n.Index))
	if err := os.RemoveAll(state); err != nil { // no epoch of an earlier run
		return nil, err
	}
	n.config = Config{
		Muster: f.Muster, DefaultPorts: f.DefaultPorts, Host: "127.0.0.1",
		Log:  filepath.Join(f.Dir, fmt.Sprintf("agent-%d.log", n.Index)),
		Args: []string{"--model-dir", filepath.Join(f.Dir, "models"), "--state-dir", state},
	}
	if f.Network != nil {
		n.config.Host, n.config.Namespace = f.Network.Host(n.Index), f.Network.Namespace(n.Index)
	}
	if instanceType != "" {
		n.config.Args = append(n.config.Args, "--instance-type", instanceType)
	}
	if f.Certificates != nil {
		settings, err := f.Certificates.agent(ctx, n.Index, n.config.Host)
		if err != nil {
			return nil, err
		}
		n.config.Args = append(n.config.Args, settings...)
	}
	n.config.Args = slices.Concat(n.config.Args, f.Args, args)
	if err := f.start(n); err != nil {
		return nil, err
	}
	f.count++
	f.Nodes = append(f.Nodes, n)
	return n, nil
}

// Restart starts an agent anew that has ended, with the addresses and the state that it had.
func (f *Fleet) Restart(n *Node) error {
	n.config.After = n.Agent
	return f.start(n)
}

// start starts an agent that joins the others.
func (f *Fleet) start(n *Node) (err error) {
	c := n.config
	// Three seeds will do: agents tell each other of the rest.
	var seeds []string
	for _, o := range f.Nodes {
		if o != n && len(seeds) < 3 {
			seeds = append(seeds, o.Gossip)
		}
	}
	if len(seeds) > 0 {
		c.Args = append(slices.Clone(c.Args), "--join", strings.Join(seeds, ","))
	}
	n.Agent, err = Start(c)
	return err
}

// Stop drains all agents, and ends those that take longer than 10 s.
func (f *Fleet) Stop() {
	var all sync.WaitGroup
	for _, n := range f.Nodes {
		n.Signal(syscall.SIGCONT) // a frozen one could not end
		n.Signal(syscall.SIGTERM)
		all.Go(func() {
			select {
			case <-n.Exited():
			case <-time.After(10 * time.Second):
				n.Kill()
			}
		})
	}
	all.Wait()
}

// Remove forgets an agent that is gone.
func (f *Fleet) Remove(n *Node) {
	f.Nodes = slices.DeleteFunc(f.Nodes, func(o *Node) bool { return o == n })
}

// Addresses are the agents' gRPC addresses.
func (f *Fleet) Addresses() (all []string) {
	for _, n := range f.Nodes {
		all = append(all, n.GRPC)
	}
	return all
}

// Types are the agents' instance types.
func (f *Fleet) Types() (all []string) {
	for _, n := range f.Nodes {
		all = append(all, n.InstanceType)
	}
	return all
}

func (f *Fleet) named(name string) *Node {
	for _, n := range f.Nodes {
		if n.Name == name && name != "" {
			return n
		}
	}
	return nil
}

// Dial makes a connection to the agent, which ends with ctx.
func (f *Fleet) Dial(ctx context.Context, n *Node) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if f.Certificates != nil {
		var err error
		if options, err = f.Certificates.DialOptions(Admin); err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient(n.GRPC, options...)
	if err == nil {
		context.AfterFunc(ctx, func() { conn.Close() })
	}
	return conn, err
}

// watch streams the fleet as the agent sees it, until ctx ends.
func (f *Fleet) watch(ctx context.Context, n *Node) (control.Control_WatchClient, error) {
	conn, err := f.Dial(ctx, n)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
}

// View is the fleet as the agent sees it now.
func (f *Fleet) View(ctx context.Context, n *Node) (*control.View, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := f.watch(ctx, n)
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// complete reports why the agent does not see all agents, their models and one of them as the
// leader; nil if it does.
func (f *Fleet) complete(ctx context.Context, n *Node) error {
	view, err := f.View(ctx, n)
	if err != nil {
		return fmt.Errorf("agent %d: %w", n.Index, err)
	}
	whole := 0
	for _, m := range view.Members {
		i := slices.IndexFunc(f.Nodes, func(o *Node) bool { return o.GRPC == m.Address })
		if i < 0 {
			continue
		}
		f.Nodes[i].Name = m.Name
		if !slices.ContainsFunc(f.Models, func(model string) bool {
			return !slices.ContainsFunc(m.Models,
				func(held *control.Model) bool { return held.Name == model })
		}) {
			whole++
		}
	}
	if whole != len(f.Nodes) {
		return fmt.Errorf("agent %d sees %d of %d agents with %v", n.Index, whole, len(f.Nodes),
			f.Models)
	}
	if leader := view.Leadership.GetLeader(); f.named(leader) == nil {
		return fmt.Errorf("agent %d sees the leader %q", n.Index, leader)
	}
	return nil
}

// until calls f again and again until it returns nil, and returns its last error if it never does,
// or how the agent ended if that is why.
func until(ctx context.Context, n *Node, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-n.Exited():
			return n.Stop()
		case <-ctx.Done():
			return fmt.Errorf("not so within %v: %w", patience, err)
		}
	}
}

// WaitComplete returns when every agent sees the whole fleet and a leader, or why it does not.
func (f *Fleet) WaitComplete(ctx context.Context) error {
	for _, n := range f.Nodes {
		if err := until(ctx, n,
			func(ctx context.Context) error { return f.complete(ctx, n) }); err != nil {
			return fmt.Errorf("wait until the fleet is complete: %w", err)
		}
	}
	return nil
}

// WaitAgreed returns when the fleet is complete and all agents see nobody else and follow the same
// leader, or why not.
func (f *Fleet) WaitAgreed(ctx context.Context) error {
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	return until(ctx, f.Nodes[0], func(ctx context.Context) error {
		said := map[string][]int{}
		for _, n := range f.Nodes {
			v, err := f.View(ctx, n)
			what := fmt.Sprintf("%s, epoch %d", v.GetLeadership().GetLeader(),
				v.GetLeadership().GetEpoch())
			if err != nil {
				what = err.Error()
			} else if len(v.GetMembers()) != len(f.Nodes) {
				what = fmt.Sprintf("%d agents", len(v.GetMembers()))
			}
			said[what] = append(said[what], n.Index)
		}
		if len(said) > 1 {
			return fmt.Errorf("agents differ about the fleet: %v", said)
		}
		return nil
	})
}

// WaitBack returns when the agent takes queries, and what it calls itself then: another name than
// that of its former process.
func (f *Fleet) WaitBack(ctx context.Context, n *Node, former string) (name string, err error) {
	return name, until(ctx, n, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		conn, err := f.Dial(ctx, n)
		if err != nil {
			return err
		}
		ready, err := inference.NewGRPCInferenceServiceClient(conn).ServerReady(ctx,
			&inference.ServerReadyRequest{})
		if err != nil || !ready.GetReady() {
			return errors.Join(fmt.Errorf("%v is not ready", n), err)
		}
		view, err := f.View(ctx, n)
		for _, m := range view.GetMembers() {
			if m.GetAddress() == n.GRPC && m.GetName() != former {
				name = m.GetName()
				return nil
			}
		}
		return errors.Join(fmt.Errorf("%v does not know itself", n), err)
	})
}

// Leader returns the agent that leads, by the view of the first that sees one, and its epoch.
func (f *Fleet) Leader(ctx context.Context) (*Node, uint64, error) {
	for _, n := range f.Nodes {
		view, err := f.View(ctx, n)
		if err != nil {
			continue
		}
		if leader := f.named(view.Leadership.GetLeader()); leader != nil {
			return leader, view.Leadership.Epoch, nil
		}
	}
	return nil, 0, errors.New("no agent sees a leader")
}

// NotLeader returns an agent of the type that does not lead.
func (f *Fleet) NotLeader(ctx context.Context, instanceType string) (*Node, error) {
	leader, _, err := f.Leader(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range f.Nodes {
		if n != leader && n.InstanceType == instanceType {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no %s but the leader", instanceType)
}

// AwaitLeader returns how long it takes until an agent other than gone sees a leader of a later
// epoch that is not gone; more than a minute is an error.
func (f *Fleet) AwaitLeader(ctx context.Context, gone *Node, epoch uint64) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	i := slices.IndexFunc(f.Nodes, func(n *Node) bool { return n != gone })
	if i < 0 {
		return 0, errors.New("no other agent")
	}
	stream, err := f.watch(ctx, f.Nodes[i])
	if err != nil {
		return 0, err
	}
	for {
		view, err := stream.Recv()
		if err != nil {
			return 0, fmt.Errorf("no new leader after %v: %w",
				time.Since(start).Round(time.Millisecond), err)
		}
		l := view.Leadership
		if l.GetEpoch() > epoch && l.GetLeader() != "" && l.GetLeader() != gone.Name {
			return time.Since(start), nil
		}
	}
}
