package sim

import (
	"bytes"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// TestMergeSmall: on one lane, queries of one item are served three times as fast at least if they
// are merged.
func TestMergeSmall(t *testing.T) {
	one, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := reference(t, "wnd")
	cfg.Policy, cfg.Pool, cfg.Queries = "horizon", Pool{{"r5n.large", 1}}, 4000
	cfg.Models[0].BatchSizes = one
	rates := map[names.MergePolicy]float64{}
	for _, policy := range names.MergePolicies() {
		cfg.Merge = policy
		found, err := FindThroughput(t.Context(), cfg, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		rates[policy] = found.Rate
	}
	if rates[names.MergeDeadline] < 3*rates[names.MergeNone] {
		t.Errorf("allowable throughput is %v queries/s, want 3 x that of none at least", rates)
	}
	busy := map[names.MergePolicy]float64{}
	cfg.Rate = rates[names.MergeNone]
	for _, policy := range names.MergePolicies() {
		cfg.Merge = policy
		res := mustRun(t, cfg)
		if !res.Satisfied {
			t.Errorf("%s: %v of the queries are in time at a rate that holds unmerged", policy,
				res.QoSSatisfaction)
		}
		busy[policy] = res.Types[0].Utilisation
	}
	if busy[names.MergeDeadline] > busy[names.MergeNone] {
		t.Errorf("the lane is busy for %v of the time", busy)
	}
}

// TestMergeTrace: with the trace's sizes, near what the pool can serve, no more queries are late if
// they are merged.
func TestMergeTrace(t *testing.T) {
	for _, model := range []string{"wnd", "rm2", "dien"} {
		late := map[names.MergePolicy]int{}
		for _, policy := range []names.MergePolicy{names.MergeNone, names.MergeDeadline} {
			cfg := reference(t, model)
			cfg.Policy, cfg.Merge, cfg.Queries = "horizon", policy, 4000
			limit, err := FluidLimit(cfg.Models, cfg.Pool)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Rate = 0.93 * limit.Rate
			for cfg.Seed = range 3 {
				late[policy] += mustRun(t, cfg).Late
			}
		}
		t.Logf("%s: late %v", model, late)
		if late[names.MergeDeadline] > late[names.MergeNone]+late[names.MergeNone]/20 {
			t.Errorf("%s: of 12000 queries %v are late", model, late)
		}
	}
}

// TestMergeJitter: the payloads of queries that are to run together come at different times, and
// the lane waits for them. So merging makes hardly more queries late than it would if they came at
// once, and fewer are late than without merging.
func TestMergeJitter(t *testing.T) {
	late := func(policy names.MergePolicy, jitter time.Duration) (n int) {
		cfg := reference(t, "dien")
		cfg.Policy, cfg.Merge, cfg.Queries = "horizon", policy, 5000
		cfg.Rate, cfg.RTT, cfg.Jitter = 620, 2*time.Millisecond, jitter
		cfg.Models[0].Splits = true
		for cfg.Seed = range 8 {
			n += mustRun(t, cfg).Late
		}
		return n
	}
	const jitter = 100 * time.Microsecond
	apart, merged, at := late(names.MergeNone, jitter), late(names.MergeDeadline,
		jitter), late(names.MergeDeadline, 0)
	t.Logf("of 40000 queries %d are late unmerged, %d merged, %d without jitter", apart, merged, at)
	if 10*merged > 9*apart || 10*merged > 13*at { // the counts' standard errors are 7 %
		t.Errorf("of 40000 queries %d are late unmerged, %d merged, %d without jitter", apart,
			merged,
			at)
	}
}

// TestMergeNothing: where latency is in proportion to the items, the policy deadline changes no
// query's fate by a nanosecond.
func TestMergeNothing(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"plain": func(c *Config) { c.Policy = "horizon" },
		"network": func(c *Config) {
			c.Policy, c.RTT, c.Deadline = "horizon", time.Millisecond, time.Second
		},
		"kairos":   func(c *Config) { c.Policy = "kairos" },
		"priced":   func(c *Config) { c.Policy, c.RTT = Priced, time.Millisecond },
		"rejected": func(c *Config) { c.Models[0].RejectLate = true },
	} {
		logs := map[names.MergePolicy]string{}
		for _, policy := range []names.MergePolicy{names.MergeNone, names.MergeDeadline} {
			var log bytes.Buffer
			cfg := reference(t, "rm2")
			cfg.Models[0].Latencies = map[string]match.Latencies{
				"g4dn.xlarge": latency.Fixed{PerItem: 250 * time.Microsecond},
				"r5n.large":   latency.Fixed{PerItem: 500 * time.Microsecond},
			}
			cfg.Rate, cfg.Queries, cfg.Log, cfg.Merge = 100, 2000, &log, policy
			change(cfg)
			mustRun(t, cfg)
			logs[policy] = log.String()
		}
		if logs[names.MergeNone] != logs[names.MergeDeadline] {
			t.Errorf("%s: the logs of queries differ", name)
		}
	}
}

// TestMergeMisjudged: merging does not choose the batch sizes whose latency is predicted too short.
func TestMergeMisjudged(t *testing.T) {
	late := map[names.MergePolicy]int{}
	for _, policy := range []names.MergePolicy{names.MergeNone, names.MergeDeadline} {
		cfg := reference(t, "dien")
		cfg.Pool = Pool{{"g4dn.xlarge", 2}, {"r5n.large", 9}}
		cfg.Policy, cfg.Merge, cfg.Queries = "horizon", policy, 4000
		cfg.Rate, cfg.PredictionNoise = 640, 0.05
		for cfg.Seed = range 3 {
			late[policy] += mustRun(t, cfg).Late
		}
	}
	t.Logf("late %v", late)
	if late[names.MergeDeadline] > late[names.MergeNone] {
		t.Errorf("of 12000 queries %v are late", late)
	}
}
