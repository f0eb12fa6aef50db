package learn

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/profiles"
)

const (
	// For the first firstQueries queries of a profile that was not learned before, advice is due at
	// once; later on, at the interval below. Both are chosen: a profile is good after about thirty
	// queries (profiles.Learner).
	firstQueries = 32
	interval     = 250 * time.Millisecond
	// pricesInterval is how often prices are computed while queries arrive. Chosen; it is far below
	// pricedOver, over which rates are averaged.
	pricesInterval = 2 * time.Second
	// keepGone is how long the state keeps what belongs to a version that no member holds or could
	// load, or to a type that no lane has. A restart or a rolling upgrade takes less time.
	keepGone = 5 * time.Minute
	// ForgetInterval is how often the caller should call [State.Forget].
	ForgetInterval = time.Minute
	// KeepTold is the longest time for which a term keeps latencies of lanes that are gone:
	// keepGone and the wait for the next Forget. Receivers of the latencies must keep them no
	// shorter.
	KeepTold = keepGone + ForgetInterval
	// demandOver is the time over which a demand's rates are averaged.
	demandOver = time.Minute
)

// guess is the source named in a profile that was not measured.
const guess = "a guess, until a query has run"

// A State is the state of one term's learning loop. It is not safe for concurrent use. Times must
// not run backwards.
type State struct {
	book     *profiles.Book
	pool     *leader.Pool
	keys     map[names.TableKey]profiles.Key // for the pool; see keysOf
	monitors map[leader.ModelID]*profiles.Monitor
	told     map[names.TableKey]profile
	// learned by a former leader: its first queries are not urgent
	learned map[profiles.Key]bool
	scaled  map[names.AgentName]*departure // by agent with profiles of its own
	solver  fluid.Solver
	prices  []fluid.Price
	unmet   map[names.ModelKey]unmet      // see unmetOf
	works   map[leader.ModelID]*modelWork // of models whose queries have users or values

	goneModels profiles.Absence[leader.ModelID]
	goneTables profiles.Absence[names.TableKey]
	goneWorks  profiles.Absence[leader.ModelID]

	changes []DemandChange // since they were last asked for

	// unlooked: observations came since the last comparison of profiles. unpriced: arrivals came
	// since the last pricing. changed: the book has changed since the last call of [State.Changed].
	unlooked, unpriced, changed bool
	looked, priced              time.Time
}

// An unmet is the share of a model's queries that no lane answers in time, when that was last more
// than may be late.
type unmet struct {
	share float64
	at    time.Time
}

// Seen is what happened in the term since the last [State.Look].
type Seen struct {
	// Pool lists the present members and models; nil means: as before. The state keeps it: the
	// caller must not change it afterwards.
	Pool         *leader.Pool
	Arrivals     []Arrival
	Observations []Observation
}

// An Arrival is the arrival of one query.
type Arrival struct {
	Model     leader.ModelID
	BatchSize int // its work
	At        time.Time
}

// An Observation says how long a query ran on a lane of a member's; until it ended or, if it is
// Cut, until it was cut off.
type Observation struct {
	Member    *leader.Member
	Model     leader.ModelID
	BatchSize int // rows
	// Users and Values are those of the run; Users is below 0 if they are not known.
	Users, Values int
	Execution     time.Duration
	At            time.Time
	Cut           bool
}

// New returns the state of a new term. The book holds the profiles known from before. The state
// owns it from now on, and adds what it learns.
func New(book *profiles.Book) *State {
	return &State{
		book: book, pool: &leader.Pool{}, monitors: map[leader.ModelID]*profiles.Monitor{},
		told: map[names.TableKey]profile{}, learned: map[profiles.Key]bool{},
		scaled: map[names.AgentName]*departure{}, unmet: map[names.ModelKey]unmet{},
		works: map[leader.ModelID]*modelWork{},
	}
}

// Suggest gives the state the profiles that the former leader had told, to start from. Of each
// latency only Told is read. It must be called before the first Look, with the present members.
func (s *State) Suggest(members []*leader.Member, told []leader.Latency) {
	keys := keysOf(members)
	for i := range told {
		l := &told[i]
		var t profiles.Table
		if l.Type.IsOwn() || json.Unmarshal(l.Told, &t) != nil ||
			t.Source() == guess {
			continue // then the state starts from what its book has
		}
		key, ok := keys[l.TableKey]
		if !ok {
			if l.Type.IsShared() {
				continue // what is told does not say beside which models
			}
			key = t.Key() // no member holds the model now
		}
		if t.Origin() != profiles.Learned && s.book.Table(key) != nil {
			// what is known here, and what queries show, says as much, and changes with them
			continue
		}
		// from a file, which does not say how long outliers are
		if l := s.book.FindLearner(key); l != nil {
			l.Inherit(&t)
		}
		s.book.Begin(key, &t)
		s.learned[key] = t.Origin() == profiles.Learned
		s.suggestWork(key, l)
	}
}

// Look takes what happened and returns the advice that follows, nil if there is none, and after how
// long to call it again, 0 if only new events can bring more advice. The error says which results
// cannot be computed; it is the same at every call until more is learned.
func (s *State) Look(now time.Time, seen Seen) (a *leader.Advice, next time.Duration, err error) {
	urgent := seen.Pool != nil
	if urgent {
		members := make([]*leader.Member, len(seen.Pool.Members))
		for i, m := range seen.Pool.Members {
			members[i] = m.Member
		}
		s.pool, s.keys = seen.Pool, keysOf(members)
	}
	for _, x := range seen.Arrivals {
		s.monitorArrival(x)
	}
	for _, x := range seen.Observations {
		urgent = s.observeExecution(x) || urgent
	}
	a = &leader.Advice{}
	var useless, unpriced error
	if urgent || s.unlooked && now.Sub(s.looked) >= interval {
		s.looked, s.unlooked = now, false
		s.findDepartures(a)
		useless = s.adviseProfiles(a)
	}
	s.unpriced = s.unpriced || seen.Pool != nil || len(a.Latencies) > 0 ||
		len(seen.Arrivals) > 0 && now.Sub(s.priced) >= pricesInterval
	if s.unpriced && (now.Sub(s.priced) >= interval || s.prices == nil) {
		s.priced, s.unpriced = now, false
		unpriced = s.solvePrices(a, now)
	}
	if len(a.Latencies) == 0 && a.Factors == nil && !a.Priced {
		a = nil
	}
	if s.unlooked || s.unpriced {
		next = interval
	}
	return a, next, errors.Join(useless, unpriced)
}

// monitorArrival adds a query's arrival to the monitor of its model.
func (s *State) monitorArrival(x Arrival) {
	model := s.findModel(x.Model)
	if model == nil {
		return // a client could otherwise make the leader keep monitors for any name
	}
	m := s.monitors[x.Model]
	if m == nil {
		m = profiles.NewMonitor()
		s.monitors[x.Model] = m
	}
	// A query of another batch size is refused, and no lane could serve it.
	if x.BatchSize >= 1 && x.BatchSize <= min(model.Largest, profiles.MaxBatchSize) {
		_ = m.Observe(x.BatchSize, x.At) // cannot fail: the arguments have been checked
	}
	if change, ok := m.Change(); ok {
		s.changes = append(s.changes, DemandChange{x.Model, change})
		m.Rebase()
	}
}

// A DemandChange says how what is asked of a version of a model has changed.
type DemandChange struct {
	Model leader.ModelID
	profiles.Change
}

// DemandChanges returns the changes seen since the last call. What is asked now is the reference
// for the next ones.
func (s *State) DemandChanges() []DemandChange {
	changes := s.changes
	s.changes = nil
	return changes
}

// observeExecution adds one execution to the profile that it belongs to, and reports whether advice
// on it is urgent.
func (s *State) observeExecution(x Observation) (urgent bool) {
	held := x.Member.Model(x.Model)
	if held == nil {
		return false // the member no longer says which files ran
	}
	key := held.Profile
	observe := s.book.Observe
	if x.Cut {
		observe = s.book.ObserveCut
	}
	if observe(key, x.BatchSize, x.Execution, x.Member.Name, x.At) != nil {
		return false
	}
	s.unlooked, s.changed = true, true
	s.observeWork(key, &x)
	l := s.book.FindLearner(key)
	return !s.learned[key] && l != nil && l.Queries() <= firstQueries
}

// Forget drops what belongs to versions and lanes that have been gone for keepGone, and returns
// their names, so that the term drops them too. If a version comes back before the term has dropped
// it, its latencies are told again as if it were new.
func (s *State) Forget(now time.Time) (models []leader.ModelID, tables []names.TableKey) {
	heldModels, heldTables := map[leader.ModelID]bool{}, map[names.TableKey]bool{}
	used := map[profiles.Key]bool{}
	for i := range s.pool.Members {
		p := &s.pool.Members[i]
		eachHeld(p, func(id leader.ModelID, part *leader.PartitionLanes) {
			heldModels[id], heldTables[names.TableKey{
				Model: id.Key(), Type: s.typeOf(p.Member, part),
			}] = true, true
			if held := p.Model(id); held != nil && s.findModel(id) != nil {
				used[held.Profile] = true
			}
		})
	}
	known := func(yield func(leader.ModelID) bool) {
		for i := range s.pool.Models {
			if !yield(s.pool.Models[i].ModelID) {
				return
			}
		}
	}
	models = s.goneModels.Over(now, keepGone, known,
		func(id leader.ModelID) bool { return heldModels[id] || s.pool.Loadable[id] })
	tables = s.goneTables.Over(now, keepGone, maps.Keys(s.told),
		func(key names.TableKey) bool { return heldTables[key] })
	slices.SortFunc(tables, names.TableKey.Compare)
	for _, key := range tables {
		delete(s.told, key)
	}
	s.forgetWorks(now, models, used)
	maps.DeleteFunc(s.monitors, func(id leader.ModelID, _ *profiles.Monitor) bool {
		return s.findModel(id) == nil || slices.Contains(models, id)
	})
	maps.DeleteFunc(s.told, func(key names.TableKey, _ profile) bool {
		return slices.ContainsFunc(models,
			func(id leader.ModelID) bool { return id.Key() == key.Model })
	})
	for _, key := range s.book.Forget(now, keepGone,
		func(key profiles.Key) bool { return used[key] }) {
		delete(s.learned, key)
		s.changed = true
	}
	return models, tables
}

// Changed reports whether the book has changed since the last call.
func (s *State) Changed() bool {
	changed := s.changed
	s.changed = false
	return changed
}

// A Demand describes the queries for a version of a model. Those for a family count for its most
// accurate variant.
type Demand struct {
	*leader.HeldModel
	Queries    int     // number of queries counted in BatchSizes
	Rate       float64 // queries/s, over the last minute
	BatchSizes profiles.Distribution
}

// Demand returns the demand of each model of the pool, in the pool's order.
func (s *State) Demand(now time.Time) []Demand {
	all := make([]Demand, len(s.pool.Models))
	for i := range s.pool.Models {
		m := &s.pool.Models[i]
		all[i].HeldModel = m
		if monitor := s.monitors[m.ModelID]; monitor != nil {
			all[i].Queries, all[i].Rate = monitor.Queries(), monitor.Rate(now, demandOver)
			all[i].BatchSizes = monitor.Distribution()
		}
	}
	return all
}

// Learned returns the learners that have seen queries; if several differ only in the model's
// checksum, the one that ran last. They are valid until the next call of any method; the caller
// must not change them.
func (s *State) Learned() (all []*profiles.Learner) {
	for _, key := range s.book.Keys() { // keys that differ only in the checksum are neighbours
		l := s.book.FindLearner(key)
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

// Sizes counts what the state keeps in memory, by name of the collection, so that tests can check
// what it forgets.
func (s *State) Sizes() map[string]int {
	return map[string]int{
		"monitors": len(s.monitors), "told": len(s.told), "learned": len(s.learned),
		"scaled": len(s.scaled), "works": len(s.works),
		"book": len(s.book.Keys()),
	}
}

// findModel is the pool's entry for a version of a model, nil if there is none.
func (s *State) findModel(id leader.ModelID) *leader.HeldModel {
	for i := range s.pool.Models {
		if s.pool.Models[i].ModelID == id {
			return &s.pool.Models[i]
		}
	}
	return nil
}

// keysOf returns the profile keys of the models that members hold, by model and type of lanes. If
// members of one type hold different files under the same version, the key is that of the files
// that most of them hold.
func keysOf(members []*leader.Member) map[names.TableKey]profiles.Key {
	holders := map[profiles.Key]int{}
	most := map[names.TableKey]profiles.Key{}
	for _, member := range members {
		for _, part := range member.Groups() {
			for _, id := range part.Models {
				model := member.Model(id)
				if model == nil {
					continue
				}
				told, key := names.TableKey{Model: id.Key(), Type: part.Type}, model.Profile
				holders[key]++
				before, ok := most[told]
				if n := holders[before]; !ok || holders[key] > n ||
					holders[key] == n && key.Checksum < before.Checksum {
					most[told] = key
				}
			}
		}
	}
	return most
}
