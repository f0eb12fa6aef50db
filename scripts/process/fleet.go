package process

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
)

// A Fleet is agents that find each other.
type Fleet struct {
	Muster string   // the binary
	Dir    string   // for models, state and logs
	Models []string // that every agent is to serve
	Args   []string // of every agent
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
	// Three seeds will do: agents tell each other of the rest.
	var seeds []string
	for _, n := range f.Nodes[:min(3, len(f.Nodes))] {
		seeds = append(seeds, n.Gossip)
	}
	if len(seeds) > 0 {
		args = append(args, "--join", strings.Join(seeds, ","))
	}
	a, err := Start(Config{
		Muster: f.Muster, Host: host, Namespace: namespace,
		Log:  filepath.Join(f.Dir, fmt.Sprintf("agent-%d.log", f.count)),
		Args: append(args, f.Args...),
	})
	if err != nil {
		return nil, err
	}
	n := &Node{Agent: a, InstanceType: instanceType, Index: f.count}
	f.count++
	f.Nodes = append(f.Nodes, n)
	return n, nil
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
func (n *Node) watch(ctx context.Context) (control.Control_WatchClient, error) {
	conn, err := grpc.NewClient(n.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
}

// view is the fleet as the agent sees it now.
func (n *Node) view(ctx context.Context) (*control.View, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := n.watch(ctx)
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// complete reports why the agent does not see all agents, their models and one
// of them as the leader; nil if it does.
func (f *Fleet) complete(ctx context.Context, n *Node) error {
	view, err := n.view(ctx)
	if err != nil {
		return err
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
		view, err := n.view(ctx)
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
// leader of a later epoch that is not gone.
func (f *Fleet) AwaitLeader(ctx context.Context, gone *Node, epoch uint64) (time.Duration, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	i := slices.IndexFunc(f.Nodes, func(n *Node) bool { return n != gone })
	if i < 0 {
		return 0, errors.New("no other agent")
	}
	stream, err := f.Nodes[i].watch(ctx)
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
