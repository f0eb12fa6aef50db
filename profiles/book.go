package profiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// A Book holds what was learned of many keys, and knows where a new key starts: from the profile
// learned last of other files under the same version of the model, else of the newest earlier
// version, else of any other version, else from the shipped profile of the model on the instance
// type, else from nothing.
//
// What was learned under a key without a checksum, as a file of before they were kept holds it,
// goes over to the first key asked for that is the same but for its checksum.
//
// A Book is not safe for concurrent use.
type Book struct {
	library  *Library // may be nil
	learners map[Key]*Learner
	unused   Absence[Key]
}

// NewBook returns a book in which nothing is learned yet. library, which may be nil, is where
// keys start that are like none learned.
func NewBook(library *Library) *Book {
	return &Book{library: library, learners: map[Key]*Learner{}}
}

// Keys returns the keys under which something was learned: by model, instance type,
// provider, cores, version, checksum.
func (b *Book) Keys() []Key { return slices.SortedFunc(maps.Keys(b.learners), compareKeys) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.InstanceType, b.InstanceType),
		cmp.Compare(a.Provider, b.Provider),
		cmp.Compare(a.Cores, b.Cores), cmp.Compare(a.Version, b.Version),
		cmp.Compare(a.Checksum, b.Checksum))
}

// Learner returns the learner of a key, nil if nothing was learned under it.
func (b *Book) Learner(key Key) *Learner {
	if l := b.learners[key]; l != nil || key.Checksum == "" {
		return l
	}
	l := b.learners[key.unsummed()]
	if l != nil {
		delete(b.learners, l.key)
		l.rekey(key)
		b.learners[key] = l
	}
	return l
}

// Observe is Learner.Observe for the learner of key, which is made if need be.
func (b *Book) Observe(key Key, batch int, latency time.Duration, agent names.AgentName,
	now time.Time) error {
	l := b.Learner(key)
	if l == nil {
		l = NewLearner(key, b.start(key))
	}
	if err := l.Observe(batch, latency, agent, now); err != nil {
		return err
	}
	b.learners[key] = l
	return nil
}

// Table returns what is known of a key: what was learned, or what it would start from;
// nil if nothing is.
func (b *Book) Table(key Key) *Table {
	if l := b.Learner(key); l != nil {
		return l.Table()
	}
	if start := b.start(key); start != nil {
		return start.As(key)
	}
	return nil
}

// Begin gives a key under which nothing was learned the profile that it starts from, in place of
// the one that it would start from by itself.
func (b *Book) Begin(key Key, prior *Table) {
	if b.Learner(key) == nil {
		b.learners[key] = NewLearner(key, prior)
	}
}

// start returns the profile that a new key starts from, or nil.
func (b *Book) start(key Key) *Table {
	var best *Learner
	for _, k := range b.Keys() {
		like, l := k, b.learners[k]
		like.Version, like.Checksum = key.Version, key.Checksum
		if like != key || k == key {
			continue
		}
		// Versions ascend: this one or the last earlier one, else the first later one; of files
		// under one version those seen last.
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
		return best.Table()
	}
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
	// keptVersions is how many versions that are not used a Book keeps of what else is alike, the
	// newest: a version to come starts from them, and one that comes back goes on.
	keptVersions = 2
	// keptUnused is how many keys that are not used it keeps in all, those last learned from.
	keptUnused = 256
)

// Forget forgets keys that are not used, and were not at any call of it for as long as keep, but
// for the newest two versions of a model on alike lanes, and of these the 256 last learned from. It
// returns the keys forgotten. It is to be called now and then.
func (b *Book) Forget(now time.Time, keep time.Duration, used func(Key) bool) (forgotten []Key) {
	over := b.unused.Over(now, keep, maps.Keys(b.learners), used)
	like := func(key Key) Key {
		key.Version, key.Checksum = 0, ""
		return key
	}
	slices.SortFunc(over, func(x, y Key) int { // of what is alike the newest first
		return cmp.Or(compareKeys(like(x), like(y)), cmp.Compare(y.Version, x.Version),
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
	if len(kept) > keptUnused {
		slices.SortStableFunc(kept,
			func(x, y Key) int { return b.learners[y].updated.Compare(b.learners[x].updated) })
		forgotten = append(forgotten, kept[keptUnused:]...)
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

// Save writes the book to the file at path, as JSON. The file is replaced as a whole: whoever
// reads it, or finds it after a crash, sees the one before or the new one.
func (b *Book) Save(path string) error {
	j := bookJSON{Format: learnerFormat, Learners: []*Learner{}}
	for _, key := range b.Keys() {
		j.Learners = append(j.Learners, b.learners[key])
	}
	data, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("save learned profiles: %w", err)
	}
	if err := replaceFile(path, append(data, '\n')); err != nil {
		return fmt.Errorf("save learned profiles: %w", err)
	}
	return nil
}

// replaceFile writes a file beside path, to the disk, and gives it that name. It is not renameio,
// which does not build on Windows, where the SDK, which imports this package, does.
func replaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Load adds what Save wrote to the file at path, now or in an older format, in place of what was
// learned under the same keys. On error, which names the file, the book is as it was.
func (b *Book) Load(path string) error {
	_, err := b.load(path)
	return err
}

// load is Load; it returns the file's format, 0 if it says none.
func (b *Book) load(path string) (format int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("load learned profiles: %w", err)
	}
	fault := func(err error) (int, error) {
		return format, fmt.Errorf("load learned profiles from %s: %w", path, err)
	}
	var begins struct{ Format int } // a newer format may have other keys
	if json.Unmarshal(data, &begins) == nil {
		format = begins.Format
	}
	if format > learnerFormat {
		return fault(checkFormat(format))
	}
	var j bookJSON
	if err := strictJSON(data, &j); err != nil {
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
			return fault(fmt.Errorf("%s stands twice", l.key))
		}
		loaded[l.key] = l
	}
	maps.Copy(b.learners, loaded)
	return format, nil
}

// A Restored says what became of a file that was to be loaded.
type Restored struct {
	// Kept is the name that the file has now, "" if there is none or it has its own: a file that
	// could not be read, or is of another format, is never written over.
	Kept string
	// Fault is why nothing of it was loaded, nil if all was.
	Fault error
}

// Restore loads the file at path, if there is one, and brings it to the present format. A file that
// is damaged or of a newer format is given another name and not loaded; so is one of an older
// format, whose contents are loaded and saved under path. After an error, which names the file, the
// book may be saved to path only if the file there has been Kept under another name.
func (b *Book) Restore(path string) (r Restored, err error) {
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

// setAside gives the file at path a name that no other file has, and returns it: path.why,
// path.why.2 and so on.
func setAside(path, why string) (string, error) {
	for n := 1; ; n++ {
		aside := path + "." + why
		if n > 1 {
			aside = fmt.Sprintf("%s.%d", aside, n)
		}
		f, err := os.OpenFile(aside, os.O_CREATE|os.O_EXCL, 0o600) // the name is now ours
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
