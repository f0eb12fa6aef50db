package rent

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/profiles"
)

var weatherSeeds = flag.Uint64("weather-seeds", 25, "how many random weathers to run")

// A mutant is a fault that is built in, which some weather must catch.
type mutant uint8

const (
	none mutant = iota
	noTokens
	noSettling
	priceWithoutDrains
	drainBeforeServing
)

// Each type's price in $/hr and what one serves, in queries/s.
var (
	weatherPrices = map[Kind]float64{
		{"g4dn.xlarge", OnDemand}: 0.526, {"r5n.large", OnDemand}: 0.149,
		{"c5n.2xlarge", OnDemand}: 0.432, {"r5n.large", Spot}: 0.05,
	}
	weatherServes = map[profiles.InstanceType]float64{
		"g4dn.xlarge": 60, "r5n.large": 9, "c5n.2xlarge": 25,
	}
	weatherKinds = slices.SortedFunc(maps.Keys(weatherPrices), Kind.Compare)
)

// A vm is an instance of the world, with its agent.
type vm struct {
	Instance
	launched, listed, joins, ready time.Duration
	dud                            bool
	draining                       bool
	leaves                         time.Duration // its agent, when it drains
	ends                           time.Duration // the provider takes it; 0: never
	away                           time.Duration // its agent restarts until then
	gone                           time.Duration
	wasServing                     bool // as of a moment ago
}

// A chaos is a provider, the agents and the leaders, which fail as real ones do.
type chaos struct {
	*rand.Rand
	mutant  mutant
	now     time.Duration
	all     []*vm
	tokens  map[Slot]*vm
	desired map[Kind]int
	policy  Policy
	leaders []*chaotic
	short   map[Kind]bool
	seen    []Agent // as of a moment ago: gossip takes a while
	needed  float64
	fault   error
}

const superseded = 15 * time.Second

// A chaotic is one leader.
type chaotic struct {
	*Renter
	next time.Duration
	// replaced is when another began to lead. It goes on acting for superseded: in a fleet it would
	// be a second, for it does not hear from a majority any more. A Renter settles for longer than
	// that and the list's lag together, and only so the price limit holds.
	replaced time.Duration
	list     []Instance
	at       time.Duration
	blind    map[string]time.Duration // until when it does not see an agent
	// skew is how far its wall clock is ahead of the provider's, by which it knows ages.
	skew time.Duration
}

func (c *chaos) chance(p float64) bool { return c.Float64() < p }

func (c *chaos) seconds(least, most int) time.Duration {
	return time.Duration(least+c.IntN(most-least+1)) * time.Second
}

func (c *chaos) failf(format string, args ...any) {
	if c.fault == nil {
		c.fault = fmt.Errorf("%v: %w", c.now, fmt.Errorf(format, args...))
	}
}

func (c *chaos) wish() {
	for c.desired = nil; ; {
		c.desired = map[Kind]int{
			weatherKinds[0]: c.IntN(4), weatherKinds[1]: 1 + c.IntN(3),
			weatherKinds[2]: c.IntN(12), weatherKinds[3]: c.IntN(5),
		}
		price := 0.0
		for kind, n := range c.desired {
			price += float64(n) * weatherPrices[kind]
		}
		if price <= 0.85*c.policy.MaxPrice {
			return
		}
	}
}

func (c *chaos) lead() *chaotic {
	l := &chaotic{Renter: New(c.policy, c.now), blind: map[string]time.Duration{},
		at: -time.Hour, skew: c.seconds(-600, 600)}
	for _, m := range c.all {
		l.blind[m.ID] = c.now + c.seconds(0, 30) // it does not know the fleet yet
	}
	return l
}

func (m *vm) serves(now time.Duration) bool {
	return m.State == Running && now >= m.ready && !m.dud && !m.draining && now >= m.away
}

// capacity is what served a moment ago, which is what leaders know, but for what drains.
func (c *chaos) capacity() (rate float64) {
	for _, m := range c.all {
		if m.wasServing && !m.draining {
			rate += weatherServes[m.Slot.Type]
		}
	}
	return rate
}

func (c *chaos) agents() (all []Agent) {
	for _, m := range c.all {
		if m.State != Running || m.dud || c.now < m.joins || c.now < m.away ||
			m.draining && c.now > m.leaves {
			continue
		}
		a := Agent{Name: "agent-" + m.ID, Type: m.Slot.Type, Instance: m.ID,
			Ready: c.now >= m.ready, Draining: m.draining, Load: c.Float64(), Factor: 1}
		if m.ends > 0 {
			a.Ends = max(m.ends-c.now, 1)
		}
		if c.mutant == drainBeforeServing {
			a.Ready = true
		}
		all = append(all, a)
	}
	return all
}

func (c *chaos) pass(d time.Duration) {
	c.seen = c.agents()
	for _, m := range c.all {
		m.wasServing = m.serves(c.now)
	}
	c.now += d
	price := 0.0
	for _, m := range c.all {
		switch {
		case m.State == Gone:
			continue
		case m.State == Stopping && c.now > m.gone+30*time.Second:
			m.State = Gone
		case m.ends > 0 && c.now >= m.ends && m.State < Stopping:
			m.State, m.gone = Gone, c.now
		case m.State == Pending && c.now >= m.joins-10*time.Second:
			m.State = Running
		}
		if m.State < Stopping {
			price += weatherPrices[m.Slot.Kind]
		}
	}
	if price > c.policy.MaxPrice+1e-9 {
		c.failf("$%.3f/hr are paid for, the limit is %.3f", price, c.policy.MaxPrice)
	}
}

// happens is what befalls the world within a tick.
func (c *chaos) happens() {
	live := slices.DeleteFunc(slices.Clone(c.all),
		func(m *vm) bool { return !m.serves(c.now) || m.ends > 0 })
	some := func() *vm {
		if len(live) == 0 {
			return &vm{}
		}
		return live[c.IntN(len(live))]
	}
	switch x := c.Float64(); {
	case x < 0.004:
		c.wish()
	case x < 0.012: // the leader dies; the next one knows nothing, and may be told another wish
		if c.chance(0.3) {
			c.wish()
		}
		c.leaders = []*chaotic{c.lead()}
	case x < 0.015: // two lead for a while
		for _, l := range c.leaders {
			l.replaced = c.now
		}
		c.leaders = append(c.leaders, c.lead())
	case x < 0.024 && len(c.leaders) > 1:
		c.leaders = c.leaders[1:]
	case x < 0.030:
		c.short[weatherKinds[c.IntN(len(weatherKinds))]] = true
	case x < 0.045:
		clear(c.short)
	case x < 0.050: // a notice of two minutes
		some().ends = c.now + 2*time.Minute
	case x < 0.053: // another tool ends one, or it fails
		m := some()
		m.State, m.gone = Gone, c.now
	case x < 0.058: // an agent restarts
		some().away = c.now + c.seconds(5, 60)
	}
}

var errLost = errors.New("the answer is lost")

// launch is the provider's Launch: an instance, or a Failure and why.
func (c *chaos) launch(slot Slot) (Instance, Failure, error) {
	switch {
	case c.short[slot.Kind]:
		return Instance{}, IsShort, errors.New("InsufficientInstanceCapacity")
	case c.chance(0.03):
		return Instance{}, Throttled, errors.New("RequestLimitExceeded")
	case c.chance(0.05):
		return Instance{}, Unknown, errLost
	}
	m := c.tokens[slot]
	if m == nil || c.mutant == noTokens {
		m = &vm{Instance: Instance{ID: fmt.Sprintf("i-%04d", len(c.all)), Slot: slot,
			By: "us", Zone: string(rune('a' + c.IntN(3)))},
			launched: c.now, listed: c.now + c.seconds(0, 40), dud: c.chance(0.03)}
		m.joins = c.now + c.seconds(20, 80)
		m.ready = m.joins + c.seconds(5, 60)
		c.tokens[slot] = m
		c.all = append(c.all, m)
	}
	if c.chance(0.05) {
		return Instance{}, Unknown, errLost
	}
	if m.State >= Stopping {
		return Instance{}, Spent, errors.New("ended")
	}
	return m.Instance, 0, nil
}

// step has a leader list, step and act. It reports false if the leader dies of it.
func (c *chaos) step(l *chaotic, quiet bool) bool {
	if c.chance(0.98) || quiet {
		l.list, l.at = nil, c.now
		for _, m := range c.all {
			if c.now >= m.listed && (m.State != Gone || c.now-m.gone < time.Hour) {
				i := m.Instance
				i.Age = max(0, c.now-m.launched+l.skew)
				l.list = append(l.list, i)
			}
		}
		c.Shuffle(len(l.list), func(i, j int) { l.list[i], l.list[j] = l.list[j], l.list[i] })
	}
	seen := Seen{
		Now: c.now, Instances: l.list, ListAge: c.now - l.at,
		Majority: l.replaced == 0 || c.now-l.replaced < superseded,
		Desired:  Desired{Counts: c.desired, By: "us"}, Prices: weatherPrices, Needed: c.needed,
		Serves: func(counts map[profiles.InstanceType]int) (rate float64) {
			for t, n := range counts {
				rate += float64(n) * weatherServes[t]
			}
			return rate
		},
	}
	for _, a := range c.seen {
		if c.now >= l.blind[a.Instance] {
			seen.Agents = append(seen.Agents, a)
		}
	}
	if c.mutant == priceWithoutDrains {
		policy := c.policy
		for _, m := range c.all {
			if m.State < Stopping && m.draining {
				policy.MaxPrice += weatherPrices[m.Slot.Kind]
			}
		}
		l.SetPolicy(policy)
	}
	out := l.Step(&seen)
	l.next = c.now + out.Next
	for _, a := range out.Actions {
		if !quiet && c.chance(0.02) {
			return false // between two actions
		}
		c.act(l, a)
	}
	return true
}

func (c *chaos) act(l *chaotic, a Action) {
	i := slices.IndexFunc(c.all, func(m *vm) bool { return m.ID == a.ID })
	switch a.Kind {
	case Launch:
		if l.Waits(a.Slot.Kind, c.now) != "" {
			return
		}
		if i, f, err := c.launch(a.Slot); err != nil {
			l.Failed(a.Slot, f, err.Error(), c.now)
		} else {
			l.Launched(a.Slot, i, c.now)
		}
	case Drain:
		m := c.all[i]
		m.Drained = true
		if c.chance(0.02) {
			return // it is marked, and the leader's call is lost
		}
		l.Told(a.ID, c.now)
		if m.wasServing && m.ends == 0 && len(c.leaders) == 1 {
			if rest := c.capacity() - weatherServes[m.Slot.Type]; rest < c.needed-1e-9 {
				c.failf("%s was drained: %v queries/s are served, %v needed", m.Slot, rest,
					c.needed)
			}
		}
		if !m.draining {
			m.draining, m.leaves = true, c.now+c.seconds(1, 20)
		}
	case Return:
		m := c.all[i]
		if m.serves(c.now) {
			c.failf("%s was returned while it served: %s", m.Slot, a.Why)
		}
		if c.chance(0.03) {
			return
		}
		if m.State < Stopping {
			m.State, m.gone = Stopping, c.now
		}
		l.Returned(a, c.now)
	}
}

// weather runs one random weather of three hours, the last 75 min of them quiet, and returns what
// went wrong, nil if nothing did, and how long after the quiet began the fleet was not exact.
func weather(seed uint64, mutant mutant) (took time.Duration, fault error) {
	c := &chaos{Rand: rand.New(rand.NewPCG(seed, 26)), mutant: mutant,
		tokens: map[Slot]*vm{}, short: map[Kind]bool{}, policy: DefaultPolicy()}
	c.now = time.Hour
	c.policy.MaxPrice = 3 + 3*c.Float64()
	c.policy.Drains = 0.1 + 0.3*c.Float64()
	if mutant == noSettling {
		c.policy.Settle = 1
	}
	c.wish()
	c.leaders = []*chaotic{c.lead()}
	end := c.now + 3*time.Hour
	quiet := end - 75*time.Minute
	for c.now < end && c.fault == nil {
		c.pass(5 * time.Second)
		c.needed = 0
		for kind, n := range c.desired {
			c.needed += 0.6 * weatherServes[kind.Type] * float64(n)
		}
		still := c.now >= quiet
		if still {
			clear(c.short)
			c.leaders = c.leaders[len(c.leaders)-1:]
		} else {
			c.happens()
		}
		for i, l := range c.leaders {
			// What agents and people tell wakes a leader, too.
			if (c.now >= l.next || c.chance(0.1)) && !c.step(l, still) {
				if c.chance(0.3) {
					c.wish()
				}
				c.leaders[i] = c.lead()
			}
		}
		if still && !c.exact() {
			took = c.now - quiet
		}
	}
	if c.fault == nil && !c.exact() {
		c.failf("the fleet is not as desired: %v", c.desired)
	}
	return took, c.fault
}

// exact reports whether what is paid for is what is desired and serves, and no slot has two.
func (c *chaos) exact() bool {
	counts, slots := maps.Clone(c.desired), map[Slot]bool{}
	for _, m := range c.all {
		if slots[m.Slot] {
			c.failf("two instances of the slot %s", m.Slot)
		}
		slots[m.Slot] = true
		if m.State < Stopping {
			counts[m.Slot.Kind]--
			if !m.serves(c.now) {
				return false
			}
		}
	}
	for _, n := range counts {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestWeather: whatever befalls them, all fleets end exactly as desired, no slot has two instances,
// and the price limit holds at each moment. Leaders' clocks are wrong by up to ten minutes.
func TestWeather(t *testing.T) {
	var longest time.Duration
	for seed := range *weatherSeeds {
		took, err := weather(seed, none)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		longest = max(longest, took)
	}
	t.Logf("%d weathers: exact after %v at most", *weatherSeeds, longest)
}

// TestMutants: the weathers catch faults that are built in.
func TestMutants(t *testing.T) {
	for _, tt := range []struct {
		mutant mutant
		name   string
		from   uint64 // a seed shortly before the first that catches it
	}{
		{noTokens, "no tokens", 0}, {noSettling, "no settling", 80},
		{priceWithoutDrains, "price without drains", 0},
		{drainBeforeServing, "drain before serving", 18},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := tt.from; seed < tt.from+100; seed++ {
				if _, err := weather(seed, tt.mutant); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("not caught")
		})
	}
}
