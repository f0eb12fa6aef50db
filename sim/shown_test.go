package sim

import (
	"os"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles/workload"
)

// TestShown holds what docs/internals/policies.md says, and what the policies must
// reach. It takes some minutes, so it runs only when asked:
//
//	MUSTER_SLOW_TESTS=1 go test ./sim -run Shown -timeout 1h -v
func TestShown(t *testing.T) {
	if os.Getenv("MUSTER_SLOW_TESTS") == "" {
		t.Skip("set MUSTER_SLOW_TESTS=1: takes some minutes")
	}
	const budget, seeds = 2.5, 5
	full := func(model string) *Config {
		cfg := reference(t, model)
		cfg.Queries = 20_000
		return cfg
	}
	best := map[string]Pool{} // kairos's
	mean := 0.0
	for model := range qosTargets {
		c, err := Compare(t.Context(), full(model), []string{"kairos", "horizon", "fcfs"},
			paperPrices, budget, nil, seeds, nil)
		if err != nil {
			t.Fatal(err)
		}
		kairos, horizon, fcfs := c.Policies[0], c.Policies[1], c.Policies[2]
		t.Logf(
			"%s: kairos %.3f, horizon %.3f of the fluid limit; kairos %.2f x homogeneous, %.2f x "+
				"fcfs; horizon %.3f x kairos",
			model, kairos.Share, horizon.Share, kairos.Ratio, kairos.Rate/fcfs.Rate,
			horizon.Rate/kairos.Rate)
		if kairos.Ratio < 1.25 || model == "rm2" && kairos.Ratio < 1.9 {
			t.Errorf("%s: kairos is %.2f x homogeneous", model, kairos.Ratio)
		}
		if kairos.Rate < 1.40*fcfs.Rate {
			t.Errorf("%s: kairos is %.2f x fcfs", model, kairos.Rate/fcfs.Rate)
		}
		if horizon.Rate < 1.05*kairos.Rate {
			t.Errorf("%s: horizon is %.3f x kairos", model, horizon.Rate/kairos.Rate)
		}
		mean += horizon.Rate / kairos.Rate / float64(len(qosTargets))
		for _, e := range c.Policies {
			if e.Rate > e.FluidLimit+3*e.StandardError {
				t.Errorf("%s: %s serves %.2f, the fluid limit is %.2f", model, e.Policy, e.Rate,
					e.FluidLimit)
			}
		}
		if best[model], err = ParsePool(kairos.Pool); err != nil {
			t.Fatal(err)
		}
	}
	if mean < 1.075 {
		t.Errorf("horizon is %.3f x kairos in the mean", mean)
	}

	gaussian, err := workload.Gaussian(250, 100, workload.LargestBatchSize)
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range []struct {
		name   string
		change func(*Config)
		least  float64 // of horizon / kairos
	}{
		{"gaussian batch sizes", func(c *Config) { c.Models[0].BatchSizes = gaussian }, 1.02},
		{"5 % latency noise", func(c *Config) { c.LatencyNoise = 0.05 }, 1},
		{"round trip of 2 % of the target", func(c *Config) { c.RTT = c.Models[0].QoSTarget / 50 },
			1},
		{"gamma arrivals of shape 0.5", func(c *Config) { c.Stream = StreamOf("gamma:0.5") }, 1},
	} {
		for model := range qosTargets {
			rate := map[string]float64{}
			for _, policy := range []string{"kairos", "horizon"} {
				cfg := full(model)
				cfg.Policy, cfg.Pool = policy, best[model]
				setting.change(cfg)
				found, err := FindThroughput(t.Context(), cfg, seeds, nil)
				if err != nil {
					t.Fatal(err)
				}
				rate[policy] = found.Rate
			}
			ratio := rate["horizon"] / rate["kairos"]
			t.Logf("%s, %s: horizon %.3f x kairos", setting.name, model, ratio)
			if ratio < setting.least {
				t.Errorf("%s, %s: horizon is %.3f x kairos, want %v", setting.name, model, ratio,
					setting.least)
			}
		}
	}

	for model := range qosTargets {
		rate := map[string]float64{}
		for _, policy := range []string{"kairos", Priced} {
			cfg := full(model)
			cfg.Policy, cfg.Pool, cfg.GossipDelay = policy, best[model], time.Second
			cfg.RTT = cfg.Models[0].QoSTarget / 500
			found, err := FindThroughput(t.Context(), cfg, seeds, nil)
			if err != nil {
				t.Fatal(err)
			}
			rate[policy] = found.Rate
		}
		t.Logf("%s: priced %.3f x kairos", model, rate[Priced]/rate["kairos"])
		if rate[Priced] < 0.8*rate["kairos"] {
			t.Errorf("%s: priced is %.3f x kairos", model, rate[Priced]/rate["kairos"])
		}
	}
}

// TestAlwaysWithinFluidLimit: no policy serves more than water would.
func TestAlwaysWithinFluidLimit(t *testing.T) {
	for _, policy := range testedPolicies() {
		cfg := reference(t, "wnd")
		cfg.Policy, cfg.Others, cfg.Pool = policy, others, Pool{
			{"g4dn.xlarge", 2}, {"c5n.2xlarge", 2}, {"t3.xlarge", 3},
		}
		cfg.Queries = 2000
		found, err := FindThroughput(t.Context(), cfg, 2, nil)
		if err != nil {
			t.Fatal(err)
		}
		if found.Rate > found.FluidLimit+3*found.StandardError {
			t.Errorf("%s: %v queries/s, the fluid limit is %v, the standard error %v", policy,
				found.Rate, found.FluidLimit, found.StandardError)
		}
	}
}
