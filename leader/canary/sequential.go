package canary

import "math"

// This file has the sequential test of a canary: bounds of shares that hold at all times at once,
// so that the test may look after each query and still errs no more often than it states.
//
// The bounds are of Robbins's method of mixtures, for draws with chances of their own (Howard,
// Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences",
// Annals of Statistics 49, 2021). Let draw i hit with chance p[i], which may depend on the draws
// before it, and let p be the mean of the chances of the first n draws, of which k hit. For each
// tilt t,
//
//	exp(t k) / product over i of (1 + p[i] (exp(t) - 1))
//
// is a martingale that begins at 1, so by Ville's inequality it ever reaches exp(evidence) with a
// chance of at most exp(-evidence). log(1 + p (exp(t) - 1)) is concave in p, so that
// exp(t k) / (1 + p (exp(t) - 1))^n is never above the martingale. Each tilt therefore bounds p,
// in closed form, and the test takes the tightest bound of a grid of tilts, among which it divides
// the chance of an error. The chances need not be equal: the bounds hold for queries of unlike
// sizes, and while the load changes.

// tilts are the grid: positive for bounds from below, negative for bounds from above. A tilt near
// sqrt(2 evidence / (n p (1 - p))) gives the tightest bound, and one that is off by a factor of
// sqrt(1.6) widens the bound by 3 %. The least suits 10^7 draws, the largest a first hit where a
// share of 10^-5 is usual, and draws without a hit.
var tilts, tiltsUp, tiltsDown = func() (t, up, down [16]float64) {
	tilt := .01
	for i := range t {
		t[i], up[i], down[i] = tilt, math.Expm1(tilt), math.Expm1(-tilt)
		tilt *= 1.6
	}
	return t, up, down
}()

// neededEvidence returns the evidence that a bound needs which is one of so many and may err,
// together with the others, with a chance of alpha.
func neededEvidence(alpha float64, bounds int) float64 {
	return math.Log(float64(len(tilts)*bounds) / alpha)
}

// lowerBound returns a bound from below, in [0, 1], of the mean chance of n draws of which k hit.
func lowerBound(k, n, evidence float64) (bound float64) {
	if n <= 0 {
		return 0
	}
	for i, t := range tilts {
		bound = max(bound, math.Expm1((t*k-evidence)/n)/tiltsUp[i])
	}
	return min(bound, 1)
}

// upperBound returns a bound from above, in [0, 1], of the mean chance of n draws of which k hit.
func upperBound(k, n, evidence float64) float64 {
	if n <= 0 {
		return 1
	}
	bound := 1.
	for i, t := range tilts {
		bound = min(bound, math.Expm1((-t*k-evidence)/n)/tiltsDown[i])
	}
	return max(bound, 0)
}

// Bounds returns bounds of a share of which k of n draws are known. The chance that the true share
// is ever outside, at whichever n one looks, is at most alpha.
func Bounds(k, n uint64, alpha float64) (low, high float64) {
	e := neededEvidence(alpha, 2)
	return lowerBound(float64(k), float64(n), e), upperBound(float64(k), float64(n), e)
}

// A share is of draws that hit.
type share struct{ hits, draws float64 }

// parts is how many shares of the current version a comparison has at most: one for each class of
// batch sizes, and one for all queries together, if some sizes are not known.
const parts = BatchClasses + 1

// reasons is how many reasons to roll a canary back share the chance of an error: failures by
// class, failures of all sizes together, lateness, slowness and wrong answers.
const reasons = 5

// A comparison is of a share of a canary's queries with what the current version's share would be
// of queries of the same sizes: the sum of its shares by class, each times the class's part of the
// canary's queries (direct standardisation). So a canary that gets larger batches by chance is
// compared with the current version's larger batches.
type comparison struct {
	// what the queries that hit are, in words: "failed". limit is what the canary is held to.
	what  string
	limit Limit
	// minDraws is how many draws of the canary it takes before it is rolled back.
	minDraws float64
	// needed says that a promotion needs this comparison's bound.
	needed  bool
	canary  share
	current [parts]share
	weights [parts]float64 // of current's shares
	usual   share          // of the current version, as it was counted, for people
}

// forAllSizes compares the canary's queries of all sizes with all of the current version's.
func (c *comparison) forAllSizes() { c.current[parts-1], c.weights[parts-1] = c.usual, 1 }

// byClass makes the current version's share what the canary's mix of classes makes of it.
func (c *comparison) byClass(canary, current *TrialCounts, of func(*Tally) (hits, draws uint64)) {
	total := 0.
	for i := range canary.Classes {
		_, n := of(&canary.Classes[i])
		total += float64(n)
	}
	for i := range canary.Classes {
		_, n := of(&canary.Classes[i])
		hits, draws := of(&current.Classes[i])
		c.current[i] = share{float64(hits), float64(draws)}
		c.weights[i] = float64(n) / max(total, 1)
	}
}

// lowExcess returns a bound from below of how much above the current version's share the canary's
// is. It holds at all times at once, but for a chance of alpha. The canary's bound gets half of
// that: it decides how long a trial takes, for a canary has the fewer queries. The rest is divided
// among the current version's parts (union bound).
func (c *comparison) lowExcess(alpha float64) float64 {
	low, e := lowerBound(c.canary.hits, c.canary.draws, neededEvidence(alpha, 2)),
		neededEvidence(alpha,
			2*parts)
	for i, w := range c.weights {
		if w > 0 && low > 0 {
			low -= w * upperBound(c.current[i].hits, c.current[i].draws, e)
		}
	}
	return low
}

// highExcess returns the bound from above, which holds but for a chance of beta.
func (c *comparison) highExcess(beta float64) float64 {
	high, e := upperBound(c.canary.hits, c.canary.draws, neededEvidence(beta, 2)),
		neededEvidence(beta, 2*parts)
	for i, w := range c.weights {
		if w > 0 && c.current[i].hits > 0 {
			high -= w * lowerBound(c.current[i].hits, c.current[i].draws, e)
		}
	}
	return high
}

// scaleDraws is the comparison after factor times as many draws with the same shares.
func (c comparison) scaleDraws(factor float64) comparison {
	scale := func(s *share) { s.hits, s.draws = s.hits*factor, s.draws*factor }
	scale(&c.canary)
	for i := range c.current {
		scale(&c.current[i])
	}
	return c
}

// decideOn returns the verdict of all comparisons, and the comparison that decides it: one in which
// the canary is worse, or else the first that is still open; nil if the canary is within all
// limits.
func (r *Rule) decideOn(all []comparison) (Decision, *comparison) {
	for i := range all {
		if c := &all[i]; c.canary.draws >= c.minDraws &&
			c.lowExcess(r.Alpha/reasons) > c.limit.Tolerated {
			return RollBack, c
		}
	}
	for i := range all {
		if c := &all[i]; c.needed && c.highExcess(r.Beta) >= c.limit.Margin {
			return Wait, c
		}
	}
	return Promote, nil
}

// maxMore bounds the forecast of queriesLeft, in multiples of the queries so far, so that it ends.
const maxMore = 1 << 20

// queriesLeft returns how many more of its queries a canary needs until the comparisons decide, if
// the shares stay as they are, within 1 %; any is false if that is not to be foretold.
func (r *Rule) queriesLeft(all []comparison, queries uint64) (left uint64, any bool) {
	decided := func(factor float64) bool {
		later := make([]comparison, len(all))
		for i, c := range all {
			later[i] = c.scaleDraws(factor)
		}
		decision, _ := r.decideOn(later)
		return decision != Wait
	}
	high := 2.
	for !decided(high) {
		if high *= 2; high > maxMore {
			return 0, false
		}
	}
	low := high / 2
	for range 8 {
		if middle := (low + high) / 2; decided(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return uint64(math.Ceil((high - 1) * float64(queries))), true
}
