package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/scripts/process"
)

// instanceType is what the workers play.
const instanceType = "r5n.large"

// A fleet is a leader and a gateway that hold no model, and workers, each a
// process.
type fleet struct {
	dir, muster     string
	models          string   // directory
	follow          []string // arguments of all but the leader
	leader, gateway *process.Agent
	workers         []*process.Agent
}

// startFleet starts a fleet with one worker.
func startFleet(ctx context.Context, muster string) (*fleet, error) {
	dir, err := os.MkdirTemp("", "muster-overhead-")
	if err != nil {
		return nil, err
	}
	f := &fleet{dir: dir, muster: muster, models: filepath.Join(dir, "models")}
	profile := filepath.Join(dir, "profile.json")
	generate := exec.CommandContext(ctx, muster, "models", "generate", "--out", f.models, "ncf")
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
	f.follow = append(emulated, "--leader", "never", "--join", f.leader.Gossip)
	if f.gateway, err = f.start("gateway", none, f.follow...); err != nil {
		return f, err
	}
	return f, f.addWorker(ctx)
}

func (f *fleet) addWorker(ctx context.Context) error {
	w, err := f.start(fmt.Sprintf("worker-%d", len(f.workers)), f.models, f.follow...)
	if err != nil {
		return err
	}
	f.workers = append(f.workers, w)
	c, err := client.New([]string{w.GRPC}, client.WithoutFleet(), client.WithTimeout(time.Second))
	if err != nil {
		return err
	}
	return errors.Join(process.WaitReady(ctx, c, []string{"ncf"}), c.Close())
}

func (f *fleet) start(name, models string, args ...string) (*process.Agent, error) {
	return process.Start(process.Config{
		Muster: f.muster, Log: filepath.Join(f.dir, name+".log"),
		Args: append([]string{"--model-dir", models, "--state-dir", filepath.Join(f.dir, name)}, args...),
	})
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
	least uint64 // by the worker that has executed the fewest
	time  time.Duration
}

func (f *fleet) executed(ctx context.Context) (e execution, err error) {
	e.least = math.MaxUint64
	for _, w := range f.workers {
		c, err := client.New([]string{w.GRPC}, client.WithoutFleet(), client.WithTimeout(5*time.Second))
		if err != nil {
			return e, err
		}
		statistics, err := c.ModelStatistics(ctx, "ncf", "")
		if err := errors.Join(err, c.Close()); err != nil {
			return e, err
		}
		n := uint64(0)
		for _, s := range statistics {
			infer := s.GetInferenceStats().GetComputeInfer()
			n += infer.GetCount()
			e.time += time.Duration(infer.GetNs())
		}
		e.count += n
		e.least = min(e.least, n)
	}
	return e, nil
}

// allServe loads the fleet until each worker has executed a query.
func (f *fleet) allServe(ctx context.Context, load func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a worker got no query within a minute"))
	defer cancel()
	for {
		if err := load(ctx); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if e, err := f.executed(ctx); err != nil || e.least > 0 {
			return err
		}
	}
}

// stop ends the agents. If one fails to, their logs are kept.
func (f *fleet) stop() error {
	var faults []error
	for _, a := range append(f.workers, f.gateway, f.leader) {
		if a != nil {
			faults = append(faults, a.Stop())
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return os.RemoveAll(f.dir)
}
