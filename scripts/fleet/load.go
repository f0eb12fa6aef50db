package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/process"
	"github.com/muster-serve/muster/sim/workload"
)

// An outcome is what became of one query.
type outcome struct {
	sent    time.Time
	latency time.Duration
	err     error
}

// A recorder is a client that notes what becomes of each query.
type recorder struct {
	c      *client.Client
	model  string
	stolen *stolenTime

	mu       sync.Mutex
	outcomes []outcome
	wrong    []string // answers of another shape than the question's
}

func (r *recorder) Infer(ctx context.Context, req *oip.Request) (*oip.Response, error) {
	o := outcome{sent: time.Now()}
	resp, err := r.c.Infer(ctx, req)
	o.latency, o.err = time.Since(o.sent), err
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes = append(r.outcomes, o)
	if err == nil && (len(resp.Outputs) == 0 || resp.Outputs[0].Shape[0] != req.Inputs[0].Shape[0] || resp.ID != req.ID) {
		r.wrong = append(r.wrong, fmt.Sprintf("batch size %d, answer %v", req.Inputs[0].Shape[0], resp.Outputs))
	}
	return resp, err
}

func (r *recorder) ModelMetadata(ctx context.Context, model, version string) (*inference.ModelMetadataResponse, error) {
	return r.c.ModelMetadata(ctx, model, version)
}

// A count is outcomes counted.
type count struct {
	queries, onTime, late, refused, failed int
	atOnce                                 int   // refused within the QoS target, with a time to come again
	robbed                                 int   // failed while the machine was disturbed, and not in failed
	example                                error // of a failure
}

func (c count) String() string {
	s := fmt.Sprintf("%d queries: %.2f %% on time, %d late, %d refused, %d failed", c.queries, c.percentOnTime(), c.late, c.refused, c.failed)
	if c.robbed > 0 {
		s += fmt.Sprintf(", %d failed while CPU time was stolen", c.robbed)
	}
	if c.example != nil {
		s += fmt.Sprintf(" (%v)", c.example)
	}
	return s
}

func (c count) percentOnTime() float64 { return 100 * float64(c.onTime) / float64(max(1, c.queries)) }

// between counts the queries sent in [from, to).
func (r *recorder) between(from, to time.Time, target time.Duration) (c count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outcomes {
		if o.sent.Before(from) || !o.sent.Before(to) {
			continue
		}
		c.queries++
		switch {
		case o.err == nil && o.latency <= target:
			c.onTime++
		case o.err == nil:
			c.late++
		case errors.Is(o.err, client.ErrOverloaded):
			c.refused++
			if e := new(client.Error); errors.As(o.err, &e) && e.RetryAfter > 0 && o.latency <= target {
				c.atOnce++
			}
		default:
			c.example = o.err
			if r.stolen.between(o.sent, o.sent.Add(o.latency)) > 0 {
				c.robbed++
			} else {
				c.failed++
			}
		}
	}
	return c
}

// A driver puts load on a fleet.
type driver struct {
	recorder
	target *bench.Model
	cancel context.CancelFunc
	done   chan struct{}
	report *bench.Report
	err    error
}

// newDriver makes a client of the addresses.
func newDriver(ctx context.Context, model string, addresses []string, opts ...client.Option) (*driver, error) {
	c, err := client.New(addresses, opts...)
	if err != nil {
		return nil, err
	}
	d := &driver{recorder: recorder{c: c, model: model, stolen: watchStolen(ctx)}}
	if d.target, err = bench.NewModel(ctx, c, model, bench.ModelOptions{LargestBatchSize: workload.Trace().Largest(), Seed: 1}); err != nil {
		c.Close()
		return nil, err
	}
	return d, nil
}

// drive sends Poisson arrivals of the production trace's batch sizes until
// duration is over or stop is called.
func (d *driver) drive(ctx context.Context, rate float64, duration time.Duration, seed uint64) error {
	arrivals, err := workload.ParseArrivals("poisson", rate)
	if err != nil {
		return err
	}
	queries, err := workload.Queries(seed, arrivals, workload.Load{Model: d.model, Share: 1, BatchSizes: workload.Trace()})
	if err != nil {
		return err
	}
	ctx, d.cancel = context.WithCancel(ctx)
	d.done = make(chan struct{})
	go func() {
		defer close(d.done)
		d.report, d.err = bench.Run(ctx, d, []*bench.Model{d.target}, bench.Config{Queries: queries, Duration: duration})
	}()
	return nil
}

// wait returns the report of the load that drive has begun.
func (d *driver) wait() (*bench.Report, error) {
	<-d.done
	d.cancel()
	return d.report, d.err
}

// stop ends the load that drive has begun. Queries under way count as failed.
func (d *driver) stop() {
	d.cancel()
	<-d.done
}

// measureOverhead is what a query of the load takes beside its execution in an idle fleet, on
// average: the round trip that the simulator should know of.
func (d *driver) measureOverhead(ctx context.Context, f *process.Fleet) (time.Duration, error) {
	const queries = 200
	before, err := executed(ctx, f)
	if err != nil {
		return 0, err
	}
	metadata, err := d.c.ModelMetadata(ctx, d.model, "")
	if err != nil {
		return 0, err
	}
	var took time.Duration
	sizes, random := workload.Trace(), rand.New(rand.NewPCG(1, 0))
	for range queries {
		query, _, err := bench.RandomQuery(metadata, sizes.Draw(random), 1)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		resp, err := d.c.Infer(ctx, query)
		if err != nil {
			return 0, err
		}
		took += time.Since(start)
		resp.Release()
	}
	after, err := executed(ctx, f)
	if err != nil {
		return 0, err
	}
	return max(0, (took-(after-before))/queries), nil
}
