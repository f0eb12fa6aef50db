package oip

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/muster-serve/muster/api/tensor"
)

// Limits on the parts of a message. They are needed because a list takes more memory decoded than
// on the wire.
const (
	maxTensors    = tensor.MaxCount
	maxParameters = 1024
	highestRank   = tensor.MaxRank
)

// fewTensors is how many tensors are compared with each other rather than by a map. Chosen: most
// queries have a few, for which a map costs an allocation; with more, comparing grows with the
// square.
const fewTensors = 32

// invalid is an error that wraps ErrInvalid, with the text message.
type invalid struct{ message string }

func (e *invalid) Error() string        { return e.message }
func (e *invalid) Is(target error) bool { return target == ErrInvalid }

func invalidf(format string, args ...any) error {
	return &invalid{ErrorText(fmt.Sprintf(format, args...))}
}

// largestErrorText bounds the text of an error, in bytes.
const largestErrorText = 2 << 10

// ErrorText returns message as valid UTF-8, as protobuf sends no other, and cut to 2 KiB: a longer
// text must contain what a client has sent.
func ErrorText(message string) string {
	text := strings.ToValidUTF8(message, "\ufffd")
	if len(text) <= largestErrorText {
		return text
	}
	return fmt.Sprintf("%s ... (%d bytes in all)",
		strings.ToValidUTF8(text[:largestErrorText], ""), len(message))
}

// A side holds the names and numbers that differ between a request and a response.
type side struct {
	message string // the protobuf message's name
	tensor  string // the word for one of its tensors
	raw     string // the name of the field of raw contents
	// rawField is the number of the field of raw contents.
	rawField protowire.Number
}

var (
	requestSide  = side{"ModelInferRequest", "input", "raw_input_contents", 7}
	responseSide = side{"ModelInferResponse", "output", "raw_output_contents", 6}
)

// A body holds the tensors of a message while they are decoded.
type body struct {
	tensors []tensor.Tensor
	// contents holds the typed contents of each tensor; empty if the tensor has none.
	contents []cursor
	raw      []cursor
	// placed is how many of raw, the first ones, have been copied to where their tensors' data
	// belongs in block. block is nil if there are none.
	placed int
	block  *block
}

// bodies pools bodies. A message keeps a body's tensors, not the body itself.
var bodies = sync.Pool{New: func() any { return new(body) }}

// largestBody is how many tensors a body in the pool may have room for.
const largestBody = 64

// done clears b and returns it to the pool.
func (b *body) done() {
	if b.block != nil {
		b.block.dropReader()
	}
	b.block, b.placed = nil, 0
	clear(b.contents)
	clear(b.raw)
	if b.tensors = nil; max(cap(b.contents), cap(b.raw)) <= largestBody {
		b.contents, b.raw = b.contents[:0], b.raw[:0]
		bodies.Put(b)
	}
}

// unmarshal decodes a ModelInferRequest into r.
func (r *Request) unmarshal(data mem.BufferSlice) error { return r.decode(data, nil) }

// decode decodes a ModelInferRequest, and adds the bytes of the inputs to charge before it
// allocates them.
func (r *Request) decode(data mem.BufferSlice, charge *Charge) error {
	return r.decodeFrom(newCursor(data), charge)
}

func (r *Request) decodeFrom(c cursor, charge *Charge) error {
	r.Release()
	*r = Request{}
	b := bodies.Get().(*body)
	defer b.done()
	if err := b.decode(&c, requestSide, header{&r.Model, &r.Version, &r.ID, &r.Parameters},
		r); err != nil {
		return err
	}
	if err := r.takeParameters(); err != nil {
		return err
	}
	block, err := b.read(requestSide, charge)
	if err != nil {
		return err
	}
	r.Inputs, r.hold = b.tensors, &block.hold
	return nil
}

// unmarshal decodes a ModelInferResponse into r.
func (r *Response) unmarshal(data mem.BufferSlice) error { return r.decodeFrom(newCursor(data)) }

func (r *Response) decodeFrom(c cursor) error {
	r.Release()
	*r = Response{}
	b := bodies.Get().(*body)
	defer b.done()
	if err := b.decode(&c, responseSide, header{&r.Model, &r.Version, &r.ID, &r.Parameters},
		nil); err != nil {
		return err
	}
	block, err := b.read(responseSide, nil)
	if err != nil {
		return err
	}
	r.takeParameters()
	r.Outputs, r.hold = b.tensors, &block.hold
	return nil
}

// A header points to the fields that requests and responses have in common.
type header struct {
	model, version, id *string
	parameters         *map[string]any
}

// decode decodes a message except the contents of its tensors. r gets the fields that only a
// request has; it is nil for a response.
func (b *body) decode(c *cursor, s side, h header, r *Request) error {
	err := eachField(c, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		if typ != protowire.BytesType {
			return false, nil
		}
		switch {
		case num == 1:
			*h.model, err = c.readText()
		case num == 2:
			*h.version, err = c.readText()
		case num == 3:
			*h.id, err = c.readText()
		case num == 4:
			err = decodeParameter(c, h.parameters)
		case num == 5:
			err = b.decodeTensor(c)
		case num == s.rawField:
			err = b.addRaw(c)
		case num == 6 && r != nil:
			err = r.decodeOutput(c)
		default:
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return invalidf("decode %s: %v", s.message, err)
	}
	return nil
}

// eachField calls field at the value of each field, and skips the values for which field reports
// that it does not know (and has not read) them.
func eachField(
	c *cursor, field func(protowire.Number, protowire.Type) (known bool, err error)) error {
	for c.bytesLeft() > 0 {
		num, typ, err := c.readTag()
		if err != nil {
			return err
		}
		known, err := field(num, typ)
		if err == nil && !known {
			err = c.skipField(num, typ)
		}
		if err != nil {
			return fmt.Errorf("field %d: %w", num, err)
		}
	}
	return nil
}

func (b *body) addRaw(c *cursor) error {
	if len(b.raw) == maxTensors {
		return fmt.Errorf("more than %d raw contents", maxTensors)
	}
	if c.from == nil {
		raw, err := c.readMessage()
		b.raw = append(b.raw, raw)
		return err
	}
	n, err := c.readVarint()
	if err != nil {
		return err
	}
	if n > uint64(c.bytesLeft()) {
		return errTruncated
	}
	raw := cursor{}
	if data := b.placeFor(int(n), c.bytesLeft(), c.from.charge); data != nil {
		c.arriveTo(data)
		raw.cur = data
	} else {
		raw, err = c.subCursor(int(n))
	}
	b.raw = append(b.raw, raw)
	return err
}

// placeFor returns the memory for the data of the next tensor in whose raw contents have n bytes,
// so that they need not be kept until the rest has arrived. It returns nil if that is not known
// yet, or something is wrong, which read will find: the tensors have more bytes than the left that
// may arrive.
func (b *body) placeFor(n, left int, charge *Charge) []byte {
	if len(b.raw) >= len(b.tensors) || len(b.raw) > b.placed || rawSize(&b.tensors[b.placed]) != n {
		return nil
	}
	if b.block == nil {
		total := 0
		for i := range b.tensors {
			size := max(0, rawSize(&b.tensors[i]))
			if left -= size; left < 0 {
				return nil
			}
			total += alignUp(size)
		}
		if charge.AtLeast(int64(total)) != nil {
			return nil
		}
		b.block = newBlock(total)
	}
	if alignUp(n) > len(b.block.mem)-b.block.used {
		return nil
	}
	b.placed++
	return b.block.takeBytes(n)
}

// rawSize returns how many bytes of raw contents t must have; -1 if its type and shape do not say.
func rawSize(t *tensor.Tensor) int {
	elements, err := checkShape(t)
	if err != nil || t.DataType == tensor.Bytes {
		return -1
	}
	return elements * t.DataType.Size()
}

// decodeTensor decodes an InferInputTensor or InferOutputTensor, except its contents.
func (b *body) decodeTensor(c *cursor) error {
	if len(b.tensors) == maxTensors {
		return fmt.Errorf("more than %d tensors", maxTensors)
	}
	m, err := c.readMessage()
	if err != nil {
		return err
	}
	var t tensor.Tensor
	var contents cursor
	var parameters map[string]any
	err = eachField(&m, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		switch {
		case num == 1 && typ == protowire.BytesType:
			t.Name, err = m.readText()
		case num == 2 && typ == protowire.BytesType:
			t.DataType, err = decodeDataType(&m)
		case num == 3 && typ == protowire.BytesType:
			dims, err := m.readMessage()
			if err != nil {
				return true, err
			}
			if t.Shape == nil {
				// a dimension takes at least one byte on the wire
				t.Shape = make([]int64, 0, min(dims.bytesLeft(), highestRank))
			}
			for dims.bytesLeft() > 0 {
				if t.Shape, err = appendDim(t.Shape, &dims); err != nil {
					return true, err
				}
			}
		case num == 3 && typ == protowire.VarintType:
			t.Shape, err = appendDim(t.Shape, &m)
		case num == 4 && typ == protowire.BytesType:
			err = decodeParameter(&m, &parameters)
		case num == 5 && typ == protowire.BytesType:
			if contents.bytesLeft() > 0 {
				return true, errors.New("contents given twice")
			}
			contents, err = m.readMessage()
		default:
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return err
	}
	if err := checkParameters(t.Name, parameters); err != nil {
		return err
	}
	b.tensors = append(b.tensors, t)
	b.contents = append(b.contents, contents)
	return nil
}

func appendDim(shape []int64, c *cursor) ([]int64, error) {
	if len(shape) == highestRank {
		return nil, fmt.Errorf("a shape of more than %d dimensions", highestRank)
	}
	v, err := c.readVarint()
	return append(shape, int64(v)), err
}

// decodeDataType decodes a type's name without allocating it.
func decodeDataType(c *cursor) (tensor.DataType, error) {
	m, err := c.readMessage()
	if err != nil {
		return "", err
	}
	var name [8]byte
	n := m.bytesLeft()
	if n > len(name) {
		return "", fmt.Errorf("datatype of %d bytes", n)
	}
	m.copyTo(name[:n])
	return dataType(name[:n]), nil
}

// dataType returns name as a DataType, also if the protocol does not have it.
func dataType(name []byte) tensor.DataType {
	switch string(name) {
	case "BOOL":
		return tensor.Bool
	case "UINT8":
		return tensor.Uint8
	case "INT32":
		return tensor.Int32
	case "INT64":
		return tensor.Int64
	case "FP16":
		return tensor.FP16
	case "FP32":
		return tensor.FP32
	case "FP64":
		return tensor.FP64
	case "BYTES":
		return tensor.Bytes
	}
	return tensor.DataType(name)
}

// decodeOutput decodes an InferRequestedOutputTensor.
func (r *Request) decodeOutput(c *cursor) error {
	if len(r.Outputs) == maxTensors {
		return fmt.Errorf("more than %d outputs", maxTensors)
	}
	m, err := c.readMessage()
	if err != nil {
		return err
	}
	var out RequestedOutput
	var parameters map[string]any
	err = eachField(&m, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		switch {
		case num == 1 && typ == protowire.BytesType:
			out.Name, err = m.readText()
		case num == 2 && typ == protowire.BytesType:
			err = decodeParameter(&m, &parameters)
		default:
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return err
	}
	if err := checkParameters(out.Name, parameters); err != nil {
		return err
	}
	r.Outputs = append(r.Outputs, out)
	return nil
}

// decodeParameter decodes an entry of a map<string, InferParameter>. It leaves out an entry without
// a value.
func decodeParameter(c *cursor, parameters *map[string]any) error {
	m, err := c.readMessage()
	if err != nil {
		return err
	}
	var key string
	var value any
	err = eachField(&m, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		switch {
		case num == 1 && typ == protowire.BytesType:
			key, err = m.readText()
		case num == 2 && typ == protowire.BytesType:
			var v cursor
			if v, err = m.readMessage(); err == nil {
				err = decodeValue(&v, &value)
			}
		default:
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return err
	}
	if value == nil {
		delete(*parameters, key)
		return nil
	}
	if *parameters == nil {
		*parameters = make(map[string]any)
	}
	(*parameters)[key] = value
	if len(*parameters) > maxParameters {
		return fmt.Errorf("more than %d parameters", maxParameters)
	}
	return nil
}

// decodeValue decodes an InferParameter.
func decodeValue(c *cursor, value *any) error {
	return eachField(c, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		var v uint64
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, err = c.readVarint()
			*value = v != 0
		case num == 2 && typ == protowire.VarintType:
			v, err = c.readVarint()
			*value = int64(v)
		case num == 3 && typ == protowire.BytesType:
			*value, err = c.readText()
		case num == 4 && typ == protowire.Fixed64Type:
			v, err = c.readFixed(8)
			*value = math.Float64frombits(v)
		case num == 5 && typ == protowire.VarintType:
			v, err = c.readVarint()
			*value = v
		default:
			return false, nil
		}
		return true, err
	})
}

// checkParameters returns an error if an input or output has a parameter that would change the
// location or the meaning of its data.
func checkParameters(name string, parameters map[string]any) error {
	for _, p := range []string{"shared_memory_region", "classification"} {
		if _, ok := parameters[p]; ok {
			return fmt.Errorf("%q: parameter %s is not supported", name, p)
		}
	}
	return nil
}

// takeParameters moves the parameters that have a field of their own to it.
func (r *Request) takeParameters() error {
	if len(r.Parameters) == 0 {
		return nil
	}
	return errors.Join(r.checkSequence(), r.takeTimeout(), r.takeLeastAccuracy())
}

// checkSequence refuses a query of a sequence: it would be answered without the state that its
// client counts on.
func (r *Request) checkSequence() error {
	switch id := r.Parameters["sequence_id"]; id {
	case nil, int64(0), uint64(0), "":
		return nil
	default:
		return invalidf("parameter sequence_id is %v: no model keeps state from one query to the "+
			"next here, so queries cannot be of a sequence", id)
	}
}

// removeParameter removes a parameter.
func removeParameter(parameters *map[string]any, name string) {
	if delete(*parameters, name); len(*parameters) == 0 {
		*parameters = nil
	}
}

// takeTimeout moves the parameter `timeout` to r.Timeout.
func (r *Request) takeTimeout() error {
	v, ok := r.Parameters["timeout"]
	if !ok {
		return nil
	}
	us, ok := v.(int64)
	if u, unsigned := v.(uint64); unsigned {
		us, ok = int64(min(u, math.MaxInt64)), true
	}
	if !ok || us < 0 {
		return invalidf(
			"parameter timeout is %v (%T), expected a whole number of microseconds, not negative",
			v, v)
	}
	r.Timeout = time.Duration(min(us, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
	removeParameter(&r.Parameters, "timeout")
	return nil
}

// read copies the contents of all tensors into one block, and adds its size to charge. The caller
// holds the block and must drop it.
func (b *body) read(s side, charge *Charge) (*block, error) {
	if len(b.raw) > 0 && len(b.raw) != len(b.tensors) {
		return nil, invalidf("%s has %d entries, expected %d, one for each %s", s.raw, len(b.raw),
			len(b.tensors), s.tensor)
	}
	if err := checkNames(b.tensors, s.tensor); err != nil {
		return nil, err
	}
	total := 0
	for i := range b.tensors {
		n, err := b.size(i, s)
		if err != nil {
			return nil, invalidf("%s %q: %v", s.tensor, b.tensors[i].Name, err)
		}
		total += alignUp(n)
	}
	if err := charge.AtLeast(int64(total)); err != nil {
		return nil, err
	}
	if b.placed == len(b.tensors) && b.placed > 0 {
		return b.readPlaced(s)
	}
	block := newBlock(total)
	for i := range b.tensors {
		if err := b.readTensor(i, s, block); err != nil {
			block.dropReader()
			return nil, invalidf("%s %q: %v", s.tensor, b.tensors[i].Name, err)
		}
	}
	return block, nil
}

// readPlaced is read for contents that are all in their place. b keeps the block after an error.
func (b *body) readPlaced(s side) (*block, error) {
	for i := range b.tensors {
		t := &b.tensors[i]
		t.Data = b.raw[i].cur
		elements, err := checkShape(t)
		if err == nil {
			err = checkElements(t, elements)
		}
		if err != nil {
			return nil, invalidf("%s %q: %v", s.tensor, t.Name, err)
		}
	}
	block := b.block
	b.block = nil
	return block, nil
}

// checkNames returns an error unless every tensor has a name that no other one has.
func checkNames(tensors []tensor.Tensor, kind string) error {
	var known map[string]bool
	if len(tensors) > fewTensors {
		known = make(map[string]bool, len(tensors))
	}
	for i := range tensors {
		name := tensors[i].Name
		if name == "" {
			return invalidf("%s %d has no name", kind, i)
		}
		twice := known[name]
		if known != nil {
			known[name] = true
		} else {
			for j := range i {
				twice = twice || name == tensors[j].Name
			}
		}
		if twice {
			return invalidf("%s %q is given twice", kind, name)
		}
	}
	return nil
}

// size returns how many bytes tensor i needs in memory. It is checked against the bytes received,
// so it is at most eight times those.
func (b *body) size(i int, s side) (int, error) {
	t, contents := &b.tensors[i], &b.contents[i]
	elements, err := checkShape(t)
	if err != nil {
		return 0, err
	}
	if len(b.raw) > 0 {
		if contents.bytesLeft() > 0 {
			return 0, fmt.Errorf("has contents beside %s; one or the other is allowed", s.raw)
		}
		n := b.raw[i].bytesLeft()
		if t.DataType != tensor.Bytes && n != elements*t.DataType.Size() {
			return 0, fmt.Errorf("%s has %d bytes, expected %d for %s %v", s.raw, n,
				elements*t.DataType.Size(), t.DataType, t.Shape)
		}
		return n, nil
	}
	// An element takes at least one byte on the wire.
	if elements > contents.bytesLeft() {
		return 0, fmt.Errorf("contents with fewer than the %d elements of %s %v", elements,
			t.DataType, t.Shape)
	}
	if t.DataType == tensor.Bytes {
		// On the wire at least two bytes precede an element's own bytes; in memory four do.
		return 2 * contents.bytesLeft(), nil
	}
	return elements * t.DataType.Size(), nil
}

// unknownType is the error of a datatype that the protocol does not have.
func unknownType(d tensor.DataType) error {
	return fmt.Errorf("unknown datatype %q, expected one of %v", d, tensor.DataTypes())
}

// checkShape returns the number of elements of t. It returns an error if the type is not one of the
// protocol's, or the size in bytes exceeds an int.
func checkShape(t *tensor.Tensor) (int, error) {
	if !t.DataType.Valid() {
		return 0, unknownType(t.DataType)
	}
	elements, err := tensor.Elements(t.Shape)
	if err != nil {
		return 0, err
	}
	if elements > math.MaxInt/8 {
		return 0, fmt.Errorf("shape %v has too many elements", t.Shape)
	}
	return elements, nil
}

// readTensor decodes the raw or typed contents of tensor i into block.
func (b *body) readTensor(i int, s side, block *block) error {
	t := &b.tensors[i]
	elements, err := checkShape(t)
	if err != nil {
		return err
	}
	if len(b.raw) == 0 {
		return readContents(t, elements, b.contents[i], block)
	}
	t.Data = block.takeBytes(b.raw[i].bytesLeft())
	b.raw[i].copyTo(t.Data)
	return checkElements(t, elements)
}

// checkElements checks raw data for faults that its length does not show: the lengths of BYTES
// elements, and BOOL values other than 0 and 1.
func checkElements(t *tensor.Tensor, elements int) error {
	switch t.DataType {
	case tensor.Bool:
		for i, v := range t.Data {
			if v > 1 {
				return fmt.Errorf("BOOL element %d is %d, expected 0 or 1", i, v)
			}
		}
	case tensor.Bytes:
		n := 0
		for rest := t.Data; len(rest) > 0; n++ {
			if len(rest) < 4 {
				return fmt.Errorf("BYTES element %d: %d bytes left, expected a length of 4", n,
					len(rest))
			}
			v, _ := protowire.ConsumeFixed32(rest)
			rest = rest[4:]
			if uint64(v) > uint64(len(rest)) {
				return fmt.Errorf("BYTES element %d says it has %d bytes, %d are left", n, v,
					len(rest))
			}
			rest = rest[v:]
		}
		if n != elements {
			return fmt.Errorf("%d BYTES elements, expected %d for shape %v", n, elements, t.Shape)
		}
	}
	return nil
}
