package placecmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// largest is the most bytes of a file.
const largest = 1 << 30

// faultsShown is how many of a file's faults an error names.
const faultsShown = 10

// A document is a JSON file whose faults are told by their paths, as rates[3].qps. The functions of
// an element return the value that is there; they note each fault and go on.
type document struct {
	name   string
	faults []string
	more   int
}

// An element is a value of a document. It is a *object, a []any of what elements hold, a string, a
// json.Number, a bool or nil.
type element struct {
	of    *document
	path  string
	value any
}

type object struct {
	keys   []string
	values map[string]any
}

// readDocument reads the file at path, or stdin if path is "-".
func readDocument(path string, stdin io.Reader) (*document, element, error) {
	d := &document{name: path}
	from := stdin
	if path == "-" {
		d.name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, element{}, err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, largest+1))
	if err != nil {
		return nil, element{}, fmt.Errorf("%s: %w", d.name, err)
	}
	if len(text) > largest {
		return nil, element{}, fmt.Errorf("%s: more than %d bytes", d.name, largest)
	}
	decoder := json.NewDecoder(bytes.NewReader(quoteConstants(text)))
	decoder.UseNumber()
	value, err := d.read(decoder, "", 0)
	if err == nil {
		if _, err = decoder.Token(); err == io.EOF {
			return d, element{d, "", value}, nil
		} else if err == nil {
			err = errors.New("the value is followed by more text")
		}
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errors.New("the file ends too early")
	}
	return nil, element{}, fmt.Errorf("%s: not JSON: %w", d.name, err)
}

// constants are no JSON, but some programs write them for numbers. As strings they are refused by
// their paths.
var constants = []string{"-Infinity", "Infinity", "NaN"}

func quoteConstants(text []byte) []byte {
	if !slices.ContainsFunc(constants,
		func(c string) bool { return bytes.Contains(text, []byte(c)) }) {
		return text
	}
	var to []byte
	quoted := false
	for i := 0; i < len(text); i++ {
		if quoted && text[i] == '\\' && i+1 < len(text) {
			to = append(to, text[i], text[i+1])
			i++
			continue
		}
		if text[i] == '"' {
			quoted = !quoted
		}
		k := slices.IndexFunc(constants, func(c string) bool {
			return bytes.HasPrefix(text[i:], []byte(c))
		})
		if !quoted && k >= 0 {
			to = append(to, strconv.Quote(constants[k])...)
			i += len(constants[k]) - 1
			continue
		}
		to = append(to, text[i])
	}
	return to
}

// deepest is how deep values may lie in each other.
const deepest = 20

func (d *document) read(from *json.Decoder, path string, depth int) (any, error) {
	token, err := from.Token()
	if err != nil {
		return nil, err
	}
	if depth > deepest {
		return nil, fmt.Errorf("%s: values are nested more than %d deep", path, deepest)
	}
	switch token {
	case json.Delim('['):
		items := []any{}
		for from.More() {
			item, err := d.read(from, fmt.Sprintf("%s[%d]", path, len(items)), depth+1)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		_, err = from.Token()
		return items, err
	case json.Delim('{'):
		o := &object{values: map[string]any{}}
		for from.More() {
			key, err := from.Token()
			if err != nil {
				return nil, err
			}
			name := key.(string) // the decoder lets no other key pass
			at := joinPath(path, name)
			value, err := d.read(from, at, depth+1)
			if err != nil {
				return nil, err
			}
			if _, ok := o.values[name]; ok {
				d.addFault(at, "is given twice")
				continue
			}
			o.keys, o.values[name] = append(o.keys, name), value
		}
		_, err = from.Token()
		return o, err
	}
	return token, nil
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (d *document) addFault(path, format string, args ...any) {
	if len(d.faults) == faultsShown {
		d.more++
		return
	}
	if path == "" {
		path = "the file"
	}
	d.faults = append(d.faults, path+": "+fmt.Sprintf(format, args...))
}

// err is all faults as an error, or nil.
func (d *document) err() error {
	if len(d.faults) == 0 {
		return nil
	}
	text := d.name + ": " + strings.Join(d.faults, "\n"+d.name+": ")
	if d.more > 0 {
		text += fmt.Sprintf("\n%s: and %d more faults", d.name, d.more)
	}
	return errors.New(text)
}

func (e element) addFault(format string, args ...any) { e.of.addFault(e.path, format, args...) }

// foundText says what e is, for a fault.
func (e element) foundText() string {
	switch v := e.value.(type) {
	case *object:
		return "an object"
	case []any:
		return "a list"
	case string:
		if slices.Contains(constants, v) {
			return v
		}
		return strconv.Quote(v)
	case nil:
		return "null"
	}
	return fmt.Sprint(e.value)
}

// readFields returns the object's values by name. An object has all the wanted ones, and others
// only of the optional ones.
func (e element) readFields(wanted, optional []string) map[string]element {
	o, ok := e.value.(*object)
	if !ok {
		e.addFault("is %s, want an object", e.foundText())
		return nil
	}
	fields := map[string]element{}
	for _, key := range o.keys {
		if !slices.Contains(wanted, key) && !slices.Contains(optional, key) {
			e.of.addFault(joinPath(e.path, key), "unknown, want one of %s",
				strings.Join(slices.Concat(wanted, optional), ", "))
			continue
		}
		fields[key] = element{e.of, joinPath(e.path, key), o.values[key]}
	}
	for _, key := range wanted {
		if _, ok := fields[key]; !ok {
			e.of.addFault(joinPath(e.path, key), "is missing")
			fields[key] = element{e.of, joinPath(e.path, key), absent{}}
		}
	}
	return fields
}

// absent is the value of an element whose absence was noted.
type absent struct{}

// readMembers returns an object's values in the file's order.
func (e element) readMembers() (names []string, values []element) {
	if e.value == (absent{}) {
		return nil, nil
	}
	o, ok := e.value.(*object)
	if !ok {
		e.addFault("is %s, want an object", e.foundText())
		return nil, nil
	}
	for _, key := range o.keys {
		values = append(values, element{e.of, joinPath(e.path, key), o.values[key]})
	}
	return o.keys, values
}

// readItems returns a list's elements.
func (e element) readItems() (items []element) {
	if e.value == (absent{}) {
		return nil
	}
	list, ok := e.value.([]any)
	if !ok {
		e.addFault("is %s, want a list", e.foundText())
	}
	for i, v := range list {
		items = append(items, element{e.of, fmt.Sprintf("%s[%d]", e.path, i), v})
	}
	return items
}

// readText returns a string that is not empty.
func (e element) readText() string {
	s, ok := e.value.(string)
	if e.value != (absent{}) && (!ok || s == "") {
		e.addFault("is %s, want a name", e.foundText())
	}
	return s
}

// readNumber returns a finite number >= 0.
func (e element) readNumber() float64 {
	n, ok := e.value.(json.Number)
	x := math.NaN()
	if ok {
		x, _ = strconv.ParseFloat(n.String(), 64) // beyond its range: Inf, or 0 for the very small
	}
	if !(x >= 0) || math.IsInf(x, 0) {
		if e.value != (absent{}) {
			e.addFault("is %s, want a finite number >= 0", e.foundText())
		}
		return 0
	}
	return x
}

// readCount returns a whole number between 0 and most.
func (e element) readCount(most int) int {
	before := len(e.of.faults) + e.of.more
	x := e.readNumber()
	if len(e.of.faults)+e.of.more > before {
		return 0
	}
	if x != math.Trunc(x) || x > float64(most) {
		e.addFault("is %s, want a whole number from 0 to %d", e.foundText(), most)
		return 0
	}
	return int(x)
}
