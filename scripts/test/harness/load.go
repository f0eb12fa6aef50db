package harness

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc/metadata"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/profiles/workload"
)

// Patience is how long a client waits for an answer if a busy machine must not make a query fail.
// What is answered after the QoS target still counts as late.
const Patience = 30 * time.Second

// A Load is what a Driver sends.
type Load struct {
	Rate     float64       // queries/s over all models
	Duration time.Duration // 0: until Stop
	Seed     uint64
	// BatchSizes are those of the queries; nil: those of the production trace.
	BatchSizes *workload.BatchSizes
}

// A Driver sends a fleet Poisson arrivals, by default with the batch sizes of the production
// trace. Its Ledger has an entry for each query. It has one load at a time, and its methods
// are for one goroutine.
type Driver struct {
	*Ledger
	server bench.Server
	models []*bench.TargetModel
	shares map[string]float64

	stopped atomic.Bool
	done    chan struct{}
	report  *bench.Report
	err     error
}

// NewDriver makes a driver that sends queries to the models, by their shares. It asks the server
// for the models' metadata. Queries go by the clients, or by the server if there are none. A
// query's deadline is patience, or the model's deadline if that is 0.
func NewDriver(ctx context.Context, server bench.Server, shares map[string]float64,
	patience time.Duration, clients ...Client) (*Driver, error) {
	if len(clients) == 0 {
		clients = []Client{{Name: "SDK", Share: 1, Infer: server.Infer}}
	}
	d := &Driver{server: server, shares: shares, Ledger: newLedger(ctx, server, clients)}
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		m, err := bench.NewTargetModel(ctx, server, name, bench.ModelOptions{
			LargestBatchSize: workload.Trace().Largest(), Timeout: patience, Seed: 1,
		})
		if err != nil {
			return nil, err
		}
		d.models, d.targets[name] = append(d.models, m), m.QoSTarget
	}
	return d, nil
}

// Start begins a load. Call Wait or Stop before the next one.
func (d *Driver) Start(ctx context.Context, l Load) error {
	arrivals, err := workload.ParseArrivals("poisson", l.Rate)
	if err != nil {
		return err
	}
	sizes := l.BatchSizes
	if sizes == nil {
		sizes = workload.Trace()
	}
	var loads []workload.Load
	for _, m := range d.models {
		loads = append(loads, workload.Load{
			Model: m.Name, Share: d.shares[m.Name], BatchSizes: sizes,
		})
	}
	queries, err := workload.Queries(l.Seed, arrivals, loads...)
	if err != nil {
		return err
	}
	d.stopped.Store(false)
	d.done = make(chan struct{})
	go func() {
		defer close(d.done)
		config := bench.Config{Queries: d.untilStopped(queries), Duration: l.Duration}
		if term.IsTerminal(int(os.Stderr.Fd())) {
			show, clear := bench.NewProgress(os.Stderr)
			defer clear()
			config.Progress = show
		}
		d.report, d.err = bench.Run(ctx, d.Ledger, d.models, config)
	}()
	return nil
}

// untilStopped ends the queries when Stop is called. Those already sent are still waited for.
func (d *Driver) untilStopped(queries iter.Seq[workload.Query]) iter.Seq[workload.Query] {
	return func(yield func(workload.Query) bool) {
		for q := range queries {
			if d.stopped.Load() || !yield(q) {
				return
			}
		}
	}
}

// Wait returns when the load has ended and each query has its outcome.
func (d *Driver) Wait() (*bench.Report, error) {
	<-d.done
	return d.report, d.err
}

// Stop sends no more queries, and waits as Wait does.
func (d *Driver) Stop() error {
	_, err := d.StopAndReport()
	return err
}

// StopAndReport stops the load and returns the report of its queries.
func (d *Driver) StopAndReport() (*bench.Report, error) {
	d.stopped.Store(true)
	return d.Wait()
}

// Ended reports whether Wait would return at once.
func (d *Driver) Ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Run is Start and Wait.
func (d *Driver) Run(ctx context.Context, l Load) (*bench.Report, error) {
	if err := d.Start(ctx, l); err != nil {
		return nil, err
	}
	return d.Wait()
}

// Settle waits for d, or until ctx ends. Use it to let a scenario go on, not to wait for an event.
func Settle(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// An ExecutionCount is how many queries an agent has executed so far, and how long they took
// together.
type ExecutionCount struct {
	Count uint64
	Time  time.Duration
}

// Executed returns, for each agent, what it has executed of the model.
func (f *Fleet) Executed(ctx context.Context, model string) (all []ExecutionCount, err error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, control.LocalHeader, "1")
	for _, n := range f.Nodes {
		conn, err := f.Dial(ctx, n)
		if err != nil {
			return nil, err
		}
		var e ExecutionCount
		answer, err := inference.NewGRPCInferenceServiceClient(conn).ModelStatistics(ctx,
			&inference.ModelStatisticsRequest{})
		if err != nil {
			return nil, fmt.Errorf("statistics of %v: %w", n, err)
		}
		for _, m := range answer.ModelStats {
			if m.GetName() == model {
				infer := m.GetInferenceStats().GetComputeInfer()
				e.Count += infer.GetCount()
				e.Time += time.Duration(infer.GetNs())
			}
		}
		all = append(all, e)
	}
	return all, nil
}

// Beside is how much longer than its execution a query to the model takes in an idle fleet, on
// average. The simulator takes it as the round trip.
func (d *Driver) Beside(ctx context.Context, f *Fleet, model string) (time.Duration, error) {
	const queries = 200
	metadata, err := d.server.ModelMetadata(ctx, model, "")
	if err != nil {
		return 0, err
	}
	before, err := f.Executed(ctx, model)
	if err != nil {
		return 0, err
	}
	var took time.Duration
	sizes, random := workload.Trace(), rand.New(rand.NewPCG(1, 0))
	for range queries {
		query, _, err := bench.RandomQuery(metadata, sizes.Draw(random), 1, nil)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		answer, err := d.server.Infer(ctx, query)
		if err != nil {
			return 0, err
		}
		took += time.Since(start)
		answer.Release()
	}
	after, err := f.Executed(ctx, model)
	for i := range after {
		took -= after[i].Time - before[i].Time
	}
	return max(0, took/queries), err
}

// DescribeSince says what the client's gateway did for its queries since it had the given counters.
func DescribeSince(before client.Stats, c *client.Client) string {
	now := c.Gateway().Stats()
	queries := float64(max(1, now.Queries-before.Queries))
	each := func(now, before uint64) float64 { return float64(now-before) / queries }
	return fmt.Sprintf("a query: %.2f messages with submits, %.2f attempts, %.4f without a leader, "+
		"%.4f questions to workers; the leader was silent %d times",
		each(now.SubmitMessages, before.SubmitMessages), each(now.Attempts, before.Attempts),
		each(now.Leaderless, before.Leaderless), each(now.Probes, before.Probes),
		now.Silences-before.Silences)
}
