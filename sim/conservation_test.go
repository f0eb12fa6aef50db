package sim

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// TestConservation: every query that arrives has exactly one outcome, under every
// policy, in and beyond what the pool can serve, and the counts agree with the log.
func TestConservation(t *testing.T) {
	for _, policy := range testedPolicies() {
		for _, rate := range []float64{100, 1000} {
			for _, way := range []struct {
				name   string
				change func(*Config)
			}{
				{"plain", func(*Config) {}},
				{"deadline", func(c *Config) { c.Deadline = 3 * c.Models[0].QoSTarget }},
				{"reject late", func(c *Config) { c.Models[0].RejectLate = true }},
				{"network", func(c *Config) { c.RTT = 5 * time.Millisecond }},
				{"split", func(c *Config) {
					c.Models[0].Splits, c.RTT = true, 5*time.Millisecond
					c.Deadline, c.Models[0].RejectLate = 3*c.Models[0].QoSTarget, true
				}},
				{"merged", func(c *Config) {
					c.Models[0].BatchSizes, c.Merge = small(), names.MergePolicies()[int(rate)/1000]
					c.Rate *= 20
				}},
				{"merged over a network", func(c *Config) {
					c.Models[0].BatchSizes, c.Merge = small(), names.MergeDeadline
					c.Rate, c.RTT, c.Deadline = 20*rate, 5*time.Millisecond, 400*time.Millisecond
				}},
			} {
				t.Run(fmt.Sprintf("%s/%v/%s", policy, rate, way.name), func(t *testing.T) {
					cfg := reference(t, "rm2")
					cfg.Policy, cfg.Others, cfg.Rate, cfg.Queries = policy, others, rate, 400
					var log bytes.Buffer
					cfg.Log = &log
					way.change(cfg)
					res := mustRun(t, cfg)
					if sum := res.Served + res.Rejected + res.Dropped +
						res.NeverServed; res.Queries != 400 || sum != 400 {
						t.Errorf("%d queries, %d outcomes: %+v", res.Queries, sum,
							res.OutcomeCounts)
					}
					rows, err := csv.NewReader(&log).ReadAll()
					if err != nil {
						t.Fatal(err)
					}
					seen := map[string]bool{}
					late := 0
					for _, row := range rows[1:] {
						if seen[row[0]] {
							t.Errorf("query %s has two outcomes", row[0])
						}
						seen[row[0]] = true
						if row[5] == "false" {
							late++
						}
					}
					if len(seen) != 400 || late != res.Late {
						t.Errorf("the log has %d queries, %d late; the result %d late", len(seen),
							late, res.Late)
					}
					onTime := res.shared.Queries + res.baseOnly.Queries - res.shared.Late -
						res.baseOnly.Late
					if onTime != res.Queries-res.Late {
						t.Errorf("%d on time by size class, %d over all", onTime,
							res.Queries-res.Late)
					}
				})
			}
		}
	}
}

// TestSeveralModels: each query runs only where its model can, and the fluid limit is of the mix.
func TestSeveralModels(t *testing.T) {
	rm2, wnd := reference(t, "rm2"), reference(t, "wnd")
	cfg := rm2
	cfg.Models = append(cfg.Models, wnd.Models[0])
	cfg.Models[1].Weight = 3
	delete(cfg.Models[0].Latencies, "r5n.large") // rm2 on g4dn only
	cfg.Pool = Pool{{"r5n.large", 4}, {"g4dn.xlarge", 2}}
	limit, err := FluidLimit(cfg.Models, cfg.Pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range testedPolicies() {
		cfg.Policy, cfg.Others, cfg.Rate = policy, others, 0.4*limit.Rate
		var log bytes.Buffer
		cfg.Log = &log
		res := mustRun(t, cfg)
		if len(res.Models) != 2 || res.Models[0].Queries+res.Models[1].Queries != cfg.Queries {
			t.Fatalf("%s: %+v", policy, res.Models)
		}
		if share := float64(res.Models[1].Queries) / float64(cfg.Queries); share < 0.72 ||
			share > 0.78 {
			t.Errorf("%s: wnd has %v of the queries, want 0.75", policy, share)
		}
		if strings.Count(log.String(), "rm2,") == 0 {
			t.Errorf("%s: no rm2 in the log", policy)
		}
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, ",rm2,") && strings.Contains(line, "r5n.large") {
				t.Fatalf("%s: rm2 ran where it cannot: %s", policy, line)
			}
		}
	}
}

func TestTraceAndLoad(t *testing.T) {
	trace := workload.NewQueryTrace("trace")
	for i, size := range []int{10, 700, 10} {
		trace.Add(workload.Query{At: time.Duration(i) * 10 * time.Millisecond, Model: "rm2",
			BatchSize: size})
	}
	cfg := reference(t, "rm2")
	cfg.Models[0].BatchSizes = trace.BatchSizes("rm2")
	cfg.Stream, cfg.Rate = StreamOfTrace(trace), 2*trace.Rate()
	var log bytes.Buffer
	cfg.Log = &log
	if res := mustRun(t, cfg); res.Queries != 3 || !res.Satisfied {
		t.Errorf("%+v", res.OutcomeCounts)
	}
	if !strings.Contains(log.String(), "2,rm2,10,10.000000,") {
		t.Errorf("twice the rate does not halve the times:\n%s", &log)
	}

	far := workload.NewQueryTrace("far")
	far.Add(workload.Query{Model: "rm2", BatchSize: 10})
	far.Add(workload.Query{At: 9e6 * time.Second, Model: "rm2", BatchSize: 10})
	cfg.Stream, cfg.Rate = StreamOfTrace(far), 1e-11
	if _, err := cfg.Stream(cfg); err == nil || !strings.Contains(err.Error(), "292 years") {
		t.Errorf("a trace whose times overflow at a low rate: got %v", err)
	}

	cfg = reference(t, "rm2")
	phases, err := ParseLoad("10s:0.5,10s:2")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Stream, cfg.Queries, cfg.Rate = StreamOf("constant", phases...), 2500, 50
	stream, err := cfg.Stream(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var perPhase [4]int
	for q := range stream {
		if q.At >= 40*time.Second {
			break
		}
		perPhase[q.At/(10*time.Second)]++
	}
	// One that arrives at the end of a phase is of the next.
	if perPhase != [4]int{249, 1000, 250, 1000} {
		t.Errorf("arrivals by phase: %v", perPhase)
	}
	for _, bad := range []string{"", "10s", "10s:0", "0s:1", "10:1", "10s:NaN", "10s:1,"} {
		if _, err := ParseLoad(bad); err == nil {
			t.Errorf("load %q: no error", bad)
		}
	}
}

// TestPriced: fresh news is worth something, and probes nearly replace it.
func TestPriced(t *testing.T) {
	throughput := func(change func(*Config)) float64 {
		cfg := reference(t, "rm2")
		cfg.Policy, cfg.Queries = Priced, 3000
		change(cfg)
		found, err := FindThroughput(t.Context(), cfg, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return found.Rate
	}
	kairos := throughput(func(c *Config) { c.Policy = "kairos" })
	stale := throughput(func(c *Config) { c.GossipDelay, c.Probes = time.Second, -1 })
	fresh := throughput(func(c *Config) { c.Probes = -1 })
	probed := throughput(func(c *Config) { c.GossipDelay = time.Second })
	if !(stale < 0.5*kairos && fresh > 0.8*kairos && probed > 0.8*kairos) {
		t.Errorf(
			"kairos %v; gateways on stale news %v, on fresh news %v, on stale news with probes %v",
			kairos, stale, fresh, probed)
	}
}

// TestNoise: an error in what is predicted leaves service times as they are and changes what is
// decided; noise in the latencies changes them.
func TestNoise(t *testing.T) {
	one := func(change func(*Config)) *Result {
		cfg := reference(t, "rm2")
		cfg.Pool = Pool{{"g4dn.xlarge", 3}} // so that where a query runs makes no difference
		cfg.Rate, cfg.Queries = 30, 2000
		change(cfg)
		return mustRun(t, cfg)
	}
	plain := one(func(*Config) {})
	misjudged := one(func(c *Config) { c.PredictionNoise = 0.3 })
	noisy := one(func(c *Config) { c.LatencyNoise = 0.3 })
	busy := func(r *Result) float64 { return r.Types[0].Utilisation * r.Duration.Seconds() }
	// The few that are thought to take next to nothing are taken for overdue, and run twice.
	if more := busy(misjudged)/busy(plain) - 1; more < -1e-4 || more > 0.005 {
		t.Errorf("busy %v s, misjudged %v s", busy(plain), busy(misjudged))
	}
	if plain.Latency == misjudged.Latency {
		t.Error("an error of prediction changes nothing")
	}
	if noisy.Latency.P99 < 1.1*plain.Latency.P99 || math.Abs(busy(noisy)/busy(plain)-1) > 0.05 {
		t.Errorf("p99 %v ms, with noise %v ms; busy %v s and %v s", plain.Latency.P99,
			noisy.Latency.P99, busy(plain), busy(noisy))
	}
}

// TestMemoryFlat: memory does not grow with the number of queries.
func TestMemoryFlat(t *testing.T) {
	allocated := func(queries int) uint64 {
		cfg := reference(t, "rm2")
		cfg.Queries = queries
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		mustRun(t, cfg)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(100) // warm
	if few, many := allocated(5_000), allocated(50_000); many > few+few/10+100_000 {
		t.Errorf("%d bytes allocated for 5000 queries, %d for 50000", few, many)
	}
}

// TestInterrupted: a run ends when it is told to, also one that has only its backlog left to serve.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := reference(t, "rm2")
	cfg.Queries, cfg.Rate = 20_000, 50_000
	var served int
	cfg.Models[0].Latencies["r5n.large"] = latency.Fixed{Base: time.Second}
	cfg.Log = writerFunc(func(p []byte) (int, error) {
		if served++; served == 3 {
			cancel()
		}
		return len(p), nil
	})
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestBadConfig(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"rate 0", func(c *Config) { c.Rate = 0 }, "rate is 0"},
		{"rate negative", func(c *Config) { c.Rate = -1 }, "rate is -1"},
		{"rate absurd", func(c *Config) { c.Rate = 1e300 }, "rate is 1e+300"},
		{"policy", func(c *Config) { c.Policy = "best" }, "there are: fcfs,"},
		{"queries", func(c *Config) { c.Queries = 0 }, "number of queries is 0"},
		{"pool empty", func(c *Config) { c.Pool = nil }, "pool has 0 instances"},
		{"pool of no use", func(c *Config) { c.Pool = Pool{{"p3.2xlarge", 1}} }, "can run it"},
		{"pool twice", func(c *Config) { c.Pool = append(c.Pool, c.Pool[0]) }, "named twice"},
		{"noise", func(c *Config) { c.LatencyNoise = -0.1 }, "latency noise"},
		{"misjudged", func(c *Config) { c.PredictionNoise = 7 }, "prediction noise"},
		{"round trip", func(c *Config) { c.RTT = -1 }, "round trip"},
		{"target", func(c *Config) { c.Models[0].QoSTarget = 0 }, "QoS target is 0s"},
		{"no models", func(c *Config) { c.Models = nil }, "no models"},
		{"oracle with a rate", func(c *Config) { c.Policy = Oracle }, "oracle"},
		{"gateways", func(c *Config) { c.Gateways = -1 }, "gateways"},
	} {
		cfg := reference(t, "rm2")
		test.change(cfg)
		if _, err := Run(t.Context(), cfg); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.want)
		}
	}
	cfg := reference(t, "rm2")
	cfg.Pool = Pool{{"r5n.large", 4}}
	report, err := RunSeeds(t.Context(), cfg, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "batch size 999") ||
		!strings.Contains(report.Warnings[0], "860") {
		t.Errorf("a pool that cannot serve the largest batch: warnings %q", report.Warnings)
	}
	found, err := ReportThroughput(t.Context(), cfg, 2, nil)
	if err != nil || found.Found.Rate != 0 || len(found.Warnings) != 1 {
		t.Errorf("its throughput: %+v, %v", found, err)
	}
}
