package plan

import "math"

// This file is the search of RIBBON's paper as published, for [Ribbon.Plain]: one Gaussian process
// of Eq. 2, the largest expected improvement among the configurations that are not pruned, pruning
// with a fixed margin theta, and after a change of load the linear estimates of the set S. It
// leaves out Muster's additions: the second process, the wider margin, the second look at pruned
// configurations, and the start from multiples of the old optimum.
//
// The paper gives no rule to stop, so the search ends when every configuration is evaluated or
// pruned.

// nextPlain returns the configuration of the largest expected improvement; false if none is left.
func (s *ribbonSearch) nextPlain() (int, bool) {
	candidates, _ := s.findCandidates()
	if len(candidates) == 0 {
		return 0, false
	}
	best := 0.0
	for _, e := range s.known {
		best = max(best, s.objectiveOf(e))
	}
	mean, deviation := s.predictAll(s.objectiveOf, objectiveFit, candidates)
	next, most := -1, math.Inf(-1)
	for j, i := range candidates {
		if improvement := expectedImprovement(mean[j], deviation[j],
			best+ribbonXi); improvement > most {
			next, most = i, improvement
		}
	}
	return next, true
}

// addEstimates adds estimates from the evaluations made before the load changed, for the paper's
// set S: the configurations that did no better than the optimum of that time. Each share is scaled
// by the optimum's share now over its share then.
func (s *ribbonSearch) addEstimates(explored []Evaluation, optimum Evaluation, now Estimate) {
	for _, e := range explored {
		if i, ok := s.index[e.Configuration.String()]; ok && !s.done[i] &&
			e.Value <= optimum.Value {
			s.done[i] = true
			share := e.Value * now.Value / optimum.Value
			s.known = append(s.known, Evaluation{e.Configuration, Estimate{Value: share}})
		}
	}
}
