package oip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/muster-serve/muster/api/tensor"
)

// headerLength is the HTTP header with the length, in bytes, of the JSON text before the binary
// data.
const headerLength = "Inference-Header-Content-Length"

// DecodeRequest decodes the query in r's body, which is JSON with or without the binary tensor
// extension. It decodes numbers and binary data directly into the tensors. The caller must
// decompress the body before, and set Model and Version from the path afterwards. charge counts
// memory before it is allocated, and in the end the query's; the caller must lower it.
//
// The error wraps [ErrTooLarge] for a body of more than limit bytes. Otherwise it wraps
// [ErrInvalid], or is that of reading the body, or charge's.
func DecodeRequest(r *http.Request, limit int64, charge *Charge) (*Request, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	body := requestBody{r: r.Body, left: limit, declared: r.ContentLength, charge: charge}
	text := textBuffers.Get().(*[]byte)
	defer putText(text)

	var err error
	binary := r.Header.Get(headerLength)
	if binary == "" {
		err = body.readAll(text)
	} else {
		err = body.readHeader(text, binary, limit)
	}
	if err != nil {
		return nil, err
	}
	req := &Request{JSON: true}
	inputs, err := req.decodeJSON(*text)
	if err != nil {
		return nil, invalidf("decode JSON: %v", err)
	}
	if err := req.takeParameters(); err != nil {
		return nil, err
	}
	if err := req.readInputs(*text, inputs, &body, binary != ""); err != nil {
		return nil, err
	}
	charge.Only(req.Memory())
	return req, nil
}

func tooLarge(limit int64) error {
	return fmt.Errorf("body of more than %d bytes: %w", limit, ErrTooLarge)
}

// textBuffers pools the JSON texts.
var textBuffers = sync.Pool{New: func() any { return new([]byte) }}

// largestText is the largest buffer, in bytes, that returns to the pool: no intake counts pooled
// memory.
const largestText = 256 << 10

func putText(text *[]byte) {
	if cap(*text) <= largestText {
		textBuffers.Put(text)
	}
}

// A requestBody reads a body up to a limit.
type requestBody struct {
	r        io.Reader
	read     int64 // bytes so far
	left     int64 // bytes left until the limit
	declared int64 // the Content-Length; -1: unknown
	charge   *Charge
}

// fill reads len(p) bytes. The caller has checked that they are within the limit.
func (b *requestBody) fill(p []byte) error {
	n, err := io.ReadFull(b.r, p)
	b.read += int64(n)
	b.left -= int64(n)
	return b.error(err)
}

// error converts an error of reading to the one for the client.
func (b *requestBody) error(err error) error {
	var max *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &max):
		return tooLarge(max.Limit)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return invalidf("body ends after %d bytes, expected more", b.read)
	}
	return fmt.Errorf("read body: %w", err)
}

// readHeader reads the JSON text, whose length a header gives.
func (b *requestBody) readHeader(text *[]byte, length string, limit int64) error {
	n, err := strconv.ParseUint(length, 10, 63)
	if err != nil {
		return invalidf("%s is %.32q, expected a number of bytes", headerLength, length)
	}
	if b.declared >= 0 && n > uint64(b.declared) {
		return invalidf("%s is %d, more than the %d bytes of the body", headerLength, n, b.declared)
	}
	if n > uint64(limit) {
		return tooLarge(limit)
	}
	// Allocate as the bytes arrive, so that a header alone allocates nothing.
	*text = (*text)[:0]
	for have := 0; have < int(n); have = len(*text) {
		if err := b.grow(text); err != nil {
			return err
		}
		*text = (*text)[:min(cap(*text), int(n))]
		if err := b.fill((*text)[have:]); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads the whole body as JSON text.
func (b *requestBody) readAll(text *[]byte) error {
	*text = (*text)[:0]
	for {
		if err := b.grow(text); err != nil {
			return err
		}
		n, err := b.r.Read((*text)[len(*text):cap(*text)])
		*text = (*text)[:len(*text)+n]
		b.read += int64(n)
		if b.left -= int64(n); b.left < 0 {
			return tooLarge(b.left + b.read)
		}
		if err == io.EOF {
			if b.declared > b.read {
				return b.error(io.ErrUnexpectedEOF)
			}
			return nil
		}
		if err != nil {
			return b.error(err)
		}
	}
}

// expectEnd returns an error if the body has more bytes than have been read.
func (b *requestBody) expectEnd() error {
	if b.declared == b.read {
		return nil
	}
	var more [1]byte
	switch n, err := io.ReadFull(b.r, more[:]); {
	case n > 0:
		return invalidf("the body has more than the %d bytes that its parts add up to", b.read)
	case err != io.EOF:
		return b.error(err)
	}
	return nil
}

// grow enlarges a full text. charge counts the old and the new copy while both exist.
func (b *requestBody) grow(text *[]byte) error {
	if len(*text) < cap(*text) {
		return b.charge.AtLeast(int64(len(*text)))
	}
	size := max(16<<10, 2*cap(*text))
	need := len(*text)
	if size > largestText {
		need += size
	}
	if err := b.charge.AtLeast(int64(need)); err != nil {
		return err
	}
	bigger := make([]byte, len(*text), size)
	copy(bigger, *text)
	*text = bigger
	return nil
}

// A jsonInput is an input whose data has not been decoded yet.
type jsonInput struct {
	tensor.Tensor
	data   span  // the position of its data in the text; empty if it has none
	binary int64 // its binary_data_size; -1 if it has none
}

// A span is the part of a text from start to end.
type span struct{ start, end int }

func (s span) len() int { return s.end - s.start }

// decodeJSON decodes everything except the inputs' data, which may precede the type and shape that
// are needed to decode it.
func (r *Request) decodeJSON(text []byte) ([]jsonInput, error) {
	j := jsonReader{text: text}
	var inputs []jsonInput
	seen := false
	err := j.readObject(func(key string) (err error) {
		switch key {
		case "id", "parameters", "outputs": // null is as if the key were left out
			if j.skipNull() {
				return nil
			}
		}
		switch key {
		case "id":
			r.ID, err = j.string()
		case "parameters":
			err = r.decodeParameters(&j)
		case "inputs":
			seen = true
			err = j.readArray(func() error {
				if len(inputs) == maxTensors {
					return j.errorf("more than %d inputs", maxTensors)
				}
				in, err := decodeInput(&j)
				inputs = append(inputs, in)
				return err
			})
		case "outputs":
			err = j.readArray(func() error {
				if len(r.Outputs) == maxTensors {
					return j.errorf("more than %d outputs", maxTensors)
				}
				out, err := decodeRequestedOutput(&j)
				r.Outputs = append(r.Outputs, out)
				return err
			})
		default:
			err = j.skip(0)
		}
		return err
	})
	if err == nil {
		err = j.expectEnd()
	}
	if err == nil && !seen {
		err = errors.New("no inputs")
	}
	return inputs, err
}

func (r *Request) decodeParameters(j *jsonReader) error {
	return j.readObject(func(key string) error {
		if key == "binary_data_output" {
			v, err := j.readBool()
			r.BinaryOutputs = v
			return err
		}
		v, err := j.readScalar()
		if r.Parameters == nil {
			r.Parameters = make(map[string]any)
		}
		r.Parameters[key] = v
		return err
	})
}

// unsupportedError returns an error for a parameter that would change the location or the meaning
// of an input's or output's data.
func unsupportedError(j *jsonReader, parameter string) error {
	switch parameter {
	case "shared_memory_region", "classification":
		return j.errorf("parameter %s is not supported", parameter)
	}
	return nil
}

func decodeInput(j *jsonReader) (jsonInput, error) {
	in := jsonInput{binary: -1}
	hasShape, start := false, j.pos
	err := j.readObject(func(key string) (err error) {
		switch key {
		case "name":
			in.Name, err = j.string()
		case "datatype":
			var name string
			name, err = j.string()
			in.DataType = dataType([]byte(name))
		case "shape":
			hasShape = true
			err = j.readArray(func() error {
				if len(in.Shape) == highestRank {
					return j.errorf("a shape of more than %d dimensions", highestRank)
				}
				d, err := j.readNatural()
				if err != nil {
					return fmt.Errorf("shape: %w", err)
				}
				in.Shape = append(in.Shape, d)
				return nil
			})
		case "parameters":
			if j.skipNull() {
				return nil
			}
			err = j.readObject(func(key string) (err error) {
				if key == "binary_data_size" {
					in.binary, err = j.readNatural()
					return err
				}
				if err := unsupportedError(j, key); err != nil {
					return err
				}
				return j.skip(0)
			})
		case "data":
			if j.skipNull() {
				return nil
			}
			in.data.start = j.pos
			err = j.skip(0)
			in.data.end = j.pos
		default:
			err = j.skip(0)
		}
		return err
	})
	if err != nil && in.Name == "" { // it may stand behind the fault
		again := jsonReader{text: j.text, pos: start}
		_ = again.readObject(func(key string) (err error) {
			if key == "name" {
				in.Name, err = again.string()
				return err
			}
			return again.skip(0)
		})
	}
	if err != nil && in.Name != "" {
		err = fmt.Errorf("input %q: %w", in.Name, err)
	}
	if err != nil {
		return in, err
	}
	if !hasShape {
		return in, fmt.Errorf("input %q has no shape", in.Name)
	}
	return in, nil
}

func decodeRequestedOutput(j *jsonReader) (RequestedOutput, error) {
	var out RequestedOutput
	err := j.readObject(func(key string) (err error) {
		switch key {
		case "name":
			out.Name, err = j.string()
		case "parameters":
			if j.skipNull() {
				return nil
			}
			err = j.readObject(func(key string) (err error) {
				if key == "binary_data" {
					var v bool
					v, err = j.readBool()
					out.Binary = &v
					return err
				}
				if err := unsupportedError(j, key); err != nil {
					return err
				}
				return j.skip(0)
			})
		default:
			err = j.skip(0)
		}
		return err
	})
	return out, err
}

// readInputs decodes the inputs' data from the text and from the binary data after it, which is in
// the order of the inputs.
func (r *Request) readInputs(text []byte, inputs []jsonInput, body *requestBody,
	hasBinary bool) error {
	total := 0
	binary := int64(0)
	r.Inputs = make([]tensor.Tensor, len(inputs))
	for i := range inputs {
		r.Inputs[i] = inputs[i].Tensor
	}
	if err := checkNames(r.Inputs, "input"); err != nil {
		return err
	}
	for i := range inputs {
		n, err := inputs[i].size(text, hasBinary)
		if err != nil {
			return invalidf("input %q: %v", inputs[i].Name, err)
		}
		if inputs[i].binary > body.left-binary {
			return tooLarge(body.left + body.read)
		}
		binary += max(0, inputs[i].binary)
		total += alignUp(n)
	}
	if d := body.declared; d >= 0 && d != body.read+binary {
		return invalidf("the body has %d bytes, expected %d: %d of JSON and %d of binary data", d,
			body.read+binary, body.read, binary)
	}
	need := total
	if cap(text) > largestText {
		need += cap(text)
	}
	if err := body.charge.AtLeast(int64(need)); err != nil {
		return err
	}
	block := newBlock(total)
	for i := range inputs {
		if err := inputs[i].read(&r.Inputs[i], text, body, block); err != nil {
			block.dropReader()
			return err
		}
	}
	if err := body.expectEnd(); err != nil {
		block.dropReader()
		return err
	}
	r.hold = &block.hold
	return nil
}

// size returns how many bytes an input needs in memory. It is checked against the bytes received,
// of which text has the JSON.
func (in *jsonInput) size(text []byte, hasBinary bool) (int, error) {
	elements, err := checkShape(&in.Tensor)
	if err != nil {
		return 0, err
	}
	switch {
	case in.binary >= 0 && !hasBinary:
		return 0, fmt.Errorf("binary_data_size without the header %s", headerLength)
	case in.binary >= 0 && in.data.len() > 0:
		return 0, errors.New("both data and binary_data_size; one or the other is allowed")
	case in.binary >= 0:
		if want := elements * in.DataType.Size(); in.DataType != tensor.Bytes &&
			in.binary != int64(want) {
			return 0, fmt.Errorf("binary_data_size is %d, expected %d for %s %v", in.binary, want,
				in.DataType, in.Shape)
		}
		return int(in.binary), nil
	case in.data.len() == 0:
		return 0, errors.New("neither data nor binary_data_size")
	}
	// In the text, an element takes at least one byte, and a string at least two more than its own
	// bytes.
	if elements > in.data.len() {
		return 0, fmt.Errorf("data: %d elements, expected %d for shape %v",
			countScalars(text[in.data.start:in.data.end]), elements, in.Shape)
	}
	if in.DataType == tensor.Bytes {
		return 2 * in.data.len(), nil
	}
	return elements * in.DataType.Size(), nil
}

// read decodes the data of t from the text or from the body.
func (in *jsonInput) read(t *tensor.Tensor, text []byte, body *requestBody, block *block) error {
	elements, err := checkShape(t)
	if err != nil {
		return err
	}
	n, err := in.size(text, true)
	if err != nil {
		return err
	}
	data := block.takeBytes(n)
	if in.binary < 0 {
		j := jsonReader{text: text, pos: in.data.start}
		if err := j.readTensor(t, elements, data); err != nil {
			return invalidf("input %q: data: %v", t.Name, err)
		}
		return nil
	}
	if err := body.fill(data); err != nil {
		if errors.Is(err, ErrInvalid) {
			return invalidf("input %q: binary data of %d bytes: %v", t.Name, n, err)
		}
		return err
	}
	t.Data = data
	if err := checkElements(t, elements); err != nil {
		return invalidf("input %q: %v", t.Name, err)
	}
	return nil
}

// EncodeResponse writes the answer to req as the body of w, in the form that req asks for. It reads
// the outputs from their own memory, and does not release resp. charge counts the text.
//
// Before anything is written, the error can be charge's, or wrap [ErrUnencodable] if JSON cannot
// represent the parameters, or the outputs if the client asked for JSON (see
// [Request.CheckAnswer]). Any other error is that of writing to w.
func EncodeResponse(w http.ResponseWriter, req *Request, resp *Response, charge *Charge) error {
	text := textBuffers.Get().(*[]byte)
	defer putText(text)
	b, err := appendResponse((*text)[:0], req, resp)
	if err != nil {
		return err
	}
	*text = b
	if err := charge.More(int64(len(b))); err != nil {
		return err
	}
	total := len(b)
	parts := 0
	for i := range resp.Outputs {
		if req.wantsBinary(resp.Outputs[i].Name) {
			total += len(resp.Outputs[i].Data)
			parts++
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(total))
	if parts > 0 {
		h.Set("Content-Type", "application/octet-stream")
		h.Set(headerLength, strconv.Itoa(len(b)))
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	for i := range resp.Outputs {
		if req.wantsBinary(resp.Outputs[i].Name) {
			if _, err := w.Write(resp.Outputs[i].Data); err != nil {
				return fmt.Errorf("write answer: output %q: %w", resp.Outputs[i].Name, err)
			}
		}
	}
	return nil
}

// OnlyJSON reports whether the client gets all outputs as JSON.
func (r *Request) OnlyJSON() bool {
	return r.JSON && !r.BinaryOutputs && !slices.ContainsFunc(r.Outputs,
		func(o RequestedOutput) bool { return o.Binary != nil && *o.Binary })
}

// CheckAnswer returns an error that wraps [ErrUnencodable] if the form that r asks for cannot hold
// outputs: BYTES that are not UTF-8, as JSON. So an agent can count a query as failed before its
// answer is encoded.
func (r *Request) CheckAnswer(outputs []tensor.Tensor) error {
	if !r.JSON {
		return nil
	}
	for i := range outputs {
		out := &outputs[i]
		if out.DataType != tensor.Bytes || r.wantsBinary(out.Name) {
			continue
		}
		rest := out.Data
		for n := 0; len(rest) >= 4; n++ {
			size := min(uint64(binary.LittleEndian.Uint32(rest)), uint64(len(rest)-4))
			if !utf8.Valid(rest[4 : 4+size]) {
				return fmt.Errorf("%w: output %q: %w", ErrUnencodable, out.Name, notUTF8(n))
			}
			rest = rest[4+size:]
		}
	}
	return nil
}

// wantsBinary reports whether the client asks for an output as binary data.
func (r *Request) wantsBinary(output string) bool {
	for i := range r.Outputs {
		if r.Outputs[i].Name == output && r.Outputs[i].Binary != nil {
			return *r.Outputs[i].Binary
		}
	}
	return r.BinaryOutputs
}

// appendResponse appends the JSON text of an answer to b.
func appendResponse(b []byte, req *Request, resp *Response) ([]byte, error) {
	b = append(b, `{"model_name":`...)
	b = appendJSONString(b, resp.Model)
	b = append(b, `,"model_version":`...)
	b = appendJSONString(b, resp.Version)
	if resp.ID != "" {
		b = append(b, `,"id":`...)
		b = appendJSONString(b, resp.ID)
	}
	opening := `,"parameters":{`
	err := resp.eachParameter(func(key string, value any) (err error) {
		b = append(b, opening...)
		opening = ","
		b = append(appendJSONString(b, key), ':')
		if b, err = appendJSONScalar(b, value); err != nil {
			return fmt.Errorf("%w: parameter %q: %w", ErrUnencodable, key, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if opening == "," {
		b = append(b, '}')
	}
	b = append(b, `,"outputs":[`...)
	for i := range resp.Outputs {
		out := &resp.Outputs[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTensorHead(b, out)
		if req.wantsBinary(out.Name) {
			b = append(b, `,"parameters":{"binary_data_size":`...)
			b = strconv.AppendInt(b, int64(len(out.Data)), 10)
			b = append(b, `}}`...)
			continue
		}
		b = append(b, `,"data":`...)
		if b, err = appendJSONTensor(b, out); err != nil {
			return nil, fmt.Errorf("%w: output %q: %w", ErrUnencodable, out.Name, err)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...), nil
}
