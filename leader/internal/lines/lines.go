package lines

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Int appends a number unless it is 0.
func Int(b []byte, key string, v int) []byte {
	if v == 0 {
		return b
	}
	return Number(b, key, v)
}

// Number appends a number, 0 too.
func Number(b []byte, key string, v int) []byte {
	return strconv.AppendInt(append(append(append(b, ' '), key...), '='), int64(v), 10)
}

// Float appends a number exactly, unless it is 0.
func Float(b []byte, key string, v float64) []byte {
	if v == 0 {
		return b
	}
	return strconv.AppendFloat(append(append(append(b, ' '), key...), '='), v, 'g', -1, 64)
}

// ParseShare parses a number in [0, 1].
func ParseShare(value string) (float64, error) {
	v, err := strconv.ParseFloat(value, 64)
	if err == nil && !(v >= 0 && v <= 1) {
		err = fmt.Errorf("got %s, want a number in 0..1", value)
	}
	return v, err
}

// Flag appends key=value if on.
func Flag(b []byte, key, value string, on bool) []byte {
	if !on {
		return b
	}
	return append(append(append(append(b, ' '), key...), '='), value...)
}

// Duration appends a duration unless it is 0.
func Duration(b []byte, key string, v time.Duration) []byte {
	if v == 0 {
		return b
	}
	return append(append(append(append(b, ' '), key...), '='), v.String()...)
}

// Text appends a text unless it is empty.
func Text[S ~string](b []byte, key string, v S) []byte {
	if v == "" {
		return b
	}
	return Item(b, key, v)
}

// Item appends one value of a list, which may be empty. A value with spaces is quoted.
func Item[S ~string](b []byte, key string, v S) []byte {
	b = append(append(append(b, ' '), key...), '=')
	odd := func(r rune) bool { return r == '"' || !unicode.IsGraphic(r) || unicode.IsSpace(r) }
	if v == "" || strings.ContainsFunc(string(v), odd) {
		return strconv.AppendQuote(b, string(v))
	}
	return append(b, v...)
}

// Query appends a query's id as gateway/sequence.
func Query(b []byte, key string, gateway, sequence uint64) []byte {
	b = strconv.AppendUint(append(append(append(b, ' '), key...), '='), gateway, 10)
	return strconv.AppendUint(append(b, '/'), sequence, 10)
}

// ParseQuery is the inverse of Query.
func ParseQuery(value string) (gateway, sequence uint64, err error) {
	first, second, _ := strings.Cut(value, "/")
	if gateway, err = strconv.ParseUint(first, 10, 64); err == nil {
		sequence, err = strconv.ParseUint(second, 10, 64)
	}
	return gateway, sequence, err
}

// Fields splits a line at spaces outside of quotes.
func Fields(s string) ([]string, error) {
	var fields []string
	for s = strings.TrimLeft(s, " \t"); s != ""; s = strings.TrimLeft(s, " \t") {
		end := strings.IndexAny(s, " \t")
		if quote := strings.Index(s, `="`); quote >= 0 && (end < 0 || quote < end) {
			quoted, err := strconv.QuotedPrefix(s[quote+1:])
			if err != nil {
				return nil, fmt.Errorf("unfinished quote in %.40q", s)
			}
			end = quote + 1 + len(quoted)
		}
		if end < 0 {
			end = len(s)
		}
		fields = append(fields, s[:end])
		s = s[end:]
	}
	return fields, nil
}

// Split splits a field into key and value.
func Split(field string) (key, value string, err error) {
	key, value, ok := strings.Cut(field, "=")
	if !ok {
		return "", "", fmt.Errorf("got %q, want key=value", field)
	}
	if strings.HasPrefix(value, `"`) {
		if value, err = strconv.Unquote(value); err != nil {
			return "", "", fmt.Errorf("%s: %w", key, err)
		}
	}
	return key, value, nil
}
