package sim

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/colocate"
	"github.com/muster-serve/muster/sim/latency"
)

// TestBesideEachOther: runs on one machine slow each other down while both are under way, and what
// runs on another machine does not.
func TestBesideEachOther(t *testing.T) {
	const ms = time.Millisecond
	x := fixedModel(t, "x", 100*ms, time.Second)
	y := fixedModel(t, "y", 60*ms, time.Second)
	y.Latencies = map[string]match.Latencies{"b": latency.Fixed{Base: 60 * ms}}
	machine := []colocate.Lanes{{Type: "a", Count: 1}, {Type: "b", Count: 1}}
	for _, policy := range []string{DefaultPolicy, Priced} {
		var log bytes.Buffer
		cfg := &Config{
			Models: []Model{x, y}, Pool: Pool{{"a", 2}, {"b", 1}}, Policy: policy, Rate: 1,
			Queries: 3, Log: &log,
			Sharing: &colocate.Sharing{
				Machines: [][]colocate.Lanes{machine},
				Slowdown: colocate.Pairs([]string{"x", "y"},
					profiles.Slowdowns{"x": {"y": 2}, "y": {"x": 1.5}}),
			},
			Stream: streamed([]workload.Query{
				{At: 0, Model: "x", BatchSize: 1}, {At: 1 * ms, Model: "x", BatchSize: 1},
				{At: 40 * ms, Model: "y", BatchSize: 1},
			}),
		}
		mustRun(t, cfg)
		// y takes 60 ms * 1.5, until 130 ms. The x beside it had 60 ms left at 40 ms, of which 45
		// are done by then, and ends at 145 ms; the other one takes 100 ms.
		took := map[string]time.Duration{}
		for _, r := range readLog(t, &log) {
			took[r.lane] = r.latency
		}
		if len(took) != 3 || took["2"] != 90*ms || took["0"] != 145*ms || took["1"] != 100*ms {
			t.Errorf("%s: took %v", policy, took)
		}
	}
}

// TestSharingWithoutSlowdown: machines on which nothing slows anything down change no output.
func TestSharingWithoutSlowdown(t *testing.T) {
	run := func(with bool, policy string, m names.MergePolicy) string {
		var log, record bytes.Buffer
		cfg := &Config{
			Models: []Model{fixedModel(t, "x", 10*time.Millisecond, 60*time.Millisecond)},
			Pool:   Pool{{"a", 4}}, Policy: policy, Rate: 420, Queries: 3000, Seed: 3,
			Log: &log, LatencyNoise: 0.2, RTT: time.Millisecond, Deadline: 80 * time.Millisecond,
			Merge: m,
		}
		if policy != Priced {
			cfg.Record = &record
		}
		if with {
			cfg.Sharing = &colocate.Sharing{
				Machines: [][]colocate.Lanes{{{Type: "a", Count: 3}}},
				Slowdown: func(int, []int) float64 { return 1 },
			}
		}
		text, err := json.Marshal(mustRun(t, cfg))
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + log.String() + record.String()
	}
	for _, policy := range []string{DefaultPolicy, Priced} {
		for _, m := range []names.MergePolicy{"", names.MergeDeadline} {
			if run(false, policy, m) != run(true, policy, m) {
				t.Errorf("%s, merge %q: machines without slowdown change the output", policy, m)
			}
		}
	}
}

func TestSharingRefused(t *testing.T) {
	cfg := &Config{
		Models: []Model{fixedModel(t, "x", time.Millisecond, time.Second)}, Pool: Pool{{"a", 1}},
		Rate: 1, Queries: 1,
		Sharing: &colocate.Sharing{Machines: [][]colocate.Lanes{{{Type: "a", Count: 2}}}},
	}
	if _, err := Run(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), "2 lanes of a") {
		t.Errorf("more lanes than there are: %v", err)
	}
	cfg.Policy = Oracle
	if err := cfg.Validate(); err == nil ||
		!strings.Contains(err.Error(), "machines that lanes share") {
		t.Errorf("with the oracle: %v", err)
	}
}
