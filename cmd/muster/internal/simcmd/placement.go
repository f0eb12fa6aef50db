package simcmd

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/placement"
)

// PlacementHelp says what `muster sim place` does.
const PlacementHelp = `Simulate a fleet whose leader decides while queries arrive which variant each instance
holds, by the code that decides it in production. --hold says what instances hold at
the start; without it they hold one variant each, in turn. An instance holds --fits
variants at once while it changes; with --fits 1 it drains before it loads. Queries of
the first ` + warmUp + ` do not count.`

const warmUp = "40 s"

// A Placement is how models are placed, by flags.
type Placement struct {
	periodMS float64
	headroom float64
	loadMS   float64
	solveMS  float64
	fits     int
	blind    bool
	timeline string
	file     *os.File
}

// Add adds the flags.
func (f *Placement) Add(flags *pflag.FlagSet) {
	flags.Float64Var(&f.periodMS, "place-period-ms", 10_000, "ms between two placements")
	flags.Float64Var(&f.headroom, "place-headroom", staffing.PlacingHeadroom,
		"how many times the demand of the last 20 s is planned for")
	flags.Float64Var(&f.loadMS, "load-time-ms", 2000,
		"how many ms an instance takes to load a variant")
	flags.Float64Var(&f.solveMS, "solve-time-ms", 500, "ms until a placement is found")
	flags.IntVar(&f.fits, "fits", 2, "how many variants an instance's memory holds at once")
	flags.BoolVar(&f.blind, "blind", false, "let the leader learn nothing from how queries run")
	flags.StringVar(&f.timeline, "timeline", "",
		"write a CSV file with each family's queries and accuracy by windows of 10 s")
}

// Apply sets what the flags say in cfg, whose models, pool and holdings are set. The caller closes
// f after the run. seeds is how many runs there are.
func (f *Placement) Apply(cfg *sim.Config, seeds int) error {
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
	cfg.Placement = &placement.Config{
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
			return fmt.Errorf("timeline takes one run, not %d: give --seeds 1", seeds)
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
func (f *Placement) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// inTurn has each instance hold one model.
func inTurn(cfg *sim.Config) (all []sim.HeldModels) {
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
			all = append(all, sim.HeldModels{
				Type: in.Type, Count: 1, Models: []string{models[next%len(models)]},
			})
			next++
		}
	}
	return all
}
