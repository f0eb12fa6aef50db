package oip

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// contentFields are the names of InferTensorContents' fields, by number.
var contentFields = [...]string{
	1: "bool_contents",
	2: "int_contents",
	3: "int64_contents",
	4: "uint_contents",
	5: "uint64_contents",
	6: "fp32_contents",
	7: "fp64_contents",
	8: "bytes_contents",
}

// contentField returns the number of the field that holds a type's elements; 0 for types that are
// sent as raw contents only.
func contentField(d tensor.DataType) protowire.Number {
	switch d {
	case tensor.Bool:
		return 1
	case tensor.Int8, tensor.Int16, tensor.Int32:
		return 2
	case tensor.Int64:
		return 3
	case tensor.Uint8, tensor.Uint16, tensor.Uint32:
		return 4
	case tensor.Uint64:
		return 5
	case tensor.FP32:
		return 6
	case tensor.FP64:
		return 7
	case tensor.Bytes:
		return 8
	}
	return 0
}

// A contentReader decodes an InferTensorContents into a tensor's data.
type contentReader struct {
	t        *tensor.Tensor
	elements int // expected
	n        int // read so far
	// memory for all elements; bytes appends to t.Data, the other methods index data
	data []byte
}

// readContents decodes typed contents into t, which has the given number of elements.
func readContents(t *tensor.Tensor, elements int, c cursor, block *block) error {
	want := contentField(t.DataType)
	if want == 0 && elements > 0 {
		return fmt.Errorf("%s has no typed contents, send it raw", t.DataType)
	}
	size := elements * t.DataType.Size()
	if t.DataType == tensor.Bytes {
		size = 2 * c.bytesLeft()
	}
	r := contentReader{t: t, elements: elements, data: block.takeBytes(size)}
	t.Data = r.data[:0]
	err := eachField(&c, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		if num >= protowire.Number(len(contentFields)) {
			return false, nil
		}
		if num != want {
			return true, fmt.Errorf("%s has %s, expected %s", t.DataType, contentFields[num],
				contentFields[want])
		}
		switch {
		case want == 8 && typ == protowire.BytesType:
			return true, r.bytes(&c)
		case want != 8 && typ == protowire.BytesType:
			packed, err := c.readMessage()
			if err != nil {
				return true, err
			}
			return true, r.readPacked(&packed)
		case typ == protowire.VarintType && want <= 5,
			typ == protowire.Fixed32Type && want == 6,
			typ == protowire.Fixed64Type && want == 7:
			return true, r.readElement(&c)
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	if r.n != elements {
		return fmt.Errorf("%s has %d elements, expected %d for shape %v", contentFields[want], r.n,
			elements, t.Shape)
	}
	if t.DataType != tensor.Bytes {
		t.Data = r.data
	}
	return nil
}

func (r *contentReader) readMore() error {
	if r.n >= r.elements {
		return fmt.Errorf("more than the %d elements of shape %v", r.elements, r.t.Shape)
	}
	return nil
}

// readPacked decodes elements until c ends.
func (r *contentReader) readPacked(c *cursor) error {
	size := r.t.DataType.Size()
	if r.t.DataType == tensor.FP32 || r.t.DataType == tensor.FP64 {
		n := c.bytesLeft() / size
		if c.bytesLeft()%size != 0 {
			return errTruncated
		}
		if n > r.elements-r.n {
			r.n = r.elements
			return r.readMore()
		}
		c.copyTo(r.data[r.n*size : (r.n+n)*size])
		r.n += n
		return nil
	}
	for c.bytesLeft() > 0 {
		if err := r.readElement(c); err != nil {
			return err
		}
	}
	return nil
}

// readElement decodes one element of a type other than BYTES.
func (r *contentReader) readElement(c *cursor) error {
	if err := r.readMore(); err != nil {
		return err
	}
	size := r.t.DataType.Size()
	at := r.data[r.n*size:]
	if r.t.DataType == tensor.FP32 || r.t.DataType == tensor.FP64 {
		if c.bytesLeft() < size {
			return errTruncated
		}
		c.copyTo(at[:size])
		r.n++
		return nil
	}
	v, err := c.readVarint()
	if err != nil {
		return err
	}
	inRange := true
	switch r.t.DataType {
	case tensor.Bool:
		at[0] = 0
		if v != 0 {
			at[0] = 1
		}
	case tensor.Int8:
		inRange = int32(v) == int32(int8(v))
		at[0] = byte(v)
	case tensor.Int16:
		inRange = int32(v) == int32(int16(v))
		binary.LittleEndian.PutUint16(at, uint16(v))
	case tensor.Uint8:
		inRange = uint32(v) == uint32(uint8(v))
		at[0] = byte(v)
	case tensor.Uint16:
		inRange = uint32(v) == uint32(uint16(v))
		binary.LittleEndian.PutUint16(at, uint16(v))
	case tensor.Int32, tensor.Uint32:
		binary.LittleEndian.PutUint32(at, uint32(v))
	case tensor.Int64, tensor.Uint64:
		binary.LittleEndian.PutUint64(at, v)
	}
	if !inRange {
		return fmt.Errorf("element %d is %d, out of range for %s", r.n, int32(v), r.t.DataType)
	}
	r.n++
	return nil
}

// bytes decodes one BYTES element.
func (r *contentReader) bytes(c *cursor) error {
	if err := r.readMore(); err != nil {
		return err
	}
	m, err := c.readMessage()
	if err != nil {
		return err
	}
	n := m.bytesLeft()
	at := r.data[len(r.t.Data):]
	binary.LittleEndian.PutUint32(at, uint32(n))
	m.copyTo(at[4 : 4+n])
	r.t.Data = r.data[:len(r.t.Data)+4+n]
	r.n++
	return nil
}
