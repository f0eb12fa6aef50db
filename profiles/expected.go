package profiles

import (
	"fmt"
	"math"
	"strings"
)

// The factors of lanes and families are shrinkage estimates in two levels (Efron and Morris, JASA
// 70, 1975): a family's factor is drawn to that of its class of lanes, and that one to 1. The
// constants were chosen, not fitted.
const (
	// halfWeightQueries is how many queries give a model half the weight of one with very many.
	halfWeightQueries = 16
	// classPriorWeight is the weight, in models, of the assumption that a class of lanes takes as
	// long as profiles say; familyPriorWeight is that of the assumption that a family departs from
	// profiles as its class of lanes does.
	classPriorWeight, familyPriorWeight = 0.25, 0.5
	// minLogFactor is the smallest logarithm of a factor that counts, about 2 %.
	minLogFactor = 0.02
)

// ProfileErrors holds by which factor queries have taken longer than profiles say, by class of
// lanes and family. The zero value is ready for use and knows nothing: all its factors are 1.
type ProfileErrors struct {
	sums map[laneFamily]logSum
}

// A laneFamily is a class of lanes and a family on it; the family "" stands for all families.
type laneFamily struct{ lane, family string }

// logSum is a weighted sum of logarithms of ratios, and the sum of the weights.
type logSum struct{ sum, weight float64 }

// Add counts one model of a family on a class of lanes: so many queries have taken ratio times as
// long as the model's profile says. A ratio or number that is not above 0 counts nothing.
func (s *ProfileErrors) Add(lane, family string, ratio, queries float64) {
	if !(ratio > 0) || !(queries > 0) {
		return
	}
	if s.sums == nil {
		s.sums = map[laneFamily]logSum{}
	}
	w := queries / (queries + halfWeightQueries)
	for _, k := range []laneFamily{{lane, ""}, {lane, "/" + family}} {
		x := s.sums[k]
		s.sums[k] = logSum{x.sum + w*math.Log(ratio), x.weight + w}
	}
}

// Factor returns the factor, > 0, by which the profile of a model that has not run yet is expected
// to be wrong on a class of lanes. It follows the model's family there as far as that has run, else
// the other families; it is 1 if nothing has run.
func (s *ProfileErrors) Factor(lane, family string) float64 {
	all, its := s.sums[laneFamily{lane, ""}], s.sums[laneFamily{lane, "/" + family}]
	log := (its.sum + familyPriorWeight*all.sum/(all.weight+classPriorWeight)) /
		(its.weight + familyPriorWeight)
	if math.Abs(log) < minLogFactor {
		return 1
	}
	return math.Exp(log)
}

// laneOf names the class of lanes of a key: instance type, provider and cores, without neighbours.
func (k Key) laneOf() string { return fmt.Sprintf("%s/%s/%d", k.InstanceType, k.Provider, k.Cores) }

// ProfileErrors returns the factors that the queries of the book's learners have shown. family
// returns the name of a model's family.
func (b *Book) ProfileErrors(family func(model string) string) *ProfileErrors {
	s := &ProfileErrors{}
	for _, key := range b.Keys() {
		l := b.learners[key]
		if key.Beside != "" { // what neighbours cost is no fault of the profile
			continue
		}
		if ratio, queries := b.departureOf(l); queries > 0 {
			s.Add(key.laneOf(), family(key.Model), ratio, queries)
		}
	}
	return s
}

// inheritedQueries is how many queries a profile that was learned elsewhere counts for. Chosen: as
// many as a lane's own need to be a good profile, so that both weigh alike then.
const inheritedQueries = 32

// departureOf returns the ratio of a learner's latencies to those of the profile before any query
// ran, and how many queries tell it; 0 queries if there is no such profile. It uses the fit as of
// the last refit and does not change the learner.
func (b *Book) departureOf(l *Learner) (ratio, queries float64) {
	if l.prior == nil || !l.prior.HasRun() {
		if l.prior == nil || l.observed == 0 {
			return 1, 0
		}
		sum, weight := 0.0, 0.0
		for i := range l.top + 1 {
			if x := &l.bins[i]; x.weight > 0 {
				sum += x.weight * math.Log(x.latency/x.weight/l.prior.meanNs(int(x.batch/x.weight+.5)))
				weight += x.weight
			}
		}
		return math.Exp(sum / weight), float64(l.observed)
	}
	first := b.shippedTable(l.key)
	if first == nil {
		return 1, 0
	}
	sum := 0.0
	for _, k := range first.knots {
		mean := l.fit.baseLatencyNs(l.prior,
			float64(k.BatchSize)) * (1 + l.fit.deviation[binOf(k.BatchSize)])
		sum += math.Log(mean / float64(k.Mean))
	}
	return math.Exp(sum / float64(len(first.knots))), float64(l.observed) + inheritedQueries
}

// Expected returns the table of a key. If no query has confirmed the table, it is scaled by the
// factor that other models have shown.
func (b *Book) Expected(key Key, shown *ProfileErrors, family string) *Table {
	table := b.Table(key)
	if table == nil || table.HasRun() {
		return table
	}
	factor := shown.Factor(key.laneOf(), family)
	if factor == 1 {
		return table
	}
	scaled := table.Scale(factor)
	scaled.origin = Inherited
	scaled.source = fmt.Sprintf("%s%.2f times as long as it says: %s", inheritedSource, factor,
		table.source)
	return scaled
}

// inheritedSource begins the source of tables that are inherited from what queries have shown.
const inheritedSource = string(Learned) + " of others: "

// HasRun reports whether the numbers come from queries: those of this key, or of another from which
// they were inherited.
func (t *Table) HasRun() bool {
	return t.origin == Learned ||
		t.origin == Inherited && strings.HasPrefix(t.source, string(Learned)+" of ")
}
