package sim

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim/latency"
	"github.com/muster-serve/muster/sim/placement"
)

// placed has three families of three variants, each twice as fast and two points less accurate than
// the one before, and instances that hold one variant each.
func placed(tb testing.TB) *Config {
	tb.Helper()
	cfg := reference(tb, "wnd")
	of := cfg.Models[0]
	of.BatchSizes = must(workload.Fixed(100))
	of.QoSTarget *= 20 // fewer queries, each slower
	for name, l := range of.Latencies {
		of.Latencies[name] = latency.Scaled(l, 20)
	}
	cfg.Models = nil
	cfg.Pool = Pool{{"g4dn.xlarge", 6}, {"r5n.large", 12}}
	for f := range 3 {
		m := of
		m.Name = fmt.Sprintf("f%d", f)
		var variants []Variant
		for v, accuracy := range []float64{1, .98, .95} {
			by := map[string]match.Latencies{}
			for _, in := range cfg.Pool {
				by[in.Type] = latency.Scaled(of.Latencies[in.Type], math.Pow(.45, float64(v)))
			}
			variants = append(variants, Variant{
				Name: fmt.Sprintf("f%d-v%d", f, v), Accuracy: accuracy, Latencies: by,
			})
		}
		m.SetVariants(variants)
		cfg.Models = append(cfg.Models, m)
		cfg.Holds = append(cfg.Holds,
			HeldModels{"g4dn.xlarge", 2, []string{variants[0].Name}},
			HeldModels{"r5n.large", 4, []string{variants[1].Name}})
	}
	cfg.Placement = &placement.Config{}
	cfg.Policy = "horizon"
	return cfg
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// varying has the families' queries arrive by Poisson processes whose rates change: rates says how
// many a second of each there are at a time.
func varying(end time.Duration, most float64, rate func(family int, at time.Duration) float64) func(
	*Config) (iter.Seq[workload.Query], error) {
	return func(c *Config) (iter.Seq[workload.Query], error) {
		rng := rand.New(rand.NewPCG(c.Seed, 77))
		return func(yield func(workload.Query) bool) {
			at := time.Duration(0)
			all := most * float64(len(c.Models))
			for {
				at += time.Duration(rng.ExpFloat64() / all * 1e9)
				if at >= end {
					return
				}
				f := rng.IntN(len(c.Models))
				if rng.Float64()*most > rate(f, at) {
					continue
				}
				q := workload.Query{At: at, Model: c.Models[f].Name, BatchSize: 100}
				if !yield(q) {
					return
				}
			}
		}, nil
	}
}

// TestPlacementFollowsStep: when three times as many queries arrive, accuracy falls and few queries
// are late after two periods; when they are gone, it comes back.
func TestPlacementFollowsStep(t *testing.T) {
	cfg := placed(t)
	base := .1 * must(FluidLimit(cfg.Models, cfg.Pool)).Rate
	cfg.Rate, cfg.Queries = base, 1<<30
	cfg.Stream = varying(200*time.Second, base, func(_ int, at time.Duration) float64 {
		if at >= 80*time.Second && at < 130*time.Second {
			return base
		}
		return base / 3
	})
	res := mustRun(t, cfg)
	at := map[float64]placement.Totals{}
	for _, w := range res.Placement.Windows {
		at[w.StartS] = w
	}
	if at[60].Accuracy-at[120].Accuracy < .01 || at[190].Accuracy < at[60].Accuracy-.002 {
		t.Errorf("accuracy is %.4f, under load %.4f, after it %.4f", at[60].Accuracy,
			at[120].Accuracy, at[190].Accuracy)
	}
	for _, w := range res.Placement.Windows {
		step := w.StartS >= 80 && w.StartS < 100 || w.StartS >= 130 && w.StartS < 150
		if late := float64(w.Late) / float64(w.Ended); !step && late > .01 {
			t.Errorf("at %v s: %.4f of the queries are late", w.StartS, late)
		}
	}
	if n := res.NeverServed + res.Lost + res.Rejected; n > 0 {
		t.Errorf("%d queries have no answer", n)
	}
	if res.Placement.Changes == 0 {
		t.Error("nothing changed")
	}
}

// TestPlacementFillsMemory: where memory has room for all variants, a fleet whose leader places
// them is as accurate as one that holds them all from the start.
func TestPlacementFillsMemory(t *testing.T) {
	cfg := placed(t)
	cfg.Rate = .2 * must(FluidLimit(cfg.Models, cfg.Pool)).Rate
	cfg.Queries = 20_000
	held := *cfg
	held.Holds, held.Placement = nil, nil
	cfg.Placement.Fits = 9
	want, got := mustRun(t, &held), mustRun(t, cfg)
	if got.EffectiveAccuracy < want.EffectiveAccuracy-.001 || want.EffectiveAccuracy > .999 {
		t.Errorf("accuracy %.4f, want at least that of a fleet that holds all, %.4f, less .001",
			got.EffectiveAccuracy, want.EffectiveAccuracy)
	}
}
