package choose

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/muster-serve/muster/leader/rent"
	"github.com/muster-serve/muster/profiles"
)

// A guard knows what a fleet must bear: the loss of one machine, of a spot pool, of all spot
// machines. A spot pool is a type's spot machines, for a provider may take all of a type and a zone
// at once, and have put all of a type into one zone.
type guard struct {
	config *Config
	prices map[rent.Kind]float64
	kinds  []rent.Kind       // those that may be added, in order
	most   map[rent.Kind]int // of each of them
	// obtained is, of the kinds of which the provider has no more, how many there are: more of one
	// bear nothing.
	obtained map[rent.Kind]int
	// foreign are machines that are not rented.
	foreign map[profiles.InstanceType]int
	// serves is what so many agents serve, in queries/s.
	serves func(map[profiles.InstanceType]int) float64
	known  map[string]float64
}

// needsGuard reports whether a fleet must bear anything.
func (c *Config) needsGuard() bool { return c.Spare > 0 || c.SpotShare > 0 }

// describeLosses says in words what Config has a fleet bear.
func (c *Config) describeLosses() string {
	var parts []string
	if c.Spare > 0 {
		parts = append(parts, "one machine lost")
	}
	if c.SpotShare > 0 {
		parts = append(parts, fmt.Sprintf("at most %.0f %% on spot machines, %.0f %% of one type",
			100*c.SpotShare, 100*min(c.SpotShare, c.MaxPool)))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// allowsSpot reports whether a type may be rented as spot machines.
func (c *Config) allowsSpot(t profiles.InstanceType) bool {
	l, ok := c.Types[t]
	return ok && c.SpotShare > 0 && !l.OnDemand
}

func newGuard(c *Config, f *Fleet, capacity *Capacity) *guard {
	g := &guard{config: c, prices: f.Prices, most: map[rent.Kind]int{}, foreign: f.Foreign,
		obtained: map[rent.Kind]int{}, serves: capacity.SafeRate, known: map[string]float64{}}
	for _, lack := range f.Lacks {
		g.obtained[lack.Kind] = f.Have[lack.Kind]
	}
	for _, t := range f.Problem.Types {
		l, ours := c.Types[t.Name]
		if !ours {
			continue
		}
		for _, market := range []rent.Market{rent.OnDemand, rent.Spot} {
			kind := rent.Kind{Type: t.Name, Market: market}
			if f.Prices[kind] <= 0 || market == rent.Spot && !c.allowsSpot(t.Name) {
				continue
			}
			most := l.Max
			if most == 0 {
				most = math.MaxInt
			}
			if n, short := g.obtained[kind]; short {
				most = min(most, n)
			}
			if market == rent.OnDemand {
				most = max(most, l.Min)
			}
			g.kinds, g.most[kind] = append(g.kinds, kind), most
		}
	}
	return g
}

// eachLoss calls do with what the counts serve after each loss that they must bear, divided by the
// share of the load that must then be served: in queries/s of the load before. The number of calls
// does not depend on counts.
func (g *guard) eachLoss(counts map[rent.Kind]int, do func(rate float64)) {
	all, spot := maps.Clone(g.foreign), map[profiles.InstanceType]int{}
	if all == nil {
		all = map[profiles.InstanceType]int{}
	}
	for kind, n := range counts {
		if there, short := g.obtained[kind]; short {
			n = min(n, there)
		}
		if all[kind.Type] += n; kind.Market == rent.Spot {
			spot[kind.Type] += n
		}
	}
	whole := g.serves(all)
	do(whole)
	without := func(lost map[profiles.InstanceType]int, share float64) {
		rest := maps.Clone(all)
		for t, n := range lost {
			rest[t] -= n
		}
		if share < 1 {
			do(min(whole, g.serves(rest)/(1-share)))
		}
	}
	if g.config.SpotShare > 0 {
		without(spot, g.config.SpotShare)
	}
	types := maps.Clone(all)
	for _, kind := range g.kinds {
		types[kind.Type] += 0
	}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		lost := spot[t]
		if g.config.SpotShare > 0 {
			without(map[profiles.InstanceType]int{t: lost}, g.config.MaxPool)
		}
		if g.config.Spare > 0 {
			// with spot machines, one that is lost may be a pool
			without(map[profiles.InstanceType]int{t: max(lost, min(1, all[t]))}, 0)
		}
	}
}

// safeRate is the load, in queries/s, that may be planned for the counts.
func (g *guard) safeRate(counts map[rent.Kind]int) float64 {
	key := Text(counts)
	rate, ok := g.known[key]
	if !ok {
		rate = math.Inf(1)
		g.eachLoss(counts, func(r float64) { rate = min(rate, r) })
		g.known[key] = rate
	}
	return rate
}

// progressTo is how near the counts come to bearing a rate after each loss.
func (g *guard) progressTo(counts map[rent.Kind]int, rate float64) (sum float64) {
	g.eachLoss(counts, func(r float64) { sum += min(r, rate) })
	return sum
}

func (g *guard) priceUSD(counts map[rent.Kind]int) (usd float64) {
	for kind, n := range counts {
		usd += float64(n) * g.prices[kind]
	}
	return usd
}

// allowsOneMore reports whether the limits allow one more of a kind.
func (g *guard) allowsOneMore(counts map[rent.Kind]int, kind rent.Kind) bool {
	of := counts[rent.Kind{Type: kind.Type}] + counts[rent.Kind{Type: kind.Type, Market: rent.Spot}]
	most := g.config.Types[kind.Type].Max
	return counts[kind] < g.most[kind] && (most == 0 || of < most)
}

// grow adds machines, that first which helps most for its price, until the counts bear the rate or
// nothing that helps is within the limits.
func (g *guard) grow(counts map[rent.Kind]int, rate, budget float64) {
	for g.safeRate(counts) < rate {
		best, worth, now := rent.Kind{}, 0.0, g.progressTo(counts, rate)
		for _, kind := range g.kinds {
			if !g.allowsOneMore(counts, kind) || g.priceUSD(counts)+g.prices[kind] > budget+1e-9 {
				continue
			}
			counts[kind]++
			if w := (g.progressTo(counts, rate) - now) / g.prices[kind]; w > worth*(1+1e-9)+1e-9 {
				best, worth = kind, w
			}
			counts[kind]--
		}
		if best.Type == "" {
			return
		}
		counts[best]++
	}
}

// trim takes machines out, or cheaper ones in their place, that first which saves most, while the
// counts bear the rate.
func (g *guard) trim(counts map[rent.Kind]int, rate float64) {
	total := 0
	for _, n := range counts {
		total += n
	}
	for {
		var out, in rent.Kind
		saves := 1e-9
		for _, kind := range g.kinds {
			least := 0
			if kind.Market == rent.OnDemand {
				least = g.config.Types[kind.Type].Min
			}
			if counts[kind] <= least {
				continue
			}
			counts[kind]--
			if g.prices[kind] > saves && total > g.config.MinInstances &&
				g.safeRate(counts) >= rate {
				out, in, saves = kind, rent.Kind{}, g.prices[kind]
			}
			for _, other := range g.kinds {
				if save := g.prices[kind] - g.prices[other]; save > saves &&
					g.allowsOneMore(counts, other) {
					counts[other]++
					if g.safeRate(counts) >= rate {
						out, in, saves = kind, other, save
					}
					counts[other]--
				}
			}
			counts[kind]++
		}
		if out.Type == "" {
			return
		}
		counts[out]--
		if total--; in.Type != "" {
			counts[in]++
			total++
		}
	}
}

// cheapestFleet is the cheapest fleet found that bears the rate, or that which bears most where
// none within the limits does. It begins with the plans that ideal gives for multiples of the rate.
func (g *guard) cheapestFleet(rate, budget float64, ideal func(float64) (map[rent.Kind]int, error),
	multiples ...float64) (best map[rent.Kind]int, err error) {
	for _, more := range multiples {
		counts, err := ideal(rate * more)
		if err != nil {
			return nil, err
		}
		for bears := -1.0; g.safeRate(counts) > bears && bears < rate; {
			bears = g.safeRate(counts)
			g.grow(counts, rate, budget)
			g.trim(counts, min(rate, g.safeRate(counts)))
		}
		had, has := min(rate, g.safeRate(best)), min(rate, g.safeRate(counts))
		if best == nil || has > had || has == had && g.priceUSD(counts) < g.priceUSD(best) {
			best = counts
		}
	}
	maps.DeleteFunc(best, func(_ rent.Kind, n int) bool { return n == 0 })
	return best, nil
}

// minRate is a rate, in queries/s, below which fleets are alike.
const minRate = 1e-6

// bestWithinBudget is the fleet found within the budget that bears the highest rate. It begins with
// counts, and ends early with what it has found by then when ctx does.
func (g *guard) bestWithinBudget(ctx context.Context, counts map[rent.Kind]int, budget float64,
	ideal func(rate float64) (map[rent.Kind]int, error)) (map[rent.Kind]int, error) {
	best := counts
	least, most := g.safeRate(best), 0.0
	g.eachLoss(counts, func(rate float64) { most = max(most, rate) })
	// Spot machines cost a third or so. The least may be 0.
	for most *= 3; most > max(least*1.02, minRate) && ctx.Err() == nil; {
		rate := (least + most) / 2
		found, err := g.cheapestFleet(rate, budget, ideal, 1)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return nil, err
		}
		if g.safeRate(found) > g.safeRate(best) {
			best = found
		}
		if least = max(least, g.safeRate(best)); g.safeRate(found) < rate {
			most = rate
		}
	}
	return best, nil
}
