package sim

import (
	"math"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
)

// twoSpeeds has one fast lane and one that takes twice as long, with 60 % of what they can serve.
func twoSpeeds(t *testing.T, policy string) *Config {
	t.Helper()
	sizes, err := workload.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	return &Config{
		Models: []Model{{
			Name: "m", QoSTarget: time.Second, BatchSizes: sizes,
			Latencies: map[string]match.Latencies{
				"fast": latency.Fixed{Base: 10 * time.Millisecond},
				"slow": latency.Fixed{Base: 20 * time.Millisecond},
			},
		}},
		Pool: Pool{{"fast", 1}, {"slow", 1}}, Policy: policy, Rate: 90, Queries: 18_000, Seed: 1,
	}
}

// TestORCA: once weights count, which is after the warm-up, the fast lane gets twice the queries.
func TestORCA(t *testing.T) {
	cfg := twoSpeeds(t, ORCA)
	res := mustRun(t, cfg)
	early := cfg.Rate * balancing.Seconds() / 2 // in turn
	fast, slow := float64(res.Types[0].Queries)-early, float64(res.Types[1].Queries)-early
	if math.Abs(fast/slow-2) > 0.1 || res.Probes != 0 || res.Queries != cfg.Queries {
		t.Errorf("%v and %v queries of %d, %v probes a query, want 2 to 1", fast, slow, res.Queries,
			res.Probes)
	}
}

// TestPrequal: the fast lane gets more than twice the queries, because its latency is lower, with
// as many probes as lanes; and with more lanes three.
func TestPrequal(t *testing.T) {
	cfg := twoSpeeds(t, Prequal)
	cfg.RTT = time.Millisecond
	res := mustRun(t, cfg)
	if fast, slow := res.Types[0].Queries, res.Types[1].Queries; fast < 2*slow ||
		res.Probes != 2 {
		t.Errorf("%d and %d queries, %v probes a query, want 2", fast, slow, res.Probes)
	}
	cfg.Pool[0].Count = 4
	if res = mustRun(t, cfg); res.Probes != 3 {
		t.Errorf("%v probes a query, want 3", res.Probes)
	}
}

// TestGatewaysHear: a gateway learns from answers how busy lanes are, as in production. Alone it
// then needs neither probes nor gossip to know them.
func TestGatewaysHear(t *testing.T) {
	share := func(gateways int) float64 {
		cfg := reference(t, "wnd")
		cfg.Policy, cfg.Queries, cfg.LatencyNoise = Priced, 3000, 0.2
		cfg.Gateways, cfg.Probes, cfg.GossipDelay = gateways, -1, time.Hour
		found, err := FindThroughput(t.Context(), cfg, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return found.Share
	}
	one, four := share(1), share(4)
	t.Logf("%.3f with one gateway, %.3f with four", one, four)
	if one < 0.6 || four > 0.4 {
		t.Errorf(
			"share of the fluid limit %v with one gateway, want it near that with fresh news; "+
				"%v with four, want it far below", one, four)
	}
}
