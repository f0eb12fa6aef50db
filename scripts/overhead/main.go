// Command overhead measures what Muster costs a query beyond its execution,
// beside bare gRPC relays of the same bytes over as many hops, in one run on loopback:
//
//   - by the SDK, through leader and worker, beside client, relay and server
//   - by a client that knows only the Open Inference Protocol, through a gateway, beside
//     two relays
//   - the queries a second that a leader distributes to executors that take no
//     time, beside those that the relay passes on
//
// Each is a process of its own, and one worker serves until rates are measured. All run Go code on as many
// threads as -threads says, this program and the relays too: on few cores processes with more disturb each
// other, looking for work, by more than what is measured. The executors are emulated and take no time; the
// queries are NCF's at batch size 8. It needs the binary:
//
//	make build && go run ./scripts/overhead
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "relay" {
		if err := relay(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "overhead relay: %v\n", err)
			os.Exit(1)
		}
		return
	}
	// The children are told when the thread that started them dies, and the main
	// thread lives as long as this process.
	runtime.LockOSThread()
	m := measurement{}
	flag.StringVar(&m.muster, "muster", "bin/muster", "the binary to measure")
	flag.IntVar(&m.rounds, "rounds", 10, "how often to measure each way, in turn; what counts is the median round")
	flag.IntVar(&m.queries, "queries", 400, "queries of a round, one at a time")
	flag.DurationVar(&m.window, "window", time.Second, "how long to measure each rate in a round")
	flag.IntVar(&m.atATime, "at-a-time", 32, "queries under way when rates are measured")
	threads := flag.Int("threads", 1, "GOMAXPROCS of each process; 0: as Go chooses")
	flag.IntVar(&m.workers, "workers", 4, "agents that serve when rates are measured")
	flag.Float64Var(&m.limit, "limit", 1.4, "fail if a query takes longer than this times the relays' time")
	flag.Float64Var(&m.least, "least", 0.4, "fail if the leader's rate is less than this part of the relay's")
	flag.Parse()
	runtime.GOMAXPROCS(*threads)
	_ = os.Setenv("GOMAXPROCS", strconv.Itoa(*threads)) // for the others; the name is a good one
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := m.run(ctx, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "overhead: %v\n", err)
		os.Exit(1)
	}
}

type measurement struct {
	muster       string
	rounds       int
	queries      int
	window       time.Duration
	atATime      int
	workers      int
	limit, least float64
}

// A way is one that queries go.
type way struct {
	name    string
	query   func(context.Context) error
	times   []time.Duration // of queries one at a time
	medians []float64       // of them, us, by round
	rates   []float64       // queries/s, many at a time
}

func (m measurement) run(ctx context.Context, w io.Writer) (err error) {
	fleet, err := startFleet(ctx, m.muster)
	if fleet != nil {
		defer func() { err = errors.Join(err, fleet.stop()) }()
	}
	if err != nil {
		return err
	}
	request, err := ncfQuery()
	if err != nil {
		return err
	}
	direct, err := client.New([]string{fleet.leader.GRPC})
	if err != nil {
		return err
	}
	defer direct.Close()
	plain, err := client.New([]string{fleet.gateway.GRPC}, client.WithoutFleet())
	if err != nil {
		return err
	}
	defer plain.Close()
	answer, err := fleet.settle(ctx, direct, plain, request)
	if err != nil {
		return err
	}
	relays, err := startRelays(request, answer)
	if relays != nil {
		defer relays.stop()
	}
	if err != nil {
		return err
	}

	infer := func(c *client.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			r := *request
			resp, err := c.Infer(ctx, &r)
			if err == nil {
				resp.Release()
			}
			return err
		}
	}
	two := &way{name: "bare relay, two hops", query: relays.two}
	sdk := &way{name: "SDK, leader and worker", query: infer(direct)}
	three := &way{name: "bare relays, three hops", query: relays.three}
	gateway := &way{name: "OIP client, gateway, leader and worker", query: infer(plain)}
	ways := []*way{two, sdk, three, gateway}
	for _, x := range ways { // connections, and what grows to its size
		if _, err := x.inTurn(ctx, m.queries); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
	}
	before, err := fleet.executed(ctx)
	if err != nil {
		return err
	}
	for range m.rounds {
		for _, x := range ways {
			times, err := x.inTurn(ctx, m.queries+m.queries/4)
			if err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			times = times[m.queries/4:] // the first find processes cold that have just had nothing to do
			x.times = append(x.times, times...)
			slices.Sort(times)
			x.medians = append(x.medians, us(times[len(times)/2]))
		}
	}
	after, err := fleet.executed(ctx)
	if err != nil {
		return err
	}
	execution := (after.time - before.time) / time.Duration(max(1, after.count-before.count))

	for len(fleet.workers) < m.workers {
		if err := fleet.addWorker(ctx); err != nil {
			return err
		}
	}
	if err := fleet.allServe(ctx, func(ctx context.Context) error {
		_, err := sdk.rate(ctx, m.window, m.atATime)
		return err
	}); err != nil {
		return err
	}
	for range m.rounds {
		for _, x := range []*way{two, sdk} {
			rate, err := x.rate(ctx, m.window, m.atATime)
			if err != nil {
				return fmt.Errorf("%s: %w", x.name, err)
			}
			x.rates = append(x.rates, rate)
		}
	}
	if g := direct.Gateway(); g != nil {
		s := g.Stats()
		fmt.Fprintf(w, "SDK: %d queries in %d messages to the leader, %d decided without it, %d assigned twice\n", s.Queries, s.SubmitMessages, s.Leaderless, s.Superseded)
	}
	return m.report(w, ways, execution)
}

// inTurn sends n queries one after the other. It does so on a goroutine like any caller's: that
// of main is bound to its thread, which makes waiting dear.
func (x *way) inTurn(ctx context.Context, n int) ([]time.Duration, error) {
	times := make([]time.Duration, n)
	sent := make(chan error)
	go func() {
		for i := range times {
			start := time.Now()
			if err := x.query(ctx); err != nil {
				sent <- err
				return
			}
			times[i] = time.Since(start)
		}
		sent <- ctx.Err()
	}()
	return times, <-sent
}

// rate sends queries for a while, always as many at a time, and returns how
// many were answered a second.
func (x *way) rate(ctx context.Context, window time.Duration, atATime int) (float64, error) {
	var answered atomic.Int64
	var first error
	var once sync.Once
	var all sync.WaitGroup
	start := time.Now()
	for range atATime {
		all.Go(func() {
			for time.Since(start) < window {
				if err := x.query(ctx); err != nil {
					once.Do(func() { first = err })
					return
				}
				answered.Add(1)
			}
		})
	}
	all.Wait()
	return float64(answered.Load()) / time.Since(start).Seconds(), first
}

func (m measurement) report(w io.Writer, ways []*way, execution time.Duration) error {
	fmt.Fprintf(w, "NCF at batch size 8, %d queries each way, one at a time, in turns, GOMAXPROCS=%d; execution takes %.1f us of Muster's\n",
		m.rounds*m.queries, runtime.GOMAXPROCS(0), us(execution))
	var faults []error
	for i, x := range ways {
		slices.Sort(x.times)
		median := x.times[len(x.times)/2]
		fmt.Fprintf(w, "  %-40s median %7.1f us, p99 %8.1f us", x.name, us(median), us(x.times[len(x.times)*99/100]))
		if i%2 == 1 {
			ratios := make([]float64, len(x.medians))
			for round, m := range x.medians {
				ratios[round] = (m - us(execution)) / ways[i-1].medians[round]
			}
			slices.Sort(ratios)
			n := len(ratios)
			fmt.Fprintf(w, ", without execution %.2f x the relay's (half of the rounds %.2f to %.2f)", ratios[n/2], ratios[n/4], ratios[n*3/4])
			if ratios[n/2] > m.limit {
				faults = append(faults, fmt.Errorf("%s: %.2f x the time of %s, want at most %v", x.name, ratios[n/2], ways[i-1].name, m.limit))
			}
		}
		fmt.Fprintln(w)
	}
	bare, leader := median(ways[0].rates), median(ways[1].rates)
	fmt.Fprintf(w, "%d queries at a time, %d workers: relay %.0f queries/s, leader %.0f queries/s, which is %.2f of it\n", m.atATime, m.workers, bare, leader, leader/bare)
	if leader < m.least*bare {
		faults = append(faults, fmt.Errorf("the leader's rate is %.2f of the relay's, want at least %v", leader/bare, m.least))
	}
	return errors.Join(faults...)
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// ncfQuery is a query of the zoo's NCF. One that waits long shall count, not fail.
func ncfQuery() (*oip.Request, error) {
	ids, err := tensor.Of("ids", slices.Repeat([]int64{1, 2, 3, 4}, 8), 8, 4)
	if err != nil {
		return nil, err
	}
	return &oip.Request{Model: "ncf", Timeout: 5 * time.Second, Inputs: []tensor.Tensor{ids}}, nil
}
