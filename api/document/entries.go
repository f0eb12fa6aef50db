package document

import (
	"errors"
	"fmt"
	"iter"

	"go.yaml.in/yaml/v3"
)

// Faults gathers what is wrong with a YAML document, so that its author learns all of it at once.
type Faults struct {
	Path string // of the document
	all  []error
}

// Fault adds a fault of the value n, with path and line in front.
func (f *Faults) Fault(n *yaml.Node, format string, args ...any) {
	f.all = append(f.all, fmt.Errorf("%s:%d: %s", f.Path, n.Line, fmt.Sprintf(format, args...)))
}

// CountFaults is how many faults there are.
func (f *Faults) CountFaults() int { return len(f.all) }

// JoinFaults returns all faults as one error, one a line; nil if there are none.
func (f *Faults) JoinFaults() error { return errors.Join(f.all...) }

// An Entry is a key of a mapping, and its value.
type Entry struct {
	Key, Value *yaml.Node
	// First is the line of the same key before it, for a fault; 0 if there is none.
	First int
}

// Entries iterates over the entries of a mapping, or of the one that an alias names, in the order of
// the document. It has none for a value of another kind, which is the caller's fault to report.
func Entries(n *yaml.Node) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n.Kind != yaml.MappingNode {
			return
		}
		first := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if !yield(Entry{key, n.Content[i+1], first[key.Value]}) {
				return
			}
			if first[key.Value] == 0 {
				first[key.Value] = key.Line
			}
		}
	}
}
