package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles"
)

// instanceType is what the workers play.
const instanceType = "r5n.large"

// A fleet is a leader and a gateway that hold no model, and workers, each a
// process.
type fleet struct {
	dir             string
	muster          string
	leader, gateway *agent
	workers         []*agent
}

// An agent is a `muster agent` process.
type agent struct {
	name         string
	grpc, gossip string // addresses
	log          string // path
	process      *exec.Cmd
	exited       chan struct{}
}

func startFleet(ctx context.Context, muster string, workers int) (*fleet, error) {
	dir, err := os.MkdirTemp("", "muster-overhead-")
	if err != nil {
		return nil, err
	}
	f := &fleet{dir: dir, muster: muster}
	models, profile := filepath.Join(dir, "models"), filepath.Join(dir, "profile.json")
	generate := exec.CommandContext(ctx, muster, "models", "generate", "--out", models, "ncf")
	if out, err := generate.CombinedOutput(); err != nil {
		return f, fmt.Errorf("run %s: %w\n%s", generate, err, out)
	}
	if err := writeProfile(profile); err != nil {
		return f, err
	}
	none := filepath.Join(dir, "none")
	if err := os.Mkdir(none, 0o755); err != nil {
		return f, err
	}
	emulated := []string{"--executor", "emulated", "--profile", profile, "--instance-type", instanceType}
	if f.leader, err = f.start("leader", none, append(emulated, "--leader", "must")...); err != nil {
		return f, err
	}
	follow := append(emulated, "--leader", "never", "--join", f.leader.gossip)
	if f.gateway, err = f.start("gateway", none, follow...); err != nil {
		return f, err
	}
	for i := range workers {
		w, err := f.start(fmt.Sprintf("worker-%d", i), models, follow...)
		if err != nil {
			return f, err
		}
		f.workers = append(f.workers, w)
	}
	return f, nil
}

// writeProfile writes latencies of almost nothing.
func writeProfile(path string) error {
	key := profiles.Key{Model: "ncf", InstanceType: instanceType, Provider: "cpu"}
	const latency = time.Microsecond
	table, err := profiles.NewTable(key, profiles.Measured, "no time", []profiles.Knot{
		{BatchSize: 1, Mean: latency, P50: latency, P90: latency, P99: latency},
		{BatchSize: 1000, Mean: latency, P50: latency, P90: latency, P99: latency},
	})
	if err != nil {
		return err
	}
	info := profiles.ModelInfo{Name: "ncf", QoSTarget: 5 * time.Millisecond, LargestBatchSize: 1000}
	library, err := profiles.NewLibrary("no time", "scripts/overhead", []profiles.ModelInfo{info}, []*profiles.Table{table})
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(library.Write(file), file.Close())
}

func (f *fleet) start(name, models string, args ...string) (*agent, error) {
	addresses, err := freeAddresses(4)
	if err != nil {
		return nil, err
	}
	a := &agent{name: name, grpc: addresses[0], gossip: addresses[1], log: filepath.Join(f.dir, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(a.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	a.process = exec.Command(f.muster, append([]string{"agent", "--grpc", a.grpc, "--gossip", a.gossip, "--http", addresses[2], "--metrics", addresses[3],
		"--model-dir", models, "--state-dir", filepath.Join(f.dir, name)}, args...)...)
	a.process.Stdout, a.process.Stderr = log, log
	a.process.SysProcAttr = childAttributes()
	if err := a.process.Start(); err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	go func() {
		_ = a.process.Wait() // how it ended is in its log
		close(a.exited)
	}()
	return a, nil
}

func freeAddresses(n int) ([]string, error) {
	var free []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // only now, so that the ports differ
		free = append(free, l.Addr().String())
	}
	return free, nil
}

// settle waits until both clients' queries are answered by the fleet, the first
// one's by way of the leader, and returns an answer.
func (f *fleet) settle(ctx context.Context, direct, plain *client.Client, request *oip.Request) (*oip.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := errors.New("no client has found its leader")
	for {
		if g := direct.Gateway(); g != nil && g.Leader() != "" {
			var answer *oip.Response
			if answer, err = both(ctx, direct, plain, request); err == nil {
				return answer, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the fleet does not serve: %w; logs are in %s", err, f.dir)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func both(ctx context.Context, direct, plain *client.Client, request *oip.Request) (answer *oip.Response, err error) {
	for _, c := range []*client.Client{direct, plain} {
		r := *request
		if answer, err = c.Infer(ctx, &r); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// An execution is what workers have executed so far.
type execution struct {
	count uint64
	time  time.Duration
}

func (f *fleet) executed(ctx context.Context) (e execution, err error) {
	for _, w := range f.workers {
		c, err := client.New([]string{w.grpc}, client.WithoutFleet(), client.WithTimeout(5*time.Second))
		if err != nil {
			return e, err
		}
		statistics, err := c.ModelStatistics(ctx, "ncf", "")
		if err := errors.Join(err, c.Close()); err != nil {
			return e, err
		}
		for _, s := range statistics {
			infer := s.GetInferenceStats().GetComputeInfer()
			e.count += infer.GetCount()
			e.time += time.Duration(infer.GetNs())
		}
	}
	return e, nil
}

// stop ends the agents. If one has ended before, their logs are kept.
func (f *fleet) stop() error {
	var faults []error
	agents := append([]*agent{}, f.workers...)
	for _, a := range []*agent{f.gateway, f.leader} {
		if a != nil {
			agents = append(agents, a)
		}
	}
	for _, a := range agents {
		select {
		case <-a.exited:
			faults = append(faults, fmt.Errorf("the %s has ended, see %s", a.name, a.log))
		default:
			_ = a.process.Process.Signal(syscall.SIGTERM) // it may end just now
		}
	}
	for _, a := range agents {
		select {
		case <-a.exited:
		case <-time.After(15 * time.Second):
			_ = a.process.Process.Kill()
			<-a.exited
			faults = append(faults, fmt.Errorf("the %s did not stop within 15 s of SIGTERM, see %s", a.name, a.log))
		}
	}
	if len(faults) == 0 {
		faults = append(faults, os.RemoveAll(f.dir))
	}
	return errors.Join(faults...)
}
