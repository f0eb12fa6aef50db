package oip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/muster-serve/muster/api/tensor"
)

// A jsonReader decodes JSON text in memory without building a tree. Its errors name the position of
// the fault, in bytes from 0.
type jsonReader struct {
	text []byte
	pos  int
}

const (
	// deepestJSON bounds the nesting of values.
	deepestJSON = highestRank + 8
	// maxKeys bounds the keys of an object, because each is compared with all before it.
	maxKeys = 128
)

func (r *jsonReader) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %s", r.pos, fmt.Sprintf(format, args...))
}

// unexpectedText returns the error for text that is not what the reader expected.
func (r *jsonReader) unexpectedText(expected string) error {
	if r.pos >= len(r.text) {
		return r.errorf("expected %s, found the end of the text", expected)
	}
	c, _ := utf8.DecodeRune(r.text[r.pos:])
	return r.errorf("expected %s, found %q", expected, c)
}

// next skips white space, and returns the byte after it without moving past it; 0 at the end.
func (r *jsonReader) next() byte {
	for ; r.pos < len(r.text); r.pos++ {
		switch c := r.text[r.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// expectEnd returns an error if anything but white space is left.
func (r *jsonReader) expectEnd() error {
	if r.next(); r.pos < len(r.text) {
		return r.unexpectedText("the end of the text")
	}
	return nil
}

// list decodes a list between the brackets open and shut, and calls item at each item.
func (r *jsonReader) list(open, shut byte, what string, item func() error) error {
	if r.next() != open {
		return r.unexpectedText(what)
	}
	r.pos++
	if r.next() == shut {
		r.pos++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch r.next() {
		case ',':
			r.pos++
		case shut:
			r.pos++
			return nil
		default:
			return r.unexpectedText(fmt.Sprintf("',' or %q", shut))
		}
	}
}

func (r *jsonReader) readArray(item func() error) error {
	return r.list('[', ']', "an array", item)
}

// readObject calls field at the value of each key. A repeated key is an error.
func (r *jsonReader) readObject(field func(key string) error) error {
	var few [8]string // on the stack
	keys := few[:0]
	return r.list('{', '}', "an object", func() error {
		r.next()
		start := r.pos
		key, err := r.string()
		if err != nil {
			return err
		}
		for _, k := range keys {
			if k == key {
				r.pos = start
				return r.errorf("key %.64q is given twice", key)
			}
		}
		if len(keys) == maxKeys {
			return r.errorf("an object of more than %d keys", maxKeys)
		}
		keys = append(keys, key)
		if r.next() != ':' {
			return r.unexpectedText("':'")
		}
		r.pos++
		return field(key)
	})
}

// skipString moves past a string. It returns the bytes between the quotes, and whether they contain
// escapes.
func (r *jsonReader) skipString() (inner []byte, escaped bool, err error) {
	if r.next() != '"' {
		return nil, false, r.unexpectedText("a string")
	}
	r.pos++
	start := r.pos
	for ; r.pos < len(r.text); r.pos++ {
		switch c := r.text[r.pos]; {
		case c == '"':
			inner = r.text[start:r.pos]
			if !utf8.Valid(inner) {
				r.pos = start
				return nil, false, r.errorf("a string that is not valid UTF-8")
			}
			r.pos++
			return inner, escaped, nil
		case c == '\\':
			escaped = true
			r.pos++ // an escaped character does not end the string
		case c < ' ':
			return nil, false, r.errorf("control character %q in a string", c)
		}
	}
	r.pos = len(r.text)
	return nil, false, r.unexpectedText("'\"'")
}

// appendString decodes a string and appends it to b.
func (r *jsonReader) appendString(b []byte) ([]byte, error) {
	inner, escaped, err := r.skipString()
	if err != nil || !escaped {
		return append(b, inner...), err
	}
	end := r.pos
	r.pos -= len(inner) + 1
	for r.pos < end-1 {
		c := r.text[r.pos]
		if c != '\\' {
			b = append(b, c)
			r.pos++
			continue
		}
		switch c := r.text[r.pos+1]; c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			c, n := r.readUnicode()
			if n == 0 {
				return b, r.errorf(`a \u escape that is no character`)
			}
			b = utf8.AppendRune(b, c)
			r.pos += n
			continue
		default:
			return b, r.errorf(`unknown escape \%c`, c)
		}
		r.pos += 2
	}
	r.pos = end
	return b, nil
}

// readUnicode returns the character of the \u escape, or pair of escapes, at the current position,
// and the length of the escapes; length 0 if there is none.
func (r *jsonReader) readUnicode() (c rune, n int) {
	unit := func(at int) rune {
		if at+6 > len(r.text) || r.text[at] != '\\' || r.text[at+1] != 'u' {
			return -1
		}
		v, err := strconv.ParseUint(string(r.text[at+2:at+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(v)
	}
	switch c = unit(r.pos); {
	case c < 0:
		return 0, 0
	case !utf16.IsSurrogate(c):
		return c, 6
	}
	if c = utf16.DecodeRune(c, unit(r.pos+6)); c == utf8.RuneError {
		return 0, 0
	}
	return c, 12
}

func (r *jsonReader) string() (string, error) {
	start := r.pos
	var short [64]byte // on the stack
	b, err := r.appendString(short[:0])
	if err == nil && len(b) > longestText {
		r.pos = start
		err = r.errorf("a string of %d bytes, at most %d are accepted", len(b), longestText)
	}
	return string(b), err
}

// acceptByte moves past c if it is the next byte, and reports whether it was.
func (r *jsonReader) acceptByte(c byte) bool {
	if r.pos < len(r.text) && r.text[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

// skipDigits moves past digits, and reports whether there was one.
func (r *jsonReader) skipDigits() bool {
	from := r.pos
	for r.pos < len(r.text) && r.text[r.pos]-'0' <= 9 {
		r.pos++
	}
	return r.pos > from
}

// readNumber moves past a number and returns its text, which shares the reader's memory.
func (r *jsonReader) readNumber() (string, error) {
	r.next()
	start := r.pos
	r.acceptByte('-')
	if !r.acceptByte('0') && !r.skipDigits() {
		return "", r.unexpectedText("a number")
	}
	if r.acceptByte('.') && !r.skipDigits() {
		return "", r.unexpectedText("a digit")
	}
	if r.acceptByte('e') || r.acceptByte('E') {
		_ = r.acceptByte('+') || r.acceptByte('-')
		if !r.skipDigits() {
			return "", r.unexpectedText("a digit")
		}
	}
	return unsafe.String(&r.text[start], r.pos-start), nil
}

// expectWord moves past the word w if it is next.
func (r *jsonReader) expectWord(w string) error {
	if !strings.HasPrefix(unsafe.String(unsafe.SliceData(r.text[r.pos:]), len(r.text)-r.pos), w) {
		return r.unexpectedText(w)
	}
	r.pos += len(w)
	return nil
}

// skipNull moves past null, and reports whether it stood there.
func (r *jsonReader) skipNull() bool { return r.next() == 'n' && r.expectWord("null") == nil }

func (r *jsonReader) readBool() (bool, error) {
	switch r.next() {
	case 't':
		return true, r.expectWord("true")
	case 'f':
		return false, r.expectWord("false")
	}
	return false, r.unexpectedText("true or false")
}

// skip moves past any value that is nested depth levels deep.
func (r *jsonReader) skip(depth int) error {
	if depth > deepestJSON {
		return r.errorf("nested more than %d deep", deepestJSON)
	}
	var err error
	switch r.next() {
	case '{':
		return r.list('{', '}', "", func() error {
			if _, _, err := r.skipString(); err != nil {
				return err
			}
			if r.next() != ':' {
				return r.unexpectedText("':'")
			}
			r.pos++
			return r.skip(depth + 1)
		})
	case '[':
		return r.list('[', ']', "", func() error { return r.skip(depth + 1) })
	case '"':
		_, _, err = r.skipString()
	case 't':
		err = r.expectWord("true")
	case 'f':
		err = r.expectWord("false")
	case 'n':
		err = r.expectWord("null")
	default:
		if _, ok := r.nonFinite(); ok {
			return nil
		}
		if _, err = r.readNumber(); err != nil {
			err = r.unexpectedText("a value")
		}
	}
	return err
}

// readScalar decodes the value of a parameter: a bool, an int64, a uint64 (if an int64 is too
// small), a float64 or a string.
func (r *jsonReader) readScalar() (any, error) {
	switch c := r.next(); {
	case c == '"':
		return r.string()
	case c == 't' || c == 'f':
		return r.readBool()
	case c != '-' && (c < '0' || c > '9'):
		return nil, r.unexpectedText("a string, number or bool")
	}
	start := r.pos
	s, err := r.readNumber()
	if err != nil {
		return nil, err
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		r.pos = start
		return nil, r.errorf("%.64s is out of range", s)
	}
	return f, nil
}

// readInteger decodes a whole number. It returns the absolute value and whether the number is
// negative.
func (r *jsonReader) readInteger() (magnitude uint64, negative bool, err error) {
	r.next()
	start := r.pos
	s, err := r.readNumber()
	if err != nil {
		return 0, false, err
	}
	digits := s
	if s[0] == '-' {
		negative, digits = true, s[1:]
	}
	if magnitude, err = parseUint(digits); err != nil {
		r.pos = start
		return 0, false, r.errorf("%.64s %v", s, err)
	}
	return magnitude, negative, nil
}

var (
	errFraction = errors.New("is no whole number")
	errRange    = errors.New("is out of range")
)

func parseUint(s string) (v uint64, err error) {
	for i := range len(s) {
		d := uint64(s[i] - '0')
		if d > 9 {
			return 0, errFraction
		}
		if v > (math.MaxUint64-d)/10 {
			return 0, errRange
		}
		v = 10*v + d
	}
	return v, nil
}

// readNatural decodes a whole number >= 0.
func (r *jsonReader) readNatural() (int64, error) {
	r.next()
	start := r.pos
	v, negative, err := r.readInteger()
	if err == nil && (v > math.MaxInt64 || negative && v > 0) {
		text := r.text[start:r.pos]
		r.pos = start
		err = r.errorf("%.64s is out of range, expected 0 to %d", text, math.MaxInt64)
	}
	return int64(v), err
}

// readTensor decodes the data of t into dst, which is large enough. The data is either one flat
// array, or nested as t's shape says.
func (r *jsonReader) readTensor(t *tensor.Tensor, elements int, dst []byte) error {
	element, err := elementReader(t.DataType)
	if err != nil {
		return err
	}
	if r.next() != '[' {
		return r.unexpectedText("an array")
	}
	rank := len(t.Shape)
	// counts[d] is how many items there are so far in the open array at
	// depth d, counted from 1.
	var counts [highestRank + 2]int64
	depth, leaves := 0, 0 // leaves is the depth of the elements; 0 while unknown
	n := 0
	used := 0
	for {
		if r.next() == '[' {
			counts[depth]++
			depth++
			if depth > max(rank, 1) {
				return r.errorf("data is nested deeper than the %d dimensions of shape %v", rank,
					t.Shape)
			}
			counts[depth] = 0
			r.pos++
			if r.next() != ']' {
				continue
			}
		} else {
			if leaves == 0 && (depth == 1 || depth == rank) {
				leaves = depth
			}
			if depth != leaves {
				return r.unexpectedText("an array, as shape " + fmt.Sprint(t.Shape) +
					" and the elements before say")
			}
			if n == elements {
				return r.errorf("more than the %d elements of shape %v", elements, t.Shape)
			}
			size, err := element(r, dst[used:])
			if err != nil {
				return fmt.Errorf("element %d: %w", n, err)
			}
			used += size
			counts[depth]++
			n++
		}
		// A value is followed by the next one, or by the ends of arrays.
		for r.next() == ']' {
			// The length of a flat array is checked at its end. An empty array counts as flat if t
			// has no elements.
			flat := rank == 0 ||
				depth == 1 && (leaves == 1 && rank != 1 || counts[1] == 0 && elements == 0)
			if !flat && counts[depth] != t.Shape[depth-1] {
				return r.errorf("an array of %d at depth %d, expected %d for shape %v",
					counts[depth], depth, t.Shape[depth-1], t.Shape)
			}
			r.pos++
			if depth--; depth == 0 {
				if n != elements {
					return r.errorf("%d elements, expected %d for shape %v", n, elements, t.Shape)
				}
				t.Data = dst[:used:used]
				return nil
			}
		}
		if r.next() != ',' {
			return r.unexpectedText("',' or ']'")
		}
		r.pos++
	}
}

// countScalars returns how many strings, numbers, bools and nulls data, valid JSON, has.
func countScalars(data []byte) (n int) {
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '[', ']', '{', '}', ',', ':', ' ', '\t', '\r', '\n':
			continue
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		default:
			for i+1 < len(data) && strings.IndexByte("[]{},: \t\r\n", data[i+1]) < 0 {
				i++
			}
		}
		n++
	}
	return n
}

// elementReader returns a function that decodes one element of type d into dst and returns its size
// in bytes.
func elementReader(d tensor.DataType) (func(r *jsonReader, dst []byte) (int, error), error) {
	size := d.Size()
	switch d {
	case tensor.FP32:
		return (*jsonReader).readFP32, nil
	case tensor.FP64:
		return (*jsonReader).readFP64, nil
	case tensor.FP16, tensor.BF16:
		return func(r *jsonReader, dst []byte) (int, error) { return r.readHalfElement(d, dst) },
			nil
	case tensor.Bool:
		return func(r *jsonReader, dst []byte) (int, error) {
			v, err := r.readBool()
			dst[0] = 0
			if v {
				dst[0] = 1
			}
			return 1, err
		}, nil
	case tensor.Bytes:
		return func(r *jsonReader, dst []byte) (int, error) {
			b, err := r.appendString(dst[4:4])
			binary.LittleEndian.PutUint32(dst, uint32(len(b)))
			return 4 + len(b), err
		}, nil
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		largest := uint64(1)<<(8*size-1) - 1
		return func(r *jsonReader, dst []byte) (int, error) {
			return r.wholeElement(dst, d, largest, largest+1)
		}, nil
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		largest := uint64(math.MaxUint64) >> (64 - 8*size)
		return func(r *jsonReader, dst []byte) (int, error) {
			return r.wholeElement(dst, d, largest, 0)
		}, nil
	}
	return nil, unknownType(d)
}

// wholeElement decodes an integer in [-smallest, largest].
func (r *jsonReader) wholeElement(dst []byte, d tensor.DataType, largest, smallest uint64) (int,
	error) {
	r.next()
	start := r.pos
	v, negative, err := r.readInteger()
	if err != nil {
		return 0, err
	}
	if negative && v > smallest || !negative && v > largest {
		text := r.text[start:r.pos]
		r.pos = start
		return 0, r.errorf("%.64s is out of range for %s", text, d)
	}
	if negative {
		v = -v
	}
	switch d.Size() {
	case 1:
		dst[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(dst, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(dst, uint32(v))
	case 8:
		binary.LittleEndian.PutUint64(dst, v)
	}
	return d.Size(), nil
}

func (r *jsonReader) readFP32(dst []byte) (int, error) {
	v, err := r.readFloat(32)
	binary.LittleEndian.PutUint32(dst, math.Float32bits(float32(v)))
	return 4, err
}

func (r *jsonReader) readFP64(dst []byte) (int, error) {
	v, err := r.readFloat(64)
	binary.LittleEndian.PutUint64(dst, math.Float64bits(v))
	return 8, err
}

// readHalfElement decodes a 16-bit float of type d.
func (r *jsonReader) readHalfElement(d tensor.DataType, dst []byte) (int, error) {
	r.next()
	start := r.pos
	v, err := r.readFloat(64)
	if err != nil {
		return 0, err
	}
	element, ok := tensor.HalfOf(d, v)
	if !ok {
		text := r.text[start:r.pos]
		r.pos = start
		return 0, r.errorf("%.64s is out of range for %s", text, d)
	}
	binary.LittleEndian.PutUint16(dst, element)
	return 2, nil
}

// nonFinite moves past NaN, Infinity or -Infinity, and reports whether there was one. It is a
// string, as in answers, or a bare word, which is no JSON but what Python's json and Triton's
// clients write.
func (r *jsonReader) nonFinite() (v float64, ok bool) {
	switch c := r.next(); {
	case c == '"', c == 'N', c == 'I':
	case c == '-' && r.pos+1 < len(r.text) && r.text[r.pos+1] == 'I':
	default:
		return 0, false
	}
	start := r.pos
	quoted := r.acceptByte('"')
	switch {
	case r.expectWord(nan) == nil:
		v = math.NaN()
	case r.expectWord(infinity) == nil:
		v = math.Inf(1)
	case r.expectWord(negativeInfinity) == nil:
		v = math.Inf(-1)
	default:
		r.pos = start
		return 0, false
	}
	if quoted && !r.acceptByte('"') {
		r.pos = start
		return 0, false
	}
	return v, true
}

func (r *jsonReader) readFloat(bits int) (float64, error) {
	if v, ok := r.nonFinite(); ok {
		return v, nil
	}
	switch r.next() {
	case 'n': // what is missing, as pandas and JavaScript write it
		return math.NaN(), r.expectWord("null")
	case '"':
		return 0, r.unexpectedText(`a number, null, "NaN", "Infinity" or "-Infinity"`)
	}
	start := r.pos
	s, err := r.readNumber()
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(s, bits)
	if err != nil {
		r.pos = start
		return 0, r.errorf("%.64s is out of range for FP%d", s, bits)
	}
	return v, nil
}
