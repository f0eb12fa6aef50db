package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

const (
	// maxAlone is the largest number of instances of one type that searchLimits tries. Chosen:
	// RIBBON's method evaluates pools of dozens, and each number costs a simulation.
	maxAlone = 256
	// noMore is the smallest increase of the share of queries within QoS for which one more
	// instance counts as useful. Chosen: a twentieth of the 1 % that a target of 99 % lets be late.
	noMore = 0.0005
)

// searchLimits returns p with a limit on the number of every type, RIBBON's m_i: the least number
// of instances of that type alone at which one more no longer raises the share of queries within
// QoS. It searches only types without a limit, by doubling and then bisection. Once a type alone
// meets the target, every other type is limited to instances of the same total price.
func searchLimits(ctx context.Context, p *Problem, log *Log) (*Problem, error) {
	if p.Objective == MostThroughput || p.Budget > 0 ||
		!slices.ContainsFunc(p.Types, func(t Type) bool { return t.Max == 0 }) {
		return p, nil
	}
	limited := *p
	limited.Types = slices.Clone(p.Types)
	// the dearest first: it is the most likely to meet the target alone
	order := make([]int, len(p.Types))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(p.Types[j].Price, p.Types[i].Price)
	})
	cheapest := math.Inf(1) // price of the cheapest configuration that meets the target, $/hr
	for _, i := range order {
		t := &limited.Types[i]
		if t.Max > 0 {
			continue
		}
		most := int(min(maxAlone, math.Floor(cheapest/t.Price+roundingError)))
		share := func(n int) (float64, error) {
			c := make(Configuration, len(p.Types))
			c[i] = n
			e, err := log.Evaluate(ctx, c)
			if e.Value >= p.targetOrDefault() {
				cheapest = min(cheapest, p.Price(c))
			}
			return e.Value, err
		}
		if most < 1 {
			t.Max = 1
			continue
		}
		n, err := findSaturation(most, share)
		if err != nil {
			return nil, fmt.Errorf("how many instances of %s are of use: %w", t.Name, err)
		}
		t.Max = n
	}
	return &limited, nil
}

// findSaturation returns the least n in 1..most at which share(n), which is roughly monotone,
// reaches its maximum. An overloaded pool answers almost no query in time, with one instance or
// two, so a flat part counts only above a share of a half.
func findSaturation(most int, share func(n int) (float64, error)) (int, error) {
	hi := 1
	top, err := share(hi)
	if err != nil {
		return 0, err
	}
	for hi < most {
		more := min(2*hi, most)
		next, err := share(more)
		if err != nil {
			return 0, err
		}
		flat := next-top <= noMore && top > 0.5
		hi, top = more, max(top, next)
		if flat {
			break
		}
	}
	lo := 0 // share(lo) is below the maximum, share(hi) is at it
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		s, err := share(mid)
		if err != nil {
			return 0, err
		}
		if s < top-noMore {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi, nil
}
