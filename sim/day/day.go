// Package day simulates a day of a fleet whose leader rents machines and decides what they hold,
// while the load rises and falls, the provider takes machines back, and agents fail. Production
// code makes all decisions; package sim runs it.
package day

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/placement"
	"github.com/muster-serve/muster/sim/renting"
)

// The forms of a fleet that a day compares.
const (
	// Joint: machines are rented, and what they hold is placed, as a leader does both.
	Joint = "joint"
	// Renting: machines are rented, and hold the best variant of each family.
	Renting = "renting"
	// Placement: a fixed fleet, planned for the mean load, whose leader places variants.
	Placement = "placement"
	// Tracking: machines of one type, as many as keep [trackedShare] of their time busy, as an
	// autoscaler has it. They hold the best variants.
	Tracking = "tracking"
	// Fixed: a fixed fleet, planned for the peak, whose machines hold the best variants.
	Fixed = "fixed"
)

// Forms are all of them.
func Forms() []string { return []string{Joint, Renting, Placement, Tracking, Fixed} }

// A Config describes a day.
type Config struct {
	// Sim has the models, and the conditions; Rate is the mean rate of all models together, which
	// they share by their weights. What a Config of a day says of it is not read.
	Sim    sim.Config
	Curves []*Curve // by model
	// Kept are machines that are not rented, whose agents may lead.
	Kept sim.Pool
	// Renting is how machines are rented; Load, Fixed, Length and Seed are set here.
	Renting renting.Config
	// Place is how what machines hold is decided; Speed is set here.
	Place placement.Config
	// Faults are at times of the day.
	Faults []fleet.Fault
}

// A Result tells of the day of one form.
type Result struct {
	Form string `json:"form"`
	// Fleet is what was rented all day; "" if that changed.
	Fleet string `json:"fleet,omitempty"`
	renting.Result
	// Floor is the least accuracy of a part of the day of length [renting.Window] with at least
	// 20 answers, or of the day if none has so many.
	Floor float64 `json:"min_accuracy"`
	// Placements is how often another placement was made, HoldingChanges how often a machine
	// changed what it holds.
	Placements     int            `json:"placements,omitempty"`
	HoldingChanges int            `json:"holding_changes,omitempty"`
	Faults         []fleet.Result `json:"faults,omitempty"`
}

// minAnswers is how many answers of a part of the day say how accurate it was. Chosen: the mean of
// fewer moves by whole points with one answer by a worse variant.
const minAnswers = 20

// maxRented bounds the places for rented machines of one type.
const maxRented = 64

// Run simulates the day of one form. progress, if not nil, is called with how much of it has
// passed.
func (c *Config) Run(ctx context.Context, form string, progress func(at time.Duration)) (*Result,
	error) {
	if len(c.Curves) != len(c.Sim.Models) {
		return nil, fmt.Errorf("%d curves for %d models", len(c.Curves), len(c.Sim.Models))
	}
	cfg, its := c.Sim, c.Renting
	cfg.Renting, its.Progress = &its, progress
	its.Seed, its.Load = cfg.Seed, c.load
	if its.Length == 0 {
		its.Length = Length
	}
	cfg.Kept = c.Kept
	cfg.Queries, cfg.Stream = 1<<62, c.stream(&its)
	for _, f := range c.Faults {
		f.At = time.Duration(float64(f.At+its.WarmUp) / its.Speed)
		f.Duration = time.Duration(float64(f.Duration) / its.Speed)
		cfg.Faults = append(cfg.Faults, f)
	}
	out := &Result{Form: form}
	place, fixedFor := false, 0.0
	switch form {
	case Joint:
		place = true
	case Renting:
	case Placement:
		place, fixedFor = true, c.Sim.Rate
	case Tracking:
		var err error
		if its.Tracking, its.Fixed, err = c.tracking(&its); err != nil {
			return nil, err
		}
		out.Fleet = its.Tracking.Kind.String()
	case Fixed:
		fixedFor = c.peak()
	default:
		return nil, fmt.Errorf("got the form %q, want one of %q", form, Forms())
	}
	if place {
		its.Fits = cmp.Or(c.Place.Fits, 2)
	} else {
		cfg.Models = bestOnly(cfg.Models)
	}
	if fixedFor > 0 {
		var err error
		if its.Fixed, err = its.FixedFor(rentingFamilies(cfg.Models), c.foreign(), fixedFor); err != nil {
			return nil, err
		}
		out.Fleet = renting.Text(its.Fixed)
	}
	cfg.Pool = c.places(its.Fixed)
	if t := its.Tracking; t != nil {
		cfg.Pool = c.places(map[rent.Kind]int{t.Kind: t.Most})
	}
	if place {
		placing := c.Place
		placing.Speed = its.Speed
		placing.Replan.Seed = cfg.Seed
		cfg.Placement, cfg.Holds = &placing, c.firstHolds(cmp.Or(placing.Fits, 2))
	}
	res, err := sim.Run(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	out.Result, out.Faults = *res.Renting, res.Faults
	for i, f := range sortFaults(c.Faults) {
		out.Faults[i].Fault = f.String() // at its time of the day
	}
	if res.Placement != nil {
		out.Placements, out.HoldingChanges = res.Placement.Versions, res.Placement.Changes
	}
	out.Floor = out.Accuracy
	for i := range out.Windows {
		if w := &out.Windows[i]; w.Answered >= minAnswers {
			out.Floor = min(out.Floor, w.Accuracy)
		}
	}
	return out, nil
}

// rentingFamilies are those of models, as the leader plans for them.
func rentingFamilies(models []sim.Model) (all []renting.Family) {
	for i := range models {
		all = append(all, models[i].RentingFamily())
	}
	return all
}

// trackedShare is the share of their time in which an autoscaler's machines run queries: 60 to 70 %
// is what their documentation advises for services with a latency target.
const trackedShare = 0.6

// tracking is the autoscaler of the type that costs least for the peak, and what it starts with. Only
// the limit of the price bounds how many there are: the limits by type are for fleets of several.
func (c *Config) tracking(its *renting.Config) (*renting.Tracking, map[rent.Kind]int, error) {
	best, least := (*renting.Tracking)(nil), math.Inf(1)
	var start map[rent.Kind]int
	models := rentingFamilies(bestOnly(c.Sim.Models))
	for _, kind := range slices.SortedFunc(maps.Keys(its.Prices), rent.Kind.Compare) {
		price := its.Prices[kind]
		if kind.Market != rent.OnDemand || !(price > 0) {
			continue
		}
		one := *its
		one.Prices = map[rent.Kind]float64{kind: price}
		one.Choose.Types = map[profiles.InstanceType]choose.Limits{kind.Type: {}}
		one.Choose.Spare, one.Choose.SpotShare = 0, 0
		peak, err := one.FixedFor(models, nil, c.peak())
		if err != nil || peak[kind] == 0 || price*float64(peak[kind]) >= least {
			continue
		}
		mean, err := one.FixedFor(models, nil, c.Sim.Rate)
		if err != nil {
			continue
		}
		least, start = price*float64(peak[kind]), mean
		best = &renting.Tracking{
			Kind: kind, Share: trackedShare, Least: 1,
			Most: min(int(its.Choose.MaxPrice/price), maxRented),
		}
	}
	if best == nil {
		return nil, nil, fmt.Errorf("form %s: no type alone serves the peak of %.1f queries/s for %.2f "+
			"$/hr, want another max_price_usd_per_hour or type", Tracking, c.peak(), its.Choose.MaxPrice)
	}
	return best, start, nil
}

// sortFaults sorts faults by their times.
func sortFaults(faults []fleet.Fault) []fleet.Fault {
	return slices.SortedStableFunc(slices.Values(faults),
		func(a, b fleet.Fault) int { return cmp.Compare(a.At, b.At) })
}

// bestOnly leaves each family its best variant.
func bestOnly(models []sim.Model) (all []sim.Model) {
	for _, m := range models {
		if len(m.Variants) > 0 {
			best := m.Variants[0]
			for _, v := range m.Variants {
				if v.Accuracy > best.Accuracy {
					best = v
				}
			}
			m.SetVariants([]sim.Variant{best})
		}
		all = append(all, m)
	}
	return all
}

// share is the part of the queries that are for a model.
func (c *Config) share(model int) float64 {
	sum := 0.0
	for i := range c.Sim.Models {
		sum += cmp.Or(c.Sim.Models[i].Weight, 1)
	}
	return cmp.Or(c.Sim.Models[model].Weight, 1) / sum
}

// load is the rate of a model's queries at a time of the day, in queries/s.
func (c *Config) load(model int, at time.Duration) float64 {
	return c.Sim.Rate * c.share(model) * c.Curves[model].At(at)
}

// peak is the highest rate of all queries in a minute of the day, in queries/s.
func (c *Config) peak() (most float64) {
	for at := time.Duration(0); at < Length; at += time.Minute {
		rate := 0.0
		for m := range c.Sim.Models {
			rate += c.load(m, at)
		}
		most = max(most, rate)
	}
	return most
}

// foreign are the kept machines by type.
func (c *Config) foreign() map[profiles.InstanceType]int {
	counts := map[profiles.InstanceType]int{}
	for _, in := range c.Kept {
		counts[profiles.InstanceType(in.Type)] += in.Count
	}
	return counts
}

// places are as many places of each type as machines may be there at once.
func (c *Config) places(fixed map[rent.Kind]int) (pool sim.Pool) {
	types := map[profiles.InstanceType]bool{}
	for t := range c.Renting.Choose.Types {
		types[t] = true
	}
	for t := range c.foreign() {
		types[t] = true
	}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		n := 0
		if l, ours := c.Renting.Choose.Types[t]; ours {
			least := c.Renting.Prices[rent.Kind{Type: t}]
			if spot := c.Renting.Prices[rent.Kind{Type: t, Market: rent.Spot}]; spot > 0 {
				least = min(least, spot)
			}
			if least > 0 {
				n = int(c.Renting.Choose.MaxPrice / least)
			}
			if l.Max > 0 {
				n = min(n, 2*l.Max) // some drain while others come
			}
			n = min(max(n, fixed[rent.Kind{Type: t}]), maxRented)
		}
		pool = append(pool, sim.Instances{Type: string(t), Count: n + c.foreign()[t]})
	}
	return slices.DeleteFunc(pool, func(in sim.Instances) bool { return in.Count == 0 })
}

// firstHolds has the kept machines hold what fits, each from another model on; others begin empty.
func (c *Config) firstHolds(fits int) (all []sim.HeldModels) {
	var models []string
	for _, m := range c.Sim.Models {
		for _, v := range m.Variants {
			models = append(models, v.Name)
		}
		if len(m.Variants) == 0 {
			models = append(models, m.Name)
		}
	}
	next := 0
	for _, in := range c.Kept {
		for range in.Count {
			h := sim.HeldModels{Type: in.Type, Count: 1}
			for i := range min(fits, len(models)) {
				h.Models = append(h.Models, models[(next+i)%len(models)])
			}
			next++
			all = append(all, h)
		}
	}
	return all
}

// stream makes the queries of the run: those of the day, one second of it for each Speed.
func (c *Config) stream(its *renting.Config) func(*sim.Config) (iter.Seq[workload.Query], error) {
	return func(now *sim.Config) (iter.Seq[workload.Query], error) {
		most := 0.0
		for m := range c.Sim.Models {
			most += c.Sim.Rate * c.share(m) * c.Curves[m].Max()
		}
		if !(most > 0) {
			return nil, errors.New("the day has no load")
		}
		end := (its.WarmUp + its.Length).Seconds() / its.Speed
		return func(yield func(workload.Query) bool) {
			rng := rand.New(rand.NewPCG(now.Seed, 33))
			for at := rng.ExpFloat64() / most; at < end; at += rng.ExpFloat64() / most {
				x, sizes := rng.Float64()*most, rng.Uint64()
				run := time.Duration(at * float64(time.Second))
				of := time.Duration(at*its.Speed*float64(time.Second)) - its.WarmUp
				for m := range now.Models {
					if x -= c.load(m, of); x >= 0 {
						continue
					}
					q := workload.Query{
						At: run, Model: now.Models[m].Name,
						BatchSize: now.Models[m].BatchSizes.Draw(rand.New(rand.NewPCG(sizes, 1))),
					}
					if !yield(q) {
						return
					}
					break
				}
			}
		}, nil
	}
}
