package renting

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/rent/choose"
	"github.com/muster-serve/muster/profiles"
)

const (
	// step is the time between two looks at the load, as in agent/rent.
	step = 2 * time.Second
	// planEvery and planRest are those of agent/rent: the time between two plans while nothing else
	// asks for one, and the least one.
	planEvery, planRest = 5 * time.Minute, 20 * time.Second
	// settledAfter is how long at least a leader counts queries before it knows the demand.
	settledAfter = 10 * time.Second
)

// A Rental rents for one run.
type Rental struct {
	cfg      *Config
	fleet    RentalControl
	families []Family
	*provider
	noise *rand.Rand

	// Of the leader's term.
	term    uint64
	began   time.Duration
	renter  *rent.Renter
	chooser *choose.Chooser
	serves  func(map[profiles.InstanceType]int) float64
	planned time.Duration // -1: not yet
	noPlan  bool
	lacked  string
	exact   bool          // as of the renter's last step
	next    time.Duration // when to step the renter

	desired map[rent.Kind]int // which keepers remember
	// safe and boots are what leaders have learned, which keepers remember, too.
	safe  choose.SafeLoad
	boots map[profiles.InstanceType]time.Duration

	now     time.Duration // of the day, from its warm-up on
	result  Result
	windows []window
	busy    []time.Duration // by lane, as of now
	ends    [][]end         // by family, of the last minute
	tracker tracker
	rented  trackedUse // since its last step
}

// An end is how a query ended, and when.
type end struct {
	at   time.Duration
	late bool
}

// New returns what rents in a run, which begins with the warm-up.
func New(cfg *Config, families []Family, lanes []MachineSlot, its RentalControl) *Rental {
	return &Rental{
		cfg: cfg, fleet: its, families: families, provider: newProvider(cfg, lanes, its),
		noise: rand.New(rand.NewPCG(cfg.Seed, 32)), busy: make([]time.Duration, len(lanes)),
		ends: make([][]end, len(families)),
	}
}

// Wake lets time pass up to a time of the run, and returns when to call it next.
func (r *Rental) Wake(at time.Duration) (next time.Duration, err error) {
	now := time.Duration(float64(at) * r.cfg.Speed)
	r.result.SpotTaken += r.counted(r.pass(now, r.now))
	r.account(now)
	r.now = now
	if r.cfg.Progress != nil {
		r.cfg.Progress(now - r.cfg.WarmUp)
	}
	switch term := r.fleet.Leader(); {
	case term == 0:
	case term != r.term:
		r.beginTerm(term)
		fallthrough
	default:
		err = r.decide()
	}
	return at + time.Duration(float64(step)/r.cfg.Speed), err
}

// counted is n if the warm-up is over, else 0.
func (r *Rental) counted(n int) int {
	if r.now < r.cfg.WarmUp {
		return 0
	}
	return n
}

// beginTerm lets a new leader rent. It knows what is desired and what its predecessor has learned,
// and neither the load before nor what that has seen of machines.
func (r *Rental) beginTerm(term uint64) {
	if r.term != 0 {
		r.tell("another leader rents")
	}
	r.term, r.began = term, r.now
	r.renter, r.chooser = rent.New(r.cfg.Rent, r.now), choose.New(r.cfg.Choose)
	r.chooser.SetSafeLoad(r.safe.Share, r.safe.Why)
	r.chooser.SetBootTimes(r.boots)
	r.serves, r.planned, r.noPlan, r.lacked, r.exact = nil, -1, false, "", false
	r.next = r.now
	if r.desired == nil {
		r.desired = r.chooser.Least(r.cfg.Prices)
		if r.cfg.Fixed != nil {
			r.desired = r.cfg.Fixed
		}
	}
}

// decide is a round of the leader's loop.
func (r *Rental) decide() error {
	rate := r.countArrivals()
	r.chooser.Observe(r.now, rate)
	r.chooser.ObserveLateness(r.now, r.desired, r.exact, r.latenessOf())
	r.safe = r.chooser.SafeLoad()
	if r.now-r.began < settledAfter {
		return nil
	}
	changes, err := r.plan(rate)
	if err != nil {
		return err
	}
	if changes {
		r.next = r.now
	}
	if r.now < r.next {
		return nil
	}
	needed, lasts := r.chooser.Needed(r.now)
	if r.isUnplanned() {
		needed = 0
	}
	seen := rent.Seen{
		Now: r.now, Instances: r.list(r.now), Agents: r.agents(r.now), Majority: true,
		Prices: r.cfg.Prices, Desired: rent.Desired{Counts: r.desired}, Serves: r.serves,
		Needed: needed, NeededFor: lasts,
	}
	if seen.Serves == nil {
		seen.Serves = func(map[profiles.InstanceType]int) float64 { return 0 }
	}
	out := r.renter.Step(&seen)
	r.next, r.exact = r.now+out.Next, out.Exact
	for _, m := range out.Machines {
		if its := r.find(m.ID); its != nil && m.Phase == rent.Serving && !its.served {
			its.served = true
			r.chooser.ObserveBoot(m.Slot.Type, r.now-its.launched)
		}
	}
	r.boots = r.chooser.BootTimes()
	for _, e := range out.Events {
		r.tell(e)
	}
	for _, a := range out.Actions {
		r.act(a)
	}
	return nil
}

// isUnplanned reports whether no plan says what is rented.
func (r *Rental) isUnplanned() bool { return r.cfg.Fixed != nil || r.cfg.Tracking != nil }

// countArrivals is the rate that the leader counts since the last step, in queries/s.
func (r *Rental) countArrivals() float64 {
	n := 0.0
	for f := range r.families {
		n += r.cfg.Load(f, r.now-r.cfg.WarmUp) * step.Seconds()
	}
	return max(0, n+math.Sqrt(n)*r.noise.NormFloat64()) / step.Seconds()
}

// latenessOf says how late the queries of the last minute were, by family.
func (r *Rental) latenessOf() (all []choose.Lateness) {
	for f := range r.families {
		its := r.ends[f]
		gone := 0
		for gone < len(its) && r.now-its[gone].at > time.Minute {
			gone++
		}
		its = its[gone:]
		r.ends[f] = its
		late := 0
		for _, e := range its {
			if e.late {
				late++
			}
		}
		if len(its) > 0 {
			all = append(all, choose.Lateness{
				Model: r.families[f].Name, Queries: float64(len(its)),
				LateShare:    float64(late) / float64(len(its)),
				AllowedShare: 1 - r.families[f].Share,
			})
		}
	}
	return all
}

// act does what the renter says.
func (r *Rental) act(a rent.Action) {
	switch a.Kind {
	case rent.Launch:
		i, ok := r.launch(a.Slot, r.now)
		if !ok {
			r.renter.Failed(a.Slot, rent.IsShort, "the simulated provider has no more", r.now)
			return
		}
		r.renter.Launched(a.Slot, i, r.now)
		r.result.Launches += r.counted(1)
	case rent.Drain:
		if m := r.find(a.ID); m != nil {
			m.Instance.Drained = true
			r.fleet.Drain(m.lane)
			r.renter.Told(a.ID, r.now)
		}
	case rent.Return:
		if m := r.find(a.ID); m != nil {
			r.end(m)
			r.result.Returns += r.counted(1)
		}
		r.renter.Returned(a, r.now)
	}
}

// plan looks whether another fleet is to be desired, as agent/rent does it, and reports whether it
// is. rate is that of the last step, in queries/s.
func (r *Rental) plan(rate float64) (changes bool, err error) {
	if r.serves == nil {
		capacity, err := choose.NewCapacity(r.demand())
		if err != nil {
			return false, err
		}
		r.serves = capacity.SafeRate
	}
	if r.cfg.Tracking != nil {
		return r.track(rate), nil
	}
	if r.cfg.Fixed != nil {
		return false, nil
	}
	lacks := r.renter.Lacking(r.now)
	var lacked []string
	for _, l := range lacks {
		lacked = append(lacked, l.Kind.String())
	}
	since := r.now - r.planned
	if r.planned >= 0 && strings.Join(lacked, " ") == r.lacked && since < planEvery &&
		!((r.noPlan || r.chooser.NeedsPlan(r.now)) && since >= planRest) {
		return false, nil
	}
	r.lacked, r.planned = strings.Join(lacked, " "), r.now
	r.chooser.MarkPlanned(r.now)
	f := r.demand()
	f.Prices, f.Desired, f.Lacks = r.cfg.Prices, r.desired, lacks
	f.Foreign, f.Have = map[profiles.InstanceType]int{}, map[rent.Kind]int{}
	for _, m := range r.machines {
		f.Have[m.Slot.Kind]++
	}
	for _, a := range r.agents(r.now) {
		if a.Slot == nil && !a.Draining {
			f.Foreign[a.Type]++
		}
	}
	choice, err := r.chooser.Choose(context.Background(), r.now, f)
	if r.noPlan = err != nil; r.noPlan {
		r.tell("no plan: " + err.Error())
		return false, nil
	}
	r.serves = choice.Capacity.SafeRate
	if choice.Change {
		r.desired = choice.Counts
		r.result.Changes += r.counted(1)
		r.tell(choice.Why)
	}
	return choice.Change, nil
}

// demand is what the leader knows of the demand, and of what machines of the types that may be
// rented or are there can do about it.
func (r *Rental) demand() *choose.Fleet {
	types := map[profiles.InstanceType]float64{}
	for kind, price := range r.cfg.Prices {
		if kind.Market == rent.OnDemand {
			types[kind.Type] = price
		}
	}
	p := &plan.Problem{}
	fleet := &choose.Fleet{Problem: p, Memory: map[profiles.InstanceType]float64{},
		Sizes: map[string]float64{}}
	names := slices.Sorted(maps.Keys(types))
	for _, t := range names {
		p.Types = append(p.Types, plan.Type{Name: t, Price: types[t]})
		fleet.Memory[t] = float64(r.cfg.Fits) // of variants that take 1 each
	}
	const queries = 1e6 // so many have come that the target needs no margin for few
	for f := range r.families {
		its := &r.families[f]
		rate := r.cfg.Load(f, r.now-r.cfg.WarmUp)
		if rate <= 0 {
			continue
		}
		m := plan.ModelDemand{
			Name: its.Name, QoSTarget: its.QoSTarget, Weight: rate, BatchSizes: its.Sizes,
		}
		for _, t := range names {
			m.Latencies = append(m.Latencies, its.Latencies[t])
		}
		p.Models = append(p.Models, m)
		p.Target = max(p.Target, plan.SureTarget(its.Share, queries))
		fleet.Sizes[its.Name] = 1
		family := choose.Family{Name: its.Name, Model: len(p.Models) - 1,
			TargetAccuracy: its.TargetAccuracy}
		for _, v := range its.Variants {
			variant := choose.Variant{Name: v.Name, Accuracy: v.Accuracy}
			for _, t := range names {
				variant.Latencies = append(variant.Latencies, v.Latencies[t])
			}
			family.Variants = append(family.Variants, variant)
			fleet.Sizes[v.Name] = 1
		}
		fleet.Families = append(fleet.Families, family)
	}
	return fleet
}

// tell notes an event.
func (r *Rental) tell(text string) {
	if len(r.result.Events) < maxEvents && r.now >= r.cfg.WarmUp {
		r.result.Events = append(r.result.Events,
			Told{math.Round((r.now-r.cfg.WarmUp).Hours()*1e3) / 1e3, text})
	}
}

// FixedFor is the fleet that is planned for a rate of all families together, in queries/s, beside
// machines that are not rented.
func (c *Config) FixedFor(families []Family, foreign map[profiles.InstanceType]int, rate float64) (
	map[rent.Kind]int, error) {
	bounds := c.Choose
	bounds.Rate, bounds.Budget = rate, 0
	r := New(c, families, nil, nil)
	r.now = c.WarmUp
	f := r.demand()
	f.Prices, f.Foreign = c.Prices, foreign
	choice, err := choose.New(bounds).Choose(context.Background(), 0, f)
	if err != nil {
		return nil, err
	}
	return choice.Counts, nil
}

// Text is what is rented, in words.
func Text(counts map[rent.Kind]int) string { return choose.Text(counts) }
