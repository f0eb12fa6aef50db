package oip

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// A cursor decodes protobuf's wire format from gRPC's receive buffers without joining them. It is a
// value: a copy reads the same bytes again, unless the cursor is of a message that still arrives.
type cursor struct {
	cur  []byte          // the rest of the current buffer, within the limit
	rest mem.BufferSlice // the buffers after it
	left int             // bytes after cur that are within the limit
	from *incomingPieces // where the buffers after rest come from; nil: rest is all
}

var (
	errTruncated = errors.New("truncated")
	errTooDeep   = errors.New("groups nested too deeply")
)

// longestText bounds names, ids and string parameters, in bytes.
const longestText = 64 << 10

func newCursor(data mem.BufferSlice) cursor {
	return cursor{rest: data, left: data.Len()}
}

// bytesLeft returns the number of bytes left.
func (c *cursor) bytesLeft() int { return len(c.cur) + c.left }

// fill moves to the next buffer if the current one is used up. It reports whether any bytes are
// left.
func (c *cursor) fill() bool {
	for len(c.cur) == 0 {
		if c.left == 0 {
			return false
		}
		if len(c.rest) == 0 {
			if c.rest = c.from.next(); len(c.rest) == 0 {
				c.left = 0
				return false
			}
		}
		c.cur, c.rest = c.rest[0].ReadOnlyData(), c.rest[1:]
		c.cur = c.cur[:min(len(c.cur), c.left)]
		c.left -= len(c.cur)
	}
	return true
}

// copyTo copies the next len(dst) bytes to dst, and moves past them. At least that many must be
// left.
func (c *cursor) copyTo(dst []byte) {
	for len(dst) > 0 && c.fill() {
		n := copy(dst, c.cur)
		c.cur, dst = c.cur[n:], dst[n:]
	}
}

// arriveTo is copyTo for a cursor of a message that still arrives: the missing rest is read
// straight into dst, if that is possible.
func (c *cursor) arriveTo(dst []byte) {
	n := min(len(dst), len(c.cur)+c.rest.Len())
	c.copyTo(dst[:n])
	if dst = dst[n:]; len(dst) > 0 && c.from.readInto(dst) {
		c.left -= len(dst)
	} else {
		c.copyTo(dst)
	}
}

func (c *cursor) skip(n int) error {
	if n > c.bytesLeft() {
		return errTruncated
	}
	for n > 0 && c.fill() {
		m := min(n, len(c.cur))
		c.cur, n = c.cur[m:], n-m
	}
	return nil
}

// subCursor returns a cursor over the next n bytes, and moves past them. They stay in memory until
// the whole message is decoded.
func (c *cursor) subCursor(n int) (cursor, error) {
	if c.from != nil && n <= c.bytesLeft() {
		more, err := c.from.keepPiece(n - len(c.cur) - c.rest.Len())
		if err != nil {
			return cursor{}, err
		}
		c.rest = append(slices.Clip(c.rest), more...)
	}
	if n <= len(c.cur) {
		s := cursor{cur: c.cur[:n]}
		c.cur = c.cur[n:]
		return s, nil
	}
	s := *c
	if err := c.skip(n); err != nil {
		return cursor{}, err
	}
	s.left = max(0, n-len(s.cur))
	s.cur = s.cur[:min(n, len(s.cur))]
	s.from = nil
	return s, nil
}

func (c *cursor) readVarint() (uint64, error) {
	v, n := protowire.ConsumeVarint(c.cur)
	if n > 0 {
		c.cur = c.cur[n:]
		return v, nil
	}
	// Malformed, or continued in the next buffer.
	var b [10]byte
	for i := range b {
		if !c.fill() {
			return 0, errTruncated
		}
		b[i], c.cur = c.cur[0], c.cur[1:]
		if b[i] < 0x80 {
			v, n := protowire.ConsumeVarint(b[:i+1])
			return v, protowire.ParseError(min(n, 0))
		}
	}
	return 0, errors.New("variable length integer overflow")
}

// readTag decodes a field's number and type.
func (c *cursor) readTag() (protowire.Number, protowire.Type, error) {
	v, err := c.readVarint()
	if err != nil {
		return 0, 0, err
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber || num > protowire.MaxValidNumber {
		return 0, 0, fmt.Errorf("invalid field number %d", v>>3)
	}
	return num, typ, nil
}

// readMessage decodes a length, and returns a cursor over that many bytes.
func (c *cursor) readMessage() (cursor, error) {
	n, err := c.readVarint()
	if err != nil {
		return cursor{}, err
	}
	if n > uint64(c.bytesLeft()) {
		return cursor{}, errTruncated
	}
	return c.subCursor(int(n))
}

// readText decodes a string.
func (c *cursor) readText() (string, error) {
	s, err := c.readMessage()
	if err != nil {
		return "", err
	}
	n := s.bytesLeft()
	if n > longestText {
		return "", fmt.Errorf("a string of %d bytes, at most %d are accepted", n, longestText)
	}
	var text string
	if n <= len(s.cur) {
		text = string(s.cur)
	} else {
		b := make([]byte, n)
		s.copyTo(b)
		text = string(b)
	}
	if !utf8.ValidString(text) {
		return "", errors.New("a string that is not valid UTF-8")
	}
	return text, nil
}

// readFixed decodes a little-endian number of n bytes, at most 8.
func (c *cursor) readFixed(n int) (uint64, error) {
	if n > c.bytesLeft() {
		return 0, errTruncated
	}
	var b [8]byte
	c.copyTo(b[:n])
	v, _ := protowire.ConsumeFixed64(b[:])
	return v, nil
}

// skipField moves past the value of an unknown field.
func (c *cursor) skipField(num protowire.Number, typ protowire.Type) error {
	// The groups that are open, innermost last.
	var open [16]protowire.Number
	depth := 0
	for {
		var err error
		switch typ {
		case protowire.VarintType:
			_, err = c.readVarint()
		case protowire.Fixed32Type:
			err = c.skip(4)
		case protowire.Fixed64Type:
			err = c.skip(8)
		case protowire.BytesType:
			_, err = c.readMessage()
		case protowire.StartGroupType:
			if depth == len(open) {
				return errTooDeep
			}
			open[depth] = num
			depth++
		case protowire.EndGroupType:
			if depth == 0 || open[depth-1] != num {
				return errors.New("mismatching end of group")
			}
			depth--
		default:
			return fmt.Errorf("invalid wire type %d", typ)
		}
		if err != nil || depth == 0 {
			return err
		}
		if num, typ, err = c.readTag(); err != nil {
			return err
		}
	}
}
