package document

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Key is one that a mapping may have: how its value is read, and what people need to know of it.
// A reader's table of keys is the only list of them; docs/configuration.md is made from it.
type Key struct {
	Name string
	// Type says which values there are, with unit and range; Default what holds without the key, ""
	// if nothing does. Meaning is a sentence in Markdown.
	Type, Default, Meaning string
	// Read reads a value. key is the key's full name, such as inputs[0].name.
	Read func(key string, value *yaml.Node)
	// Keys are those of the value; if Of is not "", those of each of its elements, which are named
	// Name and Of: "[]" for a list, ".NAME" for a mapping from names.
	Keys []Key
	Of   string
}

// FindKey returns the key with the name; nil if there is none.
func FindKey(keys []Key, name string) *Key {
	if i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name }); i >= 0 {
		return &keys[i]
	}
	return nil
}

// KeyNames returns the names of keys, in order.
func KeyNames(keys []Key) (names []string) {
	for _, k := range keys {
		names = append(names, k.Name)
	}
	return names
}

// ListNames returns the names of keys as they are and as people list what they can choose of: "a, b
// or c".
func ListNames(keys []Key) string {
	names := KeyNames(keys)
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// RequiresKey describes the key [Requires], which [SharedYAML] reads.
func RequiresKey() Key {
	return Key{Name: Requires, Type: "whole number of at least 1", Default: "1",
		Meaning: "the [format](fleet.md#files-that-the-machines-share) that the file needs. A " +
			"version of Muster that does not know it refuses the file."}
}
