// Package choose decides how many instances of each type a fleet should rent: by the planner of the
// whole fleet (leader/fleetplan), for the highest load of the last while, within limits, calmly. It
// is pure.
package choose

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/fleetplan"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/profiles"
)

// A Config bounds what is chosen.
type Config struct {
	// Rate is what to plan for in queries/s; 0: what is asked for. Headroom is by which factor
	// more.
	Rate, Headroom float64
	// Budget in $/hr, if above 0, is spent for the highest rate instead.
	Budget       float64
	MaxPrice     float64 // in $/hr
	MinInstances int
	Types        map[profiles.InstanceType]Limits
	// Calm is how long the load that was is planned for.
	Calm time.Duration
	// Launches are how many instances may start at once; 0: any number.
	Launches int
	// Threshold is the share that a change must gain where the fleet serves what is asked for.
	Threshold float64
	// Spare is how many machines may be lost, whichever, and the rest still serves what is planned
	// for: 0 or 1.
	Spare int
	// SpotShare is the share of the planned load that spot machines may serve, and MaxPool the
	// share that spot machines of one type may; 0: none.
	SpotShare, MaxPool float64
}

// Limits are how many instances of a type there may be; Max 0: any number. Min of them are on
// demand, all if OnDemand.
type Limits struct {
	Min, Max int
	OnDemand bool
}

// agreeing is how many choices in a row must agree before one that is not urgent counts
// (hysteresis): one reading that is wrong returns no machine. In simulated days, where all readings
// are right, one costs the same and four .1 % more.
const agreeing = 2

// changed is by which share what is needed must fall for a plan before its time. From .05 to .4
// nothing changes in simulated days: the plan of every five minutes comes soon enough.
const changed = 0.15

// risen is by which share it must rise. With .15 loads that rise steadily find too little for 2 to 4
// of 30 min; with .02 they cost 1 % more.
const risen = 0.05

// surprise is by which factor the load of 20 s must exceed what was expected for the time, where
// the headroom is less, to count: chance makes it exceed by less. The default headroom is more, and
// of 1.4 in its place no simulated load takes notice.
const surprise = 1.1

// A Chooser remembers the load and its last choices. It is not safe for concurrent use.
type Chooser struct {
	config Config
	loads  []load // of the last Calm, a minute of them at least
	last   map[rent.Kind]int
	agreed int
	waits  bool // the last choice would be a change if it were agreed on

	safe   SafeLoad
	boots  bootTimes
	rhythm rhythm
	// perQuery is how many machines choices have had for each query/s, the most of late.
	perQuery float64
	planned  float64 // what was needed at the last plan, in queries/s
	guard    *guard  // of the last plan; nil: there was none
	planner  fleetplan.Planner
}

type load struct {
	at   time.Duration
	rate float64
}

// New returns a Chooser that has seen nothing.
func New(config Config) *Chooser {
	return &Chooser{config: config, safe: newSafeLoad(), boots: bootTimes{}}
}

// SetConfig changes the bounds.
func (c *Chooser) SetConfig(config Config) { c.config, c.agreed = config, 0 }

// Observe notes the load of the last seconds, in queries/s.
func (c *Chooser) Observe(now time.Duration, rate float64) {
	c.rhythm.observe(now, rate)
	c.loads = append(c.loads, load{now, rate})
	keep := c.config.Calm + time.Minute
	gone := 0
	for gone < len(c.loads) && now-c.loads[gone].at > keep {
		gone++
	}
	c.loads = slices.Delete(c.loads, 0, gone)
}

// ObserveLateness notes how the models did in the last minute, under the desired counts. exact says
// that the fleet is as desired and all of it serves. It reports whether the safe load has changed.
func (c *Chooser) ObserveLateness(now time.Duration, desired map[rent.Kind]int, exact bool,
	models []Lateness) (changed bool) {
	needed, _ := c.Needed(now)
	carries := c.guard != nil && c.guard.safeRate(desired) >= needed*(1-c.tolerance(needed))
	return c.safe.observe(now, exact, carries, models)
}

// SafeLoad returns which share of what a fleet is expected to serve is planned for.
func (c *Chooser) SafeLoad() SafeLoad { return c.safe }

// SetSafeLoad takes over what another Chooser has learned.
func (c *Chooser) SetSafeLoad(share float64, why string) {
	if share >= minShare && share <= 1 { // not NaN
		c.safe.Share, c.safe.Why = share, why
	}
}

// MarkPlanned notes that a plan is made for what is needed now.
func (c *Chooser) MarkPlanned(now time.Duration) { c.planned, _ = c.Needed(now) }

// NeedsPlan reports whether another plan is due: what is needed has changed since the last one, or
// the last choice waits for another that agrees.
func (c *Chooser) NeedsPlan(now time.Duration) bool {
	needed, _ := c.Needed(now)
	return c.waits || needed > c.planned*(1+risen) || needed < c.planned*(1-changed)
}

// Peak is the highest load of a minute, or of Calm if that is shorter, that ended within Calm, but
// at least that of the last 20 s if that is higher than chance explains (two standard deviations),
// and for how long it will count.
func (c *Chooser) Peak(now time.Duration) (rate float64, lasts time.Duration) {
	over := min(time.Minute, c.config.Calm)
	from, sum := 0, 0.0
	at := now
	for i, l := range c.loads {
		sum += l.rate
		for from < i && l.at-c.loads[from].at >= over {
			sum -= c.loads[from].rate
			from++
		}
		if mean := sum / float64(i-from+1); mean >= rate && now-l.at <= c.config.Calm &&
			(from > 0 || l.at-c.loads[0].at >= over*4/5 || i == len(c.loads)-1) {
			rate, at = mean, l.at
		}
	}
	var recent, n float64
	for _, l := range c.loads {
		if now-l.at <= 20*time.Second {
			recent, n = recent+l.rate, n+1
		}
	}
	const span = 20.0 // s
	if mean := recent / max(n, 1); n >= 2 && mean-2*math.Sqrt(mean/span) > rate {
		rate, at = mean, now
	}
	return rate, max(0, at+c.config.Calm-now)
}

// Needed is what must be served while the fleet changes, in queries/s, and for how long at least.
func (c *Chooser) Needed(now time.Duration) (rate float64, lasts time.Duration) {
	if c.rhythm.period > 0 {
		rate = c.foresee(now)
	} else {
		rate, lasts = c.Peak(now)
	}
	return rate * c.config.Headroom / c.safe.Share, lasts
}

// foresee is the load, in queries/s, that the fleet must be ready for, where loads repeat: what is
// expected until machines that are launched now serve. So machines are launched a boot ahead, and a
// time without need that is shorter than a boot returns none. A load that is higher than the fleet
// was planned for counts as it is.
func (c *Chooser) foresee(now time.Duration) (rate float64) {
	boot := c.boots.longest(c.config.Types)
	// Where a launch must wait for those before it, machines are launched several boots ahead.
	each := c.config.Headroom * c.perQuery
	for wave := range 4 {
		ahead := time.Duration(wave+1)*boot + slotWidth
		later := 0.0
		if wave > 0 {
			if c.config.Launches == 0 || each <= 0 {
				break
			}
			later = float64(wave*c.config.Launches) / each
		}
		rate = max(rate, c.rhythm.maxLoad(now, now+ahead)-later)
	}
	recent := min(c.meanRate(now, slotWidth), c.meanRate(now, 2*slotWidth))
	if recent > rate*max(surprise, c.config.Headroom) {
		return recent
	}
	return rate
}

// meanRate is the mean load of the last while, in queries/s.
func (c *Chooser) meanRate(now, while time.Duration) float64 {
	sum, n := 0.0, 0.0
	for i := len(c.loads) - 1; i >= 0 && now-c.loads[i].at < while; i-- {
		sum, n = sum+c.loads[i].rate, n+1
	}
	return sum / max(n, 1)
}

// A Fleet is the instances that there are.
type Fleet struct {
	// Problem has the demand, and the types with their latencies; its prices, limits and objective
	// are not read.
	Problem *plan.Problem
	// Families are those whose queries less accurate variants may answer.
	Families []Family
	// Memory is what agents of a type have for models, and Sizes what models and variants take of
	// it, by name, in bytes. What is absent is unknown, and everything fits.
	Memory  map[profiles.InstanceType]float64
	Sizes   map[string]float64
	Prices  map[rent.Kind]float64 // in $/hr
	Foreign map[profiles.InstanceType]int
	Desired map[rent.Kind]int
	Have    map[rent.Kind]int // that are paid for and serve, or will
	Lacks   []rent.Lack
}

// A Choice is what to desire.
type Choice struct {
	Counts map[rent.Kind]int
	Rate   float64 // planned for, in queries/s
	// Capacity says what agents carry at the accuracies that were planned for: the targets, or what
	// comes nearest to them within the limits.
	Capacity *Capacity
	Price    float64 // of Counts in $/hr
	Now      float64 // of what is desired now
	// Serves is the load, in queries/s, that may be planned for Counts and the instances that were
	// not rented: what they are expected to serve after each loss that they have to bear.
	Serves float64
	// Change: it should become what is desired. Urgent: what is desired does not serve the rate, or
	// would not after a loss that the config has it bear.
	Change, Urgent bool
	Why            string
}

// Least is what the limits want at least, the cheapest of the types filling up; nil
// where prices are missing.
func (c *Chooser) Least(prices map[rent.Kind]float64) map[rent.Kind]int {
	counts, total := map[rent.Kind]int{}, 0
	for t, l := range c.config.Types {
		if l.Min > 0 {
			counts[rent.Kind{Type: t}] = l.Min
			total += l.Min
		}
	}
	return c.fill(counts, total, prices)
}

// fill adds instances of the cheapest types up to MinInstances.
func (c *Chooser) fill(counts map[rent.Kind]int, total int,
	prices map[rent.Kind]float64) map[rent.Kind]int {
	for ; total < c.config.MinInstances; total++ {
		var best rent.Kind
		least := math.Inf(1)
		for _, t := range slices.Sorted(maps.Keys(c.config.Types)) {
			kind, most := rent.Kind{Type: t}, c.config.Types[t].Max
			if p := prices[kind]; p > 0 && p < least && (most == 0 || counts[kind] < most) {
				best, least = kind, p
			}
		}
		if best.Type == "" {
			return counts
		}
		counts[best]++
	}
	return counts
}

// maxMultiple bounds by how much what a budget carries may exceed the load.
const maxMultiple = 1000

// Choose plans for the highest load of late. Problem must have demand.
func (c *Chooser) Choose(ctx context.Context, now time.Duration, f *Fleet) (*Choice, error) {
	rate, _ := c.Needed(now)
	if c.config.Rate > 0 {
		rate = c.config.Rate * c.config.Headroom / c.safe.Share
	}
	if !(rate > 0) {
		return nil, errors.New("the fleet gets no queries")
	}
	budget := c.config.MaxPrice
	if c.config.Budget > 0 {
		budget = min(budget, c.config.Budget)
	}
	whole, err := c.wholeProblem(f)
	if err != nil {
		return nil, err
	}
	ideal := func(rate float64) (map[rent.Kind]int, error) {
		planned, err := c.planMachines(f, whole, rate, budget, 1)
		if err != nil {
			return nil, err
		}
		return c.rented(f, planned), nil
	}
	most := 1.0
	if c.config.Budget > 0 {
		most = maxMultiple
	}
	planned, err := c.planMachines(f, whole, rate, budget, most)
	if err != nil {
		return nil, err
	}
	capacity, err := f.newCapacity(whole.WithReached(planned))
	if err != nil {
		return nil, err
	}
	g := newGuard(&c.config, f, capacity)
	c.guard = g
	choice := &Choice{Rate: rate, Capacity: capacity, Counts: c.rented(f, planned)}
	switch {
	case c.config.Budget > 0 && c.config.needsGuard():
		choice.Counts, err = g.bestWithinBudget(ctx, choice.Counts, budget, ideal)
	case c.config.Budget > 0:
	default:
		choice.Counts, err = c.cheapest(f, g, rate, budget, ideal)
	}
	if err != nil {
		return nil, err
	}
	c.weighChange(now, choice, f, g)
	return choice, nil
}

// cheapest is the cheapest fleet found for a rate, in queries/s, and a budget in $/hr; what is
// desired, if that bears the rate and costs no more. A fleet that takes the place of one that bears
// the rate has to bear what chance may add, too: so that is planned for, else a fleet that is far
// too large would stay because the cheapest one is just too small.
func (c *Chooser) cheapest(f *Fleet, g *guard, rate, budget float64,
	ideal func(rate float64) (map[rent.Kind]int, error)) (map[rent.Kind]int, error) {
	multiples := []float64{1}
	if c.config.needsGuard() {
		multiples = []float64{1, 1.2, 1.5}
	}
	tolerance := c.tolerance(rate)
	now := g.safeRate(f.Desired)
	if now < rate*(1-tolerance) || c.limitFault(f) != "" {
		return g.cheapestFleet(rate, budget, ideal, multiples...)
	}
	saving, err := g.cheapestFleet(rate*(1+tolerance), budget, ideal, multiples...)
	switch {
	case err != nil || g.priceUSD(saving) < g.priceUSD(f.Desired):
		return saving, err
	case now >= rate:
		return maps.Clone(f.Desired), nil
	}
	return g.cheapestFleet(rate, budget, ideal, multiples...)
}

// weighChange says whether the choice is worth a change.
func (c *Chooser) weighChange(at time.Duration, choice *Choice, f *Fleet, g *guard) {
	overlap := 0.0
	for kind, n := range choice.Counts {
		choice.Price += float64(n) * f.Prices[kind]
		overlap += float64(max(0, n-f.Desired[kind])) * f.Prices[kind] *
			c.boots.of(kind.Type).Hours()
	}
	for kind, n := range f.Desired {
		choice.Now += float64(n) * f.Prices[kind]
	}
	total := 0
	for _, n := range choice.Counts {
		total += n
	}
	c.perQuery = max(float64(total)/choice.Rate, .98*c.perQuery)
	choice.Serves = g.safeRate(choice.Counts)
	now := g.safeRate(f.Desired)
	if c.last != nil && maps.Equal(c.last, choice.Counts) {
		c.agreed++
	} else {
		c.last, c.agreed = maps.Clone(choice.Counts), 1
	}
	same := Text(choice.Counts) == Text(f.Desired)
	saves := choice.Now - choice.Price
	within := c.limitFault(f)
	worth, held := false, false
	short := choice.Serves < choice.Rate*(1-1e-9) && c.config.Budget == 0
	switch {
	case same && short:
		choice.Why = fmt.Sprintf("%s serves %.4g of the %.4g queries/s to plan for",
			Text(choice.Counts), choice.Serves, choice.Rate)
	case same:
		choice.Why = fmt.Sprintf("%s is still the best for %.4g queries/s", Text(choice.Counts),
			choice.Rate)
	case within != "":
		choice.Change, choice.Urgent = true, true
		choice.Why = fmt.Sprintf("%s instead of %s: %s", Text(choice.Counts), Text(f.Desired),
			within)
	case now < choice.Rate*(1-c.tolerance(choice.Rate)) && choice.Serves > now*(1+1e-9):
		choice.Change, choice.Urgent = true, true
		choice.Why = fmt.Sprintf("%s serves %.4g of the %.4g queries/s to plan for, %s would %.4g",
			Text(f.Desired), now, choice.Rate, Text(choice.Counts), choice.Serves)
	case c.config.Budget > 0:
		gain := choice.Serves/max(now, 1e-9) - 1
		worth = gain >= c.config.Threshold
		choice.Why = fmt.Sprintf("%s serves %.1f %% more than %s", Text(choice.Counts), 100*gain,
			Text(f.Desired))
	default:
		worth = saves >= c.config.Threshold*choice.Now && saves > overlap &&
			(c.rhythm.period > 0 || choice.Serves >= choice.Rate*(1+c.tolerance(choice.Rate)))
		choice.Why = fmt.Sprintf("%s costs $%.4g/hr, %s $%.4g", Text(choice.Counts), choice.Price,
			Text(f.Desired), choice.Now)
		if fault := c.savingFault(at, choice); !worth {
			choice.Why += ", which is not worth a change"
		} else if fault != "" {
			worth, held = false, true
			choice.Why += ", but " + fault
		}
	}
	if short {
		choice.Why += ": " + c.reachedLimit(choice, f, g)
	}
	// A load that repeats agrees by itself.
	choice.Change = choice.Change || worth && (c.agreed >= agreeing || c.rhythm.period > 0)
	if c.waits = worth && !choice.Change; c.waits {
		choice.Why += "; another plan has to agree"
	}
	c.waits = c.waits || held
	choice.Why += c.config.describeLosses()
	if c.safe.Share < 1 {
		choice.Why += "; " + c.safe.describe()
	}
}

// tolerance is by which share a fleet may serve less than the rate that is to be planned for until
// it is to grow: two standard deviations of the count of a minute's queries, but at most half of
// the headroom. So chance alone does not change the fleet of a steady load.
func (c *Chooser) tolerance(rate float64) float64 {
	if c.rhythm.period > 0 { // the rate is without chance already
		return 0
	}
	return min(2/math.Sqrt(60*rate), staffing.Tolerance*(c.config.Headroom-1))
}

// savingFault says why a cheaper fleet is no saving; "" if it is one. It must carry the present
// minute, whatever the rate that is to be planned for, and nothing is taken from a fleet that is
// late.
func (c *Chooser) savingFault(now time.Duration, choice *Choice) string {
	if c.safe.late != "" {
		return c.safe.late
	}
	// Where loads repeat, the rate is what is expected of the next minutes.
	if present := c.meanRate(now, time.Minute); choice.Serves < present && c.rhythm.period == 0 {
		return fmt.Sprintf("it serves %.4g queries/s, and the last minute had %.4g", choice.Serves,
			present)
	}
	return ""
}

// reachedLimit says which limit keeps a choice from serving more.
func (c *Chooser) reachedLimit(choice *Choice, f *Fleet, g *guard) string {
	types, fits := false, false
	for _, kind := range g.kinds {
		if g.allowsOneMore(choice.Counts, kind) {
			types = true
			fits = fits || choice.Price+g.prices[kind] <= c.config.MaxPrice+1e-9
		}
	}
	switch {
	case fits:
		return "no machine within the limits adds anything"
	case types:
		return fmt.Sprintf("limits.max_price_usd_per_hour, $%.4g, allows no more",
			c.config.MaxPrice)
	case len(f.Lacks) > 0:
		return fmt.Sprintf("limits.types allows no more, and the provider has no more %s",
			f.Lacks[0].Kind)
	}
	return "limits.types allows no more"
}

// limitFault says how the desired counts break the limits; "" if they do not.
func (c *Chooser) limitFault(f *Fleet) string {
	total, price := 0, 0.0
	of := map[profiles.InstanceType]int{}
	for _, kind := range slices.SortedFunc(maps.Keys(f.Desired), rent.Kind.Compare) {
		n := f.Desired[kind]
		total += n
		price += float64(n) * f.Prices[kind]
		of[kind.Type] += n
		l, ok := c.config.Types[kind.Type]
		switch {
		case n > 0 && kind.Market == rent.Spot && !c.config.allowsSpot(kind.Type):
			return fmt.Sprintf("the limits allow 0 of %s", kind)
		case n > 0 && !ok || l.Max > 0 && of[kind.Type] > l.Max:
			return fmt.Sprintf("the limits allow %d of %s", l.Max, kind.Type)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(c.config.Types)) {
		if least := c.config.Types[t].Min; f.Desired[rent.Kind{Type: t}] < least {
			return fmt.Sprintf("the limits want %d of %s", least, t)
		}
	}
	switch {
	case total < c.config.MinInstances:
		return fmt.Sprintf("limits.min_instances is %d", c.config.MinInstances)
	case price > c.config.MaxPrice+1e-9:
		return fmt.Sprintf("that costs $%.4g/hr now, and the limit is $%.4g", price,
			c.config.MaxPrice)
	}
	return ""
}

// Text is counts in words: "2 g4dn.xlarge, 3 r5n.large".
func Text(counts map[rent.Kind]int) string {
	var parts []string
	for _, kind := range slices.SortedFunc(maps.Keys(counts), rent.Kind.Compare) {
		if n := counts[kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
