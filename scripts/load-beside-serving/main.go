// Command load-beside-serving measures what loading one model does to another
// that is being served: it sends queries to the one, in turn while the other is
// unloaded and loaded again and again and while nothing else happens, and prints the
// ratio of the 99th percentiles. It needs an agent that has both:
//
//	bin/muster models generate ncf rm2
//	bin/muster agent &
//	go run ./scripts/load-beside-serving
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/sim/workload"
)

func main() {
	m := measurement{}
	flag.StringVar(&m.server, "server", "127.0.0.1:8001", "gRPC address of the agent")
	flag.StringVar(&m.serve, "serve", "ncf", "model to query")
	flag.StringVar(&m.load, "load", "rm2", "model to load meanwhile")
	flag.Float64Var(&m.rate, "rate", 300, "queries/s, Poisson, batch sizes of the production trace")
	flag.DurationVar(&m.window, "window", 3*time.Second, "how long to measure each way, each time")
	flag.IntVar(&m.pairs, "pairs", 10, "how often to measure each way")
	flag.Float64Var(&m.limit, "limit", 1.5, "fail if the ratio is larger")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := m.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "load-beside-serving: %v\n", err)
		os.Exit(1)
	}
}

type measurement struct {
	server, serve, load string
	rate                float64
	window              time.Duration
	pairs               int
	limit               float64
}

func (m measurement) run(ctx context.Context) error {
	c, err := client.New([]string{m.server})
	if err != nil {
		return err
	}
	defer c.Close()
	sizes := workload.Trace()
	model, err := bench.NewModel(ctx, c, m.serve, bench.ModelOptions{
		LargestBatchSize: sizes.Largest(),
		Timeout:          10 * time.Second, // a query that waits long shall count, not fail
		Seed:             1,
	})
	if err != nil {
		return err
	}
	arrivals, err := workload.ParseArrivals("poisson", m.rate)
	if err != nil {
		return err
	}
	// p99 is of one window, in ms. Both windows of a pair have the same queries.
	p99 := func(seed uint64) (float64, error) {
		queries, err := workload.Queries(seed, arrivals, workload.Load{Model: m.serve, Share: 1, BatchSizes: sizes})
		if err != nil {
			return 0, err
		}
		report, err := bench.Run(ctx, c, []*bench.Model{model}, bench.Config{Queries: queries, Duration: m.window})
		if err != nil {
			return 0, err
		}
		if r := report.Models[0]; r.Failed > 0 {
			return 0, fmt.Errorf("%d of %d queries failed: %v", r.Failed, r.Queries, r.Failures)
		}
		return report.Models[0].LatencyMS.P99, ctx.Err()
	}

	var alone, beside, ratios []float64
	loads := 0
	var loading time.Duration
	for pair := range m.pairs {
		quiet, err := p99(uint64(pair))
		if err != nil {
			return err
		}
		loader := m.startLoading(ctx, c)
		busy, err := p99(uint64(pair))
		n, took, loadErr := loader()
		if err := errors.Join(err, loadErr); err != nil {
			return err
		}
		loads += n
		loading += took
		alone, beside, ratios = append(alone, quiet), append(beside, busy), append(ratios, busy/quiet)
		fmt.Printf("p99 of %s: %.3f ms alone, %.3f ms while %s was loaded %d times: %.2f x\n", m.serve, quiet, busy, m.load, n, busy/quiet)
	}
	ratio := median(beside) / median(alone)
	fmt.Printf("medians: %.3f ms alone, %.3f ms beside: %.2f x (median of the ratios %.2f); a load took %.0f ms, warm-up included\n",
		median(alone), median(beside), ratio, median(ratios), loading.Seconds()*1e3/float64(loads))
	if ratio > m.limit {
		return fmt.Errorf("ratio %.2f, want at most %v", ratio, m.limit)
	}
	return nil
}

// startLoading unloads and loads the model over and over until the function it
// returns is called, which tells how often and how long the loads took in all.
func (m measurement) startLoading(ctx context.Context, c *client.Client) (stop func() (loads int, took time.Duration, err error)) {
	done, ended := make(chan struct{}), make(chan struct{})
	var loads int
	var took time.Duration
	var err error
	go func() {
		defer close(ended)
		for {
			if err = c.UnloadModel(ctx, m.load); err != nil {
				return
			}
			start := time.Now()
			if err = c.LoadModel(ctx, m.load); err != nil {
				return
			}
			took += time.Since(start)
			loads++
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	return func() (int, time.Duration, error) {
		close(done)
		<-ended
		return loads, took, err
	}
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}
