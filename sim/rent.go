package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim/fleet"
	"github.com/muster-serve/muster/sim/placement"
	"github.com/muster-serve/muster/sim/renting"
)

// beginRenting begins what rents machines in a run, if anything does.
func (r *simulation) beginRenting() {
	if r.cfg.Renting == nil {
		return
	}
	var families []renting.Family
	for i := range r.cfg.Models {
		families = append(families, r.cfg.Models[i].RentingFamily())
		r.arrivals = append(r.arrivals, dayArrivals{
			rng: rand.New(rand.NewPCG(r.cfg.Seed, uint64(50+i))),
		})
	}
	var lanes []renting.MachineSlot
	for i, name := range r.fleet.AgentNames() {
		l := &r.serves.Lanes[i]
		lanes = append(lanes, renting.MachineSlot{
			Agent: name, Type: profiles.InstanceType(l.Type), Kept: !l.Absent,
		})
	}
	r.rental = renting.New(r.cfg.Renting, families, lanes, rentedFleet{r.fleet, r})
	r.warmUp = time.Duration(float64(r.cfg.Renting.WarmUp) / r.cfg.Renting.Speed)
	r.fleet.Schedule(0, r.wakeRental)
}

// RentingFamily is m as the leader plans machines for it: by its best variant, the first of equals,
// or for its target accuracy.
func (m *Model) RentingFamily() renting.Family {
	best := slices.MaxFunc(m.variantsOf(), func(a, b Variant) int {
		return cmp.Compare(a.Accuracy, b.Accuracy)
	})
	f := renting.Family{
		Name: m.Name, QoSTarget: m.QoSTarget, Share: m.qosShare(),
		Sizes: Distribution(m.BatchSizes), Latencies: map[profiles.InstanceType]plan.Latencies{},
	}
	for name, l := range best.assumedLatencies() {
		f.Latencies[profiles.InstanceType(name)] = l
	}
	if f.TargetAccuracy = m.TargetAccuracy; f.TargetAccuracy == 0 {
		return f
	}
	for _, v := range m.variantsOf() {
		of := renting.Variant{Name: v.Name, Accuracy: v.Accuracy,
			Latencies: map[profiles.InstanceType]plan.Latencies{}}
		for name, l := range v.assumedLatencies() {
			of.Latencies[profiles.InstanceType(name)] = l
		}
		f.Variants = append(f.Variants, of)
	}
	return f
}

// wakeRental lets the leader rent. It sleeps once nothing happens any more.
func (r *simulation) wakeRental() {
	r.now = r.fleet.Now()
	next, err := r.rental.Wake(r.now)
	if err != nil {
		r.fail(fmt.Errorf("renting: %w", err))
	} else if r.now-r.fleet.MovedAt() < fleet.Patience {
		r.fleet.Schedule(next, r.wakeRental)
	}
}

// dayArrivals counts the queries of a family that arrive in a day, of which the run has a sample.
type dayArrivals struct {
	rng   *rand.Rand
	until time.Duration // of the day, from the warm-up on
	count float64
}

// countDay tells the planner how many queries of each family have arrived in the day so far.
func (r *simulation) countDay() {
	if r.rental == nil {
		return
	}
	cfg := r.cfg.Renting
	now := time.Duration(float64(r.now) * cfg.Speed)
	for i := range r.arrivals {
		a := &r.arrivals[i]
		n := cfg.Load(i, a.until-cfg.WarmUp) * (now - a.until).Seconds()
		a.count += max(0, n+math.Sqrt(n)*a.rng.NormFloat64())
		a.until = now
		r.placed.Count(i, uint64(a.count))
	}
}

// priorOf is what leaders that learn know of a variant on a type at first.
func (r *simulation) priorOf(variant int, laneType names.LaneType) *profiles.Table {
	t := slices.Index(r.types, string(laneType))
	if t < 0 || r.known[t].known[variant] == nil {
		return nil
	}
	m := &r.cfg.Models[r.modelOf(variant)]
	v := placement.Variant{Name: r.variants[variant].Name}
	table, err := placement.NewTable(v.Profile(laneType), r.known[t].known[variant],
		r.cfg.largestRun(m))
	if err != nil {
		r.fail(err)
	}
	return table
}

// A rentedFleet implements [renting.RentalControl].
type rentedFleet struct {
	*fleet.Fleet
	run *simulation
}

// Start implements [renting.RentalControl]: an agent holds what the planner asks it for, and all
// that its lane can run where nothing is placed.
func (f rentedFleet) Start(lane int) {
	var models []int
	if f.run.placed != nil {
		f.run.placed.Begin(lane)
	} else {
		for i, t := range f.run.lanes[lane].predicted {
			if t != nil {
				models = append(models, i)
			}
		}
	}
	f.Fleet.Start(lane, models)
}

// validateRenting reports what is wrong with how machines are rented.
func (c *Config) validateRenting() (errs []error) {
	if c.Renting == nil {
		return nil
	}
	if err := c.Renting.Validate(); err != nil {
		errs = append(errs, err)
	}
	if slices.Contains([]string{Priced, Prequal, ORCA, Oracle}, c.Policy) {
		errs = append(errs, fmt.Errorf("machines are not rented with policy %s: it has no leader",
			c.Policy))
	}
	kept := 0
	for _, in := range c.Kept {
		if in.Count < 0 || in.Count > c.Pool.Of(in.Type) {
			errs = append(errs, fmt.Errorf("%d machines of %s are kept, and the pool has %d",
				in.Count, in.Type, c.Pool.Of(in.Type)))
		}
		kept += in.Count
	}
	if kept == 0 {
		errs = append(errs, errors.New("no machine is kept, so that nobody can lead and rent"))
	}
	return errs
}
