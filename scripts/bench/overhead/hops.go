package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/scripts/test/harness"
)

const (
	workerType = "r5n.large" // the instance type that all agents say they are
	atATime    = 32          // queries in flight while rates are measured
)

// A way is one route of queries, with what was measured of it.
type way struct {
	name    string
	query   func(context.Context) error
	times   []float64 // latencies of queries, one at a time, in us
	medians []float64 // median latency of each round, in us
	rates   []float64 // queries/s of each round, many at a time

	processes []*harness.Processes // that handle the queries
	// the CPU time of a query in each, by round, many at a time, in us
	cpu [][]float64
}

// measureHops measures the time that Muster adds to a query's execution, and compares it with that
// of bare gRPC relays, which pass the same bytes over as many hops. There are two routes: by the
// SDK, through leader and worker; and by a client that knows only the Open Inference Protocol,
// through a gateway too. It also measures the queries/s that a leader distributes to four workers
// whose execution takes no time, and the CPU time that each process uses for a query, which varies
// less than the rate. The queries are NCF's at batch size 8; the routes are measured in turns.
// Wanted: at most 1.4 times the relays' time, and at least 0.45 of their rate.
//
// Every process, this one and the relays too, runs Go code on one thread. With more threads on few
// cores, processes that look for work disturb each other by more than what is measured.
func (r *run) measureHops(ctx context.Context) error {
	runtime.GOMAXPROCS(r.threads)
	if err := os.Setenv("GOMAXPROCS", strconv.Itoa(r.threads)); err != nil { // for the others
		return err
	}
	f, err := r.idleFleet(ctx)
	if f != nil {
		defer f.Stop()
	}
	if err != nil {
		return err
	}
	ways, relays, err := r.makeWays(ctx, f)
	if relays != nil {
		defer relays.stop()
	}
	if err != nil {
		return err
	}
	if err := r.measureLatencies(ctx, f, ways); err != nil {
		return err
	}
	return r.measureRates(ctx, f, ways[0], ways[1], relays)
}

// makeWays makes the routes: each bare one is followed by Muster's of as many hops.
func (r *run) makeWays(ctx context.Context, f *harness.Fleet) ([]*way, *relays, error) {
	request, err := ncfQuery()
	if err != nil {
		return nil, nil, err
	}
	direct, err := client.New(f.Addresses()[:1])
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { direct.Close() })
	plain, err := client.New(f.Addresses()[1:2], client.WithoutFleet())
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { plain.Close() })
	answer, err := firstAnswer(ctx, direct, plain, request)
	if err != nil {
		return nil, nil, err
	}
	relays, err := startRelays(request, answer)
	return []*way{
		{name: "bare relay, two hops", query: relays.queryTwoHops},
		{name: "SDK, leader and worker", query: inferring(direct, request)},
		{name: "bare relays, three hops", query: relays.queryThreeHops},
		{
			name:  "OIP client, gateway, leader and worker",
			query: inferring(plain, request),
		},
	}, relays, err
}

// queries is how many queries a round sends on each route, one at a time.
const queries = 400

// measureLatencies measures the latencies of queries one at a time.
func (r *run) measureLatencies(ctx context.Context, f *harness.Fleet, ways []*way) error {
	for _, x := range ways { // first opens connections, and lets buffers grow
		if _, err := x.inTurn(ctx, queries); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
	}
	before, err := executed(ctx, f)
	if err != nil {
		return err
	}
	for range r.rounds {
		for _, x := range ways {
			times, err := x.inTurn(ctx, queries+queries/4)
			if err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			// Leave out the first ones: processes that were idle are slower at first.
			times = times[queries/4:]
			x.times = append(x.times, times...)
			slices.Sort(times)
			x.medians = append(x.medians, times[len(times)/2])
		}
	}
	after, err := executed(ctx, f)
	if err != nil {
		return err
	}
	n := after.Count - before.Count
	r.want(n >= uint64(2*r.rounds*queries),
		"workers executed %d of the %d queries sent by Muster", n,
		2*r.rounds*(queries+queries/4))
	r.reportTimes(ways, harness.Microseconds(after.Time-before.Time)/float64(max(1, n)))
	return nil
}

// measureRates measures the queries/s that a relay passes on and that Muster distributes to four
// workers, and the CPU time of a query.
func (r *run) measureRates(ctx context.Context, f *harness.Fleet, two, sdk *way,
	relays *relays) error {
	for len(f.Nodes) < 6 {
		if _, err := f.Add(ctx, workerType, workerArgs(f)...); err != nil {
			return err
		}
	}
	if err := f.WaitComplete(ctx); err != nil {
		return err
	}
	for begin := time.Now(); ; { // until each worker has executed a query
		if _, err := sdk.measureRate(ctx, r.time); err != nil {
			return err
		}
		all, err := f.Executed(ctx, "ncf")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all[2:],
			func(e harness.ExecutionCount) bool { return e.Count == 0 }) {
			break
		}
		if time.Since(begin) > time.Minute {
			return errors.New("a worker got no query within a minute")
		}
	}
	two.processes = []*harness.Processes{
		{What: "client", PIDs: []int{os.Getpid()}},
		{What: "relay", PIDs: []int{relays.pidOf(1)}},
		{What: "server", PIDs: []int{relays.pidOf(0)}},
	}
	sdk.processes = []*harness.Processes{
		{What: "client", PIDs: []int{os.Getpid()}},
		{What: "leader", PIDs: []int{f.Nodes[0].PID()}},
		{What: "workers"},
	}
	for _, n := range f.Nodes[2:] { // the second is a gateway
		sdk.processes[2].PIDs = append(sdk.processes[2].PIDs, n.PID())
	}
	sdk.cpu = nil // of no processes so far
	for range r.rounds {
		for _, x := range []*way{two, sdk} {
			rate, err := x.measureRate(ctx, r.time)
			if err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			x.rates = append(x.rates, rate)
		}
	}
	bare, leader := harness.Median(two.rates), harness.Median(sdk.rates)
	r.want(leader >= 0.45*bare,
		"%d queries at a time, 4 workers: relay %.0f queries/s, leader %.0f queries/s, %.2f of "+
			"it, want at least 0.45",
		atATime, bare, leader, leader/bare)
	for _, x := range []*way{two, sdk} {
		fmt.Printf("  %-40s CPU time of a query: %s\n", x.name, x.cpuTimes())
	}
	return nil
}

// cpuTimes says how much CPU time a query takes in each process and in all, as medians
// of the rounds.
func (x *way) cpuTimes() string {
	sums := make([]float64, len(x.rates))
	text := ""
	for i, p := range x.processes {
		var of []float64
		for round, cpu := range x.cpu {
			sums[round] += cpu[i]
			of = append(of, cpu[i])
		}
		text += fmt.Sprintf("%s %.0f us, ", p.What, harness.Median(of))
	}
	return text + fmt.Sprintf("all %.0f us", harness.Median(sums))
}

// reportTimes compares the times of Muster's ways, less execution (in us), with those of the
// relays.
func (r *run) reportTimes(ways []*way, execution float64) {
	fmt.Printf(
		"NCF at batch size 8, %d queries on each route, one at a time, GOMAXPROCS=%d; Muster's "+
			"times include an execution of %.1f us\n",
		len(ways[0].times), runtime.GOMAXPROCS(0), execution)
	for i, x := range ways {
		slices.Sort(x.times)
		fmt.Printf("  %-40s median %7.1f us, p99 %8.1f us\n", x.name, x.times[len(x.times)/2],
			x.times[len(x.times)*99/100])
		if i%2 == 0 {
			continue
		}
		ratios := make([]float64, len(x.medians))
		for round, m := range x.medians {
			ratios[round] = (m - execution) / ways[i-1].medians[round]
		}
		slices.Sort(ratios)
		n := len(ratios)
		r.want(ratios[n/2] <= 1.4,
			"%s: without execution %.2f times the relay's time (quartiles of the rounds %.2f and "+
				"%.2f), want at most 1.4",
			x.name, ratios[n/2], ratios[n/4], ratios[n*3/4])
	}
}

// idleFleet starts three agents: a leader and a gateway that hold no model, and a worker whose
// execution takes almost no time.
func (r *run) idleFleet(ctx context.Context) (*harness.Fleet, error) {
	profile, none := filepath.Join(r.dir, "profile.json"), filepath.Join(r.dir, "none")
	if _, err := zoo.Generate(ctx, filepath.Join(r.dir, "models"), "ncf",
		zoo.Options{Scale: zoo.Small}); err != nil {
		return nil, err
	}
	if err := errors.Join(writeProfile(profile), os.Mkdir(none, 0o755)); err != nil {
		return nil, err
	}
	f := &harness.Fleet{
		Muster: r.muster, Dir: r.dir,
		Args: []string{"--executor", "emulated", "--profile", profile, "--model-dir", none},
	}
	_, err := f.Add(ctx, workerType, "--leader", "must")
	for _, args := range [][]string{{"--leader", "never"}, workerArgs(f)} {
		if err == nil {
			_, err = f.Add(ctx, workerType, args...)
		}
	}
	if err != nil {
		return f, err
	}
	return f, f.WaitComplete(ctx)
}

func workerArgs(f *harness.Fleet) []string {
	return []string{"--leader", "never", "--model-dir", filepath.Join(f.Dir, "models")}
}

// writeProfile writes a profile of NCF with latencies of 1 us.
func writeProfile(path string) error {
	key := profiles.Key{Model: "ncf", InstanceType: workerType, Provider: "cpu"}
	const latency = time.Microsecond
	table, err := profiles.NewTable(key, profiles.Measured, "no time", []profiles.Knot{
		{BatchSize: 1, Mean: latency, P50: latency, P90: latency, P99: latency},
		{BatchSize: 1000, Mean: latency, P50: latency, P90: latency, P99: latency},
	})
	if err != nil {
		return err
	}
	info := profiles.ModelInfo{Name: "ncf", QoSTarget: 5 * time.Millisecond, LargestBatchSize: 1000}
	library, err := profiles.NewLibrary("no time", "scripts/bench/overhead",
		[]profiles.ModelInfo{info}, []*profiles.Table{table})
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(library.Write(file), file.Close())
}

// firstAnswer waits until queries of both clients are answered, and the first client has a leader.
func firstAnswer(ctx context.Context, direct, plain *client.Client,
	request *oip.Request) (answer *oip.Response, err error) {
	for begin := time.Now(); ; {
		if g := direct.Gateway(); g != nil && g.Leader() != "" {
			if err = inferring(direct, request)(ctx); err == nil {
				q := *request
				if answer, err = plain.Infer(ctx, &q); err == nil {
					return answer, nil
				}
			}
		}
		if time.Since(begin) > time.Minute {
			return nil, fmt.Errorf("the fleet does not serve within a minute: %w", err)
		}
		if err := harness.Settle(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// inferring returns a function that sends the request and releases the answer unread.
func inferring(c *client.Client, request *oip.Request) func(context.Context) error {
	return func(ctx context.Context) error {
		q := *request
		answer, err := c.Infer(ctx, &q)
		if err == nil {
			answer.Release()
		}
		return err
	}
}

// executed is what all agents together have executed.
func executed(ctx context.Context, f *harness.Fleet) (sum harness.ExecutionCount, err error) {
	all, err := f.Executed(ctx, "ncf")
	for _, e := range all {
		sum.Count, sum.Time = sum.Count+e.Count, sum.Time+e.Time
	}
	return sum, err
}

// inTurn sends n queries one after the other and returns their latencies in us.
func (x *way) inTurn(ctx context.Context, n int) ([]float64, error) {
	return harness.Loop{Clients: 1, Least: n, Send: x.send}.Run(ctx)
}

func (x *way) send(ctx context.Context) (time.Duration, error) { return 0, x.query(ctx) }

// measureRate keeps atATime queries in flight for the window and returns the queries/s that were
// answered.
func (x *way) measureRate(ctx context.Context, window time.Duration) (float64, error) {
	var us []float64
	var took time.Duration
	used, err := harness.CPUTimesDuring(x.processes, func() (err error) {
		start := time.Now()
		us, err = harness.Loop{Clients: atATime, For: window, Send: x.send}.Run(ctx)
		took = time.Since(start)
		return err
	})
	if err != nil {
		return 0, err
	}
	var cpu []float64
	for _, t := range used {
		cpu = append(cpu, harness.Microseconds(t)/float64(max(1, len(us))))
	}
	x.cpu = append(x.cpu, cpu)
	return float64(len(us)) / took.Seconds(), nil
}

// ncfQuery is a query to the zoo's NCF. Its timeout is long, so that a slow answer still counts.
func ncfQuery() (*oip.Request, error) {
	ids, err := tensor.Of("ids", slices.Repeat([]int64{1, 2, 3, 4}, 8), 8, 4)
	if err != nil {
		return nil, err
	}
	return &oip.Request{Model: "ncf", Timeout: harness.Patience, Inputs: []tensor.Tensor{ids}}, nil
}
