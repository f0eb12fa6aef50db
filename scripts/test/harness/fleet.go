package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/models/zoo"
)

// patience is how long agents may take to find each other, to elect a leader, or to come back.
const patience = time.Minute

// A Fleet is a number of agents that find each other. It is not safe for concurrent use; signals
// may be sent to its Nodes from any goroutine.
type Fleet struct {
	Muster       string        // the binary
	Dir          string        // for models, state and logs
	Models       []string      // the models that every agent serves
	Args         []string      // further arguments of every agent
	Network      *Network      // has a namespace for each agent; nil: all are on loopback
	Certificates *Certificates // nil: no TLS, no gossip key
	APIKey       string        // of this process, where there are no certificates; "": none is asked for
	// Nodes are the agents that should be alive.
	Nodes []*Node

	count int
}

// A Node is one of a fleet's agents. When it is restarted, its Agent is another one.
type Node struct {
	*Agent
	InstanceType string
	Index        int    // in the order of starting
	Name         string // its name in the fleet; set by WaitComplete

	config Config
}

func (n *Node) String() string { return fmt.Sprintf("agent %d (%s)", n.Index, n.InstanceType) }

// Emulated are the arguments of agents that run no model, but wait as long as a profile says.
func Emulated() []string { return []string{"--executor", "emulated", "--profile", "shipped"} }

// GenerateSmall generates the fleet's models for emulated agents. All have the inputs of
// NCF, four numbers a row. With larger ones the client on this machine would be the
// bottleneck, not the fleet.
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
		// Keep the model's settings up to its inputs and outputs: those are NCF's now.
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

// Add starts one more agent, of the given instance type or, if that is empty, of this machine's. It
// removes the state of an agent of an earlier run. args come after the fleet's and override them.
func (f *Fleet) Add(ctx context.Context, instanceType string, args ...string) (*Node, error) {
	n := &Node{InstanceType: instanceType, Index: f.count}
	state := filepath.Join(f.Dir, fmt.Sprintf("state-%d", n.Index))
	if err := os.RemoveAll(state); err != nil {
		return nil, err
	}
	n.config = Config{
		Muster: f.Muster, Host: "127.0.0.1",
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
		settings, err := f.Certificates.issueForAgent(ctx, n.Index, n.config.Host)
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

// Restart starts the binary f.Muster as an agent that has ended, with the addresses and the state
// that it had.
func (f *Fleet) Restart(n *Node) error {
	n.config.Muster, n.config.After = f.Muster, n.Agent
	return f.start(n)
}

// start starts an agent that joins the others.
func (f *Fleet) start(n *Node) (err error) {
	c := n.config
	// Three seeds are enough: agents tell each other of the rest.
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

// Stop drains all agents, and kills those that take longer than 10 s.
func (f *Fleet) Stop() {
	var all sync.WaitGroup
	for _, n := range f.Nodes {
		n.Signal(syscall.SIGCONT) // a frozen agent does not see SIGTERM
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

// Remove removes an agent, which has ended, from Nodes.
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

func (f *Fleet) findNode(name string) *Node {
	for _, n := range f.Nodes {
		if n.Name == name && name != "" {
			return n
		}
	}
	return nil
}

// Dial makes a connection to the agent. It is closed when ctx ends.
func (f *Fleet) Dial(ctx context.Context, n *Node) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if f.Certificates != nil {
		var err error
		if options, err = f.Certificates.DialOptions(Admin); err != nil {
			return nil, err
		}
	} else if f.APIKey != "" {
		var err error
		options, err = secure.ClientConfig{APIKey: f.APIKey}.DialOptions(slog.Default())
		if err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient(n.GRPC, options...)
	if err == nil {
		context.AfterFunc(ctx, func() { conn.Close() })
	}
	return conn, err
}

// watch streams the agent's view of the fleet until ctx ends.
func (f *Fleet) watch(ctx context.Context, n *Node) (control.Control_WatchClient, error) {
	conn, err := f.Dial(ctx, n)
	if err != nil {
		return nil, err
	}
	return control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
}

// View is the agent's present view of the fleet.
func (f *Fleet) View(ctx context.Context, n *Node) (*control.View, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := f.watch(ctx, n)
	if err != nil {
		return nil, err
	}
	return stream.Recv()
}

// checkComplete is nil if the agent sees all agents with all models, and one of them as the leader.
// Else it says what is missing. It sets the nodes' names.
func (f *Fleet) checkComplete(ctx context.Context, n *Node) error {
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
	if leader := view.Leadership.GetLeader(); f.findNode(leader) == nil {
		return fmt.Errorf("agent %d sees the leader %q", n.Index, leader)
	}
	return nil
}

// until calls f again and again until it returns nil. After a minute it returns f's last error; if
// the agent has ended, it returns how.
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
			return fmt.Errorf("after %v: %w", patience, err)
		}
	}
}

// WaitComplete waits until every agent sees the whole fleet and a leader, for a
// minute each at most.
func (f *Fleet) WaitComplete(ctx context.Context) error {
	for _, n := range f.Nodes {
		if err := until(ctx, n,
			func(ctx context.Context) error { return f.checkComplete(ctx, n) }); err != nil {
			return fmt.Errorf("wait until the fleet is complete: %w", err)
		}
	}
	return nil
}

// WaitAgreed waits until the fleet is complete, no agent sees any other member, and all follow the
// same leader.
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

// WaitBack waits until the agent takes queries, and returns its name. A restarted agent has another
// name than its former process; former is "" if it was not restarted.
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

// Leader returns the leader and its epoch, as the first agent that sees a leader says.
func (f *Fleet) Leader(ctx context.Context) (*Node, uint64, error) {
	for _, n := range f.Nodes {
		view, err := f.View(ctx, n)
		if err != nil {
			continue
		}
		if leader := f.findNode(view.Leadership.GetLeader()); leader != nil {
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
