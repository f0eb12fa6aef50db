package oip

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
)

// little is the elements of typed contents as a tensor has them: what the
// codec should make of them, from the generated code's view of the message.
func little(t testing.TB, d tensor.DataType, c *contents) []byte {
	var values any
	switch d {
	case tensor.Bool:
		values = c.GetBoolContents()
	case tensor.Int8:
		values = narrow[int8](c.GetIntContents())
	case tensor.Int16:
		values = narrow[int16](c.GetIntContents())
	case tensor.Int32:
		values = c.GetIntContents()
	case tensor.Int64:
		values = c.GetInt64Contents()
	case tensor.Uint8:
		values = narrow[uint8](c.GetUintContents())
	case tensor.Uint16:
		values = narrow[uint16](c.GetUintContents())
	case tensor.Uint32:
		values = c.GetUintContents()
	case tensor.Uint64:
		values = c.GetUint64Contents()
	case tensor.FP32:
		values = c.GetFp32Contents()
	case tensor.FP64:
		values = c.GetFp64Contents()
	case tensor.Bytes:
		var b []byte
		for _, e := range c.GetBytesContents() {
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(e))), e...)
		}
		return b
	default:
		return nil
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, values); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func narrow[N int8 | int16 | uint8 | uint16, W int32 | uint32](wide []W) []N {
	var out []N
	for _, v := range wide {
		out = append(out, N(v))
	}
	return out
}

// FuzzGRPC decodes any bytes as a request and compares with the generated
// code, which is more lenient: what the codec takes, it must take, and see the
// same query.
func FuzzGRPC(f *testing.F) {
	for _, tt := range typed {
		f.Add(marshal(f, &inference.ModelInferRequest{Inputs: []*inputTensor{
			{Name: "x", Datatype: tt.datatype, Shape: []int64{3, 1}, Contents: tt.contents},
		}}), uint8(7))
		f.Add(marshal(f, &inference.ModelInferRequest{
			ModelName: "m", Id: "1", Parameters: timeout(5),
			Inputs:           []*inputTensor{{Name: "x", Datatype: tt.datatype, Shape: []int64{3}}},
			Outputs:          []*requestedOutput{{Name: "y"}},
			RawInputContents: [][]byte{tt.data},
		}), uint8(100))
	}
	f.Fuzz(func(t *testing.T, wire []byte, piece uint8) {
		pieces := split(wire, 1+int(piece))
		var resp Response
		if err := resp.unmarshal(pieces); err == nil {
			resp.Release()
		}
		var req Request
		if err := req.unmarshal(pieces); err != nil {
			return
		}
		defer req.Release()
		want := new(inference.ModelInferRequest)
		if err := proto.Unmarshal(wire, want); err != nil {
			t.Fatalf("the codec takes what the generated code does not: %v", err)
		}
		if req.Model != want.ModelName || req.Version != want.ModelVersion || req.ID != want.Id ||
			len(req.Inputs) != len(want.Inputs) || len(req.Outputs) != len(want.Outputs) {
			t.Fatalf("got %+v, want %v", req, want)
		}
		for i, in := range req.Inputs {
			w := want.Inputs[i]
			if in.Name != w.Name || string(in.DataType) != w.Datatype ||
				!slices.Equal(in.Shape, w.Shape) {
				t.Fatalf("input %d is %+v, want %v", i, in, w)
			}
			var data []byte
			if len(want.RawInputContents) > 0 {
				data = want.RawInputContents[i]
			} else {
				data = little(t, in.DataType, w.Contents)
			}
			if !bytes.Equal(in.Data, data) {
				t.Fatalf("input %q is % x, want % x", in.Name, in.Data, data)
			}
		}
		// What it has understood it can send, to itself and to others.
		bufs, err := req.marshal()
		if err != nil {
			t.Fatal(err)
		}
		var again Request
		if err := again.unmarshal(bufs); err != nil {
			t.Fatal(err)
		}
		defer again.Release()
		if diff := cmp.Diff(req, again, cmpopts.IgnoreUnexported(Request{}),
			cmpopts.EquateNaNs()); diff != "" {
			t.Fatal(diff)
		}
		if err := proto.Unmarshal(bufs.Materialize(),
			new(inference.ModelInferRequest)); err != nil {
			t.Fatal(err)
		}
		bufs.Free()
	})
}

// flatten is the elements of nested JSON arrays.
func flatten(v any) []any {
	list, ok := v.([]any)
	if !ok {
		return []any{v}
	}
	var out []any
	for _, e := range list {
		out = append(out, flatten(e)...)
	}
	return out
}

// FuzzJSON decodes any text and compares with encoding/json.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"id":"1","parameters":{"timeout":5,"x":1.5},` +
		`"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2e3],[-0.5,4]]}],` +
		`"outputs":[{"name":"y","parameters":{"binary_data":true}}]}`))
	f.Add([]byte(`{"inputs":[{"data":[1,-2,3],"name":"x","shape":[3],"datatype":"INT64"},` +
		`{"name":"b","shape":[1],"datatype":"BOOL","data":[true]}]}`))
	f.Add([]byte(`{"inputs":[` +
		`{"name":"s","shape":[2],"datatype":"BYTES","data":["a\u00e9\ud83d\ude00","\n\""]},` +
		`{"name":"u","shape":[1],"datatype":"UINT8","data":[255]}]}`))
	f.Add([]byte(`{"inputs":[{"name":"x","shape":[3],"datatype":"FP16",` +
		`"data":["NaN","Infinity","-Infinity"]},{"name":"y","shape":[1],"datatype":"FP32","data":[NaN]}]}`))
	f.Add(
		[]byte(
			`{"inputs":[{"name":"e","shape":[0,3],"datatype":"FP64","data":[]}],"more":{"a":[null,{}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(text))
		req, err := DecodeRequest(r, 1<<20, nil)
		if err != nil {
			return
		}
		defer req.Release()
		var wantInputs []map[string]any
		var top map[string]any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&top); err != nil && (bytes.Contains(text, []byte(nan)) ||
			bytes.Contains(text, []byte(infinity))) {
			return // as bare words, which are no JSON
		} else if err != nil || d.More() {
			t.Fatalf("taken, but encoding/json says: %v", err)
		}
		for _, in := range top["inputs"].([]any) {
			wantInputs = append(wantInputs, in.(map[string]any))
		}
		if len(req.Inputs) != len(wantInputs) {
			t.Fatalf("%d inputs, want %d", len(req.Inputs), len(wantInputs))
		}
		for i, in := range req.Inputs {
			elements := flatten(wantInputs[i]["data"])
			if data, size := jsonBytes(t, in.DataType, elements); !bytes.Equal(in.Data, data) {
				t.Fatalf("input %d of %d elements of %d bytes is % x, want % x", i, len(elements),
					size, in.Data, data)
			}
		}
		sameAfterEncoding(t, req, &Request{})
	})
}

// jsonBytes is the elements that encoding/json has read as a tensor has them.
func jsonBytes(t *testing.T, d tensor.DataType, elements []any) (b []byte, size int) {
	size = d.Size()
	for _, e := range elements {
		var bits uint64
		switch e := e.(type) {
		case bool:
			if e {
				bits = 1
			}
		case string:
			if size > 0 { // NaN or infinity, as strconv reads them, too
				v, err := strconv.ParseFloat(e, 64)
				if err != nil {
					t.Fatal(err)
				}
				if bits = math.Float64bits(v); size == 4 {
					bits = uint64(math.Float32bits(float32(v)))
				} else if size == 2 {
					half, _ := tensor.HalfOf(d, v)
					bits = uint64(half)
				}
				break
			}
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(e))), e...)
		case json.Number:
			switch d {
			case tensor.FP32:
				v, err := strconv.ParseFloat(e.String(), 32)
				if err != nil {
					t.Fatal(err)
				}
				bits = uint64(math.Float32bits(float32(v)))
			case tensor.FP64:
				v, err := e.Float64()
				if err != nil {
					t.Fatal(err)
				}
				bits = math.Float64bits(v)
			case tensor.FP16, tensor.BF16:
				v, err := e.Float64()
				if err != nil {
					t.Fatal(err)
				}
				half, _ := tensor.HalfOf(d, v)
				bits = uint64(half)
			default:
				v, err := strconv.ParseUint(e.String(), 10, 8*size)
				if err != nil {
					i, err := strconv.ParseInt(e.String(), 10, 8*size)
					if err != nil {
						t.Fatal(err)
					}
					v = uint64(i)
				}
				bits = v
			}
		default:
			t.Fatalf("taken as %s: %v", d, e)
		}
		b = append(b, binary.LittleEndian.AppendUint64(nil, bits)[:size]...)
	}
	return b, size
}

// sameAfterEncoding answers a query with its inputs, in the form that form
// asks for, and decodes the answer as if it were a query.
func sameAfterEncoding(t *testing.T, req, form *Request) {
	w := httptest.NewRecorder()
	if err := EncodeResponse(w, form, &Response{ID: req.ID, Outputs: req.Inputs}, nil); err != nil {
		t.Fatal(err)
	}
	body := w.Body.Bytes()
	// Quotes in strings are escaped, so this is the key.
	body = bytes.Replace(body, []byte(`"outputs":[`), []byte(`"inputs":[`), 1)
	r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
	if h := w.Header().Get(headerLength); h != "" {
		n, err := strconv.Atoi(h)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(headerLength, strconv.Itoa(n-1)) // "inputs" is shorter
	}
	again, err := DecodeRequest(r, 1<<24, nil)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	defer again.Release()
	if again.ID != req.ID {
		t.Fatalf("id is %q, want %q", again.ID, req.ID)
	}
	if diff := cmp.Diff(req.Inputs, again.Inputs, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s: %s", body, diff)
	}
}

// FuzzBinary decodes any JSON text, binary parts and lengths of both.
func FuzzBinary(f *testing.F) {
	input := func(datatype, shape string, size int) string {
		return fmt.Sprintf(
			`{"inputs":[{"name":"x","datatype":%q,"shape":%s,"parameters":{"binary_data_size":%d}}]}`,
			datatype, shape, size)
	}
	for _, tt := range typed {
		text := input(tt.datatype, "[3,1]", len(tt.data))
		f.Add([]byte(text), tt.data, strconv.Itoa(len(text)), true)
		f.Add([]byte(text), tt.data[1:], strconv.Itoa(len(text)), false)
	}
	f.Add([]byte(input("FP16", "[1]", 2)), []byte{1, 2}, "99999999999999999", true)
	f.Add([]byte(input("FP32", "[1000000]", 4000000)), []byte{}, "-1", false)
	f.Fuzz(func(t *testing.T, text, data []byte, header string, known bool) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(slices.Concat(text, data)))
		r.Header.Set(headerLength, header)
		if !known {
			r.ContentLength = -1
		}
		req, err := DecodeRequest(r, 1<<20, nil)
		if err != nil {
			return
		}
		defer req.Release()
		for _, in := range req.Inputs {
			n, err := tensor.Elements(in.Shape)
			if err != nil {
				t.Fatal(err)
			}
			if in.DataType != tensor.Bytes && len(in.Data) != n*in.DataType.Size() {
				t.Fatalf("%d bytes for %s %v", len(in.Data), in.DataType, in.Shape)
			}
		}
		sameAfterEncoding(t, req, &Request{BinaryOutputs: true})
	})
}

// FuzzRawTensor decodes any body as the data of an input of any type and shape.
func FuzzRawTensor(f *testing.F) {
	f.Add([]byte("12345678"), "FP32", int64(-1), int64(2))
	f.Add([]byte("hello"), "BYTES", int64(-1), int64(-1))
	f.Add([]byte{2}, "BOOL", int64(0), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, body []byte, datatype string, first, second int64) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
		r.Header.Set(headerLength, "0")
		req, err := DecodeRawTensor(r, []tensor.Tensor{{
			Name: "x", DataType: dataType([]byte(datatype)), Shape: []int64{first, second},
		}}, 1<<20, nil)
		if err != nil {
			return
		}
		defer req.Release()
		in := req.Inputs[0]
		n, err := tensor.Elements(in.Shape)
		if err != nil {
			t.Fatal(err)
		}
		if in.DataType != tensor.Bytes && len(in.Data) != n*in.DataType.Size() {
			t.Fatalf("%d bytes for %s %v", len(in.Data), in.DataType, in.Shape)
		}
	})
}

// FuzzWire compares the reading of single fields across buffers.
func FuzzWire(f *testing.F) {
	f.Add([]byte{0x80, 0x01, 0xff}, uint8(1))
	f.Add([]byte("\x0b\x13\x14\x0c"), uint8(2))
	f.Fuzz(func(t *testing.T, wire []byte, piece uint8) {
		c := newCursor(split(wire, 1+int(piece)))
		got, err := c.readVarint()
		want, n := protowire.ConsumeVarint(wire)
		if (err == nil) != (n > 0) || err == nil && (got != want || c.bytesLeft() != len(wire)-n) {
			t.Errorf("varint: got %d, %v, %d left, want %d of %d bytes", got, err, c.bytesLeft(),
				want, n)
		}
		c = newCursor(split(wire, 1+int(piece)))
		for c.bytesLeft() > 0 {
			num, typ, err := c.readTag()
			if err == nil {
				err = c.skipField(num, typ)
			}
			if err != nil {
				return
			}
		}
		if err := (proto.UnmarshalOptions{}).Unmarshal(wire,
			new(inference.ServerLiveRequest)); err != nil {
			t.Errorf("fields skipped that are not valid: %v", err)
		}
	})
}

// A poisoned pool overwrites buffers that are freed.
type poisoned struct{ mem.NopBufferPool }

func (poisoned) Put(b *[]byte) {
	for i := range *b {
		(*b)[i] = 0xa5
	}
}

// An arriving message comes in buffers that are overwritten when they are freed, and breaks off at
// the end of wire.
type arriving struct{ wire []byte }

func (a *arriving) ReadMessageHeader([]byte) error { return io.EOF }
func (a *arriving) RecvCompress() string           { return "" }

func (a *arriving) Read(n int) (mem.BufferSlice, error) {
	if n > len(a.wire) {
		return nil, io.EOF
	}
	var all mem.BufferSlice
	for part := range slices.Chunk(a.wire[:n], 7) {
		b := append(make([]byte, 0, 4<<10), part...) // gRPC does not free smaller ones
		all = append(all, mem.NewBuffer(&b, poisoned{}))
	}
	a.wire = a.wire[n:]
	return all, nil
}

// FuzzArriving: a query that is decoded while it arrives is what it is when decoded afterwards, or
// has the same fault; and if it breaks off, the error says so.
func FuzzArriving(f *testing.F) {
	raw, typed, shape := []byte("0123456789abcdef"), &contents{IntContents: []int32{1, 2, 300}},
		[]int64{2, 1}
	ids := &inputTensor{Name: "ids", Datatype: "INT64", Shape: shape}
	for _, m := range []*inference.ModelInferRequest{
		{ModelName: "m", Id: "q", Inputs: []*inputTensor{ids,
			{Name: "x", Datatype: "INT8", Shape: []int64{16}}}, RawInputContents: [][]byte{raw,
			raw}},
		{ModelName: "typed", Inputs: []*inputTensor{
			{Name: "x", Datatype: "INT32", Shape: []int64{3}, Contents: typed}}},
		{ModelName: "both", Inputs: []*inputTensor{
			{Name: "x", Datatype: "INT32", Shape: []int64{3}, Contents: typed}, ids},
			RawInputContents: [][]byte{raw, raw}},
		{ModelName: "bool", Inputs: []*inputTensor{
			{Name: "x", Datatype: "BOOL", Shape: []int64{16}}}, RawInputContents: [][]byte{raw}},
		{ModelName: "text", Inputs: []*inputTensor{ids,
			{Name: "s", Datatype: "BYTES", Shape: []int64{1}}},
			RawInputContents: [][]byte{raw, []byte("\x03\x00\x00\x00abc")}},
		{ModelName: "length", Inputs: []*inputTensor{ids}, RawInputContents: [][]byte{raw[:15]}},
		{ModelName: "many", Inputs: []*inputTensor{ids}, RawInputContents: [][]byte{raw, raw}},
		{ModelName: "few", Inputs: []*inputTensor{ids, ids}, RawInputContents: [][]byte{raw}},
	} {
		wire := marshal(f, m)
		for _, step := range []uint8{0, 1, 13, 200} {
			f.Add(wire, step, uint16(0))
			f.Add(wire, step, uint16(len(wire)/2))
		}
		// Fields in an unusual order.
		first := marshal(f, &inference.ModelInferRequest{RawInputContents: m.RawInputContents})
		m.RawInputContents = nil
		f.Add(append(first, marshal(f, m)...), uint8(9), uint16(0))
		f.Add(slices.Concat(marshal(f, m), first, marshal(f, m)), uint8(9), uint16(0))
	}
	f.Fuzz(func(t *testing.T, wire []byte, step uint8, missing uint16) {
		var want, got Request
		wantErr := want.unmarshal(split(wire, 16<<10))
		defer want.Release()
		arrived := wire[:max(0, len(wire)-int(missing))]
		in := &incomingPieces{from: &arriving{arrived}, unread: len(wire), step: 1 + int(step)}
		err := got.decodeFrom(cursor{left: len(wire), from: in}, nil)
		broken := in.endReading()
		defer got.Release()
		if (broken != nil) != (len(arrived) < len(wire)) {
			t.Fatalf("%d of %d bytes have arrived: %v", len(arrived), len(wire), broken)
		}
		if broken != nil {
			return
		}
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("got the error %v, want %v", err, wantErr)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Request{}),
			cmpopts.EquateEmpty(), cmpopts.EquateNaNs()); diff != "" {
			t.Error(diff)
		}
	})
}
