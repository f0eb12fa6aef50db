package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/control"
)

// A Fleet is agents that find each other.
type Fleet struct {
	Muster string   // the binary
	Dir    string   // for models, state and logs
	Models []string // that every agent is to serve
	Args   []string // of every agent
	// Dial are the options of connections to the agents; none: unencrypted.
	Dial []grpc.DialOption
	// Nodes are the agents that should be alive.
	Nodes []*Node

	count int
}

// A Node is an agent of a fleet.
type Node struct {
	*Agent
	InstanceType string
	Index        int    // in the order of starting
	Name         string // as the fleet knows it; known once the fleet was complete

	config Config
}

// GenerateSmall makes the models for agents that emulate them. Their inputs are
// NCF's, four numbers an item: what moves larger ones through one client on this
// machine would be measured, and not the fleet.
func (f *Fleet) GenerateSmall(ctx context.Context) error {
	models, small := filepath.Join(f.Dir, "models"), filepath.Join(f.Dir, "small")
	if err := errors.Join(os.RemoveAll(models), os.RemoveAll(small)); err != nil {
		return err
	}
	generate := func(model, out string) error {
		cmd := exec.CommandContext(ctx, f.Muster, "models", "generate", model, "--scale", "small", "--out", out)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("run %s: %w\n%s", cmd, err, out)
		}
		return nil
	}
	for _, model := range f.Models {
		dir := filepath.Join(models, model)
		err := errors.Join(generate(model, models), generate("ncf", small), os.RemoveAll(filepath.Join(dir, "1")))
		if err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(small, "ncf", "1"), filepath.Join(dir, "1")); err != nil {
			return err
		}
		if err := os.RemoveAll(small); err != nil {
			return err
		}
		// Of the model's own settings those that say nothing of inputs and outputs.
		config := filepath.Join(dir, "model.yaml")
		text, err := os.ReadFile(config)
		if err != nil {
			return err
		}
		settings, _, _ := strings.Cut(string(text), "inputs:")
		if err := os.WriteFile(config, []byte(settings), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Add starts one more agent; args go before the fleet's. See [Config] for host
// and namespace.
func (f *Fleet) Add(instanceType, host, namespace string, args ...string) (*Node, error) {
	state := filepath.Join(f.Dir, fmt.Sprintf("state-%d", f.count))
	if err := os.RemoveAll(state); err != nil { // no epoch of an earlier run
		return nil, err
	}
	args = append(args, "--model-dir", filepath.Join(f.Dir, "models"), "--state-dir", state)
	if instanceType != "" {
		args = append(args, "--instance-type", instanceType)
	}
	n := &Node{InstanceType: instanceType, Index: f.count, config: Config{
		Muster: f.Muster, Host: host, Namespace: namespace,
		Log:  filepath.Join(f.Dir, fmt.Sprintf("agent-%d.log", f.count)),
		Args: append(args, f.Args...),
	}}
	if err := f.start(n); err != nil {
		return nil, err
	}
	f.count++
	f.Nodes = append(f.Nodes, n)
	return n, nil
}

// Restart starts an agent anew that has ended, with the addresses and the state
// that it had.
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

func (f *Fleet) named(name string) *Node {
	for _, n := range f.Nodes {
		if n.Name == name && name != "" {
			return n
		}
	}
	return nil
}

// watch streams the fleet as the agent sees it, until ctx ends.
func (f *Fleet) watch(ctx context.Context, n *Node) (control.Control_WatchClient, error) {
	options := append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, f.Dial...)
	conn, err := grpc.NewClient(n.GRPC, options...)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
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

// complete reports why the agent does not see all agents, their models and one
// of them as the leader; nil if it does.
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
			return !slices.ContainsFunc(m.Models, func(held *control.Model) bool { return held.Name == model })
		}) {
			whole++
		}
	}
	if whole != len(f.Nodes) {
		return fmt.Errorf("agent %d sees %d of %d agents with %v", n.Index, whole, len(f.Nodes), f.Models)
	}
	if leader := view.Leadership.GetLeader(); f.named(leader) == nil {
		return fmt.Errorf("agent %d sees the leader %q", n.Index, leader)
	}
	return nil
}

// WaitComplete returns when every agent sees the whole fleet, or why not within
// a minute.
func (f *Fleet) WaitComplete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for _, n := range f.Nodes {
		for {
			err := f.complete(ctx, n)
			if err == nil {
				break
			}
			select {
			case <-poll.C:
			case <-n.Exited():
				return n.Stop()
			case <-ctx.Done():
				return fmt.Errorf("the fleet did not come together: %w", err)
			}
		}
	}
	return nil
}

// Leader returns the agent that leads, by the view of the first that sees one,
// and its epoch.
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

// AwaitLeader returns how long it takes until an agent other than gone sees a
// leader of a later epoch that is not gone; more than a minute is an error.
func (f *Fleet) AwaitLeader(ctx context.Context, gone *Node, epoch uint64) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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
			return 0, fmt.Errorf("no new leader after %v: %w", time.Since(start).Round(time.Millisecond), err)
		}
		l := view.Leadership
		if l.GetEpoch() > epoch && l.GetLeader() != "" && l.GetLeader() != gone.Name {
			return time.Since(start), nil
		}
	}
}
