package learn

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

const (
	// minChange is the least relative change of a mean or the 80 % quantile that is told,
	// minTailChange that of a load or the 99 % quantile, which vary more and matter less: a lane
	// is overdue after several times that quantile.
	minChange     = 0.01
	minTailChange = 0.05
	// sureQueries is the number of queries from which on a profile is not doubtful. Chosen;
	// profiles keeps as many before it decides which of them are outliers.
	sureQueries = 16
	// An agent gets profiles of its own when its factor, or that of a model or of a class of its
	// batch sizes, departs from 1 by more than slowFrom, and keeps them until all are within
	// slowUntil. They are scaled anew when one changes by more than slowAgain. A factor counts only
	// if its standard error is at most slowError.
	slowFrom, slowUntil, slowAgain, slowError = 0.10, 0.05, 0.05, 0.04
	// keepOwn is how long an agent keeps profiles of its own after it departed last. A machine that
	// does other work departs for some seconds, again and again, and each switch changes the types
	// of the pool, with prices and plans. Chosen: profiles of its own cost an agent that is like
	// its type nothing, so a minute without a departure is soon enough.
	keepOwn = time.Minute
	// minError is a lower bound for the standard error of a factor.
	minError = 0.01
	// modelSpread is the standard deviation of an agent's factors for models from their mean,
	// before queries have run. Chosen: that of agents from their type.
	modelSpread = 0.1
	// The factor of one model, or of one class of its batch sizes, counts as nearer to 1 by
	// sureErrors standard errors than it seems, since many are looked at, and some are far from 1
	// by chance.
	sureErrors = 2
)

// A profile is the latency of a model on a type of lanes, as it is told.
type profile struct {
	table   *profiles.Table
	largest int
	sure    bool
	law     work.Law        // of table
	byRows  *profiles.Table // table by rows alone, if law is not zero; else nil
}

// typeOf is the type of a part of the member's lanes as the matcher knows it: the member's own,
// if it has one.
func (s *State) typeOf(m *leader.Member, p *leader.PartitionLanes) names.LaneType {
	if _, own := s.scaled[m.Name]; own {
		return p.OwnType
	}
	return p.Type
}

// eachHeld calls yield with each model that lanes of a pool's member hold, and the part that they
// are.
func eachHeld(p *leader.PoolMember, yield func(id leader.ModelID, part *leader.PartitionLanes)) {
	groups := p.Groups()
	for i := range groups {
		heldBy(p, &groups[i], func(id leader.ModelID) { yield(id, &groups[i]) })
	}
}

// heldBy calls yield with each model that the lanes of a part of a pool's member hold.
func heldBy(p *leader.PoolMember, part *leader.PartitionLanes, yield func(id leader.ModelID)) {
	for _, id := range p.Holds {
		if p.Parts == nil || slices.Contains(part.Models, id) {
			yield(id)
		}
	}
}

// A departure is by how much an agent's latencies depart from its type's.
type departure struct {
	factor float64 // of models of which nothing is known there
	models map[profiles.Key]profiles.AgentFactor
	last   time.Time // when the agent departed last
}

// agentAt is the departure for a model.
func (d *departure) agentAt(key profiles.Key) profiles.AgentFactor {
	if g, ok := d.models[key]; ok {
		return g
	}
	return profiles.AgentFactor{Factor: d.factor}
}

// isLike reports whether two departures differ by no more than slowAgain.
func (d *departure) isLike(o *departure) bool {
	near := func(x, y float64) bool { return math.Abs(x/y-1) <= slowAgain }
	if !near(d.factor, o.factor) {
		return false
	}
	for _, both := range [][2]*departure{{d, o}, {o, d}} {
		for key, g := range both[0].models {
			h := both[1].agentAt(key)
			if !near(g.Factor, h.Factor) {
				return false
			}
			for _, size := range g.Sizes {
				if !near(g.At(size.First), h.At(size.First)) {
					return false
				}
			}
		}
	}
	return true
}

// An agentFactor is what the learners of all models say together of an agent.
type agentFactor struct {
	logs, weights float64
	// the largest sure departure from 1 of the factor of one model, at some size
	away float64
}

// meanFactor is the mean of the models' factors.
func (x *agentFactor) meanFactor() float64 { return math.Exp(x.logs / x.weights) }

// isDeparture reports whether the agent departs from its type; own says that it did so before.
func (x *agentFactor) isDeparture(own bool) bool {
	away, sure := math.Abs(x.meanFactor()-1), x.weights >= 1/(slowError*slowError)
	if own {
		return !sure || max(away, x.away) >= slowUntil
	}
	return sure && away > slowFrom || x.away > slowFrom
}

// shrinkToMean returns what is known of an agent under the key of one model, whose factor counts as
// far as it is sure, and else is that of all the agent's models.
func (x *agentFactor) shrinkToMean(g profiles.AgentFactor) profiles.AgentFactor {
	all, e := math.Log(x.meanFactor()), math.Hypot(g.Error, minError)
	w := modelSpread * modelSpread / (modelSpread*modelSpread + e*e)
	g.Factor = math.Exp(all + w*(math.Log(g.Factor)-all))
	return g
}

// noteDeparture looks whether an agent departs under the key of one model.
func (x *agentFactor) noteDeparture(g *profiles.AgentFactor) {
	look := func(factor, e float64) {
		if e <= slowError {
			x.away = max(x.away, math.Abs(factor-1)-sureErrors*e)
		}
	}
	e := math.Hypot(g.Error, minError)
	if len(g.Sizes) == 0 {
		look(g.Factor, e)
	}
	for _, size := range g.Sizes {
		look(g.Factor*size.Factor, math.Hypot(e, size.Error))
	}
}

// findDepartures finds the agents whose latencies depart from their type's: at all models and
// sizes, at some models, or at some sizes of them.
func (s *State) findDepartures(a *leader.Advice) {
	known := map[names.AgentName]*agentFactor{}
	keys := slices.DeleteFunc(s.book.Keys(),
		func(key profiles.Key) bool { return !s.book.FindLearner(key).Shared() })
	for _, key := range keys {
		for g := range s.book.FindLearner(key).EachAgent {
			x := known[g.Name]
			if x == nil {
				x = &agentFactor{}
				known[g.Name] = x
			}
			w := 1 / (g.Error*g.Error + minError*minError)
			x.logs += w * math.Log(g.Factor)
			x.weights += w
			x.noteDeparture(&g)
		}
	}
	a.Factors, a.Slow = map[names.AgentName]float64{}, map[names.AgentName]names.LaneType{}
	now := map[names.AgentName]*departure{}
	for _, p := range s.pool.Members {
		x := known[p.Name]
		if x == nil {
			continue
		}
		a.Factors[p.Name] = x.meanFactor()
		before, last := s.scaled[p.Name], s.looked
		if !x.isDeparture(before != nil) {
			if before == nil || s.looked.Sub(before.last) >= keepOwn {
				continue
			}
			last = before.last
		}
		a.Slow[p.Name] = p.OwnType
		now[p.Name] = &departure{x.meanFactor(), map[profiles.Key]profiles.AgentFactor{}, last}
	}
	for _, key := range keys {
		if len(now) == 0 {
			break
		}
		for g := range s.book.FindLearner(key).EachAgent {
			if d := now[g.Name]; d != nil {
				d.models[key] = known[g.Name].shrinkToMean(g)
			}
		}
	}
	for name, before := range s.scaled { // what has hardly changed stays
		if d := now[name]; d != nil && d.isLike(before) {
			before.last = d.last
			now[name] = before
		}
	}
	s.scaled = now
}

// adviseProfiles puts the profiles that are new or have changed into a. The error names those from
// which no table can be made.
func (s *State) adviseProfiles(a *leader.Advice) error {
	var useless []error
	shown := s.ProfileErrors()
	done := map[names.TableKey]bool{}
	for i := range s.pool.Members {
		p := &s.pool.Members[i]
		eachHeld(p, func(id leader.ModelID, part *leader.PartitionLanes) {
			key := names.TableKey{Model: id.Key(), Type: s.typeOf(p.Member, part)}
			m := s.findModel(id)
			if done[key] || m == nil {
				return
			}
			done[key] = true
			now := s.profileOf(p.Member, part, m, shown)
			if d := s.scaled[p.Name]; d != nil {
				g := profiles.AgentFactor{Factor: d.factor}
				if held := p.Model(id); held != nil {
					g = d.agentAt(held.Profile)
				}
				if now.table = now.table.ScaleBy(g.At); now.byRows != nil {
					now.byRows = now.byRows.ScaleBy(g.At)
				}
			}
			if before, ok := s.told[key]; ok && before.largest >= m.Largest &&
				before.sure == now.sure && before.law == now.law &&
				sameLatency(before.table, now.table, m.Largest) && (now.byRows == nil ||
				sameLatency(before.byRows, now.byRows, m.Largest)) {
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

// ProfileErrors returns by how much longer models take than their profiles say, for
// [profiles.Book.Expected] of the state's book.
func (s *State) ProfileErrors() *profiles.ProfileErrors {
	return s.book.ProfileErrors(func(model string) string {
		for i := range s.pool.Models {
			if m := &s.pool.Models[i]; m.Name == model {
				return familyOf(m)
			}
		}
		return model
	})
}

func familyOf(m *leader.HeldModel) string { return cmp.Or(m.Family, m.Name) }

// profileOf is the profile of a model on a part of a member's lanes; a guess if nothing was
// measured.
func (s *State) profileOf(member *leader.Member, part *leader.PartitionLanes, m *leader.HeldModel,
	shown *profiles.ProfileErrors) profile {
	var key profiles.Key
	if held := member.Model(m.ModelID); held != nil {
		key = held.Profile
	}
	if ofType, ok := s.keys[names.TableKey{Model: m.Key(), Type: part.Type}]; ok &&
		s.typeOf(member, part) == part.Type {
		key = ofType
	}
	now := profile{table: s.book.Expected(key, shown, familyOf(m)), largest: m.Largest, sure: true}
	l := s.book.FindLearner(key)
	if l != nil && l.Queries() < sureQueries && l.Queries() > 0 && !s.learned[key] ||
		l == nil && key.Beside != "" { // what neighbours cost is a guess, until queries have run
		now.sure = false
	}
	if now.table == nil {
		now.table = Guess(key, m.QoSTarget, m.Largest)
		now.sure = false
	}
	if w := s.works[m.ModelID]; w != nil && w.law != (work.Law{}) {
		now.law, now.byRows = w.law, now.table
		now.table = w.workTable(key, now.byRows)
	}
	return now
}

// longestGuess bounds a guessed latency. Quantiles of much longer ones would overflow.
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
	l := &leader.Latency{
		TableKey: key, Profile: p.table, Table: table, Doubtful: !p.sure, Told: data,
	}
	if p.byRows != nil {
		l.Law, l.ToldWork = p.law, data
		l.Told, err = json.Marshal(p.byRows)
	}
	return l, err
}

// sameLatency reports whether two profiles differ by less than what is told.
func sameLatency(a, b *profiles.Table, largest int) bool {
	near := func(x, y time.Duration, most float64) bool {
		return math.Abs(float64(x-y)) <= most*float64(max(x, y))
	}
	for _, batch := range []int{
		1, max(1, largest/8), max(1, largest/3), max(1, largest*2/3), largest,
	} {
		if !near(a.Mean(batch), b.Mean(batch), minChange) ||
			!near(a.Quantile(0.8, batch), b.Quantile(0.8, batch), minChange) ||
			!near(a.Load(batch), b.Load(batch), minTailChange) ||
			!near(a.Quantile(0.99, batch), b.Quantile(0.99, batch), minTailChange) {
			return false
		}
	}
	return true
}
