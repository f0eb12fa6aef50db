package picker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// shapeBytes bounds how much of a body is read for the shapes of its inputs. In gRPC they come before
// the tensors, and in REST where the JSON part comes first, or in the order in which clients write
// it: so the first kilobyte says them, or nothing does.
const shapeBytes = 64 << 10

// maxInputs bounds the inputs that are read.
const maxInputs = 1 << 14

// A shapeReader reads what the first bytes of a query's body say.
type shapeReader struct {
	isGRPC bool
	// jsonBytes is the length of the JSON part of a REST body, 0 if that is all of it.
	jsonBytes int
	// readable says that the body is not compressed, and no tensor alone.
	readable bool
	data     []byte
}

// add adds bytes of the body, and reports whether enough is there.
func (s *shapeReader) add(b []byte, ended bool) (enough bool) {
	if room := shapeBytes - len(s.data); len(b) > room {
		b = b[:max(0, room)]
	}
	s.data = append(s.data, b...)
	return ended || !s.readable || len(s.data) >= shapeBytes || s.isWhole()
}

// isWhole reports whether the part that says the shapes is there.
func (s *shapeReader) isWhole() bool {
	if !s.isGRPC {
		return s.jsonBytes > 0 && len(s.data) >= s.jsonBytes
	}
	_, whole := readMessage(s.data)
	return whole
}

// A readQuery is what a body says of its query.
type readQuery struct {
	model, version string
	timeout        time.Duration
	inputs         []tensor.Tensor // without data
}

// read returns what the bytes say so far.
func (s *shapeReader) read() (q readQuery) {
	switch {
	case !s.readable:
	case s.isGRPC:
		q, _ = readMessage(s.data)
	default:
		part := s.data
		if s.jsonBytes > 0 {
			part = part[:min(s.jsonBytes, len(part))]
		}
		q = readJSON(part)
	}
	return q
}

// grpcPrefix is the length of what precedes a message on a gRPC stream: whether it is compressed,
// and its length in four bytes.
const grpcPrefix = 5

// readMessage reads a ModelInferRequest, perhaps cut off, behind its prefix. whole reports whether
// nothing that follows says anything of the inputs' shapes.
func readMessage(b []byte) (q readQuery, whole bool) {
	if len(b) < grpcPrefix {
		return q, false
	}
	if b[0] != 0 { // compressed
		return q, true
	}
	length := int(binary.BigEndian.Uint32(b[1:]))
	b = b[grpcPrefix:]
	whole = len(b) >= length
	b = b[:min(length, len(b))]
	const model, version, parameters, inputs, raw = 1, 2, 4, 5, 7
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return q, whole
		}
		if number == raw {
			return q, true
		}
		if kind != protowire.BytesType {
			if n += max(0, protowire.ConsumeFieldValue(number, kind, b[n:])); n > len(b) {
				return q, whole
			}
			b = b[n:]
			continue
		}
		field, rest, cut := consumeBytes(b[n:])
		switch number {
		case model:
			q.model = string(field)
		case version:
			q.version = string(field)
		case parameters:
			if !cut {
				q.readTimeout(field)
			}
		case inputs:
			if in := readInput(field); in.Shape != nil && len(q.inputs) < maxInputs {
				q.inputs = append(q.inputs, in)
			}
		}
		b = rest
	}
	return q, whole
}

// consumeBytes returns a field of bytes and what follows; cut says that the field goes on behind b.
func consumeBytes(b []byte) (field, rest []byte, cut bool) {
	length, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return nil, nil, true
	}
	b = b[n:]
	if length > uint64(len(b)) {
		return b, nil, true
	}
	return b[:length], b[length:], false
}

// readTimeout reads a parameter if it is the timeout, in µs.
func (q *readQuery) readTimeout(entry []byte) {
	name, value := "", []byte(nil)
	for len(entry) > 0 {
		number, kind, n := protowire.ConsumeTag(entry)
		if n < 0 || kind != protowire.BytesType {
			return
		}
		field, rest, cut := consumeBytes(entry[n:])
		if cut {
			return
		}
		if number == 1 {
			name = string(field)
		} else {
			value = field
		}
		entry = rest
	}
	const int64Parameter, uint64Parameter = 2, 5 // of InferParameter
	number, kind, n := protowire.ConsumeTag(value)
	if name != "timeout" || n < 0 || kind != protowire.VarintType ||
		number != int64Parameter && number != uint64Parameter {
		return
	}
	if us, n := protowire.ConsumeVarint(value[n:]); n > 0 && us < 1<<40 {
		q.timeout = time.Duration(us) * time.Microsecond
	}
}

// readInput reads an input of a ModelInferRequest, perhaps cut off, without its contents.
func readInput(b []byte) (t tensor.Tensor) {
	const name, dataType, shape = 1, 2, 3
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return t
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if number == shape && kind == protowire.VarintType {
				if size, n := protowire.ConsumeVarint(b); n > 0 {
					t.Shape = append(t.Shape, int64(size))
				}
			}
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return t
			}
			b = b[n:]
			continue
		}
		field, rest, cut := consumeBytes(b)
		switch {
		case number == name && !cut:
			t.Name = string(field)
		case number == dataType && !cut:
			t.DataType = tensor.DataType(field)
		case number == shape && !cut:
			for len(field) > 0 && len(t.Shape) < 64 {
				size, n := protowire.ConsumeVarint(field)
				if n < 0 {
					break
				}
				t.Shape, field = append(t.Shape, int64(size)), field[n:]
			}
		}
		b = rest
	}
	return t
}

// readJSON reads the JSON of a query, perhaps cut off.
func readJSON(b []byte) (q readQuery) {
	d := json.NewDecoder(bytes.NewReader(b))
	_ = eachKey(d, func(key string) error {
		switch key {
		case "parameters":
			return eachKey(d, func(key string) error {
				if key != "timeout" {
					return skip(d)
				}
				us := int64(0)
				err := d.Decode(&us)
				if us > 0 && us < 1<<40 {
					q.timeout = time.Duration(us) * time.Microsecond
				}
				return err
			})
		case "inputs":
			return q.readJSONInputs(d)
		}
		return skip(d)
	})
	return q
}

// readJSONInputs reads the list of inputs. One that is cut off counts if its shape is there.
func (q *readQuery) readJSONInputs(d *json.Decoder) error {
	if token, err := d.Token(); err != nil || token != json.Delim('[') {
		return errCut
	}
	for d.More() && len(q.inputs) < maxInputs {
		var in tensor.Tensor
		err := eachKey(d, func(key string) error {
			switch key {
			case "name":
				return d.Decode(&in.Name)
			case "datatype":
				text := ""
				err := d.Decode(&text)
				in.DataType = tensor.DataType(strings.ToUpper(text))
				return err
			case "shape":
				return d.Decode(&in.Shape)
			}
			return skip(d)
		})
		if in.Shape != nil {
			q.inputs = append(q.inputs, in)
		}
		if err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// errCut ends the reading of JSON that is cut off, or not what it should be.
var errCut = errors.New("cut off")

// eachKey reads an object. each reads the value of a key.
func eachKey(d *json.Decoder, each func(key string) error) error {
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return errCut
	}
	for d.More() {
		token, err := d.Token()
		key, ok := token.(string)
		if err != nil || !ok {
			return errCut
		}
		if err := each(key); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// skip reads a value that does not matter.
func skip(d *json.Decoder) error {
	var any json.RawMessage
	return d.Decode(&any)
}
