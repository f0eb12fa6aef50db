package onnx

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// longestText is the most bytes that a name or another text of a model may have.
const longestText = 1 << 20

// window is how many bytes of the file are read at a time. It is small, because mostly weights lie
// between two fields that are needed.
const window = 8 << 10

// A source reads a file in windows, so that skipped parts are not read. If another process
// truncates the file, reading gives an error; a mapped file would kill this process.
type source struct {
	r      io.ReaderAt
	buf    []byte // the part of the file in memory; it begins at start
	start  int64
	memory [window]byte
}

// bytesAt returns the n bytes at offset off; n is at most window. They are valid until the next
// call.
func (s *source) bytesAt(off int64, n int) ([]byte, error) {
	if off < s.start || off+int64(n) > s.start+int64(len(s.buf)) {
		got, err := s.r.ReadAt(s.memory[:], off)
		s.buf, s.start = s.memory[:got], off
		if got < n {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return s.buf[off-s.start:][:n], nil
}

// A message is the part of a file that holds one protobuf message.
type message struct {
	source   *source
	pos, end int64
}

// A field is one field of a message: value for varints and fixed-size numbers,
// body for length-delimited ones.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64
	body   message
}

// next returns the next field and advances past it. It returns io.EOF at the end of the message.
func (m *message) next() (field, error) {
	if m.pos >= m.end {
		return field{}, io.EOF
	}
	begin := m.pos
	tag, err := m.readVarint()
	if err != nil {
		return field{}, err
	}
	number, kind := protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return field{}, fmt.Errorf("at byte %d: field number %d", begin, number)
	}
	f := field{number: number, kind: kind}
	switch kind {
	case protowire.VarintType:
		f.value, err = m.readVarint()
	case protowire.Fixed32Type:
		err = m.skip(4)
	case protowire.Fixed64Type:
		err = m.skip(8)
	case protowire.BytesType:
		var n uint64
		if n, err = m.readVarint(); err != nil {
			break
		}
		start := m.pos
		if n > uint64(m.end-m.pos) {
			err = fmt.Errorf("at byte %d: field %d is %d bytes long, %d are left", begin, number, n,
				m.end-m.pos)
			break
		}
		m.pos += int64(n)
		f.body = message{source: m.source, pos: start, end: m.pos}
	default: // ONNX does not use groups
		err = fmt.Errorf("at byte %d: field %d has wire type %d", begin, number, kind)
	}
	if err != nil {
		return field{}, err
	}
	return f, nil
}

func (m *message) skip(n int64) error {
	if m.end-m.pos < n {
		return fmt.Errorf("at byte %d: %d bytes are missing", m.pos, n-(m.end-m.pos))
	}
	m.pos += n
	return nil
}

func (m *message) readVarint() (uint64, error) {
	b, err := m.source.bytesAt(m.pos, int(min(m.end-m.pos, 10)))
	if err != nil {
		return 0, fmt.Errorf("at byte %d: %w", m.pos, err)
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return 0, fmt.Errorf("at byte %d: %w", m.pos, protowire.ParseError(n))
	}
	m.pos += int64(n)
	return v, nil
}

// readText returns the rest of the message as a string.
func (m *message) readText() (string, error) {
	n := m.end - m.pos
	if n > longestText {
		return "", fmt.Errorf("at byte %d: text of %d bytes, at most %d are expected", m.pos, n,
			longestText)
	}
	b := make([]byte, 0, n)
	for m.pos < m.end {
		part, err := m.source.bytesAt(m.pos, int(min(m.end-m.pos, window)))
		if err != nil {
			return "", fmt.Errorf("at byte %d: %w", m.pos, err)
		}
		b = append(b, part...)
		m.pos += int64(len(part))
	}
	return string(b), nil
}

// eachField calls visit for every field of the message.
func (m message) eachField(visit func(field) error) error {
	for {
		f, err := m.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(f); err != nil {
			return err
		}
	}
}

// readText returns the field's string. A field of another wire type is an error.
func (f field) readText() (string, error) {
	b, err := f.readMessage()
	if err != nil {
		return "", err
	}
	return b.readText()
}

// readMessage returns the field's body. A field of another wire type is an error.
func (f field) readMessage() (message, error) {
	if f.kind != protowire.BytesType {
		return message{}, fmt.Errorf("field %d has wire type %d, expected a length", f.number,
			f.kind)
	}
	return f.body, nil
}

// readInteger returns the field's number. A field of another wire type is an error.
func (f field) readInteger() (int64, error) {
	if f.kind != protowire.VarintType {
		return 0, fmt.Errorf("field %d has wire type %d, expected an integer", f.number, f.kind)
	}
	return int64(f.value), nil
}
