package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/sim/latency"
)

// families is a pool on which two families of two variants are served; the fast ones take two
// fifths of the time.
func families(tb testing.TB) *Config {
	tb.Helper()
	cfg := reference(tb, "wnd")
	dien := reference(tb, "dien").Models[0]
	for i, of := range []Model{cfg.Models[0], dien} {
		fast := map[string]match.Latencies{}
		for name, l := range of.Latencies {
			fast[name] = latency.Scaled(l, .4)
		}
		m := of
		m.Name, m.Splits = fmt.Sprintf("f%d", i), true
		m.SetVariants([]Variant{
			{Name: of.Name, Accuracy: 1, Latencies: of.Latencies},
			{Name: of.Name + "-fast", Accuracy: .985, Latencies: fast},
		})
		cfg.Models = append(cfg.Models[:i], m)
	}
	cfg.Policy, cfg.Pool, cfg.Queries = "horizon", Pool{{"g4dn.xlarge", 4}, {"r5n.large", 6}}, 4000
	return cfg
}

// divided has half of the instances hold the accurate variants, and half the fast ones.
func divided(cfg *Config) {
	for _, in := range cfg.Pool {
		cfg.Holds = append(cfg.Holds, HeldModels{in.Type, in.Count / 2, []string{"wnd", "dien"}},
			HeldModels{in.Type, in.Count / 2, []string{"wnd-fast", "dien-fast"}})
	}
}

// TestAccuracyFallsFirst: as the load rises, accuracy falls, and queries are late only when the
// fast variants answer nearly all; when the load falls, accuracy comes back.
func TestAccuracyFallsFirst(t *testing.T) {
	cfg := families(t)
	limit, err := FluidLimit(cfg.Models, cfg.Pool)
	if err != nil {
		t.Fatal(err)
	}
	last := 1.0
	for _, load := range []float64{.05, .3, .5, .7, .9} {
		cfg.Rate = load * limit.Rate
		res := mustRun(t, cfg)
		if late := float64(res.Late) / float64(res.Queries); late > .001 ||
			res.EffectiveAccuracy > last+1e-3 {
			t.Errorf("load %v: late %v, accuracy %v after %v", load, late, res.EffectiveAccuracy,
				last)
		}
		last = res.EffectiveAccuracy
		if load == .05 && last < .9995 || load == .9 && last > .988 {
			t.Errorf("load %v: accuracy %v", load, last)
		}
	}
	cfg.Rate = limit.Rate
	phases, err := ParseLoad("500ms:.9,500ms:.05")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Stream = StreamOf("poisson", phases...)
	if res := mustRun(t, cfg); res.Late > res.Queries/100 {
		t.Errorf("with bursts %d of %d are late", res.Late, res.Queries)
	}
}

// TestBoundLate: bound by the matcher, no more queries are late than by drawn shares, and accuracy
// is higher.
func TestBoundLate(t *testing.T) {
	for _, load := range []float64{.6, .9} {
		cfg := families(t)
		divided(cfg)
		capacity, err := cfg.FluidLimit(false, false)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Rate = load * capacity.Rate
		bound := mustRun(t, cfg)
		cfg.Bind = BindDrawn
		drawn := mustRun(t, cfg)
		if bound.Late > drawn.Late || bound.EffectiveAccuracy <= drawn.EffectiveAccuracy {
			t.Errorf("load %v: late %d, accuracy %v; drawn %d, %v", load, bound.Late,
				bound.EffectiveAccuracy, drawn.Late, drawn.EffectiveAccuracy)
		}
		for i := range drawn.Models {
			shares, err := cfg.drawnShares(&cfg.Models[i])
			if err != nil {
				t.Fatal(err)
			}
			m := &drawn.Models[i]
			got := float64(m.Variants[0].Served) / float64(m.Served)
			if math.Abs(got-shares[0]) > .03 {
				t.Errorf("%s: the first variant answers %v, drawn by %v", m.Model, got, shares[0])
			}
		}
	}
}

// TestEveryPolicyBinds: all policies that simulate families serve them, and answers add up.
func TestEveryPolicyBinds(t *testing.T) {
	for _, policy := range append(match.Policies(), Priced, others[0].Name) {
		cfg := families(t)
		divided(cfg)
		cfg.Policy, cfg.Others, cfg.Rate, cfg.Queries = policy, others, 300, 500
		res := mustRun(t, cfg)
		for _, m := range res.Models {
			n := 0
			for _, v := range m.Variants {
				n += v.Served
			}
			if n != m.Served || m.Served < m.Queries*9/10 ||
				!(m.EffectiveAccuracy >= .985 && m.EffectiveAccuracy <= 1) {
				t.Errorf("%s: %+v", policy, m)
			}
		}
	}
}

// TestFamilyConfigs: what cannot be simulated is refused by name.
func TestFamilyConfigs(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"named twice":             func(c *Config) { c.Models[1].Variants[0].Name = "wnd" },
		"has the name of a model": func(c *Config) { c.Models[1].Name = "wnd" },
		"accuracy is 1.5":         func(c *Config) { c.Models[0].Variants[0].Accuracy = 1.5 },
		"low is too inaccurate": func(c *Config) {
			c.Models[0].Variants[1].Name, c.Models[0].Variants[1].Accuracy = "low", .3
		},
		`bind is "early"`:  func(c *Config) { c.Bind = "early" },
		"not simulated by": func(c *Config) { c.Policy = ORCA },
		"model x is not": func(c *Config) {
			c.Holds = []HeldModels{{"g4dn.xlarge", 1, []string{"x"}}}
		},
		"has 4 left": func(c *Config) {
			c.Holds = []HeldModels{{"g4dn.xlarge", 5, []string{"wnd"}}}
		},
		"f1: no instance holds it": func(c *Config) {
			c.Holds = []HeldModels{
				{"g4dn.xlarge", 4, []string{"wnd"}}, {"r5n.large", 6, []string{"wnd"}},
			}
		},
	} {
		cfg := families(t)
		cfg.Models = slices.Clone(cfg.Models)
		spoil(cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
