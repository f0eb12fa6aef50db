package worker

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/roles"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/work"
)

// estimates predict how long queries run on this agent's lanes, learned from the queries that ran
// there. They implement [runtime.Estimator]. The methods may be called concurrently. Versions are
// named "ncf/1", as by control.ModelKey.
type estimates struct {
	// lanes returns a description of this agent's lanes, as describeLanes.
	lanes     func() *control.Member
	catalogue *profiles.Catalogue
	// learnedTimes counts how often a table has been rebuilt.
	learnedTimes atomic.Uint64
	mu           sync.Mutex
	book         *profiles.Book
	learned      map[names.ModelKey]*estimate
	gone         profiles.Absence[names.ModelKey] // since when entries of learned are not held
}

// An estimate holds the latency table of one version of a model.
type estimate struct {
	checksum string
	key      profiles.Key
	table    *profiles.Table // nil: nothing has been learned and no profile comes with the program
	json     []byte          // table's encoding; nil until needed
	// observed counts the observations; when it reaches rebuild, the table is built anew.
	observed uint64
	rebuild  uint64
	// law is what the leader has learned of what users and values take; if it is not zero, table is
	// by work, and key a key of this agent's book for that law.
	law work.Law
}

func newEstimates(library *profiles.Library, catalogue *profiles.Catalogue,
	lanes func() *control.Member) *estimates {
	return &estimates{
		lanes: lanes, catalogue: catalogue, book: profiles.NewBook(library),
		learned: map[names.ModelKey]*estimate{},
	}
}

// noteLoaded notes that a version has been loaded from files with the given checksum. If they
// differ from the files known, the version's estimate starts anew.
func (e *estimates) noteLoaded(profile names.ModelKey, checksum string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.learned[profile]; known == nil || known.checksum != checksum {
		e.learned[profile] = e.newEstimate(profile, checksum)
	}
}

// newEstimate returns a new estimate for a version, with the book's table for its key, if any.
func (e *estimates) newEstimate(profile names.ModelKey, checksum string) *estimate {
	model, version := profile.Split()
	fresh := &estimate{
		checksum: checksum,
		key: members.KeyOf(e.catalogue, e.lanes(), &control.Model{
			Name: model, Version: version, Checksum: checksum,
		}),
	}
	fresh.table = e.book.Table(fresh.key)
	return fresh
}

// estimateOf returns the estimate of a version, and makes one if there is none. e.mu is held.
func (e *estimates) estimateOf(profile names.ModelKey) *estimate {
	known := e.learned[profile]
	switch {
	case known == nil:
		known = e.newEstimate(profile, "")
	case known.key.InstanceType != "":
		return known
	default: // the instance type was not known, and may be now
		known = e.renewEstimate(profile, known)
	}
	e.learned[profile] = known
	return known
}

// renewEstimate returns the estimate of a version for the lanes as they are now, which starts from
// what is known of it if nothing else is. e.mu is held.
func (e *estimates) renewEstimate(profile names.ModelKey, known *estimate) *estimate {
	fresh := e.newEstimate(profile, known.checksum)
	if known.law != (work.Law{}) {
		fresh.key, fresh.table, fresh.law = keyByWork(fresh.key, known.law), nil, known.law
	}
	if fresh.key == known.key {
		return known
	}
	if fresh.table == nil && known.table != nil {
		e.book.Begin(fresh.key, known.table)
		fresh.table = e.book.Table(fresh.key)
	}
	return fresh
}

// keyByWork is the key of this agent's book under which it learns by work of a law.
func keyByWork(key profiles.Key, law work.Law) profiles.Key {
	key.Checksum += fmt.Sprintf(" by work %v %v", law.PerUser, law.PerValue)
	return key
}

// adoptLaws takes what the leader tells of the work of models on lanes of this agent, which own
// describes: from then on its estimates are by work, and begin with the leader's.
func (e *estimates) adoptLaws(own *control.Member, told []*control.Profile) {
	for _, p := range told {
		profile := names.ModelKey(p.GetModel())
		name, _ := profile.Split()
		typ, of := own.LaneTypeOf(name), names.LaneType(p.GetType())
		if of != typ && of != typ.Own(own.AgentName()) {
			continue
		}
		law, table := work.NewLaw(p.GetRowsPerUser(), p.GetRowsPerValue()), &profiles.Table{}
		if law != (work.Law{}) && json.Unmarshal(p.GetWorkTable(), table) != nil {
			continue // the next will be better
		}
		e.mu.Lock()
		if known := e.learned[profile]; known != nil && known.law != law {
			fresh := e.newEstimate(profile, known.checksum)
			if law != (work.Law{}) {
				fresh.key, fresh.law = keyByWork(fresh.key, law), law
				e.book.Begin(fresh.key, table)
				fresh.table = e.book.Table(fresh.key)
			}
			e.learned[profile] = fresh
			e.learnedTimes.Add(1)
		}
		e.mu.Unlock()
	}
}

// sizeOf is the batch size with rows alone that takes as long as a query of a loaded version.
func (e *estimates) sizeOf(loaded *LoadedVersion, batchSize int, size roles.QuerySize) int {
	if size.Users == 0 && size.Values == 0 {
		return batchSize
	}
	e.mu.Lock()
	known := e.learned[loaded.Model.profile]
	e.mu.Unlock()
	if known == nil || known.law == (work.Law{}) {
		return batchSize
	}
	largest := max(batchSize, loaded.Version.Config.LargestBatchSize)
	return min(known.law.Size(batchSize, size.Users, size.Values), largest)
}

// noteRearranged notes that the lanes have changed: models may run beside others, or on other
// cores.
func (e *estimates) noteRearranged() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for profile, known := range e.learned {
		e.learned[profile] = e.renewEstimate(profile, known)
	}
	e.learnedTimes.Add(1)
}

// Estimate implements [runtime.Estimator].
func (e *estimates) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.estimateOf(profile).table; t != nil {
		return t.Mean(batchSize)
	}
	return 0
}

// High implements [runtime.Estimator].
func (e *estimates) High(profile names.ModelKey, batchSize int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.estimateOf(profile).table; t != nil {
		return max(t.Quantile(0.9, batchSize), t.Mean(batchSize))
	}
	return 0
}

// maxUnlearned is how many observations a table may lack; it lacks at most an eighth of all, too.
const maxUnlearned = 64

// Observe implements [runtime.Estimator].
func (e *estimates) Observe(profile names.ModelKey, batchSize int, execution time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.estimateOf(profile)
	if err := e.book.Observe(known.key, batchSize, max(execution, 1), "", time.Now()); err != nil {
		return // the batch size is beyond what profiles cover
	}
	e.countObservation(known)
}

// observeCut learns from a query that was cut off when it had run for so long.
func (e *estimates) observeCut(profile names.ModelKey, batchSize int, ran time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.estimateOf(profile)
	if e.book.ObserveCut(known.key, batchSize, max(ran, 1), "", time.Now()) == nil {
		e.countObservation(known)
	}
}

// countObservation counts an observation, and builds the table anew from time to time. e.mu is
// held.
func (e *estimates) countObservation(known *estimate) {
	known.observed++
	if known.observed >= known.rebuild {
		known.rebuild = known.observed + min(1+known.observed/8, maxUnlearned)
		known.table, known.json = e.book.Table(known.key), nil
		e.learnedTimes.Add(1)
	}
}

// dropGone removes estimates of versions that no member has held for members.KeepTold, except those
// from which a later version's estimate starts.
func (e *estimates) dropGone(now time.Time, held map[names.ModelKey]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	used := map[profiles.Key]bool{}
	for profile, known := range e.learned {
		used[known.key] = used[known.key] || held[profile]
	}
	there := func(profile names.ModelKey) bool { return held[profile] }
	for _, profile := range e.gone.Over(now, members.KeepTold, maps.Keys(e.learned), there) {
		delete(e.learned, profile)
	}
	e.book.Forget(now, members.KeepTold, func(key profiles.Key) bool { return used[key] })
}

// profileOf returns the latency profile of a model on a member's lanes: learned by this agent if
// its own lanes are like the member's, else the one that comes with the program; nil if there is
// none.
func (e *estimates) profileOf(member *control.Member, m *control.Model) *control.Profile {
	e.mu.Lock()
	defer e.mu.Unlock()
	key, version := members.KeyOf(e.catalogue, member, m), m.Key()
	known := e.learned[version]
	if known == nil || known.key != key {
		known = &estimate{table: e.book.Table(key)}
	}
	if known.table == nil {
		return nil
	}
	if known.json == nil {
		text, err := json.Marshal(known.table)
		if err != nil {
			return nil // cannot happen: a table can always be encoded
		}
		known.json = text
	}
	return &control.Profile{
		Model: string(version), Type: string(member.LaneTypeOf(m.GetName())), Table: known.json,
	}
}

// addProfiles adds profiles to v for the models and lanes for which the leader has sent none.
func (e *estimates) addProfiles(v *control.View) {
	known := map[names.TableKey]bool{}
	for _, p := range v.Profiles {
		known[p.TableKey()] = true
	}
	for _, member := range v.Members {
		for _, m := range member.Models {
			key := names.TableKey{Model: m.Key(), Type: member.LaneTypeOf(m.GetName())}
			if known[key] {
				continue
			}
			known[key] = true
			if p := e.profileOf(member, m); p != nil {
				v.Profiles = append(v.Profiles, p)
			}
		}
	}
}
