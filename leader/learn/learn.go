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
	// A profile is looked at again at once for its first queries, if it was not learned before,
	// then at most so often.
	firstQueries = 32
	interval     = 250 * time.Millisecond
	// pricesInterval is how often prices are looked at while queries come.
	pricesInterval = 2 * time.Second
	// keepGone is how long what belongs to a version that no member holds is kept, and to lanes of
	// which there are none: a restart or a rolling upgrade takes less.
	keepGone = 5 * time.Minute
	// ForgetInterval is how often [State.Forget] is to be called.
	ForgetInterval = time.Minute
	// KeepTold is how long what was told of lanes that are gone is kept at most.
	KeepTold = keepGone + ForgetInterval
	// demandOver is over how long the rates of a demand are.
	demandOver = time.Minute
)

// guess is the source of a profile of which nothing is known.
const guess = "a guess, until a query has run"

// A State is what the learning loop of a term knows. It is not safe for concurrent use. Times must
// not run backwards.
type State struct {
	book     *profiles.Book
	pool     *leader.Pool
	keys     map[names.TableKey]profiles.Key // of the pool, see keysOf
	monitors map[leader.ModelID]*profiles.Monitor
	told     map[names.TableKey]profile
	learned  map[profiles.Key]bool       // the leader before has: no haste with the first queries
	scaled   map[names.AgentName]float64 // the factor of those who have profiles of their own
	solver   fluid.Solver
	prices   []fluid.Price

	goneModels profiles.Absence[leader.ModelID]
	goneTables profiles.Absence[names.TableKey]

	changes []DemandChange // since they were last asked for

	// There is something to compare and tell, and to price, since it was last done; the book has
	// changed since [State.Changed] said so.
	unlooked, unpriced, changed bool
	looked, priced              time.Time
}

// Seen is what a term has seen since the last look.
type Seen struct {
	// Pool has the members and models there are; nil: as before. It must not change afterwards.
	Pool         *leader.Pool
	Arrivals     []Arrival
	Observations []Observation
}

// An Arrival is of a query.
type Arrival struct {
	Model     leader.ModelID
	BatchSize int
	At        time.Time
}

// An Observation says how long a query ran on a lane of a member's.
type Observation struct {
	Member    *leader.Member
	Model     leader.ModelID
	BatchSize int
	Execution time.Duration
	At        time.Time
}

// New returns the state of a term that begins. The book has what is known from before, and belongs
// to the state: it gets what is learned.
func New(book *profiles.Book) *State {
	return &State{
		book: book, pool: &leader.Pool{}, monitors: map[leader.ModelID]*profiles.Monitor{},
		told: map[names.TableKey]profile{}, learned: map[profiles.Key]bool{},
		scaled: map[names.AgentName]float64{},
	}
}

// Suggest gives profiles to start from, that the leader before has told: of each counts Told. It is
// called before the first look; the members are those there are.
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
			key = t.Key() // nobody holds it now
		}
		s.book.Begin(key, &t)
		s.learned[key] = t.Origin() == profiles.Learned
	}
}

// Look takes what was seen, and returns what follows from it, nil for nothing, and after how long
// there will be more to do, 0 if only new events can bring it. The error says of what no advice can
// be given, which holds for as long as nothing else is learned.
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
		s.monitor(x)
	}
	for _, x := range seen.Observations {
		urgent = s.observe(x) || urgent
	}
	a = &leader.Advice{}
	var useless, unpriced error
	if urgent || s.unlooked && now.Sub(s.looked) >= interval {
		s.looked, s.unlooked = now, false
		s.compare(a)
		useless = s.tell(a)
	}
	s.unpriced = s.unpriced || seen.Pool != nil || len(a.Latencies) > 0 ||
		len(seen.Arrivals) > 0 && now.Sub(s.priced) >= pricesInterval
	if s.unpriced && (now.Sub(s.priced) >= interval || s.prices == nil) {
		s.priced, s.unpriced = now, false
		unpriced = s.price(a, now)
	}
	if len(a.Latencies) == 0 && a.Factors == nil && !a.Priced {
		a = nil
	}
	if s.unlooked || s.unpriced {
		next = interval
	}
	return a, next, errors.Join(useless, unpriced)
}

// monitor takes the arrival of a query.
func (s *State) monitor(x Arrival) {
	m := s.monitors[x.Model]
	if m == nil {
		if s.model(x.Model) == nil {
			return // clients must not be able to make monitors
		}
		m = profiles.NewMonitor()
		s.monitors[x.Model] = m
	}
	if x.BatchSize >= 1 && x.BatchSize <= profiles.MaxBatchSize {
		_ = m.Observe(x.BatchSize, x.At) // what could be wrong has been checked
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

// observe learns from how long a query ran, and reports whether that cannot wait to be told.
func (s *State) observe(x Observation) (urgent bool) {
	held := x.Member.Model(x.Model)
	if held == nil {
		return false // of which files it was is not known any more
	}
	key := held.Profile
	if s.book.Observe(key, x.BatchSize, x.Execution, x.Member.Name, x.At) != nil {
		return false
	}
	s.unlooked, s.changed = true, true
	return !s.learned[key] && s.book.Learner(key).Queries() <= firstQueries
}

// Forget forgets what belongs to versions and lanes that have been gone for long, and returns
// them, for the term to forget. A version that is there again before the term does is told of
// as a new one.
func (s *State) Forget(now time.Time) (models []leader.ModelID, tables []names.TableKey) {
	heldModels, heldTables := map[leader.ModelID]bool{}, map[names.TableKey]bool{}
	used := map[profiles.Key]bool{}
	for _, p := range s.pool.Members {
		for _, id := range p.Holds {
			heldModels[id], heldTables[names.TableKey{
				Model: id.Key(), Type: s.typeOf(p.Member),
			}] = true, true
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
	models = s.goneModels.Over(now, keepGone, known,
		func(id leader.ModelID) bool { return heldModels[id] })
	tables = s.goneTables.Over(now, keepGone, maps.Keys(s.told),
		func(key names.TableKey) bool { return heldTables[key] })
	slices.SortFunc(tables, names.TableKey.Compare)
	for _, key := range tables {
		delete(s.told, key)
	}
	maps.DeleteFunc(s.monitors, func(id leader.ModelID, _ *profiles.Monitor) bool {
		return s.model(id) == nil || slices.Contains(models, id)
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

// A Demand is what is asked of a version of a model.
type Demand struct {
	*leader.Model
	Queries    int     // that BatchSizes is of
	Rate       float64 // queries/s, over the last minute
	BatchSizes profiles.Distribution
}

// Demand is by model what is asked of each that the pool has.
func (s *State) Demand(now time.Time) []Demand {
	all := make([]Demand, len(s.pool.Models))
	for i := range s.pool.Models {
		m := &s.pool.Models[i]
		all[i].Model = m
		if monitor := s.monitors[m.ModelID]; monitor != nil {
			all[i].Queries, all[i].Rate = monitor.Queries(), monitor.Rate(now, demandOver)
			all[i].BatchSizes = monitor.Distribution()
		}
	}
	return all
}

// Learned are the learners that have seen queries, of each version but those of the files that ran
// last. They are valid until the next call of any method, and must not be changed.
func (s *State) Learned() (all []*profiles.Learner) {
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

// Sizes is how much the state remembers, by what it is, for tests of what it forgets.
func (s *State) Sizes() map[string]int {
	return map[string]int{
		"monitors": len(s.monitors), "told": len(s.told), "learned": len(s.learned),
		"scaled": len(s.scaled),
		"book":   len(s.book.Keys()),
	}
}

// model is what the pool says of a version of a model, nil if it has none.
func (s *State) model(id leader.ModelID) *leader.Model {
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
func keysOf(members []*leader.Member) map[names.TableKey]profiles.Key {
	holders := map[profiles.Key]int{}
	most := map[names.TableKey]profiles.Key{}
	for _, member := range members {
		for i := range member.Models {
			told, key := names.TableKey{
				Model: member.Models[i].Key(), Type: member.Type,
			}, member.Models[i].Profile
			holders[key]++
			before, ok := most[told]
			if n := holders[before]; !ok || holders[key] > n ||
				holders[key] == n && key.Checksum < before.Checksum {
				most[told] = key
			}
		}
	}
	return most
}
