package lead

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// A profile is looked at again at once for its first queries, if it was not learned before, then at most so often.
	learnFirst    = 32
	learnInterval = 250 * time.Millisecond
	// learnRest is how long queries and answers may gather before they are looked at: to be woken by each
	// of them would cost the leader more than to learn from it.
	learnRest = 5 * time.Millisecond
	// learnChange is by how much a mean or a quantile must change to be told.
	learnChange = 0.01
	// sureQueries is how many queries make a profile sure.
	sureQueries = 16
	// pricesInterval is how often prices are looked at while queries come.
	pricesInterval = 2 * time.Second
	// saveInterval is how often what was learned is kept.
	saveInterval = time.Minute
	// An agent gets a profile of its own when its factor departs from 1 by more than
	// slowFrom, until it is within slowUntil; that is scaled anew when the factor changes by
	// slowAgain. The factor counts when its standard error is at most slowError.
	slowFrom, slowUntil, slowAgain, slowError = 0.10, 0.05, 0.05, 0.04
	// mostObserved bounds what waits to be learned from; more is not.
	mostObserved = 1 << 14
	// keepGone is how long what belongs to a version that no member holds is kept, and to lanes of
	// which there are none: a restart or a rolling upgrade takes less. It is looked for every
	// lookGone.
	keepGone, lookGone = 5 * time.Minute, time.Minute
	// KeepTold is how long what was told of lanes that are gone is kept at most.
	KeepTold = keepGone + lookGone
	// mostBins is how many bins of batch sizes a model has in the fluid program.
	mostBins = 100
)

// guess is the source of a profile of which nothing is known.
const guess = "a guess, until a query has run"

// learning is the learning loop of a term: it learns from what has happened, and prices, beside the
// term's loop: it is told the pool, arrivals and answers, and gives advice. One goroutine, run's, has
// it all but what the lock guards.
type learning struct {
	term *term
	book *profiles.Book
	wake chan struct{} // the pool is another
	seen chan struct{} // there are arrivals or observations
	asks chan func()   // that read what the goroutine has

	mu           sync.Mutex
	news         *leader.Pool // nil: as before
	arrivals     []arrivalSeen
	observations []observation

	pool     *leader.Pool
	keys     map[leader.TableKey]profiles.Key // of the pool, see keysOf
	monitors map[leader.ModelID]*profiles.Monitor
	told     map[leader.TableKey]toldProfile
	learned  map[profiles.Key]bool // the leader before has: no haste with the first queries
	scaled   map[string]float64    // the factor of those who have profiles of their own
	solver   fluid.Solver
	prices   []fluid.Price

	goneModels profiles.Absence[leader.ModelID]
	goneTables profiles.Absence[leader.TableKey]

	unlooked, unpriced, unsaved bool // there is something to look at, price, save
	looked, priced, saved       time.Time
}

type toldProfile struct {
	table   *profiles.Table
	largest int
	sure    bool
}

type arrivalSeen struct {
	model leader.ModelID
	batch int
	at    time.Time
}

type observation struct {
	member    *leader.Member
	model     leader.ModelID
	batch     int
	execution time.Duration
	at        time.Time
}

func newLearning(t *term) *learning {
	return &learning{
		term: t, book: t.leader.book, wake: make(chan struct{}, 1), seen: make(chan struct{}, 1), asks: make(chan func()), pool: &leader.Pool{},
		monitors: map[leader.ModelID]*profiles.Monitor{}, told: map[leader.TableKey]toldProfile{}, learned: map[profiles.Key]bool{}, scaled: map[string]float64{},
	}
}

// poolIs tells of the pool as it is now.
func (s *learning) poolIs(p *leader.Pool) {
	s.mu.Lock()
	s.news = p
	s.mu.Unlock()
	signal(s.wake)
}

// arrived tells of a query.
func (s *learning) arrived(model leader.ModelID, batch int, at time.Time) {
	s.mu.Lock()
	if len(s.arrivals) < mostObserved {
		s.arrivals = append(s.arrivals, arrivalSeen{model, batch, at})
	}
	s.mu.Unlock()
	signal(s.seen)
}

// observed tells of an answer.
func (s *learning) observed(member *leader.Member, m leader.ModelID, batch int, execution time.Duration, at time.Time) {
	s.mu.Lock()
	if len(s.observations) < mostObserved {
		s.observations = append(s.observations, observation{member, m, batch, execution, at})
	}
	s.mu.Unlock()
	signal(s.seen)
}

// suggest gives profiles to start from, that the leader before has told. It is called before run.
func (s *learning) suggest(v *control.View) {
	members := make([]*leader.Member, len(v.GetMembers()))
	for i, m := range v.GetMembers() {
		members[i] = memberOf(s.term.leader.config.Catalogue, m)
	}
	keys := keysOf(members)
	for _, p := range v.GetProfiles() {
		var t profiles.Table
		if strings.Contains(p.GetType(), "@") || json.Unmarshal(p.GetTable(), &t) != nil || t.Source() == guess {
			continue // then this agent starts from what it has itself
		}
		key, ok := keys[leader.TableKey{Model: p.GetModel(), Type: p.GetType()}]
		if !ok {
			key = t.Key() // nobody holds it now
		}
		s.book.Begin(key, &t)
		s.learned[key] = t.Origin() == profiles.Learned
	}
}

// run learns until ctx ends.
func (s *learning) run(ctx context.Context) {
	s.saved = time.Now()
	defer s.save()
	timer := time.NewTimer(0)
	defer timer.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	gone := time.NewTicker(lookGone)
	defer gone.Stop()
	var seen <-chan struct{} // nil while it rests
	for {
		select {
		case <-s.wake:
		case <-seen:
			seen = nil
			rest.Reset(learnRest)
		case <-rest.C:
			seen = s.seen
			continue
		case <-timer.C:
		case <-gone.C:
			s.forget(time.Now())
		case ask := <-s.asks:
			ask()
			continue
		case <-ctx.Done():
			return
		}
		if next := s.look(time.Now()); next > 0 {
			timer.Reset(next)
		}
	}
}

// ask has run do something, and waits until it has; it reports false if the term has ended.
func (s *learning) ask(do func()) bool {
	done := make(chan struct{})
	select {
	case s.asks <- func() { do(); close(done) }:
		<-done
		return true
	case <-s.term.ctx.Done():
		return false
	}
}

// demandOver is over how long the rates of a demand are.
const demandOver = time.Minute

// fillDemand adds what is asked of the models, and what was learned of them.
func (s *learning) fillDemand(d *control.FleetDemand, now time.Time) {
	for i := range s.pool.Models {
		m := &s.pool.Models[i]
		known := &control.ModelDemand{
			Model: m.Name, Version: m.Version, QosTargetNs: int64(m.QoSTarget), QosPercentile: m.Share, LargestBatchSize: uint32(m.Largest),
		}
		if monitor := s.monitors[m.ModelID]; monitor != nil {
			known.Queries, known.Rate = uint64(monitor.Queries()), monitor.Rate(now, demandOver)
			for _, x := range monitor.Distribution() {
				known.BatchSizes, known.Shares = append(known.BatchSizes, uint32(x.BatchSize)), append(known.Shares, x.Share)
			}
		}
		d.Models = append(d.Models, known)
	}
	for _, l := range s.latest() {
		table, err := json.Marshal(l.Table())
		if err != nil {
			continue // what was learned can be written
		}
		d.Profiles = append(d.Profiles, &control.LearnedProfile{Table: table, Queries: l.Queries(), AgeNs: int64(now.Sub(l.Updated()))})
	}
}

// latest are the learners that have seen queries, of each version but those of the files that ran last.
func (s *learning) latest() (all []*profiles.Learner) {
	for _, key := range s.book.Keys() { // those that differ in the checksum stand together
		l := s.book.Learner(key)
		if l.Queries() == 0 {
			continue
		}
		if n := len(all); n > 0 {
			before := all[n-1].Key()
			before.Checksum = key.Checksum
			if before == key {
				if l.Updated().After(all[n-1].Updated()) {
					all[n-1] = l
				}
				continue
			}
		}
		all = append(all, l)
	}
	return all
}

// look takes what there is and gives advice; it returns after how long there will be more to
// do, 0 if only new events can bring it.
func (s *learning) look(now time.Time) (next time.Duration) {
	s.mu.Lock()
	news, arrivals, observations := s.news, s.arrivals, s.observations
	s.news, s.arrivals, s.observations = nil, nil, nil
	s.mu.Unlock()

	a := &leader.Advice{}
	if news != nil {
		members := make([]*leader.Member, len(news.Members))
		for i, m := range news.Members {
			members[i] = m.Member
		}
		s.pool, s.keys = news, keysOf(members)
	}
	for _, x := range arrivals {
		s.monitor(x)
	}
	urgent := news != nil
	for _, x := range observations {
		held := x.member.Model(x.model)
		if held == nil {
			continue // of which files it was is not known any more
		}
		key := held.Profile
		if s.book.Observe(key, x.batch, x.execution, x.member.Name, x.at) == nil {
			s.unlooked, s.unsaved = true, true
			urgent = urgent || !s.learned[key] && s.book.Learner(key).Queries() <= learnFirst
		}
	}
	if urgent || s.unlooked && now.Sub(s.looked) >= learnInterval {
		s.looked, s.unlooked = now, false
		s.compare(a)
		s.tell(a)
	}
	s.unpriced = s.unpriced || news != nil || len(a.Latencies) > 0 || len(arrivals) > 0 && now.Sub(s.priced) >= pricesInterval
	if s.unpriced && (now.Sub(s.priced) >= learnInterval || s.prices == nil) {
		s.priced, s.unpriced = now, false
		s.price(a, now)
	}
	if s.unsaved && now.Sub(s.saved) >= saveInterval {
		s.saved = now
		s.save()
	}
	if len(a.Latencies) > 0 || a.Factors != nil || a.Priced {
		s.term.post(func() { s.term.advise(a) })
	}
	switch {
	case s.unlooked || s.unpriced:
		return learnInterval
	case s.unsaved:
		return saveInterval
	}
	return 0
}

// forget forgets what belongs to versions and lanes that have been gone for keepGone, and has the
// loop do so. A version that is there again before the loop does is told of as a new one.
func (s *learning) forget(now time.Time) {
	models, tables, used := map[leader.ModelID]bool{}, map[leader.TableKey]bool{}, map[profiles.Key]bool{}
	for _, p := range s.pool.Members {
		for _, id := range p.Holds {
			models[id], tables[leader.TableKey{Model: id.Key(), Type: s.typeOf(p.Member)}] = true, true
			if held := p.Model(id); held != nil && s.model(id) != nil {
				used[held.Profile] = true
			}
		}
	}
	known := func(yield func(leader.ModelID) bool) {
		for i := range s.pool.Models {
			if !yield(s.pool.Models[i].ModelID) {
				return
			}
		}
	}
	goneModels := s.goneModels.Over(now, keepGone, known, func(id leader.ModelID) bool { return models[id] })
	goneTables := s.goneTables.Over(now, keepGone, maps.Keys(s.told), func(key leader.TableKey) bool { return tables[key] })
	for _, key := range goneTables {
		delete(s.told, key)
	}
	maps.DeleteFunc(s.monitors, func(id leader.ModelID, _ *profiles.Monitor) bool {
		return s.model(id) == nil || slices.Contains(goneModels, id)
	})
	maps.DeleteFunc(s.told, func(key leader.TableKey, _ toldProfile) bool {
		return slices.ContainsFunc(goneModels, func(id leader.ModelID) bool { return id.Key() == key.Model })
	})
	for _, key := range s.book.Forget(now, keepGone, func(key profiles.Key) bool { return used[key] }) {
		delete(s.learned, key)
		s.unsaved = true
	}
	if len(goneModels) > 0 || len(goneTables) > 0 {
		s.term.post(func() {
			s.term.step(leader.Event{Kind: leader.Outdated, Models: goneModels, Tables: goneTables})
		})
	}
}

func (s *learning) monitor(x arrivalSeen) {
	m := s.monitors[x.model]
	if m == nil {
		if s.model(x.model) == nil {
			return // clients must not be able to make monitors
		}
		m = profiles.NewMonitor()
		s.monitors[x.model] = m
	}
	if x.batch >= 1 && x.batch <= profiles.MaxBatchSize {
		_ = m.Observe(x.batch, x.at) // what could be wrong has been checked
	}
}

// model is what the pool says of a version of a model, nil if it has none.
func (s *learning) model(id leader.ModelID) *leader.Model {
	for i := range s.pool.Models {
		if s.pool.Models[i].ModelID == id {
			return &s.pool.Models[i]
		}
	}
	return nil
}

// keysOf are the keys of the profiles of the models that members hold, by model and type of lanes.
// Where members of a type hold other files under the same version, the profile that is told of them
// all is of the files that most of them hold.
func keysOf(members []*leader.Member) map[leader.TableKey]profiles.Key {
	holders := map[profiles.Key]int{}
	most := map[leader.TableKey]profiles.Key{}
	for _, member := range members {
		for i := range member.Models {
			told, key := leader.TableKey{Model: member.Models[i].Key(), Type: member.Type}, member.Models[i].Profile
			holders[key]++
			before, ok := most[told]
			if n := holders[before]; !ok || holders[key] > n || holders[key] == n && key.Checksum < before.Checksum {
				most[told] = key
			}
		}
	}
	return most
}

// typeOf is what the member's lanes are to the matcher.
func (s *learning) typeOf(m *leader.Member) string {
	if _, own := s.scaled[m.Name]; own {
		return m.OwnType
	}
	return m.Type
}

// compare finds out who departs from the type.
func (s *learning) compare(a *leader.Advice) {
	type sum struct{ logs, weights float64 }
	sums := map[string]*sum{}
	for _, key := range s.book.Keys() {
		agents := s.book.Learner(key).Agents()
		if len(agents) < 2 {
			continue
		}
		for _, g := range agents {
			const floor = 0.01 // no factor is surer than this
			w := 1 / (g.Error*g.Error + floor*floor)
			x := sums[g.Name]
			if x == nil {
				x = &sum{}
				sums[g.Name] = x
			}
			x.logs += w * math.Log(g.Factor)
			x.weights += w
		}
	}
	a.Factors, a.Slow = map[string]float64{}, map[string]string{}
	there := map[string]bool{}
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
	maps.DeleteFunc(s.scaled, func(name string, _ float64) bool { return !there[name] })
}

// tell gives the profiles that are new or have changed.
func (s *learning) tell(a *leader.Advice) {
	done := map[leader.TableKey]bool{}
	for _, p := range s.pool.Members {
		for _, id := range p.Holds {
			key := leader.TableKey{Model: id.Key(), Type: s.typeOf(p.Member)}
			m := s.model(id)
			if done[key] || m == nil {
				continue
			}
			done[key] = true
			now := s.profile(p.Member, m)
			if scale, own := s.scaled[p.Name]; own {
				now.table = now.table.Scale(scale)
			}
			if before, ok := s.told[key]; ok && before.largest >= m.Largest && before.sure == now.sure && sameLatency(before.table, now.table, m.Largest) {
				continue
			}
			latency, err := latencyOf(key, now)
			if err != nil {
				s.term.leader.log.Warn("a profile is of no use", "model", key.Model, "type", key.Type, "error", err)
				continue
			}
			s.told[key] = now
			a.Latencies = append(a.Latencies, latency)
		}
	}
}

// profile is what is known of a model on a member's lanes, at the least a guess.
func (s *learning) profile(member *leader.Member, m *leader.Model) toldProfile {
	var key profiles.Key
	if held := member.Model(m.ModelID); held != nil {
		key = held.Profile
	}
	if ofType, ok := s.keys[leader.TableKey{Model: m.Key(), Type: member.Type}]; ok && s.typeOf(member) == member.Type {
		key = ofType
	}
	now := toldProfile{table: s.book.Table(key), largest: m.Largest, sure: true}
	if l := s.book.Learner(key); l != nil && l.Queries() < sureQueries && l.Queries() > 0 && !s.learned[key] {
		now.sure = false
	}
	if now.table == nil {
		// Half of the QoS target for the largest batch: such a lane gets queries, and the first of them tells more.
		knot := func(batch int, mean time.Duration) profiles.Knot {
			mean = max(mean, 1)
			return profiles.Knot{BatchSize: batch, Mean: mean, P50: mean, P90: mean * 11 / 10, P99: mean * 13 / 10, Error: 1}
		}
		knots := []profiles.Knot{knot(1, m.QoSTarget/10)}
		if m.Largest > 1 {
			knots = append(knots, knot(m.Largest, m.QoSTarget/2))
		}
		now.table, _ = profiles.NewTable(key, profiles.Inherited, guess, knots) // these knots are right
		now.sure = false
	}
	return now
}

func latencyOf(key leader.TableKey, p toldProfile) (*leader.Latency, error) {
	table, err := match.NewTable(p.table, p.largest)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(p.table)
	if err != nil {
		return nil, err
	}
	return &leader.Latency{TableKey: key, Profile: p.table, Table: table, Doubtful: !p.sure, Told: data}, nil
}

// sameLatency reports whether two profiles are alike.
func sameLatency(a, b *profiles.Table, largest int) bool {
	near := func(x, y time.Duration) bool {
		return math.Abs(float64(x-y)) <= learnChange*float64(max(x, y))
	}
	for _, batch := range []int{1, max(1, largest/8), max(1, largest/3), max(1, largest*2/3), largest} {
		if !near(a.Mean(batch), b.Mean(batch)) || !near(a.Quantile(0.8, batch), b.Quantile(0.8, batch)) {
			return false
		}
	}
	return true
}

// price solves the fluid program of the pool and the queries of late.
func (s *learning) price(a *leader.Advice, now time.Time) {
	p := &fluid.Program{Unserved: 1}
	places := map[string]int{} // of types
	holds := map[leader.TableKey]bool{}
	for _, m := range s.pool.Members {
		if m.Draining {
			continue
		}
		typ := s.typeOf(m.Member)
		i, ok := places[typ]
		if !ok {
			i = len(p.Types)
			places[typ] = i
			p.Types = append(p.Types, fluid.Type{Name: typ})
		}
		p.Types[i].Count += m.Lanes
		for _, id := range m.Holds {
			holds[leader.TableKey{Model: id.Key(), Type: typ}] = true
		}
	}
	for i := range s.pool.Models {
		m := &s.pool.Models[i]
		name, monitor := m.Key(), s.monitors[m.ModelID]
		if monitor == nil || monitor.Queries() == 0 {
			continue
		}
		const over = 30 * time.Second
		weight := monitor.Rate(now, over)
		if weight <= 0 {
			continue
		}
		p.Unserved = min(p.Unserved, 1-m.Share)
		width := (m.Largest + mostBins - 1) / mostBins
		for rest := monitor.Distribution(); len(rest) > 0; {
			end := (rest[0].BatchSize + width - 1) / width * width
			n := slices.IndexFunc(rest, func(x profiles.Share) bool { return x.BatchSize > end })
			if n < 0 {
				n = len(rest)
			}
			bin := fluid.Bin{Model: name, BatchSize: rest[n-1].BatchSize, Latency: make([]time.Duration, len(p.Types))}
			for _, x := range rest[:n] {
				bin.Share += x.Share * weight
			}
			for t := range p.Types {
				key := leader.TableKey{Model: name, Type: p.Types[t].Name}
				if told, ok := s.told[key]; ok && holds[key] {
					if l := told.table.Mean(bin.BatchSize); l <= m.QoSTarget {
						bin.Latency[t] = l
					}
				}
			}
			p.Bins = append(p.Bins, bin)
			rest = rest[n:]
		}
	}
	if len(p.Bins) == 0 || len(p.Types) == 0 {
		return
	}
	p.Unserved = min(max(p.Unserved, 0), 0.5)
	solution, err := s.solver.Solve(p)
	if err != nil {
		s.term.leader.log.Warn("prices are not known", "error", err)
		return
	}
	a.Limit, a.Priced = solution.Rate, true
	if solution.Rate > 0 && !samePrices(s.prices, solution.Prices) {
		s.prices = solution.Prices
		a.Prices = slices.Clone(s.prices)
	}
}

// save keeps what was learned.
func (s *learning) save() {
	if !s.unsaved {
		return
	}
	s.unsaved = false
	l := s.term.leader
	if l.forgetful {
		return
	}
	err := os.MkdirAll(l.config.StateDir, 0o755)
	if err == nil {
		err = s.book.Save(l.bookPath())
	}
	if err != nil {
		l.log.Warn("what was learned is not kept", "error", fmt.Errorf("profiles: %w", err))
	}
}

// samePrices reports whether two lists are alike but for 2 %.
func samePrices(a, b []fluid.Price) bool {
	near := func(x, y float64) bool { return max(x, y)-min(x, y) <= 0.02*max(x, y) }
	return slices.EqualFunc(a, b, func(p, q fluid.Price) bool {
		return p.Type == q.Type && near(p.PerMs, q.PerMs) && near(float64(p.Service), float64(q.Service))
	})
}
