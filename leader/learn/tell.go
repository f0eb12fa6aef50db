package learn

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// leastChange is the least relative change of a mean or the 80 % quantile that is told,
	// leastTailChange that of a load or the 99 % quantile, which vary more and matter less: a lane is
	// overdue after several times that quantile.
	leastChange     = 0.01
	leastTailChange = 0.05
	// sureQueries is the number of queries from which on a profile is not doubtful.
	sureQueries = 16
	// An agent gets profiles of its own when its factor departs from 1 by more than slowFrom, and
	// keeps them until it is within slowUntil. They are scaled anew when the factor changes by more
	// than slowAgain. A factor counts only if its standard error is at most slowError.
	slowFrom, slowUntil, slowAgain, slowError = 0.10, 0.05, 0.05, 0.04
	// leastError is a lower bound for the standard error of a factor.
	leastError = 0.01
)

// A profile is the latency of a model on a type of lanes, as it is told.
type profile struct {
	table   *profiles.Table
	largest int
	sure    bool
}

// typeOf is the type of a part of the member's lanes as the matcher knows it: the member's own,
// if it has one.
func (s *State) typeOf(m *leader.Member, p *leader.Part) names.LaneType {
	if _, own := s.scaled[m.Name]; own {
		return p.OwnType
	}
	return p.Type
}

// held calls yield with each model that lanes of a pool's member hold, and the part that they are.
func held(p *leader.PoolMember, yield func(id leader.ModelID, part *leader.Part)) {
	groups := p.Groups()
	for i := range groups {
		heldBy(p, &groups[i], func(id leader.ModelID) { yield(id, &groups[i]) })
	}
}

// heldBy calls yield with each model that the lanes of a part of a pool's member hold.
func heldBy(p *leader.PoolMember, part *leader.Part, yield func(id leader.ModelID)) {
	for _, id := range p.Holds {
		if p.Parts == nil || slices.Contains(part.Models, id) {
			yield(id)
		}
	}
}

// compare finds the agents whose latencies depart from their type's.
func (s *State) compare(a *leader.Advice) {
	type sum struct{ logs, weights float64 }
	sums := map[names.AgentName]*sum{}
	for _, key := range s.book.Keys() {
		agents := s.book.Learner(key).Agents()
		if len(agents) < 2 {
			continue
		}
		for _, g := range agents {
			w := 1 / (g.Error*g.Error + leastError*leastError)
			x := sums[g.Name]
			if x == nil {
				x = &sum{}
				sums[g.Name] = x
			}
			x.logs += w * math.Log(g.Factor)
			x.weights += w
		}
	}
	a.Factors, a.Slow = map[names.AgentName]float64{}, map[names.AgentName]names.LaneType{}
	there := map[names.AgentName]bool{}
	for _, p := range s.pool.Members {
		name := p.Name
		there[name] = true
		x := sums[name]
		if x == nil {
			delete(s.scaled, name)
			continue
		}
		f := math.Exp(x.logs / x.weights)
		a.Factors[name] = f
		scale, own := s.scaled[name]
		switch away := math.Abs(f - 1); {
		case x.weights < 1/(slowError*slowError):
		case own && away < slowUntil:
			delete(s.scaled, name)
		case own && math.Abs(f/scale-1) > slowAgain, !own && away > slowFrom:
			s.scaled[name] = f
		}
		if _, own := s.scaled[name]; own {
			a.Slow[name] = p.OwnType
		}
	}
	maps.DeleteFunc(s.scaled, func(name names.AgentName, _ float64) bool { return !there[name] })
}

// tell puts the profiles that are new or have changed into a. The error names those from which no
// table can be made.
func (s *State) tell(a *leader.Advice) error {
	var useless []error
	shown := s.Shown()
	done := map[names.TableKey]bool{}
	for i := range s.pool.Members {
		p := &s.pool.Members[i]
		held(p, func(id leader.ModelID, part *leader.Part) {
			key := names.TableKey{Model: id.Key(), Type: s.typeOf(p.Member, part)}
			m := s.model(id)
			if done[key] || m == nil {
				return
			}
			done[key] = true
			now := s.profile(p.Member, part, m, shown)
			if scale, own := s.scaled[p.Name]; own {
				now.table = now.table.Scale(scale)
			}
			if before, ok := s.told[key]; ok && before.largest >= m.Largest &&
				before.sure == now.sure &&
				sameLatency(before.table, now.table, m.Largest) {
				return
			}
			latency, err := latencyOf(key, now)
			if err != nil {
				useless = append(useless,
					fmt.Errorf("the profile of %s on %s is of no use: %w", key.Model, key.Type,
						err))
				return
			}
			s.told[key] = now
			a.Latencies = append(a.Latencies, latency)
		})
	}
	return errors.Join(useless...)
}

// Shown returns by how much longer models take than their profiles say, for
// [profiles.Book.Expected] of the state's book.
func (s *State) Shown() *profiles.Shown {
	return s.book.Shown(func(model string) string {
		for i := range s.pool.Models {
			if m := &s.pool.Models[i]; m.Name == model {
				return familyOf(m)
			}
		}
		return model
	})
}

func familyOf(m *leader.Model) string { return cmp.Or(m.Family, m.Name) }

// profile is the profile of a model on a part of a member's lanes; a guess if nothing was measured.
func (s *State) profile(member *leader.Member, part *leader.Part, m *leader.Model,
	shown *profiles.Shown) profile {
	var key profiles.Key
	if held := member.Model(m.ModelID); held != nil {
		key = held.Profile
	}
	if ofType, ok := s.keys[names.TableKey{Model: m.Key(), Type: part.Type}]; ok &&
		s.typeOf(member, part) == part.Type {
		key = ofType
	}
	now := profile{table: s.book.Expected(key, shown, familyOf(m)), largest: m.Largest, sure: true}
	l := s.book.Learner(key)
	if l != nil && l.Queries() < sureQueries && l.Queries() > 0 && !s.learned[key] ||
		l == nil && key.Beside != "" { // what neighbours cost is a guess, until queries have run
		now.sure = false
	}
	if now.table == nil {
		now.table = Guess(key, m.QoSTarget, m.Largest)
		now.sure = false
	}
	return now
}

// longestGuess is the longest time that is guessed. Quantiles of much longer ones would overflow.
const longestGuess = 24 * time.Hour

// Guess is the profile of a model of which nothing is known: half of the QoS target for the largest
// batch, so that a lane with it gets queries, and the first of them replace the guess. It is never
// nil, whatever a member says of its model.
func Guess(key profiles.Key, target time.Duration, largest int) *profiles.Table {
	target, largest = min(target, 2*longestGuess), min(largest, profiles.MaxBatchSize)
	knot := func(batch int, mean time.Duration) profiles.Knot {
		mean = max(mean, 1)
		return profiles.Knot{
			BatchSize: batch, Mean: mean, P50: mean, P90: mean * 11 / 10, P99: mean * 13 / 10,
			Error: 1,
		}
	}
	knots := []profiles.Knot{knot(1, target/10)}
	if largest > 1 {
		knots = append(knots, knot(largest, target/2))
	}
	table, _ := profiles.NewTable(key, profiles.Inherited, guess, knots) // these knots are valid
	return table
}

func latencyOf(key names.TableKey, p profile) (*leader.Latency, error) {
	table, err := match.NewTable(p.table, p.largest)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(p.table)
	if err != nil {
		return nil, err
	}
	return &leader.Latency{
		TableKey: key, Profile: p.table, Table: table, Doubtful: !p.sure, Told: data,
	}, nil
}

// sameLatency reports whether two profiles differ by less than what is told.
func sameLatency(a, b *profiles.Table, largest int) bool {
	near := func(x, y time.Duration, most float64) bool {
		return math.Abs(float64(x-y)) <= most*float64(max(x, y))
	}
	for _, batch := range []int{
		1, max(1, largest/8), max(1, largest/3), max(1, largest*2/3), largest,
	} {
		if !near(a.Mean(batch), b.Mean(batch), leastChange) ||
			!near(a.Quantile(0.8, batch), b.Quantile(0.8, batch), leastChange) ||
			!near(a.Load(batch), b.Load(batch), leastTailChange) ||
			!near(a.Quantile(0.99, batch), b.Quantile(0.99, batch), leastTailChange) {
			return false
		}
	}
	return true
}
