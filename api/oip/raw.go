package oip

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/muster-serve/muster/api/tensor"
)

// IsRawTensor reports whether a body is nothing but a tensor: the length of the JSON text before it
// is 0.
func IsRawTensor(header http.Header) bool { return header.Get(headerLength) == "0" }

// DecodeRawTensor decodes a query whose body is the data of the model's only input, as Triton's
// "raw binary request": the model says the name and type, and the number of bytes the size of the
// one dimension that may vary. If several may, the first, which is the batch size, is 1. A body for
// an input of strings is one string. All outputs are answered as binary data.
//
// inputs are those of the model, without data; -1 in a shape is any size. Limits, errors and charge
// are those of [DecodeRequest].
func DecodeRawTensor(r *http.Request, inputs []tensor.Tensor, limit int64,
	charge *Charge) (*Request, error) {
	if len(inputs) != 1 {
		return nil, invalidf("a body without JSON is the data of one input, and the model has %d: "+
			"send %s and JSON that names them", len(inputs), headerLength)
	}
	limit = min(limit, math.MaxUint32) // what the length of a string can say
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body := requestBody{r: r.Body, left: limit, declared: r.ContentLength, charge: charge}
	data := textBuffers.Get().(*[]byte)
	defer putText(data)
	if err := body.readAll(data); err != nil {
		return nil, err
	}
	req := &Request{JSON: true, BinaryOutputs: true, Inputs: inputs}
	in := &req.Inputs[0]
	size := len(*data)
	if in.DataType == tensor.Bytes {
		size += stringPrefix
	}
	var err error
	if in.Shape, err = shapeOfRaw(in, len(*data)); err != nil {
		return nil, err
	}
	if err := charge.AtLeast(int64(size + cap(*data))); err != nil {
		return nil, err
	}
	block := newBlock(alignUp(size))
	in.Data = block.takeBytes(size)
	if in.DataType == tensor.Bytes {
		binary.LittleEndian.PutUint32(in.Data, uint32(len(*data)))
	}
	copy(in.Data[size-len(*data):], *data)
	elements, err := checkShape(in)
	if err == nil && in.DataType != tensor.Bytes && elements*in.DataType.Size() != size {
		err = fmt.Errorf("%d bytes, expected %d elements of %s", size, elements, in.DataType)
	}
	if err == nil {
		err = checkElements(in, elements)
	}
	if err != nil {
		block.dropReader()
		return nil, invalidf("input %q: %v", in.Name, err)
	}
	req.hold = &block.hold
	charge.Only(req.Memory())
	return req, nil
}

// stringPrefix is how many bytes the length of a string takes before it.
const stringPrefix = 4

// shapeOfRaw returns the shape of an input whose data has n bytes.
func shapeOfRaw(in *tensor.Tensor, n int) ([]int64, error) {
	shape := slices.Clone(in.Shape)
	var open []int // the dimensions that may vary
	elements := 1  // of the others
	for i, d := range shape {
		if d < 0 {
			open = append(open, i)
		} else {
			elements *= int(d)
		}
	}
	if len(open) > 1 && open[0] == 0 {
		shape[0], open = 1, open[1:]
	}
	if len(open) > 1 {
		return nil, invalidf("input %q has the shape %v: a body without JSON does not say which "+
			"size each dimension has", in.Name, in.Shape)
	}
	if in.DataType == tensor.Bytes {
		for _, i := range open {
			shape[i] = 1
		}
		if elements != 1 {
			return nil, invalidf("input %q has the shape %v: a body without JSON is one string",
				in.Name, in.Shape)
		}
		return shape, nil
	}
	each := elements * in.DataType.Size()
	if each > 0 && n%each == 0 && (len(open) == 1 || n == each) {
		if len(open) == 1 {
			shape[open[0]] = int64(n / each)
		}
		return shape, nil
	}
	return nil, invalidf("input %q: found %d bytes, expected a multiple of %d for %s %v",
		in.Name, n, each, in.DataType, in.Shape)
}
