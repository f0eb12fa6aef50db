package document

import (
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Format is the newest format that this program knows of the files which the machines of a fleet
// share: model.yaml, fleet.yaml, the access file, and releases in a model store. A file that uses
// keys of a later format says so with the key [Requires], so that a program which does not know them
// can tell that from a mistake. The first format, 1, is that of files without the key; 2 has the
// roles of a ranker's inputs, 3 what is kept of queries.
//
// Whoever gives one of these files a key that must not be ignored raises Format by one, and has the
// file's reader ask for it.
const Format = 3

// Requires is the key, at the top of a file, with the number of the format that the file needs.
const Requires = "requires"

// A FormatError is the error of a file that needs a later format than this program knows.
type FormatError struct {
	Where    string // the file, and the line if it is known
	Requires uint64
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: requires format %d, but this version of Muster knows formats up to %d: "+
		"upgrade Muster here", e.Where, e.Requires, Format)
}

// CheckFormat returns a [FormatError] if this program does not know the format that a file requires.
// It is the one place that decides. A file is checked before any other key of it is.
func CheckFormat(where string, requires uint64) error {
	if requires > Format {
		return &FormatError{where, requires}
	}
	return nil
}

// SharedYAML is [YAML] for a file that the machines of a fleet share. It checks the key [Requires]
// first, and returns its value, 0 if the file does not have it. The document is returned without the
// key.
func SharedYAML(path string, data []byte) (doc *yaml.Node, requires uint64, err error) {
	if doc, err = YAML(path, data); doc == nil {
		return nil, 0, err
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return doc, 0, nil // which the reader says
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Value != Requires {
			continue
		}
		where := fmt.Sprintf("%s:%d", path, key.Line)
		n, err := strconv.ParseUint(value.Value, 10, 64)
		switch {
		case requires != 0:
			return nil, 0, fmt.Errorf("%s: key %q is given twice", where, Requires)
		case value.Kind != yaml.ScalarNode || err != nil || n == 0:
			return nil, 0, fmt.Errorf("%s: %s: got %s, want the number of a format, 1 to %d", where,
				Requires, Found(value), Format)
		}
		if err := CheckFormat(where, n); err != nil {
			return nil, 0, err
		}
		requires = n
		root.Content = slices.Delete(root.Content, i, i+2)
		i -= 2
	}
	return doc, requires, nil
}
