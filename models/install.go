package models

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrExists means that another model is where a generated one would be written. Errors wrap it.
var ErrExists = errors.New("models: another model is there")

// Install puts the folder of a generated model, which write makes, into the repository dir, and
// creates dir if it does not exist. The folder appears with all files or not at all. made is what
// the folder's model.yaml says in generated. Install returns false if the same model is already
// there. If overwrite is set, it replaces a generated model with another provenance, and a variant.
// Otherwise, and for anything else in its place, the error wraps ErrExists.
func Install(dir, model string, made Provenance, overwrite bool,
	write func(folder string) error) (written bool, err error) {
	if err := checkName(model); err != nil {
		return false, err
	}
	target := filepath.Join(dir, model)
	there, err := findReplaceable(target, made, overwrite)
	if err != nil || there == same {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	// Agents ignore hidden folders, so they do not see the unfinished model.
	temporary, err := os.MkdirTemp(dir, "."+model+"-*")
	if err != nil {
		return false, err
	}
	leftover := temporary
	defer func() { err = errors.Join(err, os.RemoveAll(leftover)) }()
	folder := filepath.Join(temporary, model)
	old := folder + ".old"
	if err := write(folder); err != nil {
		return false, err
	}
	if there == other {
		if err := os.Rename(target, old); err != nil {
			return false, err
		}
	}
	if err := os.Rename(folder, target); err != nil {
		if there == other {
			if back := os.Rename(old, target); back != nil { // it stays in the hidden folder
				leftover, err = folder, errors.Join(err, back)
			}
		}
		return false, err
	}
	return true, nil
}

// An occupant is what is in the place of a model to install.
type occupant int

const (
	nobody occupant = iota
	same            // the same model
	other           // another generated model, which may be replaced
)

// findReplaceable returns what is in the folder target, where a model of the provenance made is to
// be.
func findReplaceable(target string, made Provenance, overwrite bool) (occupant, error) {
	entries, err := os.ReadDir(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nobody, nil
	}
	if err != nil {
		return 0, err
	}
	existing, err := ReadConfig(filepath.Join(target, ConfigFile))
	if err != nil || existing.Generated == nil {
		return 0, fmt.Errorf("%w: %s was not generated; move it away first", ErrExists, target)
	}
	// The provenance of a variant does not tell which files it was made of.
	if *existing.Generated == made && !(overwrite && made.From != "") {
		return same, nil
	}
	if !overwrite {
		return 0, fmt.Errorf(
			"%w: %s was generated with %s, now asked for %s; overwrite it or choose another folder",
			ErrExists, target, existing.Generated, made)
	}
	for _, e := range entries {
		if e.Name() != ConfigFile && e.Name() != "1" {
			return 0, fmt.Errorf(
				"%w: %s also holds %s, which was not generated; move it away first",
				ErrExists, target, e.Name())
		}
	}
	return other, nil
}

// String describes how the model was generated.
func (g Provenance) String() string {
	s := g.Generator
	if g.Architecture != "" {
		s += ", architecture " + g.Architecture
	}
	if g.Scale != "" {
		s += ", scale " + g.Scale
	}
	s += fmt.Sprintf(", seed %d", g.Seed)
	if g.From != "" {
		s += ", from " + g.From
	}
	if g.Variant != "" {
		s += ", variant " + g.Variant
	}
	return s
}
