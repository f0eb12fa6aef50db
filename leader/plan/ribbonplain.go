package plan

import "math"

// The search of RIBBON's paper as published, for [Ribbon.Plain]: one Gaussian process of Eq. 2, the
// largest expected improvement among what is not pruned, pruning with a fixed margin theta, and
// after a change of load the linear estimates of the set S. It has no second process, no wider
// margin, no second look at what was pruned and no start from more of the old mix, which are ours.
//
// The paper gives no rule to stop, so the search ends when every configuration is evaluated or
// pruned.

// nextPlain is the configuration of the largest expected improvement; false: none is left.
func (s *ribbonSearch) nextPlain() (int, bool) {
	candidates, _ := s.candidates()
	if len(candidates) == 0 {
		return 0, false
	}
	best := 0.0
	for _, e := range s.known {
		best = max(best, s.objective(e))
	}
	mean, deviation := s.predict(s.objective, objectiveFit, candidates)
	next, most := -1, math.Inf(-1)
	for j, i := range candidates {
		if improvement := expectedImprovement(mean[j], deviation[j],
			best+ribbonXi); improvement > most {
			next, most = i, improvement
		}
	}
	return next, true
}

// estimate takes in what was explored before the load changed: the set S of what did no better than
// the optimum of then, each share estimated in proportion to how the optimum fares now.
func (s *ribbonSearch) estimate(explored []Evaluation, optimum Evaluation, now Estimate) {
	for _, e := range explored {
		if i, ok := s.index[e.Configuration.String()]; ok && !s.done[i] &&
			e.Value <= optimum.Value {
			s.done[i] = true
			share := e.Value * now.Value / optimum.Value
			s.known = append(s.known, Evaluation{e.Configuration, Estimate{Value: share}})
		}
	}
}
