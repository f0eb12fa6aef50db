// Package dynlib says which shared libraries of a folder need which, without loading them. Who
// builds a folder checks with it that the folder is complete; who loads from one learns the order.
package dynlib

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Folder is the shared libraries of a folder, by their file names, with the names of the
// libraries that each needs.
type Folder struct {
	Dir   string
	Needs map[string][]string
}

// Read reads what the shared libraries in a folder need: all files whose names have ".so". The
// error names a file that is no library.
func Read(dir string) (*Folder, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	f := &Folder{dir, map[string][]string{}}
	for _, e := range entries {
		if e.IsDir() || !strings.Contains(e.Name(), ".so") {
			continue
		}
		if f.Needs[e.Name()], err = readNeeded(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func readNeeded(path string) ([]string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s is no shared library: %w", path, err)
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return needed, nil
}

// Order returns the paths of the libraries, each behind those of the folder that it needs, and
// otherwise in the order of their names.
func (f *Folder) Order() []string {
	var order []string
	done := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		needed, here := f.Needs[name]
		if !here || done[name] {
			return
		}
		done[name] = true // before its needs: circles end here
		for _, n := range needed {
			visit(n)
		}
		order = append(order, filepath.Join(f.Dir, name))
	}
	for _, name := range f.names() {
		visit(name)
	}
	return order
}

// Missing returns what is needed, neither in the folder nor elsewhere, as "a needs b".
func (f *Folder) Missing(elsewhere func(name string) bool) (missing []string) {
	for _, name := range f.names() {
		for _, needed := range f.Needs[name] {
			if _, here := f.Needs[needed]; !here && !elsewhere(needed) {
				missing = append(missing, name+" needs "+needed)
			}
		}
	}
	return missing
}

func (f *Folder) names() []string {
	names := make([]string, 0, len(f.Needs))
	for name := range f.Needs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
