package profiles

import (
	"fmt"
	"math"
	"strings"
)

const (
	// halfShown is how many queries of a model count half as much as very many.
	halfShown = 16
	// A kind of lane is taken to keep what profiles say as surely as if keeps models had shown
	// that, and a family to depart from them as its kind of lane does as surely as if follows
	// models of it had shown that.
	keeps, follows = 0.25, 0.5
	// minShown is the least departure from profiles that counts.
	minShown = 0.02
)

// Shown is what queries have shown of profiles: by how much longer models take on each kind of lane
// than their profiles say. The zero value is ready for use.
type Shown struct {
	of map[kind]weightedTable
}

// A kind is a kind of lane, all models of it with the family "".
type kind struct{ lane, family string }

// weightedTable is a sum of logarithms of ratios.
type weightedTable struct{ sum, weight float64 }

// Add adds that queries of one model of a family have taken ratio times as long on a kind of lane
// as its profile said.
func (s *Shown) Add(lane, family string, ratio, queries float64) {
	if !(ratio > 0) || !(queries > 0) {
		return
	}
	if s.of == nil {
		s.of = map[kind]weightedTable{}
	}
	w := queries / (queries + halfShown)
	for _, k := range []kind{{lane, ""}, {lane, "/" + family}} {
		x := s.of[k]
		s.of[k] = weightedTable{x.sum + w*math.Log(ratio), x.weight + w}
	}
}

// Of returns by how much longer a model of a family, under whose profile no query has run, is
// expected to take on a kind of lane: as its family does there, as far as that is known, else as
// others do; 1 if nothing is known.
func (s *Shown) Of(lane, family string) float64 {
	all, its := s.of[kind{lane, ""}], s.of[kind{lane, "/" + family}]
	log := (its.sum + follows*all.sum/(all.weight+keeps)) / (its.weight + follows)
	if math.Abs(log) < minShown {
		return 1
	}
	return math.Exp(log)
}

// laneOf names the kind of lane that a key is of, whatever its neighbours.
func (k Key) laneOf() string { return fmt.Sprintf("%s/%s/%d", k.InstanceType, k.Provider, k.Cores) }

// Shown returns what the queries of the book's learners have shown. family names the family of a
// model.
func (b *Book) Shown(family func(model string) string) *Shown {
	s := &Shown{}
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

// toldQueries is how many queries count for a profile that was learned elsewhere.
const toldQueries = 32

// departureOf returns the ratio of a learner's latencies to those of the profile that was known
// before any query ran, as of its last refit, since it must not change the learner. queries is 0 if
// that cannot be said.
func (b *Book) departureOf(l *Learner) (ratio, queries float64) {
	if l.prior == nil || !l.prior.Tried() {
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
	return math.Exp(sum / float64(len(first.knots))), float64(l.observed) + toldQueries
}

// Expected is Table, but scaled by what others have shown where it is a profile that no query has
// confirmed.
func (b *Book) Expected(key Key, shown *Shown, family string) *Table {
	table := b.Table(key)
	if table == nil || table.Tried() {
		return table
	}
	factor := shown.Of(key.laneOf(), family)
	if factor == 1 {
		return table
	}
	scaled := table.Scale(factor)
	scaled.origin = Inherited
	scaled.source = fmt.Sprintf("%s%.2f times as long as it says: %s", triedSource, factor,
		table.source)
	return scaled
}

// triedSource begins the source of tables that are inherited from what queries have shown.
const triedSource = string(Learned) + " of others: "

// Tried reports whether the numbers come from queries: those of this key, or of another from which
// they were inherited.
func (t *Table) Tried() bool {
	return t.origin == Learned ||
		t.origin == Inherited && strings.HasPrefix(t.source, string(Learned)+" of ")
}
