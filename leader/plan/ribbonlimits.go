package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

const (
	// mostAlone is the largest number of instances of one type that searchLimits tries.
	mostAlone = 256
	// noMore is the share of queries within QoS by which an instance more must raise it to count.
	noMore = 0.0005
)

// searchLimits returns p with a limit on the number of every type: the m_i of RIBBON, the least
// number of instances of that type alone at which one more no longer raises the share of queries
// within QoS. Only types that have no limit are searched, by doubling and then bisection. Once a
// type alone meets the target no other needs more than costs as much.
func searchLimits(ctx context.Context, p *Problem, log *Log) (*Problem, error) {
	if p.Objective == MostThroughput || p.Budget > 0 ||
		!slices.ContainsFunc(p.Types, func(t Type) bool { return t.Max == 0 }) {
		return p, nil
	}
	limited := *p
	limited.Types = slices.Clone(p.Types)
	order := make([]int, len(p.Types)) // the dearest first: it most likely meets the target alone
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(p.Types[j].Price, p.Types[i].Price)
	})
	cheapest := math.Inf(1) // that meets the target, $/hr
	for _, i := range order {
		t := &limited.Types[i]
		if t.Max > 0 {
			continue
		}
		most := int(min(mostAlone, math.Floor(cheapest/t.Price+roundingError)))
		share := func(n int) (float64, error) {
			c := make(Configuration, len(p.Types))
			c[i] = n
			e, err := log.Evaluate(ctx, c)
			if e.Value >= p.target() {
				cheapest = min(cheapest, p.Price(c))
			}
			return e.Value, err
		}
		if most < 1 {
			t.Max = 1
			continue
		}
		n, err := saturation(most, share)
		if err != nil {
			return nil, fmt.Errorf("how many instances of %s are of use: %w", t.Name, err)
		}
		t.Max = n
	}
	return &limited, nil
}

// saturation is the least n in 1..most at which share, which is about monotone, is what it is at
// most. A pool that is overloaded answers next to nothing in time, whether of one instance or two,
// so a flat part counts only above a half.
func saturation(most int, share func(n int) (float64, error)) (int, error) {
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
	lo := 0 // share(lo) is less, share(hi) is all
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
