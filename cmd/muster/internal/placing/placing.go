// Package placing has the flags of `muster sim --place`.
package placing

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/latency"
	"github.com/muster-serve/muster/sim/placing"
)

// Help is the part of the command's help that is about placements.
const Help = `--place decides while queries arrive which variant each instance holds, by the code
that decides it in production; so --hold says what they hold at the start, and without
it they hold one variant each, in turn. An instance holds --fits variants at once while
it changes; with --fits 1 it drains before it loads. Queries of the first ` + warmUp + ` do not
count. --swing lets the families' rates swing, one after the other, and --slower lets
queries take longer than the leader knows at first.`

const warmUp = "40 s"

// Flags are the flags.
type Flags struct {
	place    bool
	periodMS float64
	headroom float64
	loadMS   float64
	solveMS  float64
	fits     int
	blind    bool
	timeline string
	swing    string
	slower   []string
	set      *pflag.FlagSet
	file     *os.File
}

// Add adds the flags.
func (f *Flags) Add(flags *pflag.FlagSet) {
	f.set = flags
	flags.BoolVar(&f.place, "place", false,
		"decide what instances hold while queries arrive (see above)")
	flags.Float64Var(&f.periodMS, "place-period-ms", 10_000, "ms between two placements")
	flags.Float64Var(&f.headroom, "place-headroom", 1.3,
		"how many times the largest demand of the last 20 s is planned for")
	flags.Float64Var(&f.loadMS, "load-time-ms", 2000,
		"how many ms an instance takes to load a variant")
	flags.Float64Var(&f.solveMS, "solve-time-ms", 500, "ms until a placement is found")
	flags.IntVar(&f.fits, "fits", 2, "how many variants an instance's memory holds at once")
	flags.BoolVar(&f.blind, "blind", false, "let the leader learn nothing from how queries run")
	flags.StringVar(&f.timeline, "timeline", "",
		"write a CSV file with each family's queries and accuracy by windows of 10 s")
	flags.StringVar(&f.swing, "swing", "",
		"let the rates rise and fall as sines, as PERIOD:DEPTH, e.g. 10m:0.5 for half of the mean")
	flags.StringArrayVar(&f.slower, "slower", nil,
		"how many times longer queries take than the leader knows at first, as FACTOR or "+
			"TYPE=FACTOR; repeat it for several")
}

// need lists the flags that mean nothing without --place.
var need = []string{
	"place-period-ms", "place-headroom", "load-time-ms", "solve-time-ms", "fits", "blind",
	"timeline",
}

// Apply sets what the flags say in cfg, whose models, pool and holdings are set. The caller closes
// f after the run. seeds is how many runs there are.
func (f *Flags) Apply(cfg *sim.Config, seeds int) error {
	if f.swing != "" {
		if err := f.applySwing(cfg); err != nil {
			return err
		}
	}
	for _, text := range f.slower {
		if err := slower(cfg, text); err != nil {
			return err
		}
	}
	if !f.place {
		for _, name := range need {
			if f.set.Changed(name) {
				return fmt.Errorf("%s: it means nothing without --place", name)
			}
		}
		return nil
	}
	var errs []error
	ms := func(flag string, x float64) time.Duration {
		if !(x > 0 && x <= 3.6e6) {
			errs = append(errs, fmt.Errorf("%s: %v, want above 0 and up to an hour", flag, x))
		}
		return time.Duration(x * float64(time.Millisecond))
	}
	if !(f.headroom >= 1 && f.headroom <= 100) {
		errs = append(errs, fmt.Errorf("place-headroom: %v, want 1..100", f.headroom))
	}
	if f.fits < 1 {
		errs = append(errs, fmt.Errorf("fits: %d, want 1 or more", f.fits))
	}
	cfg.Placement = &placing.Config{
		Replan: replan.Config{
			Period: ms("place-period-ms", f.periodMS), Headroom: f.headroom, Seed: cfg.Seed,
		},
		SolveTime: ms("solve-time-ms", f.solveMS), LoadTime: ms("load-time-ms", f.loadMS),
		Fits: f.fits, Blind: f.blind,
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(cfg.Holds) == 0 {
		cfg.Holds = inTurn(cfg)
	}
	if f.timeline != "" {
		if seeds > 1 {
			return fmt.Errorf("timeline: it is of one run, and there are %d; give --seeds 1", seeds)
		}
		var err error
		if f.file, err = os.Create(f.timeline); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		cfg.Placement.Timeline = f.file
	}
	return nil
}

// Close closes what Apply has opened.
func (f *Flags) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// inTurn has each instance hold one model.
func inTurn(cfg *sim.Config) (all []sim.Holding) {
	var models []string
	for _, m := range cfg.Models {
		for _, v := range m.Variants {
			models = append(models, v.Name)
		}
		if len(m.Variants) == 0 {
			models = append(models, m.Name)
		}
	}
	next := 0
	for _, in := range cfg.Pool {
		for range in.Count {
			all = append(all, sim.Holding{
				Type: in.Type, Count: 1, Models: []string{models[next%len(models)]},
			})
			next++
		}
	}
	return all
}

func (f *Flags) applySwing(cfg *sim.Config) error {
	period, depth, _ := strings.Cut(f.swing, ":")
	d, err1 := time.ParseDuration(period)
	x, err2 := strconv.ParseFloat(depth, 64)
	swing := workload.Swing{Period: d, Depth: x}
	if errors.Join(err1, err2) != nil || swing.Validate() != nil {
		return fmt.Errorf(
			"swing: %q, want PERIOD:DEPTH with a period and a depth above 0 and up to 1, "+
				"e.g. 10m:0.5", f.swing)
	}
	stream := cfg.Stream
	if stream == nil {
		stream = sim.StreamOf("poisson")
	}
	var models []string
	for _, m := range cfg.Models {
		models = append(models, m.Name)
	}
	cfg.Stream = func(c *sim.Config) (iter.Seq[workload.Query], error) {
		most := *c
		most.Rate *= swing.Most()
		all, err := stream(&most)
		if err != nil {
			return nil, err
		}
		return swing.Thin(c.Seed, all, models), nil
	}
	return nil
}

// slower lets the queries of cfg take longer than is known.
func slower(cfg *sim.Config, text string) error {
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
