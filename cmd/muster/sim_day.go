package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/querytrace"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/charts"
	simday "github.com/muster-serve/muster/sim/day"
	"github.com/muster-serve/muster/sim/placement"
	"github.com/muster-serve/muster/sim/renting"
)

// dayOptions are the flags of `muster sim day`.
type dayOptions struct {
	simOptions
	rate                     float64
	fleetFile, catalogue     string
	curves, faults, forms    []string
	keep                     string
	hours, warmUp            time.Duration
	boot, placePeriod, loads time.Duration
	spotPrice, spotLosses    float64
	speed                    float64
	fits                     int
	targetAccuracy           float64
	plotFile                 string
}

func newSimDayCommand() *cobra.Command {
	var o dayOptions
	cmd := &cobra.Command{
		Use:   "day",
		Short: "Simulate a day of a fleet that rents machines and places models",
		Long: `Simulate a day of a fleet whose leader rents machines within the limits of a
fleet.yaml and decides what each holds, while the load rises and falls. All decisions
are those of production: what is rented, returned and replaced, which variants machines
hold, which lane a query gets, and who leads. The provider is simulated: machines boot,
and spot machines are taken back.

--curve says how the load changes around --rate: daily, which rises from two sevenths
at midnight to twelve sevenths at noon; flat; a CSV file with the columns hour and
factor; or recorded queries, of which those of each minute count, as long as they last
and then again. A file of Azure Functions' invocations (of 2019 or 2021) or of Alibaba's
recommendation services (gpu-v2025) is read as published; FILE#3 is the load of its third
largest service alone. +6h after it makes it come six hours later, and NAME= before it
says it of one model or family.

Of each --speed seconds of the day one is simulated, with queries that take as long as
they do. The leader counts the queries of the whole day. A day with 70 queries/s takes
about ten seconds for each form.

Forms of a fleet: joint, as above; renting, whose machines hold the best variant of
each family; placement, a fixed fleet for the mean load with variants placed on it;
tracking, as many machines of one type as an autoscaler has that keeps them busy for
60 % of their time; and fixed, a fixed fleet for the peak. The last two hold the best
variants. The first is shown by hours, all of them side by side.

A fault is as in "muster sim faults", at a time of the day. Only the machines of --keep
may lead.

` + latenciesHelp + `

` + familyHelp,
		Example: `  muster sim day --fleet fleet.yaml --model rm2 --rate 70
  muster sim day --fleet fleet.yaml --family rank=rm2:1,rm2-s:.98:rm2*.5 --rate 70 \
    --forms joint,renting,placement,fixed --plot day.svg
  muster sim day --fleet fleet.yaml --model ncf=3 --model wnd --rate 900 --curve ncf=daily \
    --curve wnd=daily+8h --keep r5n.large=3 --fault kill-leader@9h --spot-losses 0.2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.simulate(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.fleetFile, "fleet", "", "fleet.yaml with the types to rent and the limits")
	flags.Float64Var(&o.rate, "rate", 0, "mean queries a second over all models")
	flags.StringArrayVar(&o.curves, "curve", nil,
		"how the load changes, as CURVE or NAME=CURVE (see above); repeat it for several "+
			"(default daily)")
	lists.Var(flags, &o.forms, "forms", []string{simday.Joint}, "forms of the fleet to compare")
	flags.StringVar(&o.keep, "keep", "",
		"machines that are not rented and may lead, as TYPE=COUNT (default: one of the cheapest type)")
	addFaults(flags, &o.faults, `see "muster sim faults"`)
	flags.DurationVar(&o.hours, "duration", simday.Length, "how much of the day to simulate")
	flags.DurationVar(&o.warmUp, "warm-up", time.Hour, "how long the fleet serves before that")
	flags.Float64Var(&o.speed, "speed", 60, "seconds of the day of which one is simulated")
	flags.DurationVar(&o.boot, "boot", time.Minute, "time until a machine serves")
	flags.Float64Var(&o.spotPrice, "spot-price", 0.35,
		"what a spot machine costs of the full price")
	flags.Float64Var(&o.spotLosses, "spot-losses", 0.05,
		"how often an hour the provider takes all spot machines of a type")
	flags.DurationVar(&o.placePeriod, "place-period", time.Minute, "time between two placements")
	flags.DurationVar(&o.loads, "load-time", 5*time.Second, "time to load a variant")
	flags.IntVar(&o.fits, "fits", 2, "how many variants a machine's memory holds at once")
	flags.Float64Var(&o.targetAccuracy, "target-accuracy", 0,
		"mean accuracy of families' answers to rent for (default: that of the best variants)")
	flags.StringVar(&o.catalogue, "catalogue", "",
		"YAML file with more instance types and prices than the built-in ones")
	flags.StringVar(&o.plotFile, "plot", "", "PNG or SVG file to draw the day to")
	o.addModels(flags)
	o.addFamilies(flags)
	flags.StringVar(&o.samples, "samples", "", "CSV file of measured latencies, or \"published\"")
	flags.StringVar(&o.batch, "batch", "trace", workload.BatchSizesHelp)
	flags.Float64Var(&o.qosMS, "qos-ms", 0, "QoS target in ms, instead of the models' own")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the day")
	flags.BoolVar(&o.json, "json", false, "print as JSON")
	o.addConditions(flags)
	return cmd
}

func (o *dayOptions) simulate(cmd *cobra.Command) error {
	cfg, err := o.config()
	if err != nil {
		return misuse.Wrap(err)
	}
	for _, form := range o.forms {
		if !slices.Contains(simday.Forms(), form) {
			return misuse.Errorf("forms: got %q, want some of %s", form,
				strings.Join(simday.Forms(), ", "))
		}
	}
	if err := cfg.Renting.Validate(); err != nil {
		return misuse.Wrap(err)
	}
	started := time.Now()
	all, failed := o.runForms(cmd, cfg)
	took := time.Since(started)
	if len(all) == 0 {
		return failed
	}
	if o.json {
		err = terminal.PrintJSON(cmd.OutOrStdout(), all)
	} else if err = simday.Text(cmd.OutOrStdout(), all, o.speed); err == nil {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "It took %.1f s.\n", took.Seconds())
	}
	if err = errors.Join(failed, err); err != nil || o.plotFile == "" {
		return err
	}
	if err := writePicture(o.plotFile, func(w io.Writer, format string) error {
		return charts.DrawDays(w, format, all)
	}); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "day drawn to %s\n", o.plotFile)
	return nil
}

// runForms simulates the day of each form, up to the first that fails or is interrupted.
func (o *dayOptions) runForms(cmd *cobra.Command, cfg *simday.Config) (all []*simday.Result,
	err error) {
	for _, form := range o.forms {
		show := terminal.NewPercentage(cmd.ErrOrStderr(), form)
		shown := time.Duration(-1)
		r, err := cfg.Run(cmd.Context(), form, func(at time.Duration) {
			if at = at.Truncate(renting.Window); at > shown {
				shown = at
				show(int64(min(at, o.hours).Minutes()), int64(o.hours.Minutes()))
			}
		})
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

// config makes the day that the flags describe.
func (o *dayOptions) config() (*simday.Config, error) {
	if o.fleetFile == "" {
		return nil, errors.New("fleet: give --fleet FILE, a fleet.yaml with the types to rent")
	}
	if !(o.rate > 0 && o.rate <= sim.MaxRate) {
		return nil, fmt.Errorf("rate: %v, want the mean queries a second, above 0", o.rate)
	}
	if o.fits < 1 {
		return nil, fmt.Errorf("fits: %d, want 1 or more", o.fits)
	}
	if !(o.targetAccuracy >= 0 && o.targetAccuracy <= 1) {
		return nil, fmt.Errorf("target-accuracy: %v, want above 0 and up to 1", o.targetAccuracy)
	}
	p, _, err := policy.Read(o.fleetFile)
	if err != nil {
		return nil, err
	}
	var types []string
	for _, t := range p.Names() {
		types = append(types, string(t))
	}
	var kept sim.Pool
	if o.keep != "" {
		if kept, err = sim.ParsePool(o.keep); err != nil {
			return nil, err
		}
		for _, t := range kept.Types() {
			if !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
	}
	prices, err := readPrices(o.catalogue, types)
	if err != nil {
		return nil, err
	}
	if kept == nil {
		cheapest := slices.MinFunc(prices, func(a, b sim.Price) int {
			return int(1e6 * (a.PriceUSDPerHour - b.PriceUSDPerHour))
		})
		kept = sim.Pool{{Type: cheapest.Type, Count: 1}}
	}
	o.arrivals, o.queries, o.seeds = "poisson", 1, 1
	base, _, err := o.makeConfig(types)
	if err != nil {
		return nil, err
	}
	base.Rate, base.Seed = o.rate, o.seed
	for i := range base.Models {
		base.Models[i].TargetAccuracy = o.targetAccuracy
	}
	cfg := &simday.Config{
		Sim: *base, Kept: kept,
		Renting: renting.Config{
			Rent: p.Rent(), Choose: p.Choose(), Prices: map[rent.Kind]float64{}, Speed: o.speed,
			WarmUp: o.warmUp, Length: o.hours, Boot: o.boot, SpotLosses: o.spotLosses,
			Notice: 2 * time.Minute,
		},
		Place: placement.Config{
			Replan: replan.Config{Period: o.placePeriod}, LoadTime: o.loads, Fits: o.fits,
		},
	}
	for _, price := range prices {
		kind := rent.Kind{Type: profiles.InstanceType(price.Type)}
		cfg.Renting.Prices[kind] = price.PriceUSDPerHour
		kind.Market = rent.Spot
		if p.SpotShare > 0 {
			cfg.Renting.Prices[kind] = price.PriceUSDPerHour * o.spotPrice
		}
	}
	if cfg.Faults, err = readFaults(o.faults); err != nil {
		return nil, err
	}
	return cfg, o.setCurves(cfg)
}

// setCurves sets how the load of each model changes.
func (o *dayOptions) setCurves(cfg *simday.Config) error {
	for range cfg.Sim.Models {
		cfg.Curves = append(cfg.Curves, simday.Daily())
	}
	for _, text := range o.curves {
		name, of, only := strings.Cut(text, "=")
		if !only {
			name, of = "", text
		}
		c, err := simday.ParseCurve(of, countRecorded)
		if err != nil {
			return err
		}
		found := false
		for i := range cfg.Sim.Models {
			if !only || cfg.Sim.Models[i].Name == name {
				cfg.Curves[i], found = c, true
			}
		}
		if !found {
			return fmt.Errorf("curve %q: no model or family is called %q", text, name)
		}
	}
	return nil
}

// maxRecorded bounds how long recorded queries last that the load of a day is made of: a longer
// record than a week is a typing error in its times.
const maxRecorded = 7 * 24 * time.Hour

// countRecorded returns how many queries of a record arrive in each minute.
func countRecorded(path string) (counts []float64, err error) {
	err = querytrace.ReadFile(path, func(q querytrace.TracedQuery) error {
		if q.At >= maxRecorded {
			return fmt.Errorf("%s: a query arrives after %v, want a record of at most %v", path,
				q.At,
				maxRecorded)
		}
		minute := int(q.At / time.Minute)
		for len(counts) <= minute {
			counts = append(counts, 0)
		}
		counts[minute]++
		return nil
	})
	return counts, err
}
