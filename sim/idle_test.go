package sim

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// TestTargetOutOfReach: where no lane can meet the QoS target, horizon serves queries as they come.
// At 30 % load nearly all find an idle lane, and so the median is the execution latency.
func TestTargetOutOfReach(t *testing.T) {
	const execution = 50 * time.Millisecond
	one, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, lanes := range []int{1, 2, 3, 10, 40} {
		cfg := &Config{
			Models: []Model{{Name: "m", QoSTarget: execution / 2, BatchSizes: one,
				Latencies: map[string]match.Latencies{"a": latency.Fixed{Base: execution}}}},
			Pool: Pool{{"a", lanes}}, Policy: "horizon",
			Rate: 0.3 * float64(lanes) / execution.Seconds(), Queries: 5000, Seed: 1,
		}
		res := mustRun(t, cfg)
		cfg.Policy = "fcfs"
		want := mustRun(t, cfg).Latency
		if got := res.Latency; got.P50 > 1.001*want.P50 || got.P99 > 1.25*want.P99 {
			t.Errorf("%d lanes: p50 %.0f ms, p99 %.0f ms; with fcfs %.0f and %.0f", lanes, got.P50,
				got.P99, want.P50, want.P99)
		}
	}
}
