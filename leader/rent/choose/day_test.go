package choose

import (
	"cmp"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
)

// A world is a provider whose machines start within boots and drain in ten seconds.
type world struct {
	now      time.Duration
	boots    time.Duration
	machines []*simulated
	prices   map[rent.Kind]float64
	dollars  float64
}

type simulated struct {
	rent.Instance
	launched, drained time.Duration
	ends              time.Duration // the provider takes it; 0: never
}

const (
	tick   = 10 * time.Second
	drains = 10 * time.Second
)

// problem is the demand for rm2, with the queries of the production trace, on the types of the
// prices.
func problem(t *testing.T, prices map[rent.Kind]float64) *plan.Problem {
	t.Helper()
	p := &plan.Problem{}
	model := plan.ModelDemand{Name: "rm2", QoSTarget: 350 * time.Millisecond, Weight: 1}
	for _, x := range workload.Trace().PMF() {
		model.BatchSizes = append(model.BatchSizes, profiles.Share{BatchSize: x.BatchSize, Share: x.P})
	}
	for _, kind := range slices.SortedFunc(maps.Keys(prices), rent.Kind.Compare) {
		if kind.Market == rent.Spot {
			continue
		}
		table, err := profiles.ShippedLibrary().Table("rm2", kind.Type)
		if err != nil {
			t.Fatal(err)
		}
		p.Types = append(p.Types, plan.Type{Name: kind.Type, Price: prices[kind]})
		model.Latencies = append(model.Latencies, table)
	}
	p.Models = []plan.ModelDemand{model}
	return p
}

// pass lets time pass, and pays for it.
func (w *world) pass() {
	w.now += tick
	for _, m := range w.machines {
		if m.drained > 0 && w.now >= m.drained+drains || m.ends > 0 && w.now >= m.ends {
			m.State = rent.Gone
		}
		if m.State < rent.Stopping {
			w.dollars += w.prices[m.Slot.Kind] * tick.Hours()
		}
	}
	w.machines = slices.DeleteFunc(w.machines, func(m *simulated) bool { return m.State == rent.Gone })
}

func (w *world) agents() (agents []rent.Agent, serving map[profiles.InstanceType]int) {
	serving = map[profiles.InstanceType]int{}
	for _, m := range w.machines {
		if w.now < m.launched+w.boots {
			continue
		}
		slot := m.Slot
		ends := time.Duration(0)
		if m.ends > 0 {
			ends = max(1, m.ends-w.now)
		}
		agents = append(agents, rent.Agent{Ends: ends, Name: m.ID, Type: slot.Type, Instance: m.ID, Slot: &slot,
			Ready: true, Draining: m.drained > 0, Factor: 1})
		if m.drained == 0 {
			serving[slot.Type]++
		}
	}
	return agents, serving
}

// A result is what a day came to.
type result struct {
	dollars float64
	changes int           // of what is desired
	short   time.Duration // in which what serves was expected to serve less than was asked for
	ticks   []moment
}

// A moment is what had come together by the end of a tick.
type moment struct {
	dollars float64
	short   time.Duration
	changes int
}

// since is what came after a time.
func (r *result) since(at time.Duration) result {
	from, to := r.ticks[max(0, at/tick-1)], r.ticks[len(r.ticks)-1]
	return result{dollars: to.dollars - from.dollars, short: to.short - from.short}
}

// A scenario is a load, in queries/s, and what happens beside it. What is nil does not matter.
type scenario struct {
	lasts, boots time.Duration // boots: a minute by default
	load         func(time.Duration) float64
	change       func(*Config)                            // changes the bounds
	befalls      func(w *world, at time.Duration)         // in each tick
	decide       func(at time.Duration) map[rent.Kind]int // in place of the chooser
}

// live runs the chooser and the renter through a scenario.
func live(t *testing.T, of scenario) result {
	t.Helper()
	prices := bothMarkets
	p := problem(t, prices)
	capacity, err := NewCapacity(&Fleet{Problem: p})
	if err != nil {
		t.Fatal(err)
	}
	serves := capacity.SafeRate
	config := Config{Headroom: 1.15, MaxPrice: 6, MinInstances: 1, Calm: 5 * time.Minute,
		Threshold: 0.05, Launches: 8, Types: map[profiles.InstanceType]Limits{"g4dn.xlarge": {Max: 6},
			"r5n.large": {Max: 20}, "c5n.2xlarge": {Max: 4}}}
	if of.change != nil {
		of.change(&config)
	}
	policy := rent.DefaultPolicy()
	policy.MaxPrice = config.MaxPrice
	w := &world{prices: prices, now: time.Hour, boots: cmp.Or(of.boots, time.Minute)}
	c, r := New(config), rent.New(policy, 0)
	desired := c.Least(prices)
	random := rand.New(rand.NewPCG(26, 1))
	var out result
	planned, next := time.Duration(-time.Hour), time.Duration(0)
	begin := w.now
	for w.now < begin+of.lasts {
		w.pass()
		at := w.now - begin
		if of.befalls != nil {
			of.befalls(w, at)
		}
		rate := of.load(at)
		arrived := max(0, rate*tick.Seconds()+math.Sqrt(rate*tick.Seconds())*random.NormFloat64())
		c.Observe(w.now, arrived/tick.Seconds())
		agents, serving := w.agents()
		for _, m := range w.machines {
			if w.now == m.launched+w.boots {
				c.ObserveBoot(m.Slot.Type, w.boots)
			}
		}
		if serves(serving) < rate {
			out.short += tick
		}
		out.ticks = append(out.ticks, moment{w.dollars, out.short, out.changes})
		if of.decide != nil {
			if counts := of.decide(at); !maps.Equal(counts, desired) {
				desired, next = counts, w.now
				out.changes++
			}
		} else if since := w.now - planned; since >= 5*time.Minute || since >= 20*time.Second &&
			c.NeedsPlan(w.now) {
			planned = w.now
			c.MarkPlanned(w.now)
			have := map[rent.Kind]int{}
			for _, m := range w.machines {
				have[m.Slot.Kind]++
			}
			choice, err := c.Choose(context.Background(), w.now, &Fleet{Problem: p, Prices: prices,
				Desired: desired, Have: have})
			if err != nil {
				t.Fatal(err)
			}
			if choice.Change {
				desired = choice.Counts
				out.changes++
				next = w.now
			}
		}
		if of.befalls == nil && w.now < next {
			continue
		}
		needed, lasts := c.Needed(w.now)
		if of.decide != nil {
			needed, lasts = rate, 0
		}
		seen := rent.Seen{Now: w.now, Agents: agents, Majority: true, Prices: prices,
			Desired: rent.Desired{Counts: desired}, Serves: serves, Needed: needed,
			NeededFor: lasts}
		for _, m := range w.machines {
			i := m.Instance
			i.Age = w.now - m.launched
			seen.Instances = append(seen.Instances, i)
		}
		step := r.Step(&seen)
		next = w.now + step.Next
		for _, a := range step.Actions {
			switch a.Kind {
			case rent.Launch:
				m := &simulated{Instance: rent.Instance{ID: a.Slot.String(), Slot: a.Slot,
					State: rent.Running}, launched: w.now}
				w.machines = append(w.machines, m)
				r.Launched(a.Slot, m.Instance, w.now)
			case rent.Drain, rent.Return:
				for _, m := range w.machines {
					if m.ID == a.ID && m.drained == 0 {
						m.drained = w.now
						r.Told(a.ID, w.now)
					}
				}
			}
		}
	}
	out.dollars = w.dollars
	return out
}

// fixed is the cheapest fleet that serves a rate all the time, and what the homogeneous one costs.
func fixed(t *testing.T, of time.Duration, rate float64) (dollars float64, name string) {
	t.Helper()
	prices := map[rent.Kind]float64{{Type: "g4dn.xlarge"}: 0.526, {Type: "r5n.large"}: 0.149,
		{Type: "c5n.2xlarge"}: 0.432}
	p := problem(t, prices)
	p.Objective, p.Rate, p.Budget = plan.LeastCost, rate, 6
	result, err := plan.Fluid{Top: 1}.Plan(context.Background(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	best := result.Plans[0]
	return best.Price * of.Hours(), p.Name(best.Configuration)
}

// autoscaled is a fleet of g4dn.xlarge alone, whose number follows the share of their time that is
// in use: 60 % is wanted, and the highest number of the last 5 min holds, as Kubernetes does it.
func autoscaled(t *testing.T, of, boots time.Duration,
	load func(time.Duration) float64) (out result) {
	t.Helper()
	const price, wanted = 0.526, 0.6
	kind := rent.Kind{Type: "g4dn.xlarge"}
	p := problem(t, map[rent.Kind]float64{kind: price})
	capacity, err := NewCapacity(&Fleet{Problem: p})
	if err != nil {
		t.Fatal(err)
	}
	serves := capacity.SafeRate
	one := serves(map[profiles.InstanceType]int{kind.Type: 1})
	limit := one / staffing.SafeShare(1) // at 100 % of its time
	var wishes []int
	n, pending := 1, []time.Duration{}
	for now := time.Duration(0); now < of; now += tick {
		out.ticks = append(out.ticks, moment{out.dollars, out.short, out.changes})
		rate := load(now)
		out.dollars += float64(n+len(pending)) * price * tick.Hours()
		for len(pending) > 0 && now >= pending[0] {
			pending, n = pending[1:], n+1
		}
		if float64(n)*one < rate {
			out.short += tick
		}
		used := min(1, rate/(float64(n)*limit))
		wishes = append(wishes, max(1, int(math.Ceil(float64(n)*used/wanted))))
		wishes = wishes[max(0, len(wishes)-int(5*time.Minute/tick)):]
		switch most := slices.Max(wishes); {
		case most > n+len(pending):
			out.changes++
			for n+len(pending) < most {
				pending = append(pending, now+boots)
			}
		case most < n:
			out.changes++
			n = most
		}
	}
	return out
}

// TestSteadyLoad: a load that stays as it is, but for chance, changes the fleet until it fits, and
// then not.
func TestSteadyLoad(t *testing.T) {
	for _, rate := range []float64{5, 12, 20, 60, 120} {
		got := live(t, scenario{lasts: 12 * time.Hour, load: func(time.Duration) float64 { return rate }})
		first := got.ticks[time.Hour/tick].changes
		t.Logf("%v queries/s: $%.3f, %d changes within the first hour and %d after, short for %v",
			rate, got.dollars, first, got.changes-first, got.short)
		if first > 3 || got.changes-first > 1 || got.since(time.Hour).short > 0 {
			t.Errorf("%v queries/s: %d changes within the first hour and %d after", rate, first,
				got.changes-first)
		}
	}
}

// daily is a load from 20 to 120 queries/s.
func daily(at time.Duration) float64 { return 70 - 50*math.Cos(2*math.Pi*at.Hours()/24) }

// spotDay is a day with half of the load on spot machines, of which the provider takes all of a type
// every other hour with a notice of two minutes.
func spotDay(t *testing.T, of time.Duration) (got result, taken int) {
	got = live(t, scenario{lasts: of, load: daily,
		change: func(c *Config) { c.SpotShare, c.MaxPool = 0.5, 0.3 },
		befalls: func(w *world, at time.Duration) {
			if at%(2*time.Hour) != 0 {
				return
			}
			of := []profiles.InstanceType{"r5n.large", "c5n.2xlarge", "g4dn.xlarge"}
			kind := rent.Kind{Type: of[int(at/(2*time.Hour))%len(of)], Market: rent.Spot}
			for _, m := range w.machines {
				if m.Slot.Kind == kind && m.ends == 0 {
					m.ends = w.now + 2*time.Minute
					taken++
				}
			}
		}})
	return got, taken
}

// TestSpareMachine: with one to spare, the fleet goes on serving what is asked for when any one of
// its machines dies, here each type's in turn; without, it does not until that is replaced.
func TestSpareMachine(t *testing.T) {
	for spare, most := range []time.Duration{time.Hour, time.Minute} { // the first one starts
		died := 0
		got := live(t, scenario{lasts: 5 * time.Hour, load: func(at time.Duration) float64 {
			return 60 * min(1, 0.2+at.Hours()) // the first machines are still to come
		}, change: func(c *Config) { c.Spare = spare }, befalls: func(w *world, at time.Duration) {
			if at < 2*time.Hour || at%time.Hour != 0 || died == 3 {
				return
			}
			of := []profiles.InstanceType{"g4dn.xlarge", "r5n.large", "g4dn.xlarge"}[died]
			i := slices.IndexFunc(w.machines, func(m *simulated) bool {
				return m.Slot.Type == of && m.drained == 0 && w.now > m.launched+w.boots
			})
			if i >= 0 {
				w.machines = slices.Delete(w.machines, i, i+1)
				died++
			}
		}})
		t.Logf("spare %d: $%.2f, too little for %v", spare, got.dollars, got.short)
		if died != 3 || got.short > most || spare == 0 && got.short < 2*time.Minute {
			t.Errorf("spare %d: %d died, too little for %v", spare, died, got.short)
		}
	}
}

// TestDay: through a day whose load rises to six times its least, the fleet costs less than the best
// fixed one, and than one that an autoscaler sizes, changes a bounded number of times, and is not
// short for longer.
func TestDay(t *testing.T) {
	const day = 24 * time.Hour
	load := daily
	got := live(t, scenario{lasts: day, load: load})
	fixed, name := fixed(t, day, 120*1.15)
	scaled := autoscaled(t, day, time.Minute, load)
	t.Logf("a day of 20 to 120 queries/s: $%.2f, %d changes, too little for %v; the best fixed "+
		"fleet (%s) $%.2f; an autoscaler of g4dn.xlarge $%.2f, %d changes, too little for %v",
		got.dollars, got.changes, got.short, name, fixed, scaled.dollars, scaled.changes,
		scaled.short)
	if got.dollars > fixed || got.dollars > scaled.dollars {
		t.Errorf("$%.2f, want less than $%.2f and $%.2f", got.dollars, fixed, scaled.dollars)
	}
	if got.dollars > 42.35 {
		t.Errorf("$%.2f, want at most $42.35", got.dollars)
	}
	if got.changes > 60 {
		t.Errorf("%d changes, want at most 60", got.changes)
	}
	if got.short > 5*time.Minute {
		t.Errorf("too little for %v", got.short)
	}
	// What is taken is replaced before.
	spot, taken := spotDay(t, day)
	t.Logf("with spot machines, of which %d are taken: $%.2f, %d changes, too little for %v", taken,
		spot.dollars, spot.changes, spot.short)
	if spot.dollars > 0.95*got.dollars || spot.short > got.short+2*time.Minute || taken < 10 {
		t.Errorf("with spot machines $%.2f, too little for %v, %d taken; without $%.2f, %v",
			spot.dollars, spot.short, taken, got.dollars, got.short)
	}
}
