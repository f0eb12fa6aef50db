package simcmd

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
)

// ChangeHelp says what the flags of a Change do.
const ChangeHelp = `--swing lets the rates of the models and families swing, one after the other, and
--slower lets queries take longer than the leader knows at first.`

// A Change is what becomes different during a run from what the leader knows at first, by flags.
type Change struct {
	swing  string
	slower []string
}

// Add adds the flags.
func (c *Change) Add(flags *pflag.FlagSet) {
	flags.StringVar(&c.swing, "swing", "",
		"let the rates rise and fall as sines, as PERIOD:DEPTH, e.g. 10m:0.5 for half of the mean")
	flags.StringArrayVar(&c.slower, "slower", nil,
		"how many times longer queries take than the leader knows at first, as FACTOR or "+
			"TYPE=FACTOR; repeat it for several")
}

// Apply sets what the flags say in cfg, whose models, pool and stream are set.
func (c *Change) Apply(cfg *sim.Config) error {
	if c.swing != "" {
		if err := c.applySwing(cfg); err != nil {
			return err
		}
	}
	for _, text := range c.slower {
		if err := parseSlower(cfg, text); err != nil {
			return err
		}
	}
	return nil
}

func (c *Change) applySwing(cfg *sim.Config) error {
	period, depth, _ := strings.Cut(c.swing, ":")
	d, err1 := time.ParseDuration(period)
	x, err2 := strconv.ParseFloat(depth, 64)
	swing := workload.Swing{Period: d, Depth: x}
	if errors.Join(err1, err2) != nil || swing.Validate() != nil {
		return fmt.Errorf(
			"swing: %q, want PERIOD:DEPTH with a period and a depth above 0 and up to 1, "+
				"e.g. 10m:0.5", c.swing)
	}
	stream := cfg.Stream
	if stream == nil {
		stream = sim.StreamOf("poisson")
	}
	var models []string
	for _, m := range cfg.Models {
		models = append(models, m.Name)
	}
	cfg.Stream = func(now *sim.Config) (iter.Seq[workload.Query], error) {
		most := *now
		most.Rate *= swing.Most()
		all, err := stream(&most)
		if err != nil {
			return nil, err
		}
		return swing.Thin(now.Seed, all, models), nil
	}
	return nil
}

// parseSlower lets the queries of cfg take longer than is known.
func parseSlower(cfg *sim.Config, text string) error {
	typ, factor, only := strings.Cut(text, "=")
	if !only {
		typ, factor = "", text
	}
	x, err := strconv.ParseFloat(factor, 64)
	if err != nil || !(x > 0 && x <= 100) {
		return fmt.Errorf(
			"slower: %q, want FACTOR or TYPE=FACTOR, with a factor above 0 and up to 100",
			text)
	}
	if only && !slices.Contains(cfg.Pool.Types(), typ) {
		return fmt.Errorf("slower: no instance of the pool %s is of type %q", cfg.Pool, typ)
	}
	scale := func(known map[string]match.Latencies) map[string]match.Latencies {
		by := map[string]match.Latencies{}
		for name, l := range known {
			if by[name] = l; !only || name == typ {
				by[name] = latency.Scaled(l, x)
			}
		}
		return by
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		if len(m.Variants) == 0 {
			if m.Known == nil {
				m.Known = m.Latencies
			}
			m.Latencies = scale(m.Latencies)
			continue
		}
		variants := slices.Clone(m.Variants)
		for v := range variants {
			if variants[v].Known == nil {
				variants[v].Known = variants[v].Latencies
			}
			variants[v].Latencies = scale(variants[v].Latencies)
		}
		m.SetVariants(variants)
	}
	return nil
}
