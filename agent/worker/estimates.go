package worker

import (
	"encoding/json"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/profiles"
)

// estimates are how long queries execute on this agent's lanes, as learned from
// those that did: a [runtime.Estimator]. Its methods may be called concurrently.
type estimates struct {
	// lanes is what this agent's are, in what a member says of itself.
	lanes     func() *control.Member
	catalogue *profiles.Catalogue
	// learnedTimes counts how often a table was made anew.
	learnedTimes atomic.Uint64
	mu           sync.Mutex
	book         *profiles.Book
	learned      map[names.ModelKey]*estimate
	gone         profiles.Absence[names.ModelKey] // of learned
}

// An estimate is what is known of one version of a model.
type estimate struct {
	checksum string
	key      profiles.Key
	table    *profiles.Table // nil: nothing is known
	json     []byte          // of table; nil until asked for
	observed uint64
	rebuild  uint64 // observed, when the table is made anew
}

func newEstimates(library *profiles.Library, catalogue *profiles.Catalogue,
	lanes func() *control.Member) *estimates {
	return &estimates{
		lanes: lanes, catalogue: catalogue, book: profiles.NewBook(library),
		learned: map[names.ModelKey]*estimate{},
	}
}

// loaded says which files a version, "ncf/1", is from now on.
func (e *estimates) loaded(profile names.ModelKey, checksum string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.learned[profile]; known == nil || known.checksum != checksum {
		e.learned[profile] = e.begin(profile, checksum)
	}
}

// begin is the estimate of a version of which this agent has run nothing.
func (e *estimates) begin(profile names.ModelKey, checksum string) *estimate {
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

// of is the estimate of a version. e.mu is held.
func (e *estimates) of(profile names.ModelKey) *estimate {
	known := e.learned[profile]
	switch {
	case known == nil:
		known = e.begin(profile, "")
	case known.key.InstanceType != "":
		return known
	default: // what this agent runs on was not known, and may be now
		fresh := e.begin(profile, known.checksum)
		if fresh.key == known.key {
			return known
		}
		if fresh.table == nil && known.table != nil {
			e.book.Begin(fresh.key, known.table)
			fresh.table = e.book.Table(fresh.key)
		}
		known = fresh
	}
	e.learned[profile] = known
	return known
}

// Estimate implements [runtime.Estimator].
func (e *estimates) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.of(profile).table; t != nil {
		return t.Mean(batchSize)
	}
	return 0
}

// High implements [runtime.Estimator].
func (e *estimates) High(profile names.ModelKey, batchSize int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.of(profile).table; t != nil {
		return max(t.Quantile(0.9, batchSize), t.Mean(batchSize))
	}
	return 0
}

// mostUnlearned is how many observations a table may lack, at most an eighth of all.
const mostUnlearned = 64

// Observe implements [runtime.Estimator].
func (e *estimates) Observe(profile names.ModelKey, batchSize int, execution time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.of(profile)
	if err := e.book.Observe(known.key, batchSize, max(execution, 1), "", time.Now()); err != nil {
		return // a batch larger than profiles know is not estimated
	}
	known.observed++
	if known.observed >= known.rebuild {
		known.rebuild = known.observed + min(1+known.observed/8, mostUnlearned)
		known.table, known.json = e.book.Table(known.key), nil
		e.learnedTimes.Add(1)
	}
}

// forget forgets versions that are not held, "ncf/1", and have not been for members.KeepTold, but
// for those from which the next one starts.
func (e *estimates) forget(now time.Time, held map[names.ModelKey]bool) {
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

// profile is what is known of a model on a member's lanes, as learned on lanes like
// them, which this agent's are, or as it comes with the program; nil if nothing is.
func (e *estimates) profile(member *control.Member, m *control.Model) *control.Profile {
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
			return nil // a table always has a JSON form
		}
		known.json = text
	}
	return &control.Profile{
		Model: string(version), Type: string(member.LaneType()), Table: known.json,
	}
}

// complete adds profiles for what v has none of, because no leader has told any.
func (e *estimates) complete(v *control.View) {
	known := map[names.TableKey]bool{}
	for _, p := range v.Profiles {
		known[p.Key()] = true
	}
	for _, member := range v.Members {
		for _, m := range member.Models {
			key := names.TableKey{Model: m.Key(), Type: member.LaneType()}
			if known[key] {
				continue
			}
			known[key] = true
			if p := e.profile(member, m); p != nil {
				v.Profiles = append(v.Profiles, p)
			}
		}
	}
}
