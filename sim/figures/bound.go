package figures

import (
	"cmp"
	"math"
	"slices"

	"github.com/muster-serve/muster/sim"
)

// upperBound is KAIROS's bound on the throughput of a pool, Eq. 15, in queries/s. It
// is kept as the paper prints it; it is not quite an upper bound, for it gives the base type's spare time
// queries of average size.
func upperBound(m *sim.Model, pool sim.Pool, base string) float64 {
	// s is the largest batch size that an auxiliary type of the pool serves in time (f' belongs to it).
	s := 0
	for _, in := range pool {
		if in.Type == base || in.Count == 0 {
			continue
		}
		for _, p := range m.BatchSizes.PMF() {
			if m.Latencies[in.Type].Mean(p.BatchSize) <= m.QoSTarget {
				s = max(s, p.BatchSize)
			}
		}
	}
	// rate is the throughput of one instance serving the queries from lo to hi only.
	rate := func(instanceType string, lo, hi int) float64 {
		var share, busy float64
		for _, p := range m.BatchSizes.PMF() {
			if p.BatchSize >= lo && p.BatchSize <= hi {
				share += p.P
				busy += p.P * m.Latencies[instanceType].Mean(p.BatchSize).Seconds()
			}
		}
		if busy == 0 {
			return math.Inf(1)
		}
		return share / busy
	}
	u := float64(pool.Of(base))
	all := rate(base, 1, math.MaxInt)
	if s == 0 {
		return u * all
	}
	var f float64
	for _, p := range m.BatchSizes.PMF() {
		if p.BatchSize <= s {
			f += p.P
		}
	}
	var auxiliary float64
	for _, in := range pool {
		if in.Type != base && in.Count > 0 {
			auxiliary += float64(in.Count) * rate(in.Type, 1, s)
		}
	}
	if f >= 1-1e-12 {
		return auxiliary + u*all
	}
	larger := u * rate(base, s+1, math.MaxInt)
	c := auxiliary * (1 - f) / f // Eq. 14
	if larger <= c {
		return larger / (1 - f)
	}
	return auxiliary/f + (larger-c)/larger*u*all
}

// A bounded pool is a configuration with its Eq. 15.
type bounded struct {
	pool  sim.Pool
	bound float64
}

// byBound are all pools within the budget by falling bound.
func (l *lab) byBound(cfg *sim.Config) ([]bounded, error) {
	pools, err := sim.Configurations(cfg.Models, l.prices, budget)
	if err != nil {
		return nil, err
	}
	all := make([]bounded, len(pools))
	for i, p := range pools {
		all[i] = bounded{p, upperBound(&cfg.Models[0], p, baseType)}
	}
	slices.SortStableFunc(all, func(a, b bounded) int { return cmp.Compare(b.bound, a.bound) })
	return all, nil
}

// baseType is the base type of KAIROS's experiments.
const baseType = "g4dn.xlarge"

// choice is the pool that KAIROS chooses without evaluating any (section 5.2): if the
// three of the highest bound have as many base instances, the first; otherwise of the
// ten of the highest bound that which is nearest to the others.
func choice(all []bounded) sim.Pool {
	n := func(i int) int { return all[i].pool.Of(baseType) }
	if len(all) < 3 || n(0) == n(1) && n(1) == n(2) {
		return all[0].pool
	}
	top := all[:min(10, len(all))]
	best, nearest := 0, math.Inf(1)
	for i := range top {
		var sum float64
		for j := range top {
			for k := range top[i].pool {
				d := float64(top[i].pool[k].Count - top[j].pool[k].Count)
				sum += d * d
			}
		}
		if sum < nearest {
			best, nearest = i, sum
		}
	}
	return top[best].pool
}
