package oip

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// An encoder builds the wire form of a message: small fields in buf, and in cuts the positions
// between them at which tensors belong, which are sent from their own memory.
type encoder struct {
	buf  []byte
	cuts []cut
}

// A cut says that data belongs after the first at bytes of buf.
type cut struct {
	at   int
	data []byte
}

// marshal encodes a ModelInferRequest.
func (r *Request) marshal() (mem.BufferSlice, error) {
	e := newEncoder(r.Inputs)
	e.writeText(1, r.Model)
	e.writeText(2, r.Version)
	e.writeText(3, r.ID)
	if r.Timeout > 0 {
		e.writeParameter(4, "timeout", int64(r.Timeout/time.Microsecond))
	}
	if r.LeastAccuracy > 0 {
		e.writeParameter(4, leastAccuracyParameter, r.LeastAccuracy)
	}
	if err := e.writeParameters(4, r.Parameters); err != nil {
		return nil, err
	}
	for i := range r.Inputs {
		if err := e.writeTensor(5, &r.Inputs[i]); err != nil {
			return nil, fmt.Errorf("encode input %q: %w", r.Inputs[i].Name, err)
		}
	}
	for _, out := range r.Outputs {
		e.writeMessage(6, func() { e.writeText(1, out.Name) })
	}
	for i := range r.Inputs {
		e.writeBytes(7, r.Inputs[i].Data)
	}
	return e.encodedBuffers(r.hold), nil
}

// marshal encodes a ModelInferResponse.
func (r *Response) marshal() (mem.BufferSlice, error) {
	e := newEncoder(r.Outputs)
	e.writeText(1, r.Model)
	e.writeText(2, r.Version)
	e.writeText(3, r.ID)
	if err := r.eachParameter(func(key string, value any) error {
		return e.writeParameter(4, key, value)
	}); err != nil {
		return nil, err
	}
	for i := range r.Outputs {
		if err := e.writeTensor(5, &r.Outputs[i]); err != nil {
			return nil, fmt.Errorf("encode output %q: %w", r.Outputs[i].Name, err)
		}
	}
	for i := range r.Outputs {
		e.writeBytes(6, r.Outputs[i].Data)
	}
	return e.encodedBuffers(r.hold), nil
}

func newEncoder(tensors []tensor.Tensor) *encoder {
	size := 128
	for i := range tensors {
		size += 64 + len(tensors[i].Name)
		if n := len(tensors[i].Data); mem.IsBelowBufferPoolingThreshold(n) {
			size += n
		}
	}
	return &encoder{buf: make([]byte, 0, size)}
}

// writeText appends a string field; it leaves out an empty one, as proto3 demands.
func (e *encoder) writeText(num protowire.Number, s string) {
	if s != "" {
		e.buf = protowire.AppendTag(e.buf, num, protowire.BytesType)
		e.buf = protowire.AppendString(e.buf, s)
	}
}

// writeMessage appends a message field; fields appends the message's own fields.
func (e *encoder) writeMessage(num protowire.Number, fields func()) {
	e.buf = protowire.AppendTag(e.buf, num, protowire.BytesType)
	start := len(e.buf)
	fields()
	n := len(e.buf) - start
	// Make room for the length in front.
	size := protowire.SizeVarint(uint64(n))
	e.buf = append(e.buf, make([]byte, size)...)
	copy(e.buf[start+size:], e.buf[start:start+n])
	protowire.AppendVarint(e.buf[:start], uint64(n))
}

// writeTensor appends all fields of t except its data.
func (e *encoder) writeTensor(num protowire.Number, t *tensor.Tensor) error {
	if err := checkData(t); err != nil {
		return err
	}
	e.writeMessage(num, func() {
		e.writeText(1, t.Name)
		e.writeText(2, string(t.DataType))
		if len(t.Shape) > 0 {
			e.writeMessage(3, func() {
				for _, d := range t.Shape {
					e.buf = protowire.AppendVarint(e.buf, uint64(d))
				}
			})
		}
	})
	return nil
}

// checkData returns an error unless the length of t's data fits its type and shape.
func checkData(t *tensor.Tensor) error {
	elements, err := checkShape(t)
	if err != nil {
		return err
	}
	if want := elements * t.DataType.Size(); t.DataType != tensor.Bytes && len(t.Data) != want {
		return fmt.Errorf("data has %d bytes, expected %d for %s %v", len(t.Data), want, t.DataType,
			t.Shape)
	}
	return checkElements(t, elements)
}

func (e *encoder) writeParameters(num protowire.Number, parameters map[string]any) error {
	if len(parameters) == 0 {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := e.writeParameter(num, key, parameters[key]); err != nil {
			return err
		}
	}
	return nil
}

// writeParameter appends an entry of a map<string, InferParameter>.
func (e *encoder) writeParameter(num protowire.Number, key string, value any) (err error) {
	e.writeMessage(num, func() {
		e.writeText(1, key)
		e.writeMessage(2, func() {
			switch v := value.(type) {
			case bool:
				e.writeVarint(1, protowire.EncodeBool(v))
			case int64:
				e.writeVarint(2, uint64(v))
			case string:
				e.buf = protowire.AppendTag(e.buf, 3, protowire.BytesType)
				e.buf = protowire.AppendString(e.buf, v)
			case float64:
				e.buf = protowire.AppendTag(e.buf, 4, protowire.Fixed64Type)
				e.buf = protowire.AppendFixed64(e.buf, math.Float64bits(v))
			case uint64:
				e.writeVarint(5, v)
			default:
				err = fmt.Errorf(
					"encode parameter %q: it is a %T, expected bool, int64, uint64, float64 or "+
						"string", key, value)
			}
		})
	})
	return err
}

func (e *encoder) writeVarint(num protowire.Number, v uint64) {
	e.buf = protowire.AppendTag(e.buf, num, protowire.VarintType)
	e.buf = protowire.AppendVarint(e.buf, v)
}

// writeBytes appends a bytes field; large data is not copied.
func (e *encoder) writeBytes(num protowire.Number, data []byte) {
	e.buf = protowire.AppendTag(e.buf, num, protowire.BytesType)
	e.buf = protowire.AppendVarint(e.buf, uint64(len(data)))
	if mem.IsBelowBufferPoolingThreshold(len(data)) {
		// gRPC does not report when it is done with a buffer this small, so copy the data.
		e.buf = append(e.buf, data...)
		return
	}
	e.cuts = append(e.cuts, cut{len(e.buf), data})
}

// encodedBuffers returns the encoded message. Each buffer with a tensor's data holds a reference to
// h, if h is not nil, until the connection frees it.
func (e *encoder) encodedBuffers(h *hold) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, 2*len(e.cuts)+1)
	start := 0
	for i := range e.cuts {
		c := &e.cuts[i]
		out = append(out, mem.SliceBuffer(e.buf[start:c.at]))
		if h == nil {
			out = append(out, mem.SliceBuffer(c.data))
		} else {
			h.add()
			out = append(out, mem.NewBuffer(&c.data, h))
		}
		start = c.at
	}
	if start < len(e.buf) || len(out) == 0 {
		out = append(out, mem.SliceBuffer(e.buf[start:]))
	}
	return out
}
