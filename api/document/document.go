// Package document reads files of one YAML document or JSON value. Its errors say what was found
// and what is wanted in the file's words, not in Go's.
package document

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML returns the document in data, whose Content[0] is its value; nil if there are only comments.
// More than one document is an error: a reader of the first would drop the rest without a word.
// Errors begin with path.
func YAML(path string, data []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	switch err := d.Decode(&document); {
	case err == io.EOF:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := d.Decode(new(yaml.Node)); err != io.EOF {
		return nil, fmt.Errorf("%s: more than one document, want one", path)
	}
	return &document, nil
}

// Found describes a YAML value in an error.
func Found(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	if n.Tag == "!!null" {
		return "nothing"
	}
	return strconv.Quote(fmt.Sprintf("%.80s", n.Value))
}

// JSON decodes data, which is one JSON value without unknown keys, into the value that into points
// to.
func JSON(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fault(data, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more data after the value")
	}
	return nil
}

// fault puts an error of encoding/json about data into words for users.
func fault(data []byte, err error) error {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind):
		found, value, isNumber := strings.Cut(kind.Value, " ") // "number 1.5"
		if isNumber {
			found = value
		} else {
			found = nouns[found]
		}
		return fmt.Errorf("%s is %s, want %s", cmp.Or(kind.Field, "the value"), found,
			describeType(kind.Type))
	case errors.As(err, &syntax):
		line := 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
		return fmt.Errorf("line %d: not JSON: %w", line, syntax)
	case err == io.EOF:
		return errors.New("empty, want JSON")
	case err == io.ErrUnexpectedEOF:
		return errors.New("not JSON: it ends too early")
	}
	if text, ok := strings.CutPrefix(err.Error(), "json: "); ok { // an unknown key has no type
		return errors.New(text)
	}
	return err
}

// nouns are the names of json.UnmarshalTypeError for JSON's kinds of values.
var nouns = map[string]string{
	"string": "a text", "number": "a number", "bool": "true or false", "array": "a list",
	"object": "an object",
}

func describeType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return describeType(t.Elem())
	}
	return "a whole number"
}
