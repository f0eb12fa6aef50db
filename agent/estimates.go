package agent

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// estimates are how long queries execute on this agent's lanes, as learned from
// those that did: a [runtime.Estimator]. Its methods may be called concurrently.
type estimates struct {
	instanceType func() profiles.InstanceType
	provider     string
	cores        int // of a lane
	mu           sync.Mutex
	book         *profiles.Book
	learned      map[string]*estimate
}

// An estimate is what is known of one version of a model.
type estimate struct {
	key      profiles.Key
	table    *profiles.Table // nil: nothing is known
	json     []byte          // of table; nil until asked for
	observed uint64
	rebuild  uint64 // observed, when the table is made anew
}

func newEstimates(library *profiles.Library, instanceType func() profiles.InstanceType, provider string, cores int) *estimates {
	return &estimates{instanceType: instanceType, provider: provider, cores: cores, book: profiles.NewBook(library), learned: map[string]*estimate{}}
}

// of is the estimate of a version, "ncf/1". e.mu is held.
func (e *estimates) of(profile string) *estimate {
	if known := e.learned[profile]; known != nil && (known.observed > 0 || known.key.InstanceType != "") {
		return known
	}
	model, version, _ := strings.Cut(profile, "/")
	number, _ := strconv.ParseInt(version, 10, 64)
	fresh := &estimate{key: profiles.Key{Model: model, Version: number, InstanceType: e.instanceType(), Provider: e.provider, Cores: e.cores}}
	fresh.table = e.book.Table(fresh.key)
	e.learned[profile] = fresh
	return fresh
}

// Estimate implements [runtime.Estimator].
func (e *estimates) Estimate(profile string, batchSize int) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.of(profile).table; t != nil {
		return t.Mean(batchSize)
	}
	return 0
}

// High implements [runtime.Estimator].
func (e *estimates) High(profile string, batchSize int) time.Duration {
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
func (e *estimates) Observe(profile string, batchSize int, execution time.Duration) {
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
	}
}

// profile is what is known of a version on this agent's lanes; nil if nothing is.
func (e *estimates) profile(key, laneType string) *control.Profile {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.of(key)
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
	return &control.Profile{Model: key, Type: laneType, Table: known.json}
}

// complete adds profiles for what v has none of, because no leader has told any:
// on lanes like this agent's what it has learned itself, on others what comes
// with the program.
func (e *estimates) complete(v *control.View, self string, library *profiles.Library) {
	known := map[profileKey]bool{}
	for _, p := range v.Profiles {
		known[profileKey{p.Model, p.Type}] = true
	}
	ownType := ""
	for _, m := range v.Members {
		if m.Name == self {
			ownType = m.LaneType()
		}
	}
	for _, member := range v.Members {
		for _, m := range member.Models {
			key := profileKey{control.ModelKey(m.Name, m.Version), member.LaneType()}
			if known[key] {
				continue
			}
			known[key] = true
			if key.typ == ownType {
				if p := e.profile(key.model, ownType); p != nil {
					v.Profiles = append(v.Profiles, p)
					continue
				}
			}
			if p := shipped(member, m, library); p != nil {
				v.Profiles = append(v.Profiles, p)
			}
		}
	}
}

// shipped is the profile that comes with the program for a model on a member,
// nil if there is none.
func shipped(member *control.Member, m *control.Model, library *profiles.Library) *control.Profile {
	table, err := library.Table(m.Name, profiles.InstanceType(member.InstanceType))
	if err != nil {
		return nil
	}
	text, err := json.Marshal(table)
	if err != nil {
		return nil
	}
	return &control.Profile{Model: control.ModelKey(m.Name, m.Version), Type: member.LaneType(), Table: text}
}
