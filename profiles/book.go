package profiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A Book holds what was learned of many keys, and knows where a new key starts: from the profile learned
// of the newest earlier version of the model, else of any other version, else from the shipped
// profile of the model on the instance type, else from nothing.
//
// A Book is not safe for concurrent use.
type Book struct {
	library  *Library // may be nil
	learners map[Key]*Learner
}

// NewBook returns a book in which nothing is learned yet. library, which may be nil, is where
// keys start that are like none learned.
func NewBook(library *Library) *Book {
	return &Book{library: library, learners: map[Key]*Learner{}}
}

// Keys returns the keys under which something was learned: by model, instance type,
// provider, cores, version.
func (b *Book) Keys() []Key { return slices.SortedFunc(maps.Keys(b.learners), compareKeys) }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Provider, b.Provider),
		cmp.Compare(a.Cores, b.Cores), cmp.Compare(a.Version, b.Version))
}

// Learner returns the learner of a key, nil if nothing was learned under it.
func (b *Book) Learner(key Key) *Learner { return b.learners[key] }

// Observe is Learner.Observe for the learner of key, which is made if need be.
func (b *Book) Observe(key Key, batch int, latency time.Duration, agent string, now time.Time) error {
	l := b.learners[key]
	if l == nil {
		l = NewLearner(key, b.start(key))
	}
	if err := l.Observe(batch, latency, agent, now); err != nil {
		return err
	}
	b.learners[key] = l
	return nil
}

// Table returns what is known of a key: what was learned, or what it would start from; nil if nothing is.
func (b *Book) Table(key Key) *Table {
	if l := b.learners[key]; l != nil {
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
	if b.learners[key] == nil {
		b.learners[key] = NewLearner(key, prior)
	}
}

// start returns the profile that a new key starts from, or nil.
func (b *Book) start(key Key) *Table {
	var best *Learner
	for _, k := range b.Keys() {
		like := k
		like.Version = key.Version
		if like != key || k.Version == key.Version {
			continue
		}
		// Versions ascend: the last earlier one, else the first later one.
		if k.Version < key.Version || best == nil {
			best = b.learners[k]
		}
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

// Merge adds what another book holds that was learned from other queries; see Learner.Merge.
func (b *Book) Merge(other *Book) error {
	if b == other {
		return errors.New("merge learned profiles: a book with itself")
	}
	for _, key := range other.Keys() {
		l := b.learners[key]
		if l == nil {
			l = NewLearner(key, nil)
			b.learners[key] = l
		}
		if err := l.Merge(other.learners[key]); err != nil {
			return err
		}
	}
	return nil
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

// replaceFile writes a file beside path, to the disk, and gives it that name.
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

// Load adds what Save wrote to the file at path, in place of what was learned under the same
// keys. On error, which names the file, the book is as it was.
func (b *Book) Load(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("load learned profiles: %w", err)
	}
	var j bookJSON
	if err := strictJSON(data, &j); err != nil {
		return fmt.Errorf("load learned profiles from %s: %w", path, err)
	}
	if j.Format != learnerFormat {
		return fmt.Errorf("load learned profiles from %s: format is %d, want %d", path, j.Format, learnerFormat)
	}
	loaded := map[Key]*Learner{}
	for i, l := range j.Learners {
		switch {
		case l == nil:
			return fmt.Errorf("load learned profiles from %s: learner %d is null", path, i)
		case loaded[l.key] != nil:
			return fmt.Errorf("load learned profiles from %s: %s stands twice", path, l.key)
		}
		loaded[l.key] = l
	}
	maps.Copy(b.learners, loaded)
	return nil
}
