package agent

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
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

const (
	// A profile is looked at again at once for its first queries, if it was not learned before, then at most so often.
	studyFirst    = 32
	studyInterval = 250 * time.Millisecond
	// studyRest is how long queries and answers may gather before they are looked at: to be woken by each
	// of them would cost the leader more than to learn from it.
	studyRest = 5 * time.Millisecond
	// studyChange is by how much a mean or a quantile must change to be told.
	studyChange = 0.01
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
	// mostBins is how many bins of batch sizes a model has in the fluid program.
	mostBins = 100
)

// guess is the source of a profile of which nothing is known.
const guess = "a guess, until a query has run"

// A study learns from what has happened, and prices, beside a reign's loop: it
// is told the pool, arrivals and answers, and gives advice. One goroutine, run's, has it all
// but what the lock guards.
type study struct {
	reign *reign
	book  *profiles.Book
	wake  chan struct{} // the pool is another
	seen  chan struct{} // there are arrivals or observations
	asks  chan func()   // that read what the goroutine has

	mu           sync.Mutex
	news         *pool // nil: as before
	arrivals     []arrivalSeen
	observations []observation

	pool     *pool
	keys     map[tableKey]profiles.Key    // of the pool, see keysOf
	monitors map[string]*profiles.Monitor // by model key
	told     map[tableKey]toldProfile
	learned  map[profiles.Key]bool // the leader before has: no haste with the first queries
	scaled   map[string]float64    // the factor of those who have profiles of their own
	solver   fluid.Solver
	prices   []fluid.Price

	goneModels profiles.Absence[string]
	goneTables profiles.Absence[tableKey]

	unlooked, unpriced, unsaved bool // there is something to look at, price, save
	looked, priced, saved       time.Time
}

// A pool is what a study must know of members and models.
type pool struct {
	members []poolMember
	models  []poolModel
}

// described are the members as they have described themselves.
func (p *pool) described() (all []*control.Member) {
	for _, m := range p.members {
		all = append(all, m.member)
	}
	return all
}

type poolMember struct {
	member *control.Member
	models []string // keys
	lanes  int
}

type poolModel struct {
	key     string
	name    string
	version int64
	target  time.Duration
	share   float64
	largest int
}

type toldProfile struct {
	table   *profiles.Table
	largest int
	sure    bool
}

type arrivalSeen struct {
	model string
	batch int
	at    time.Time
}

type observation struct {
	member    *control.Member
	model     *leaderModel // only its name and version, which do not change
	batch     int
	execution time.Duration
	at        time.Time
}

// Advice is what a study has found out.
type advice struct {
	profiles []profileAdvice
	// factors is by agent, and slow the own type of those who have one; nil: as before.
	factors       map[string]float64
	slow          map[string]string
	solution      *fluid.Solution // nil: as before
	pricesChanged bool
	// What was there is not any more, and is to be forgotten unless it is there again.
	goneModels []string // keys
	goneTables []tableKey
}

type profileAdvice struct {
	message *control.Profile
	known   *known
}

func newStudy(r *reign) *study {
	return &study{
		reign: r, book: r.leader.book, wake: make(chan struct{}, 1), seen: make(chan struct{}, 1), asks: make(chan func()), pool: &pool{},
		monitors: map[string]*profiles.Monitor{}, told: map[tableKey]toldProfile{}, learned: map[profiles.Key]bool{}, scaled: map[string]float64{},
	}
}

// poolIs tells of the pool as it is now.
func (s *study) poolIs(p *pool) {
	s.mu.Lock()
	s.news = p
	s.mu.Unlock()
	signal(s.wake)
}

// arrived tells of a query.
func (s *study) arrived(model string, batch int, at time.Time) {
	s.mu.Lock()
	if len(s.arrivals) < mostObserved {
		s.arrivals = append(s.arrivals, arrivalSeen{model, batch, at})
	}
	s.mu.Unlock()
	signal(s.seen)
}

// observed tells of an answer.
func (s *study) observed(member *control.Member, m *leaderModel, batch int, execution time.Duration, at time.Time) {
	s.mu.Lock()
	if len(s.observations) < mostObserved {
		s.observations = append(s.observations, observation{member, m, batch, execution, at})
	}
	s.mu.Unlock()
	signal(s.seen)
}

// suggest gives profiles to start from, that the leader before has told. It is called before run.
func (s *study) suggest(v *control.View) {
	keys := keysOf(s.reign.leader.config.Catalogue, v.GetMembers())
	for _, p := range v.GetProfiles() {
		var t profiles.Table
		if strings.Contains(p.GetType(), "@") || json.Unmarshal(p.GetTable(), &t) != nil || t.Source() == guess {
			continue // then this agent starts from what it has itself
		}
		key, ok := keys[tableKey{p.GetModel(), p.GetType()}]
		if !ok {
			key = t.Key() // nobody holds it now
		}
		s.book.Begin(key, &t)
		s.learned[key] = t.Origin() == profiles.Learned
	}
}

// run studies until ctx ends.
func (s *study) run(ctx context.Context) {
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
			rest.Reset(studyRest)
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

// ask has run do something, and waits until it has; it reports false if the reign has ended.
func (s *study) ask(do func()) bool {
	done := make(chan struct{})
	select {
	case s.asks <- func() { do(); close(done) }:
		<-done
		return true
	case <-s.reign.ctx.Done():
		return false
	}
}

// demandOver is over how long the rates of a demand are.
const demandOver = time.Minute

// fillDemand adds what is asked of the models, and what was learned of them.
func (s *study) fillDemand(d *control.FleetDemand, now time.Time) {
	for _, m := range s.pool.models {
		known := &control.ModelDemand{
			Model: m.name, Version: m.version, QosTargetNs: int64(m.target), QosPercentile: m.share, LargestBatchSize: uint32(m.largest),
		}
		if monitor := s.monitors[m.key]; monitor != nil {
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
func (s *study) latest() (all []*profiles.Learner) {
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
func (s *study) look(now time.Time) (next time.Duration) {
	s.mu.Lock()
	news, arrivals, observations := s.news, s.arrivals, s.observations
	s.news, s.arrivals, s.observations = nil, nil, nil
	s.mu.Unlock()

	a := &advice{}
	if news != nil {
		s.pool, s.keys = news, keysOf(s.reign.leader.config.Catalogue, news.described())
	}
	for _, x := range arrivals {
		s.monitor(x)
	}
	urgent := news != nil
	for _, x := range observations {
		if heldBy(x.member, x.model.name, x.model.version) == nil {
			continue // of which files it was is not known any more
		}
		key := s.key(x.member, x.model.name, x.model.version)
		if s.book.Observe(key, x.batch, x.execution, x.member.GetName(), x.at) == nil {
			s.unlooked, s.unsaved = true, true
			urgent = urgent || !s.learned[key] && s.book.Learner(key).Queries() <= studyFirst
		}
	}
	if urgent || s.unlooked && now.Sub(s.looked) >= studyInterval {
		s.looked, s.unlooked = now, false
		s.compare(a)
		s.tell(a)
	}
	s.unpriced = s.unpriced || news != nil || len(a.profiles) > 0 || len(arrivals) > 0 && now.Sub(s.priced) >= pricesInterval
	if s.unpriced && (now.Sub(s.priced) >= studyInterval || s.prices == nil) {
		s.priced, s.unpriced = now, false
		s.price(a, now)
	}
	if s.unsaved && now.Sub(s.saved) >= saveInterval {
		s.saved = now
		s.save()
	}
	if len(a.profiles) > 0 || a.factors != nil || a.solution != nil {
		s.reign.post(func() { s.reign.advise(a) })
	}
	switch {
	case s.unlooked || s.unpriced:
		return studyInterval
	case s.unsaved:
		return saveInterval
	}
	return 0
}

// forget forgets what belongs to versions and lanes that have been gone for keepGone, and has the
// loop do so. A version that is there again before the loop does is told of as a new one.
func (s *study) forget(now time.Time) {
	models, tables, used := map[string]bool{}, map[tableKey]bool{}, map[profiles.Key]bool{}
	for _, p := range s.pool.members {
		for _, key := range p.models {
			models[key], tables[tableKey{key, s.typeOf(p.member)}] = true, true
			if m := s.pool.model(key); m != nil {
				used[s.key(p.member, m.name, m.version)] = true
			}
		}
	}
	a := &advice{}
	known := func(yield func(string) bool) {
		for i := range s.pool.models {
			if !yield(s.pool.models[i].key) {
				return
			}
		}
	}
	a.goneModels = s.goneModels.Over(now, keepGone, known, func(key string) bool { return models[key] })
	a.goneTables = s.goneTables.Over(now, keepGone, maps.Keys(s.told), func(key tableKey) bool { return tables[key] })
	for _, key := range a.goneTables {
		delete(s.told, key)
	}
	maps.DeleteFunc(s.monitors, func(key string, _ *profiles.Monitor) bool {
		return s.pool.model(key) == nil || slices.Contains(a.goneModels, key)
	})
	maps.DeleteFunc(s.told, func(key tableKey, _ toldProfile) bool { return slices.Contains(a.goneModels, key.model) })
	for _, key := range s.book.Forget(now, keepGone, func(key profiles.Key) bool { return used[key] }) {
		delete(s.learned, key)
		s.unsaved = true
	}
	if len(a.goneModels) > 0 || len(a.goneTables) > 0 {
		s.reign.post(func() { s.reign.forget(a) })
	}
}

func (s *study) monitor(x arrivalSeen) {
	m := s.monitors[x.model]
	if m == nil {
		if s.pool.model(x.model) == nil {
			return // clients must not be able to make monitors
		}
		m = profiles.NewMonitor()
		s.monitors[x.model] = m
	}
	if x.batch >= 1 && x.batch <= profiles.MaxBatchSize {
		_ = m.Observe(x.batch, x.at) // what could be wrong has been checked
	}
}

func (p *pool) model(key string) *poolModel {
	for i := range p.models {
		if p.models[i].key == key {
			return &p.models[i]
		}
	}
	return nil
}

// key names the profile of a version of a model on a member's lanes, of the files that it holds.
func (s *study) key(member *control.Member, model string, version int64) profiles.Key {
	held := heldBy(member, model, version)
	if held == nil {
		held = &control.Model{Name: model, Version: version}
	}
	return keyOf(s.reign.leader.config.Catalogue, member, held)
}

// heldBy is what a member says of a version of a model, nil if it does not hold it.
func heldBy(member *control.Member, model string, version int64) *control.Model {
	for _, m := range member.GetModels() {
		if m.GetName() == model && m.GetVersion() == version {
			return m
		}
	}
	return nil
}

// keysOf are the keys of the profiles of the models that members hold, by model and type of lanes.
// Where members of a type hold other files under the same version, the profile that is told of them
// all is of the files that most of them hold.
func keysOf(c *profiles.Catalogue, members []*control.Member) map[tableKey]profiles.Key {
	holders := map[profiles.Key]int{}
	most := map[tableKey]profiles.Key{}
	for _, member := range members {
		for _, m := range member.GetModels() {
			told, key := tableKey{control.ModelKey(m.GetName(), m.GetVersion()), member.LaneType()}, keyOf(c, member, m)
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
func (s *study) typeOf(m *control.Member) string {
	if _, own := s.scaled[m.GetName()]; own {
		return m.OwnLaneType()
	}
	return m.LaneType()
}

// compare finds out who departs from the type.
func (s *study) compare(a *advice) {
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
	a.factors, a.slow = map[string]float64{}, map[string]string{}
	there := map[string]bool{}
	for _, p := range s.pool.members {
		name := p.member.GetName()
		there[name] = true
		x := sums[name]
		if x == nil {
			delete(s.scaled, name)
			continue
		}
		f := math.Exp(x.logs / x.weights)
		a.factors[name] = f
		scale, own := s.scaled[name]
		switch away := math.Abs(f - 1); {
		case x.weights < 1/(slowError*slowError):
		case own && away < slowUntil:
			delete(s.scaled, name)
		case own && math.Abs(f/scale-1) > slowAgain, !own && away > slowFrom:
			s.scaled[name] = f
		}
		if _, own := s.scaled[name]; own {
			a.slow[name] = p.member.OwnLaneType()
		}
	}
	maps.DeleteFunc(s.scaled, func(name string, _ float64) bool { return !there[name] })
}

// tell gives the profiles that are new or have changed.
func (s *study) tell(a *advice) {
	done := map[tableKey]bool{}
	for _, p := range s.pool.members {
		for _, modelKey := range p.models {
			key := tableKey{modelKey, s.typeOf(p.member)}
			m := s.pool.model(modelKey)
			if done[key] || m == nil {
				continue
			}
			done[key] = true
			now := s.profile(p.member, m)
			if scale, own := s.scaled[p.member.GetName()]; own {
				now.table = now.table.Scale(scale)
			}
			if before, ok := s.told[key]; ok && before.largest >= m.largest && before.sure == now.sure && sameLatency(before.table, now.table, m.largest) {
				continue
			}
			advised, err := adviseProfile(key, now)
			if err != nil {
				s.reign.leader.log.Warn("a profile is of no use", "model", key.model, "type", key.typ, "error", err)
				continue
			}
			s.told[key] = now
			a.profiles = append(a.profiles, advised)
		}
	}
}

// profile is what is known of a model on a member's lanes, at the least a guess.
func (s *study) profile(member *control.Member, m *poolModel) toldProfile {
	key := s.key(member, m.name, m.version)
	if ofType, ok := s.keys[tableKey{m.key, member.LaneType()}]; ok && s.typeOf(member) == member.LaneType() {
		key = ofType
	}
	now := toldProfile{table: s.book.Table(key), largest: m.largest, sure: true}
	if l := s.book.Learner(key); l != nil && l.Queries() < sureQueries && l.Queries() > 0 && !s.learned[key] {
		now.sure = false
	}
	if now.table == nil {
		// Half of the QoS target for the largest batch: such a lane gets queries, and the first of them tells more.
		knot := func(batch int, mean time.Duration) profiles.Knot {
			mean = max(mean, 1)
			return profiles.Knot{BatchSize: batch, Mean: mean, P50: mean, P90: mean * 11 / 10, P99: mean * 13 / 10, Error: 1}
		}
		knots := []profiles.Knot{knot(1, m.target/10)}
		if m.largest > 1 {
			knots = append(knots, knot(m.largest, m.target/2))
		}
		now.table, _ = profiles.NewTable(key, profiles.Inherited, guess, knots) // these knots are right
		now.sure = false
	}
	return now
}

func adviseProfile(key tableKey, p toldProfile) (profileAdvice, error) {
	table, err := match.NewTable(p.table, p.largest)
	if err != nil {
		return profileAdvice{}, err
	}
	data, err := json.Marshal(p.table)
	if err != nil {
		return profileAdvice{}, err
	}
	return profileAdvice{
		message: &control.Profile{Model: key.model, Type: key.typ, Table: data},
		known:   &known{profile: p.table, table: table, sure: p.sure},
	}, nil
}

// sameLatency reports whether two profiles are alike.
func sameLatency(a, b *profiles.Table, largest int) bool {
	near := func(x, y time.Duration) bool {
		return math.Abs(float64(x-y)) <= studyChange*float64(max(x, y))
	}
	for _, batch := range []int{1, max(1, largest/8), max(1, largest/3), max(1, largest*2/3), largest} {
		if !near(a.Mean(batch), b.Mean(batch)) || !near(a.Quantile(0.8, batch), b.Quantile(0.8, batch)) {
			return false
		}
	}
	return true
}

// price solves the fluid program of the pool and the queries of late.
func (s *study) price(a *advice, now time.Time) {
	p := &fluid.Program{Unserved: 1}
	places := map[string]int{} // of types
	holds := map[tableKey]bool{}
	for _, m := range s.pool.members {
		if m.member.GetDraining() {
			continue
		}
		typ := s.typeOf(m.member)
		i, ok := places[typ]
		if !ok {
			i = len(p.Types)
			places[typ] = i
			p.Types = append(p.Types, fluid.Type{Name: typ})
		}
		p.Types[i].Count += m.lanes
		for _, key := range m.models {
			holds[tableKey{key, typ}] = true
		}
	}
	for i := range s.pool.models {
		m := &s.pool.models[i]
		monitor := s.monitors[m.key]
		if monitor == nil || monitor.Queries() == 0 {
			continue
		}
		const over = 30 * time.Second
		weight := monitor.Rate(now, over)
		if weight <= 0 {
			continue
		}
		p.Unserved = min(p.Unserved, 1-m.share)
		width := (m.largest + mostBins - 1) / mostBins
		for rest := monitor.Distribution(); len(rest) > 0; {
			end := (rest[0].BatchSize + width - 1) / width * width
			n := slices.IndexFunc(rest, func(x profiles.Share) bool { return x.BatchSize > end })
			if n < 0 {
				n = len(rest)
			}
			bin := fluid.Bin{Model: m.key, BatchSize: rest[n-1].BatchSize, Latency: make([]time.Duration, len(p.Types))}
			for _, x := range rest[:n] {
				bin.Share += x.Share * weight
			}
			for t := range p.Types {
				key := tableKey{m.key, p.Types[t].Name}
				if told, ok := s.told[key]; ok && holds[key] {
					if l := told.table.Mean(bin.BatchSize); l <= m.target {
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
		s.reign.leader.log.Warn("prices are not known", "error", err)
		return
	}
	a.solution = solution
	if solution.Rate > 0 && !samePrices(s.prices, solution.Prices) {
		s.prices, a.pricesChanged = solution.Prices, true
	}
}

// save keeps what was learned.
func (s *study) save() {
	if !s.unsaved {
		return
	}
	s.unsaved = false
	l := s.reign.leader
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
