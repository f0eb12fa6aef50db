package lines

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// A Field is one field of a T in the text form: how it is written, and how it is read. The
// functions that make one take its key, and a function that returns where a T has it.
type Field[T any] struct {
	Key string
	// Append appends the field to a line, or nothing if it is the zero of its type.
	Append func(b []byte, of *T) []byte
	// Set sets the field to the value in a line.
	Set func(of *T, value string) error
}

// A Form is some fields of a T, in the order in which a line has them.
type Form[T any] []*Field[T]

// Append appends all of them.
func (fs Form[T]) Append(b []byte, of *T) []byte {
	for _, f := range fs {
		b = f.Append(b, of)
	}
	return b
}

// Has reports whether one of them has the key.
func (fs Form[T]) Has(key string) bool {
	return slices.ContainsFunc(fs, func(f *Field[T]) bool { return f.Key == key })
}

// ErrNoField is the error of a key that is not among the fields.
var ErrNoField = errors.New("there is no such key here")

// Set sets the field with the key.
func (fs Form[T]) Set(of *T, key, value string) error {
	for _, f := range fs {
		if f.Key == key {
			return f.Set(of, value)
		}
	}
	return ErrNoField
}

// newField makes a field of an appending function and a parsing one.
func newField[T, V any](key string, at func(*T) *V, write func([]byte, string, V) []byte,
	parse func(string) (V, error)) *Field[T] {
	return &Field[T]{
		Key:    key,
		Append: func(b []byte, of *T) []byte { return write(b, key, *at(of)) },
		Set: func(of *T, value string) (err error) {
			*at(of), err = parse(value)
			return err
		},
	}
}

// IntField is a number of either sign.
func IntField[T any](key string, at func(*T) *int) *Field[T] {
	return newField(key, at, Int, strconv.Atoi)
}

// CountField is a number of things, less than 2^31.
func CountField[T any](key string, at func(*T) *int) *Field[T] {
	return newField(key, at, Int, ParseCount)
}

// NumberField is a number that is written if it is 0 too; of less than 2^31.
func NumberField[T any](key string, at func(*T) *int) *Field[T] {
	return newField(key, at, Number, ParseCount)
}

// UintField is a number of so many bits.
func UintField[T any](key string, bits int, at func(*T) *uint64) *Field[T] {
	return newField(key, at, func(b []byte, key string, v uint64) []byte {
		return Int(b, key, int(v))
	}, func(value string) (uint64, error) { return strconv.ParseUint(value, 10, bits) })
}

// FloatField is any number, written exactly.
func FloatField[T any](key string, at func(*T) *float64) *Field[T] {
	return newField(key, at, Float, func(value string) (float64, error) {
		return strconv.ParseFloat(value, 64)
	})
}

// ShareField is a number in [0, 1], written exactly.
func ShareField[T any](key string, at func(*T) *float64) *Field[T] {
	return newField(key, at, Float, ParseShare)
}

// DurationField is a duration.
func DurationField[T any](key string, at func(*T) *time.Duration) *Field[T] {
	return newField(key, at, Duration, time.ParseDuration)
}

// TextField is a text or a name.
func TextField[T any, S ~string](key string, at func(*T) *S) *Field[T] {
	return newField(key, at, Text[S], func(value string) (S, error) { return S(value), nil })
}

// FlagField is written as the word if it is on.
func FlagField[T any](key, word string, at func(*T) *bool) *Field[T] {
	return newField(key, at, func(b []byte, key string, on bool) []byte {
		return Flag(b, key, word, on)
	}, func(value string) (bool, error) {
		if value != word {
			return true, fmt.Errorf("got %s, want %s", value, word)
		}
		return true, nil
	})
}

// QueryField is a query's id, as gateway/sequence.
func QueryField[T any](key string, at func(*T) (gateway, sequence *uint64)) *Field[T] {
	return &Field[T]{key, func(b []byte, of *T) []byte {
		gateway, sequence := at(of)
		return Query(b, key, *gateway, *sequence)
	}, func(of *T, value string) (err error) {
		gateway, sequence := at(of)
		*gateway, *sequence, err = ParseQuery(value)
		return err
	}}
}

// GatewayField is the number of a gateway, 0 too.
func GatewayField[T any](at func(*T) *uint64) *Field[T] {
	return newField("gateway", at, func(b []byte, _ string, v uint64) []byte {
		return strconv.AppendUint(append(b, " gateway="...), v, 10)
	}, func(value string) (uint64, error) { return strconv.ParseUint(value, 10, 64) })
}

// ParseCount parses a number of less than 2^31.
func ParseCount(value string) (int, error) {
	n, err := strconv.ParseUint(value, 10, 31)
	return int(n), err
}
