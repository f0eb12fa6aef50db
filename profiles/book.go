package profiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/names"
)

// A Book holds the learners of many keys. It starts the learner of a new key from the first of
// these profiles that exists:
//
//   - the latest learned profile of the same version of the model with another checksum,
//   - that of the newest earlier version,
//   - that of any other version,
//   - the shipped profile of the model on the instance type,
//   - for a lane beside other models: the profile of the lane without them, slowed down by the
//     factor of [Book.SetSlowdowns].
//
// Files written before checksums were kept hold learners under keys without a checksum. Such a
// learner moves to the first key, equal but for the checksum, that a method is called with.
//
// Invariant: a learner is listed under its own key, and has observed a query or has a profile to
// start from, so its table is never nil.
//
// A Book is not safe for concurrent use.
type Book struct {
	library  *Library // may be nil
	learners map[Key]*Learner
	unused   Absence[Key]
	shared   Absence[Key] // unused keys with neighbours
	slow     Slowdowns
}

// NewBook returns an empty book. library, which may be nil, holds the shipped profiles.
func NewBook(library *Library) *Book {
	return &Book{library: library, learners: map[Key]*Learner{}}
}

// Keys returns the keys that have a learner, ordered by model, instance type, provider, cores,
// neighbours, version and checksum.
func (b *Book) Keys() []Key { return slices.SortedFunc(maps.Keys(b.learners), Key.Compare) }

// FindLearner returns the learner of a key; nil if it has none. The learner belongs to the book.
func (b *Book) FindLearner(key Key) *Learner {
	if l := b.learners[key]; l != nil || key.Checksum == "" {
		return l
	}
	l := b.learners[key.withoutChecksum()]
	if l != nil {
		delete(b.learners, l.key)
		l.changeKey(key)
		b.learners[key] = l
	}
	return l
}

// Observe calls Learner.Observe of the key's learner. If the key has none, Observe makes one.
func (b *Book) Observe(key Key, batch int, latency time.Duration, agent names.AgentName,
	now time.Time) error {
	return b.addObservation(key, func(l *Learner) error {
		return l.Observe(batch, latency, agent,
			now)
	})
}

// ObserveCut calls Learner.ObserveCut of the key's learner, as Observe does.
func (b *Book) ObserveCut(key Key, batch int, ran time.Duration, agent names.AgentName,
	now time.Time) error {
	return b.addObservation(key, func(l *Learner) error {
		return l.ObserveCut(batch, ran, agent,
			now)
	})
}

func (b *Book) addObservation(key Key, add func(*Learner) error) error {
	l := b.FindLearner(key)
	if l == nil {
		l = NewLearner(key, b.start(key))
	}
	if err := add(l); err != nil {
		return err
	}
	if l.observed > 0 || l.prior != nil { // a query that was cut off may say nothing yet
		b.learners[key] = l
	}
	return nil
}

// Table returns the profile learned for a key, or else the profile that its learner would start
// from; nil if there is neither.
func (b *Book) Table(key Key) *Table {
	if l := b.FindLearner(key); l != nil {
		return l.LatencyTable()
	}
	if start := b.start(key); start != nil {
		return start.As(key)
	}
	return nil
}

// Begin makes a learner for key that starts from prior instead of the profile that the book would
// choose. It does nothing if the key has a learner.
func (b *Book) Begin(key Key, prior *Table) {
	if b.FindLearner(key) == nil {
		b.learners[key] = NewLearner(key, prior)
	}
}

// start returns the profile that the learner of a new key starts from, or nil.
func (b *Book) start(key Key) *Table {
	var best *Learner
	for _, k := range b.Keys() {
		like, l := k, b.learners[k]
		like.Version, like.Checksum = key.Version, key.Checksum
		if like != key || k == key {
			continue
		}
		// Keys come in ascending order of versions. The same version is best, else the newest
		// earlier one, else the first later one; of one version the learner updated last.
		switch {
		case best == nil:
		case k.Version == best.key.Version && !l.updated.After(best.updated):
			continue
		case k.Version != best.key.Version && k.Version > key.Version:
			continue
		}
		best = l
	}
	if best != nil {
		return best.LatencyTable()
	}
	if key.Beside != "" {
		if alone := b.Table(key.withoutNeighbours()); alone != nil {
			return alone.Scale(b.slow.factorOf(key.Model, key.Beside))
		}
		return nil
	}
	return b.shippedTable(key)
}

// shippedTable returns the library's profile for a key, or nil.
func (b *Book) shippedTable(key Key) *Table {
	if b.library == nil {
		return nil
	}
	table, err := b.library.Table(key.Model, key.InstanceType)
	if err != nil || table.Key().Provider != key.Provider || table.Key().Cores != key.Cores {
		return nil
	}
	return table
}

const (
	// keptVersions is how many unused versions Forget keeps of a model on one class of lanes, the
	// newest ones: a new version starts from them, and a version that returns continues. Chosen: a
	// rollback returns to the last version or the one before.
	keptVersions = 2
	// keptUnused is how many unused keys Forget keeps in all, those updated last. Chosen, as the
	// two below; they bound the file that an agent saves.
	keptUnused = 256
	// keepShared is how long Forget keeps unused keys with neighbours, of which it keeps at most
	// keptShared, those updated last. Placements come back, but there are many of them.
	keepShared = time.Hour
	keptShared = 64
)

// Forget deletes the learners of keys that used has reported as unused in all calls for at least
// keep, and returns these keys. Of each model and kind of lane it keeps the two newest unused
// versions, but at most 256 unused keys in all, those updated last; of keys with neighbours at most
// 64, and none that has been unused for an hour. Call it from time to time.
func (b *Book) Forget(now time.Time, keep time.Duration, used func(Key) bool) (forgotten []Key) {
	over := b.unused.Over(now, keep, maps.Keys(b.learners), used)
	like := func(key Key) Key {
		key.Version, key.Checksum = 0, ""
		return key
	}
	slices.SortFunc(over, func(x, y Key) int { // by model and kind of lane, then newest first
		return cmp.Or(like(x).Compare(like(y)), cmp.Compare(y.Version, x.Version),
			b.learners[y].updated.Compare(b.learners[x].updated))
	})
	var kept []Key
	alike := 0
	for i, key := range over {
		if i > 0 && like(key) != like(over[i-1]) {
			alike = 0
		}
		if alike++; alike <= keptVersions {
			kept = append(kept, key)
		} else {
			forgotten = append(forgotten, key)
		}
	}
	slices.SortStableFunc(kept,
		func(x, y Key) int { return b.learners[y].updated.Compare(b.learners[x].updated) })
	long := b.shared.Over(now, keepShared, maps.Keys(b.learners),
		func(key Key) bool { return key.Beside == "" || used(key) })
	left, shared := 0, 0
	for _, key := range kept {
		if key.Beside != "" {
			if shared++; shared > keptShared || slices.Contains(long, key) {
				forgotten = append(forgotten, key)
				continue
			}
		}
		if left++; left > keptUnused {
			forgotten = append(forgotten, key)
		}
	}
	for _, key := range forgotten {
		delete(b.learners, key)
	}
	return forgotten
}

type bookJSON struct {
	Format   int        `json:"format"`
	Learners []*Learner `json:"learners"`
}

// Save writes the book to the file at path, as JSON. It replaces the file atomically: a reader, or
// a restart after a crash, finds the old contents or the new ones.
func (b *Book) Save(path string) error {
	j := bookJSON{Format: learnerFormat, Learners: []*Learner{}}
	for _, key := range b.Keys() {
		j.Learners = append(j.Learners, b.learners[key])
	}
	data, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("save learned profiles: %w", err)
	}
	if err := files.Replace(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("save learned profiles: %w", err)
	}
	return nil
}

// Load reads the file at path, written by Save in the present or an older format, and adds its
// learners to the book. They replace those of the same keys. An error names the file and leaves the
// book as it was.
func (b *Book) Load(path string) error {
	_, err := b.load(path)
	return err
}

// load is Load and returns the file's format; 0 if it is not known.
func (b *Book) load(path string) (format int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("load learned profiles: %w", err)
	}
	fault := func(err error) (int, error) {
		return format, fmt.Errorf("load learned profiles from %s: %w", path, err)
	}
	var begins struct{ Format int } // read first, because a newer format may have other fields
	if json.Unmarshal(data, &begins) == nil {
		format = begins.Format
	}
	if format > learnerFormat {
		return fault(checkFormat(format))
	}
	var j bookJSON
	if err := document.JSON(data, &j); err != nil {
		return fault(err)
	}
	if err := checkFormat(j.Format); err != nil {
		return fault(err)
	}
	loaded := map[Key]*Learner{}
	for i, l := range j.Learners {
		switch {
		case l == nil:
			return fault(fmt.Errorf("learner %d is null", i))
		case loaded[l.key] != nil:
			return fault(fmt.Errorf("%s occurs twice", l.key))
		}
		loaded[l.key] = l
	}
	maps.Copy(b.learners, loaded)
	return format, nil
}

// A RestoreResult is the result of [Book.Restore].
type RestoreResult struct {
	// Kept is the new name of the file; "" if it was not renamed or does not exist. A file that
	// could not be read, or that has another format, is renamed so that Save does not overwrite it.
	Kept string
	// Fault is why the file was not loaded; nil if it was, or if it does not exist.
	Fault error
}

// Restore loads the file at path, if it exists. It renames a damaged file, or one of a newer
// format, and does not load it. It loads a file of an older format, renames it, and saves the book
// to path in the present format. An error names the file; after an error the book may be saved to
// path only if Kept is not "".
func (b *Book) Restore(path string) (r RestoreResult, err error) {
	format, err := b.load(path)
	why := fmt.Sprintf("format%d", format)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && format == learnerFormat:
		return r, nil
	case err != nil:
		if r.Fault = err; format <= learnerFormat {
			why = "damaged"
		}
	}
	if r.Kept, err = setAside(path, why); err != nil {
		return r, errors.Join(r.Fault, fmt.Errorf("keep %s under another name: %w", path, err))
	}
	if r.Fault == nil {
		return r, b.Save(path)
	}
	return r, nil
}

// setAside renames the file at path to path.why, or path.why.2 and so on if that exists, and
// returns the new name.
func setAside(path, why string) (string, error) {
	for n := 1; ; n++ {
		aside := path + "." + why
		if n > 1 {
			aside = fmt.Sprintf("%s.%d", aside, n)
		}
		f, err := os.OpenFile(aside, os.O_CREATE|os.O_EXCL, 0o600) // reserves the name
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if err := errors.Join(f.Close(), os.Rename(path, aside)); err != nil {
			return "", errors.Join(err, os.Remove(aside))
		}
		return aside, nil
	}
}
