package models

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// An OnDisk is the newest version of a model that its version policy chooses, or the one that its
// [Choice] prefers, loaded or not.
type OnDisk struct {
	Version *Version // the caller must not change it
	// Bytes is the size of the version's files, those of an ensemble's models too: about what it
	// takes in memory once it is loaded.
	Bytes int64
	// LoadTime is how long its last load took, warming included; 0 if it was not loaded yet.
	LoadTime time.Duration
	// Problem is why the version cannot be loaded; nil if no reason is known.
	Problem error
}

// diskDescription is what OnDisk reads of a version's files, and the fingerprint that they had.
type diskDescription struct {
	of      fingerprint
	version *Version
	bytes   int64
	problem error
}

// OnDisk returns the newest version of each model that can be read, ordered by name. It reads the
// files that have changed since the last call, and blocks until then.
func (r *Repository[M]) OnDisk() []OnDisk {
	type found struct {
		model  string
		number int64
		files  fingerprint
		known  *diskDescription
		took   time.Duration
		broken error
	}
	r.mu.Lock()
	var all []found
	for _, name := range slices.Sorted(maps.Keys(r.models)) {
		m := r.models[name]
		best := int64(0)
		m.chooseVersions()
		for _, v := range m.order {
			if v.stable && v.wanted {
				best = m.preferVersion(best, v.number)
			}
		}
		if v := m.versions[best]; v != nil {
			f := found{name, best, v.found, v.described, v.took, nil}
			if v.isBroken() {
				f.broken = v.failure
			}
			all = append(all, f)
		}
	}
	r.mu.Unlock()
	var out []OnDisk
	for _, f := range all {
		if f.known == nil || f.known.of != f.files {
			f.known = &diskDescription{of: f.files, bytes: r.bytesOf(f.model, f.number)}
			f.known.version, f.known.problem = ReadVersion(r.dir, f.model, f.number)
			if f.known.problem == nil {
				for _, step := range f.known.version.Steps { // an ensemble loads them all
					f.known.bytes += r.bytesOf(step.Version.Model, step.Version.Number)
				}
			}
			r.mu.Lock()
			if m := r.models[f.model]; m != nil && m.versions[f.number] != nil {
				m.versions[f.number].described = f.known
			}
			r.mu.Unlock()
		}
		if f.known.problem == nil {
			out = append(out, OnDisk{f.known.version, f.known.bytes, f.took, f.broken})
		}
	}
	return out
}

// bytesOf is the size of a version's files in all, hidden ones left out.
func (r *Repository[M]) bytesOf(model string, number int64) (sum int64) {
	dir := followLink(filepath.Join(r.dir, model, strconv.FormatInt(number, 10)))
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path != dir && filepath.Base(path)[0] == '.' {
			return nil // what cannot be read fails the load
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
