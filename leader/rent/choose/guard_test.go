package choose

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// guarded chooses for a fleet of which nothing is there yet.
func guarded(t *testing.T, config Config, rate float64, prices map[rent.Kind]float64,
	lacks ...rent.Lack) (*Choice, *guard) {
	t.Helper()
	onDemand := map[rent.Kind]float64{}
	for kind, price := range prices {
		if kind.Market == rent.OnDemand {
			onDemand[kind] = price
		}
	}
	config.Rate, config.Headroom = rate, 1
	f := &Fleet{Problem: problem(t, onDemand), Prices: prices, Lacks: lacks}
	choice, err := New(config).Choose(context.Background(), 0, f)
	if err != nil {
		t.Fatal(err)
	}
	return choice, newGuard(&config, f, choice.Capacity)
}

// bears checks what the counts must bear from first principles, and says which loss they do not.
func bears(g *guard, counts map[rent.Kind]int, rate float64) (loss string) {
	serves := func(lost map[rent.Kind]int) float64 {
		of := map[profiles.InstanceType]int{}
		for kind, n := range counts {
			of[kind.Type] += n - lost[kind]
		}
		return g.serves(of) + 1e-9
	}
	spot := map[rent.Kind]int{}
	for kind, n := range counts {
		one := map[rent.Kind]int{kind: min(n, 1)}
		pool := map[rent.Kind]int{}
		if kind.Market == rent.Spot {
			pool[kind], spot[kind] = n, n
		}
		switch {
		case g.config.Spare > 0 && serves(one) < rate:
			return "one " + kind.String()
		case g.config.Spare > 0 && serves(pool) < rate:
			return "all " + kind.String()
		case serves(pool) < (1-g.config.MaxPool)*rate:
			return "the pool " + kind.String()
		}
	}
	switch {
	case serves(nil) < rate:
		return "none"
	case serves(spot) < (1-g.config.SpotShare)*rate:
		return "all spot"
	}
	return ""
}

var (
	someTypes = map[profiles.InstanceType]Limits{
		"g4dn.xlarge": {Max: 6}, "r5n.large": {Max: 20}, "c5n.2xlarge": {Max: 8},
	}
	bothMarkets = map[rent.Kind]float64{
		{Type: "g4dn.xlarge"}: 0.526, {Type: "r5n.large"}: 0.149, {Type: "c5n.2xlarge"}: 0.432,
		{Type: "g4dn.xlarge", Market: rent.Spot}: 0.158,
		{Type: "r5n.large", Market: rent.Spot}:   0.052,
		{Type: "c5n.2xlarge", Market: rent.Spot}: 0.19,
	}
)

// TestGuards: whatever a fleet must bear it does, and costs what that costs: more with a machine to
// spare, less with spot machines, and not more than the best of all fleets by 5 %.
func TestGuards(t *testing.T) {
	plain := Config{MaxPrice: 8, MinInstances: 1, Types: someTypes}
	spare, spot, both := plain, plain, plain
	spare.Spare = 1
	spot.SpotShare, spot.MaxPool = 0.5, 0.3
	both.Spare, both.SpotShare, both.MaxPool = 1, 1, 1
	for _, rate := range []float64{15, 60, 120} {
		cost := map[string]float64{}
		for name, config := range map[string]Config{"plain": plain, "spare": spare, "spot": spot,
			"both": both} {
			choice, g := guarded(t, config, rate, bothMarkets)
			if loss := bears(g, choice.Counts, rate); loss != "" {
				t.Errorf("%s, %v queries/s: %s does not bear the loss of %s", name, rate,
					Text(choice.Counts), loss)
			}
			if !choice.Change || choice.Serves < rate {
				t.Errorf("%s, %v queries/s: %+v", name, rate, choice)
			}
			cost[name] = choice.Price
			t.Logf("%s, %v queries/s: %s at $%.3f", name, rate, Text(choice.Counts), choice.Price)
		}
		if cost["spare"] <= cost["plain"] || cost["spot"] >= cost["plain"] ||
			cost["both"] >= cost["spare"] {
			t.Errorf("%v queries/s: $ by what is borne %v", rate, cost)
		}
	}
}

// TestGuardsNearBest compares with all fleets, for some random prices and rates.
func TestGuardsNearBest(t *testing.T) {
	random := rand.New(rand.NewPCG(26, 2))
	worst := 1.0
	for range 12 {
		prices := map[rent.Kind]float64{}
		for _, t := range []profiles.InstanceType{"g4dn.xlarge", "r5n.large"} {
			price := bothMarkets[rent.Kind{Type: t}] * (0.7 + 0.6*random.Float64())
			prices[rent.Kind{Type: t}] = price
			prices[rent.Kind{Type: t, Market: rent.Spot}] = price * (0.2 + 0.5*random.Float64())
		}
		config := Config{MaxPrice: 100, MinInstances: 1, Spare: random.IntN(2),
			SpotShare: 0.25 * float64(random.IntN(5)), MaxPool: 0.5 + 0.5*float64(random.IntN(2)),
			Types: map[profiles.InstanceType]Limits{"g4dn.xlarge": {Max: 5}, "r5n.large": {Max: 7}}}
		rate := 10 + 50*random.Float64()
		choice, g := guarded(t, config, rate, prices)
		best := math.Inf(1)
		counts := map[rent.Kind]int{}
		var all func(of int)
		all = func(of int) {
			if of == len(g.kinds) {
				if price := g.priceUSD(counts); price < best && bears(g, counts, rate) == "" {
					best = price
				}
				return
			}
			kind := g.kinds[of]
			for counts[kind] = 0; ; counts[kind]++ {
				all(of + 1)
				if !g.allowsOneMore(counts, kind) {
					break
				}
			}
			counts[kind] = 0
		}
		all(0)
		if loss := bears(g, choice.Counts, rate); loss != "" && !math.IsInf(best, 1) {
			t.Errorf("%+v, %v queries/s: %s does not bear the loss of %s", config, rate,
				Text(choice.Counts), loss)
		}
		if !math.IsInf(best, 1) {
			worst = max(worst, choice.Price/best)
			t.Logf("%.1f queries/s, spare %d, spot %v, pool %v: %s at $%.3f, best $%.3f", rate,
				config.Spare, config.SpotShare, config.MaxPool, Text(choice.Counts), choice.Price,
				best)
		}
	}
	if worst > 1.1 {
		t.Errorf("%.3f times the best price", worst)
	}
}

// TestGuardsLimits: the price limit and the limits of types hold with guards, a type that is to be
// on demand is, what lacks is not asked for, and with a budget the fleet bears more than without
// spot machines.
func TestGuardsLimits(t *testing.T) {
	config := Config{MaxPrice: 1, MinInstances: 1, Types: maps.Clone(someTypes), SpotShare: 0.5,
		MaxPool: 1, Spare: 1}
	config.Types["r5n.large"] = Limits{Max: 2, OnDemand: true}
	choice, g := guarded(t, config, 500, bothMarkets)
	if choice.Price > 1 || choice.Serves >= 500 || !(choice.Serves > 0) ||
		choice.Counts[rent.Kind{Type: "r5n.large", Market: rent.Spot}] > 0 ||
		choice.Counts[rent.Kind{Type: "r5n.large"}] > 2 {
		t.Errorf("%s at $%.3f serves %v of 500", Text(choice.Counts), choice.Price, choice.Serves)
	}
	if len(g.kinds) != 5 {
		t.Errorf("kinds %v", g.kinds)
	}
	config = Config{MaxPrice: 6, MinInstances: 1, Types: someTypes, SpotShare: 0.5, MaxPool: 1}
	lacking, _ := guarded(t, config, 60, bothMarkets, rent.Lack{Kind: rent.Kind{
		Type: "g4dn.xlarge", Market: rent.Spot}, For: time.Minute})
	if lacking.Counts[rent.Kind{Type: "g4dn.xlarge", Market: rent.Spot}] > 0 {
		t.Errorf("%s asks for what lacks", Text(lacking.Counts))
	}
	config.Budget = 2
	with, _ := guarded(t, config, 60, bothMarkets)
	config.SpotShare = 0
	without, _ := guarded(t, config, 60, bothMarkets)
	if with.Price > 2 || without.Price > 2 || with.Serves <= without.Serves*1.1 {
		t.Errorf("for $2: %s at $%.3f serves %v, without spot %s at $%.3f %v", Text(with.Counts),
			with.Price, with.Serves, Text(without.Counts), without.Price, without.Serves)
	}
}

var (
	onDemand = map[rent.Kind]float64{
		{Type: "g4dn.xlarge"}: 0.526, {Type: "c5n.2xlarge"}: 0.432, {Type: "r5n.large"}: 0.149,
	}
	oneGPU = rent.Kind{Type: "g4dn.xlarge"}
	small  = rent.Kind{Type: "r5n.large"}
)

// TestOverloadedFleet: a fleet that cannot serve its rate within the limit gets the instances that
// come nearest to it, and does not shrink.
func TestOverloadedFleet(t *testing.T) {
	config := Config{MaxPrice: 1, MinInstances: 1, Headroom: 1, Threshold: 0.05, Types: someTypes}
	for _, rate := range []float64{41, 44, 48} {
		config.Rate = rate
		for _, have := range []int{2, 3} { // of r5n.large; with 3 all is spent
			chooser := New(config)
			f := &Fleet{
				Problem: problem(t, onDemand), Prices: onDemand,
				Desired: map[rent.Kind]int{oneGPU: 1, small: have},
			}
			for range 2 {
				choice, err := chooser.Choose(t.Context(), 0, f)
				if err != nil {
					t.Fatal(err)
				}
				if choice.Counts[oneGPU] != 1 || choice.Counts[small] != 3 {
					t.Errorf("%v queries/s, with %d: %s: %s", rate, have, Text(choice.Counts),
						choice.Why)
				}
			}
		}
	}
	one := map[rent.Kind]float64{oneGPU: 0.526}
	config = Config{MaxPrice: 0.6, Headroom: 1, Rate: 20, Types: someTypes}
	if _, err := New(config).Choose(t.Context(), 0,
		&Fleet{Problem: problem(t, one), Prices: one}); err != nil {
		t.Errorf("$0.6/hr buys one instance of 13.5 queries/s, 20 are asked for: %v", err)
	}
}

// TestBudgetBelowSpare: a budget that pays for no fleet that serves anything without one of its
// instances is not searched for ever.
// Machines that are desired and cannot be had bear nothing: others are rented in their place, also
// where the limits want some of the short type.
func TestShortTypeIsReplaced(t *testing.T) {
	short, other := rent.Kind{Type: "g4dn.xlarge"}, rent.Kind{Type: "r5n.large"}
	prices := map[rent.Kind]float64{short: .01, other: .149}
	for _, least := range []int{0, 1} {
		config := Config{
			Types: map[profiles.InstanceType]Limits{
				short.Type: {Min: least, Max: 10}, other.Type: {Max: 20},
			},
			MaxPrice: 10, Calm: time.Minute, Rate: 50, Headroom: 1, Threshold: .1,
		}
		c := New(config)
		f := &Fleet{
			Problem: problem(t, prices), Prices: prices, Desired: map[rent.Kind]int{short: 4},
			Have: map[rent.Kind]int{short: 1}, Lacks: []rent.Lack{{Kind: short}},
		}
		choice, err := c.Choose(context.Background(), 0, f)
		if err != nil {
			t.Fatal(err)
		}
		if !choice.Change || !choice.Urgent || choice.Counts[other] == 0 {
			t.Errorf("min %d: %s, change %v, urgent %v: %s; want r5n.large at once",
				least, Text(choice.Counts), choice.Change, choice.Urgent, choice.Why)
		}
		// Once they can be had, the cheap ones are the fleet.
		f.Lacks, f.Desired = nil, choice.Counts
		if choice, err = c.Choose(context.Background(), 0, f); err != nil {
			t.Fatal(err)
		}
		if choice.Counts[other] != 0 {
			t.Errorf("min %d: %s without a shortage", least, Text(choice.Counts))
		}
	}
}

func TestBudgetBelowSpare(t *testing.T) {
	for _, prices := range []map[rent.Kind]float64{onDemand, {oneGPU: 0.526}} {
		config := Config{
			Budget: 0.8, MaxPrice: 8, MinInstances: 1, Spare: 1, Headroom: 1, Rate: 10,
			Types: someTypes,
		}
		if _, err := New(config).Choose(t.Context(), 0,
			&Fleet{Problem: problem(t, prices), Prices: prices}); err != nil {
			t.Error(err)
		}
	}
}

// TestCalmOfZero: each load counts by itself.
func TestCalmOfZero(t *testing.T) {
	c := New(Config{})
	c.Observe(2*time.Second, 10)
	c.Observe(4*time.Second, 20)
	if rate, _ := c.Peak(4 * time.Second); rate != 20 {
		t.Errorf("the peak is %v, want 20", rate)
	}
}

// TestHighestEnds: the search for the most that a budget bears ends with its context, and with what
// it has found.
func TestHighestEnds(t *testing.T) {
	_, g := guarded(t, Config{MaxPrice: 8, MinInstances: 1, Types: someTypes, Spare: 1}, 15,
		bothMarkets)
	start := map[rent.Kind]int{{Type: "r5n.large"}: 2, {Type: "g4dn.xlarge"}: 2}
	for _, plans := range []int{0, 1} { // before the context ends
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		if plans == 0 {
			cancel()
		}
		got, err := g.bestWithinBudget(ctx, start, 8, func(float64) (map[rent.Kind]int, error) {
			if calls++; calls > plans {
				cancel()
				return nil, ctx.Err()
			}
			return maps.Clone(start), nil
		})
		cancel()
		if err != nil || g.safeRate(got) < g.safeRate(start) || calls > 1+plans {
			t.Errorf("%d plans: got %v, %v after %d calls, want at least what was there", plans,
				got,
				err, calls)
		}
		if plans == 0 && calls != 0 {
			t.Errorf("planned %d times after the end", calls)
		}
	}
}
