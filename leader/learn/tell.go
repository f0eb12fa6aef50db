package learn

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// leastChange is the least relative change of a mean or a quantile that is told.
	leastChange = 0.01
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

// typeOf is the instance type of the member's lanes as the matcher knows it: the member's own, if
// it has one.
func (s *State) typeOf(m *leader.Member) names.LaneType {
	if _, own := s.scaled[m.Name]; own {
		return m.OwnType
	}
	return m.Type
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
	done := map[names.TableKey]bool{}
	for _, p := range s.pool.Members {
		for _, id := range p.Holds {
			key := names.TableKey{Model: id.Key(), Type: s.typeOf(p.Member)}
			m := s.model(id)
			if done[key] || m == nil {
				continue
			}
			done[key] = true
			now := s.profile(p.Member, m)
			if scale, own := s.scaled[p.Name]; own {
				now.table = now.table.Scale(scale)
			}
			if before, ok := s.told[key]; ok && before.largest >= m.Largest &&
				before.sure == now.sure &&
				sameLatency(before.table, now.table, m.Largest) {
				continue
			}
			latency, err := latencyOf(key, now)
			if err != nil {
				useless = append(useless,
					fmt.Errorf("the profile of %s on %s is of no use: %w", key.Model, key.Type,
						err))
				continue
			}
			s.told[key] = now
			a.Latencies = append(a.Latencies, latency)
		}
	}
	return errors.Join(useless...)
}

// profile is the profile of a model on a member's lanes; a guess if nothing was measured.
func (s *State) profile(member *leader.Member, m *leader.Model) profile {
	var key profiles.Key
	if held := member.Model(m.ModelID); held != nil {
		key = held.Profile
	}
	if ofType, ok := s.keys[names.TableKey{Model: m.Key(), Type: member.Type}]; ok &&
		s.typeOf(member) == member.Type {
		key = ofType
	}
	now := profile{table: s.book.Table(key), largest: m.Largest, sure: true}
	if l := s.book.Learner(key); l != nil && l.Queries() < sureQueries && l.Queries() > 0 &&
		!s.learned[key] {
		now.sure = false
	}
	if now.table == nil {
		// The guess is half of the QoS target for the largest batch: a lane with it gets queries,
		// and the first of them replace the guess.
		knot := func(batch int, mean time.Duration) profiles.Knot {
			mean = max(mean, 1)
			return profiles.Knot{
				BatchSize: batch, Mean: mean, P50: mean, P90: mean * 11 / 10, P99: mean * 13 / 10,
				Error: 1,
			}
		}
		knots := []profiles.Knot{knot(1, m.QoSTarget/10)}
		if m.Largest > 1 {
			knots = append(knots, knot(m.Largest, m.QoSTarget/2))
		}
		// cannot fail with these knots
		now.table, _ = profiles.NewTable(key, profiles.Inherited, guess, knots)
		now.sure = false
	}
	return now
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

// sameLatency reports whether no mean or quantile of two profiles differs by more than leastChange.
func sameLatency(a, b *profiles.Table, largest int) bool {
	near := func(x, y time.Duration) bool {
		return math.Abs(float64(x-y)) <= leastChange*float64(max(x, y))
	}
	for _, batch := range []int{
		1, max(1, largest/8), max(1, largest/3), max(1, largest*2/3), largest,
	} {
		if !near(a.Mean(batch), b.Mean(batch)) ||
			!near(a.Quantile(0.8, batch), b.Quantile(0.8, batch)) {
			return false
		}
	}
	return true
}
