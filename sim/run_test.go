package sim

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

var paperTypes = []string{"g4dn.xlarge", "c5n.2xlarge", "r5n.large", "t3.xlarge"}

var qosTargets = map[string]time.Duration{
	"ncf": 5 * time.Millisecond, "rm2": 350 * time.Millisecond, "wnd": 25 * time.Millisecond,
	"mtwnd": 25 * time.Millisecond, "dien": 35 * time.Millisecond,
}

var openReference = sync.OnceValues(func() (*profiles.Samples, error) {
	return published.Samples(published.KAIROS)
})

// reference returns a configuration with the model's measured latencies.
func reference(tb testing.TB, model string) *Config {
	tb.Helper()
	samples, err := openReference()
	if err != nil {
		tb.Fatal(err)
	}
	m := Model{
		Name: model, QoSTarget: qosTargets[model], BatchSizes: workload.Trace(),
		Latencies: map[string]match.Latencies{},
	}
	for _, name := range paperTypes {
		s, err := samples.Series(model, profiles.InstanceType(name))
		if err != nil {
			tb.Fatal(err)
		}
		m.Latencies[name] = latency.Measured(s)
	}
	return &Config{
		Models:  []Model{m},
		Pool:    Pool{{"g4dn.xlarge", 1}, {"r5n.large", 13}},
		Policy:  "kairos",
		Rate:    80,
		Queries: 5000,
		Seed:    1,
	}
}

func mustRun(tb testing.TB, cfg *Config) *Result {
	tb.Helper()
	res, err := Run(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

func TestDeterministic(t *testing.T) {
	for _, policy := range testedPolicies() {
		t.Run(policy, func(t *testing.T) {
			var results, logs [2]bytes.Buffer
			for i := range results {
				cfg := reference(t, "rm2")
				cfg.Policy, cfg.Others, cfg.Log = policy, others, &logs[i]
				cfg.LatencyNoise, cfg.RTT = 0.05, 7*time.Millisecond
				if err := json.NewEncoder(&results[i]).Encode(mustRun(t, cfg)); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(results[0].Bytes(), results[1].Bytes()) {
				t.Errorf("two runs differ:\n%s%s", &results[0], &results[1])
			}
			if !bytes.Equal(logs[0].Bytes(), logs[1].Bytes()) ||
				strings.Count(logs[0].String(), "\n") != 5001 {
				t.Errorf("logs differ, or have %d lines instead of 5001",
					strings.Count(logs[0].String(), "\n"))
			}
			cfg := reference(t, "rm2")
			cfg.Policy, cfg.Others, cfg.Seed = policy, others, 2
			other := mustRun(t, cfg)
			if other.Latency == mustRun(t, reference(t, "rm2")).Latency {
				t.Error("another seed gives the same latencies")
			}
		})
	}
}

// exponential is a latency of a mean with exponential distribution.
type exponential struct{ mean time.Duration }

func (e exponential) Mean(int) time.Duration { return e.mean }
func (e exponential) Quantile(p float64, _ int) time.Duration {
	return time.Duration(-math.Log1p(-p) * float64(e.mean))
}

// TestSingleServerQueue holds the simulator against closed formulas of queueing theory for one
// server, first come first served: the mean wait of M/D/1 and M/M/1 (Pollaczek-Khinchine), and the
// distribution of the time in an M/M/1 system, which is exponential.
func TestSingleServerQueue(t *testing.T) {
	const service = 10 * time.Millisecond
	one, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		latencies match.Latencies
		cs2       float64 // squared coefficient of variation of the service time
	}{
		{"M/D/1", latency.Fixed{Base: service}, 0},
		{"M/M/1", exponential{service}, 1},
	} {
		for _, utilisation := range []float64{0.3, 0.7} {
			cfg := &Config{
				Models: []Model{{Name: "m", QoSTarget: time.Second, BatchSizes: one,
					Latencies: map[string]match.Latencies{"a": test.latencies}}},
				Pool:    Pool{{"a", 1}},
				Policy:  "fcfs",
				Rate:    utilisation / service.Seconds(),
				Queries: 250_000,
				Seed:    1,
			}
			res := mustRun(t, cfg)
			// Little's law gives the mean queue from the mean wait.
			want := (1 + test.cs2) / 2 * utilisation * utilisation / (1 - utilisation)
			if math.Abs(res.QueueMean/want-1) > 0.05 {
				t.Errorf("%s at %v: mean queue %.4f, want %.4f", test.name, utilisation,
					res.QueueMean, want)
			}
			if got := res.Types[0].Utilisation; math.Abs(got/utilisation-1) > 0.02 {
				t.Errorf("%s at %v: utilisation %.4f", test.name, utilisation, got)
			}
			if test.cs2 == 1 {
				mean := service.Seconds() * 1e3 / (1 - utilisation)
				for p, got := range map[float64]float64{
					0.5: res.Latency.P50, 0.95: res.Latency.P95, 0.99: res.Latency.P99,
				} {
					if want := -math.Log(1-p) * mean; math.Abs(got/want-1) > 0.05 {
						t.Errorf("M/M/1 at %v: quantile %v is %.3f ms, want %.3f", utilisation, p,
							got, want)
					}
				}
			}
		}
	}
}

// BenchmarkRun simulates 11 instances under kairos at 80 % of the fluid limit, a
// little below what kairos allows.
func BenchmarkRun(b *testing.B) {
	for _, model := range []string{"rm2", "ncf"} {
		b.Run(model, func(b *testing.B) {
			cfg := reference(b, model)
			cfg.Pool = Pool{{"g4dn.xlarge", 2}, {"r5n.large", 9}}
			limit, err := FluidLimit(cfg.Models, cfg.Pool)
			if err != nil {
				b.Fatal(err)
			}
			cfg.Rate, cfg.Queries = 0.8*limit.Rate, b.N
			b.ReportAllocs()
			b.ResetTimer()
			mustRun(b, cfg)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
		})
	}
}
