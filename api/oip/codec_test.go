package oip

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
)

type (
	inputTensor     = inference.ModelInferRequest_InferInputTensor
	requestedOutput = inference.ModelInferRequest_InferRequestedOutputTensor
	outputTensor    = inference.ModelInferResponse_InferOutputTensor
	contents        = inference.InferTensorContents
)

// split cuts wire into buffers of n bytes, as grpc receives it.
func split(wire []byte, n int) mem.BufferSlice {
	var s mem.BufferSlice
	for part := range slices.Chunk(wire, n) {
		s = append(s, mem.SliceBuffer(part))
	}
	return s
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func decode(t *testing.T, m *inference.ModelInferRequest) (*Request, error) {
	t.Helper()
	req := new(Request)
	if err := (Codec{}).Unmarshal(split(marshal(t, m), 16<<10), req); err != nil {
		t.Fatal("Unmarshal must leave a malformed request to the handler, got", err)
	}
	return req, req.err
}

func timeout(us int64) map[string]*inference.InferParameter {
	return map[string]*inference.InferParameter{
		"timeout": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: us}},
	}
}

func TestDecodeRaw(t *testing.T) {
	ids := make([]byte, 3*2*8)
	for i := range 6 {
		binary.LittleEndian.PutUint64(ids[8*i:], uint64(i*i))
	}
	wire := marshal(t, &inference.ModelInferRequest{
		ModelName: "wnd", ModelVersion: "3", Id: "q1",
		Parameters: map[string]*inference.InferParameter{
			"timeout":  {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 1500}},
			"priority": {ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 7}},
			"note":     {ParameterChoice: &inference.InferParameter_StringParam{StringParam: "é"}},
			"w":        {ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: 0.5}},
			"b":        {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
		},
		Inputs: []*inputTensor{
			{Name: "ids", Datatype: "INT64", Shape: []int64{3, 2}},
			{Name: "text", Datatype: "BYTES", Shape: []int64{3, 1}},
			{Name: "none", Datatype: "FP32", Shape: []int64{0, 4}},
		},
		Outputs: []*requestedOutput{{Name: "score"}, {Name: "other"}},
		RawInputContents: [][]byte{
			ids, []byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc"), nil,
		},
	})
	// In whatever pieces it arrives.
	for _, n := range []int{1, 3, 64, 1 << 20} {
		var req Request
		if err := req.unmarshal(split(wire, n)); err != nil {
			t.Fatal(err)
		}
		want := Request{
			Model: "wnd", Version: "3", ID: "q1", Timeout: 1500 * time.Microsecond,
			Parameters: map[string]any{"priority": uint64(7), "note": "é", "w": 0.5, "b": true},
			Inputs: []tensor.Tensor{
				{Name: "ids", DataType: tensor.Int64, Shape: []int64{3, 2}, Data: ids},
				{Name: "text", DataType: tensor.Bytes, Shape: []int64{3, 1},
					Data: []byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x02\x00\x00\x00bc")},
				{Name: "none", DataType: tensor.FP32, Shape: []int64{0, 4}, Data: []byte{}},
			},
			Outputs: []RequestedOutput{{Name: "score"}, {Name: "other"}},
		}
		if diff := cmp.Diff(want, req, cmp.AllowUnexported(Request{}),
			cmp.Comparer(func(a, b *hold) bool { return true })); diff != "" {
			t.Fatalf("in pieces of %d: (-want +got)\n%s", n, diff)
		}
		for _, in := range req.Inputs {
			if p := uintptr(unsafe.Pointer(unsafe.SliceData(in.Data))); p%alignment != 0 {
				t.Errorf("%s is at %#x, not aligned", in.Name, p)
			}
		}
		if v, err := tensor.Values[int64](req.Inputs[0]); err != nil ||
			!slices.Equal(v, []int64{0, 1, 4, 9, 16, 25}) {
			t.Errorf("ids are %v, %v", v, err)
		}
		req.Release()
		req.Release()
	}
}

// typed is a tensor of each type that has typed contents, and its bytes.
var typed = []struct {
	datatype string
	contents *contents
	data     []byte
}{
	{"BOOL", &contents{BoolContents: []bool{true, false, true}}, []byte{1, 0, 1}},
	{"INT8", &contents{IntContents: []int32{-128, 127, -1}}, []byte{0x80, 0x7f, 0xff}},
	{"INT16", &contents{IntContents: []int32{-2, 300, 0}}, []byte{0xfe, 0xff, 0x2c, 0x01, 0, 0}},
	{"INT32", &contents{IntContents: []int32{-2, 1 << 30, 0}}, []byte{
		0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0x40, 0, 0, 0, 0,
	}},
	{"INT64", &contents{Int64Contents: []int64{-1, 1, 1 << 40}},
		[]byte(
			"\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00")},
	{"UINT8", &contents{UintContents: []uint32{0, 255, 7}}, []byte{0, 255, 7}},
	{"UINT16", &contents{UintContents: []uint32{65535, 1, 256}}, []byte{0xff, 0xff, 1, 0, 0, 1}},
	{"UINT32", &contents{UintContents: []uint32{math.MaxUint32, 1, 2}}, []byte{
		0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 2, 0, 0, 0,
	}},
	{"UINT64", &contents{Uint64Contents: []uint64{math.MaxUint64, 1, 2}},
		[]byte(
			"\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00")},
	{"FP32", &contents{Fp32Contents: []float32{1, -2, 0.5}},
		[]byte("\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x00\x3f")},
	{"FP64", &contents{Fp64Contents: []float64{1, -2, 0.5}},
		[]byte(
			"\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\xc0\x00\x00\x00\x00\x00\x00\xe0\x3f")},
	{"BYTES", &contents{BytesContents: [][]byte{[]byte("a"), nil, []byte("bcd")}},
		[]byte("\x01\x00\x00\x00a\x00\x00\x00\x00\x03\x00\x00\x00bcd")},
}

func TestDecodeTyped(t *testing.T) {
	for _, tt := range typed {
		wire := marshal(t, &inference.ModelInferRequest{Inputs: []*inputTensor{
			{Name: "x", Datatype: tt.datatype, Shape: []int64{3, 1}, Contents: tt.contents},
		}})
		for _, n := range []int{1, 5, 1 << 20} {
			var req Request
			if err := req.unmarshal(split(wire, n)); err != nil {
				t.Fatalf("%s: %v", tt.datatype, err)
			}
			if got := req.Inputs[0].Data; !bytes.Equal(got, tt.data) {
				t.Errorf("%s in pieces of %d: got % x, want % x", tt.datatype, n, got, tt.data)
			}
			req.Release()
		}
	}
}

// TestDecodeUnpacked reads repeated fields in the form that protobuf's older
// encoders use, and mixed with the packed one.
func TestDecodeUnpacked(t *testing.T) {
	var ids, floats []byte
	ids = protowire.AppendVarint(protowire.AppendTag(ids, 3, protowire.VarintType), 5)
	ids = protowire.AppendBytes(protowire.AppendTag(ids, 3, protowire.BytesType), []byte{6, 7})
	floats = protowire.AppendFixed32(protowire.AppendTag(floats, 6, protowire.Fixed32Type),
		math.Float32bits(1.5))
	floats = protowire.AppendFixed32(protowire.AppendTag(floats, 6, protowire.Fixed32Type),
		math.Float32bits(2.5))
	var wire []byte
	for _, in := range []struct {
		name, datatype string
		n              uint64
		contents       []byte
	}{{"ids", "INT64", 3, ids}, {"floats", "FP32", 2, floats}} {
		var m []byte
		m = protowire.AppendString(protowire.AppendTag(m, 1, protowire.BytesType), in.name)
		m = protowire.AppendString(protowire.AppendTag(m, 2, protowire.BytesType), in.datatype)
		m = protowire.AppendVarint(protowire.AppendTag(m, 3, protowire.VarintType), in.n)
		m = protowire.AppendBytes(protowire.AppendTag(m, 5, protowire.BytesType), in.contents)
		wire = protowire.AppendBytes(protowire.AppendTag(wire, 5, protowire.BytesType), m)
	}
	var req Request
	if err := req.unmarshal(split(wire, 2)); err != nil {
		t.Fatal(err)
	}
	defer req.Release()
	if v, err := tensor.Values[int64](req.Inputs[0]); err != nil ||
		!slices.Equal(v, []int64{5, 6, 7}) {
		t.Errorf("ids: %v, %v", v, err)
	}
	if v, err := tensor.Values[float32](req.Inputs[1]); err != nil ||
		!slices.Equal(v, []float32{1.5, 2.5}) {
		t.Errorf("floats: %v, %v", v, err)
	}
}

func TestDecodeErrors(t *testing.T) {
	in := func(datatype string, c *contents, shape ...int64) *inputTensor {
		return &inputTensor{Name: "x", Datatype: datatype, Shape: shape, Contents: c}
	}
	raw := func(datatype string, data string, shape ...int64) *inference.ModelInferRequest {
		return &inference.ModelInferRequest{
			Inputs: []*inputTensor{in(datatype, nil, shape...)}, RawInputContents: [][]byte{
				[]byte(data),
			},
		}
	}
	one := func(t *inputTensor) *inference.ModelInferRequest {
		return &inference.ModelInferRequest{Inputs: []*inputTensor{t}}
	}
	longName := strings.Repeat("n", longestText+1)
	for _, tt := range []struct {
		name string
		m    *inference.ModelInferRequest
		want string
	}{
		{"raw too short", raw("FP32", "1234567", 2),
			`input "x": raw_input_contents has 7 bytes, expected 8 for FP32 [2]`},
		{"raw too long", raw("INT64", "123456789", 1, 1),
			`input "x": raw_input_contents has 9 bytes, expected 8 for INT64 [1 1]`},
		{"raw of absurd shape", raw("INT64", "", 1<<40, 1<<40),
			`input "x": shape [1099511627776 1099511627776] has too many elements`},
		{"raw of huge shape", raw("INT64", "", 1<<62, 1),
			`input "x": shape [4611686018427387904 1] has too many elements`},
		{"raw of large shape", raw("INT64", "", 1<<40, 1),
			`input "x": raw_input_contents has 0 bytes, expected 8796093022208 for INT64 [1099511627776 1]`},
		{"negative dimension", raw("INT64", "", -1, 2),
			`input "x": shape [-1 2] has a negative dimension`},
		{"unknown type", raw("FLOAT", "", 1), `input "x": unknown datatype "FLOAT"` + knownTypes},
		{"long type", raw("FP32FP32FP32", "", 1),
			`decode ModelInferRequest: field 5: field 2: datatype of 12 bytes`},
		{"no type", raw("", "", 1), `input "x": unknown datatype ""` + knownTypes},
		{"raw bool", raw("BOOL", "\x01\x02", 2), `input "x": BOOL element 1 is 2, expected 0 or 1`},
		{"raw bytes cut in a length", raw("BYTES", "\x01\x00\x00", 1),
			`input "x": BYTES element 0: 3 bytes left, expected a length of 4`},
		{"raw bytes cut in an element", raw("BYTES", "\x00\x00\x00\x00\x05\x00\x00\x00abc", 2),
			`input "x": BYTES element 1 says it has 5 bytes, 3 are left`},
		{"raw bytes too few", raw("BYTES", "\x00\x00\x00\x00", 2),
			`input "x": 1 BYTES elements, expected 2 for shape [2]`},
		{"no raw for an input", &inference.ModelInferRequest{
			Inputs: []*inputTensor{
				{Name: "a", Datatype: "INT8"}, {Name: "b", Datatype: "INT8"},
			},
			RawInputContents: [][]byte{{1}},
		}, `raw_input_contents has 1 entries, expected 2, one for each input`},
		{"raw without inputs", &inference.ModelInferRequest{RawInputContents: [][]byte{{1}}},
			`raw_input_contents has 1 entries, expected 0, one for each input`},
		{"raw and typed", &inference.ModelInferRequest{
			Inputs:           []*inputTensor{in("INT8", &contents{IntContents: []int32{1}}, 1)},
			RawInputContents: [][]byte{{1}},
		}, `input "x": has contents beside raw_input_contents; one or the other is allowed`},
		{"no contents", one(in("FP32", nil, 2)),
			`input "x": contents with fewer than the 2 elements of FP32 [2]`},
		{"typed of absurd shape", one(in("FP32", &contents{Fp32Contents: []float32{1}}, 1<<50)),
			`input "x": contents with fewer than the 1125899906842624 elements of FP32 [1125899906842624]`},
		{"typed too few", one(in("FP32", &contents{Fp32Contents: []float32{1}}, 2)),
			`input "x": fp32_contents has 1 elements, expected 2 for shape [2]`},
		{"typed too many", one(in("INT64", &contents{Int64Contents: []int64{1, 2, 3}}, 2)),
			`input "x": field 3: more than the 2 elements of shape [2]`},
		{"typed too many floats", one(in("FP64", &contents{Fp64Contents: []float64{1, 2, 3}}, 2)),
			`input "x": field 7: more than the 2 elements of shape [2]`},
		{"typed in the wrong field", one(in("INT64", &contents{Fp32Contents: []float32{1}}, 1)),
			`input "x": field 6: INT64 has fp32_contents, expected int64_contents`},
		{"typed half float", one(in("FP16", &contents{Fp32Contents: []float32{1}}, 1)),
			`input "x": FP16 has no typed contents, send it raw`},
		{"typed out of range", one(in("INT8", &contents{IntContents: []int32{1, -129}}, 2)),
			`input "x": field 2: element 1 is -129, out of range for INT8`},
		{"typed bytes too many",
			one(in("BYTES", &contents{BytesContents: [][]byte{[]byte("a"), []byte("b")}}, 1)),
			`input "x": field 8: more than the 1 elements of shape [1]`},
		{"name twice",
			&inference.ModelInferRequest{
				Inputs: []*inputTensor{in("INT8", nil, 0), in("INT8", nil, 0)},
			}, `input "x" is given twice`},
		{"no name", one(&inputTensor{Datatype: "INT8"}), `input 0 has no name`},
		{"shared memory",
			one(&inputTensor{Name: "x", Parameters: map[string]*inference.InferParameter{
				"shared_memory_region": {
					ParameterChoice: &inference.InferParameter_StringParam{StringParam: "r"},
				}}}),
			`decode ModelInferRequest: field 5: "x": parameter shared_memory_region is not supported`},
		{"negative timeout", &inference.ModelInferRequest{Parameters: timeout(-1)},
			`parameter timeout is -1 (int64), expected a whole number of microseconds, not negative`},
		{"long name", &inference.ModelInferRequest{ModelName: longName},
			`decode ModelInferRequest: field 1: a string of 65537 bytes, at most 65536 are accepted`},
		{"many inputs",
			&inference.ModelInferRequest{Inputs: slices.Repeat([]*inputTensor{{}}, maxTensors+1)},
			`decode ModelInferRequest: field 5: more than 16384 tensors`},
		{"many raw", &inference.ModelInferRequest{RawInputContents: make([][]byte, maxTensors+1)},
			`decode ModelInferRequest: field 7: more than 16384 raw contents`},
		{"many dimensions", one(in("INT8", nil, make([]int64, highestRank+1)...)),
			`decode ModelInferRequest: field 5: field 3: a shape of more than 64 dimensions`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := decode(t, tt.m)
			if err == nil || err.Error() != tt.want || !errors.Is(err, ErrInvalid) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if req.hold != nil || req.Inputs != nil {
				t.Error("a refused request holds memory")
			}
		})
	}
}

func TestDecodeMalformed(t *testing.T) {
	for name, wire := range map[string]string{
		"tag cut":             "\x80",
		"field 0":             "\x00",
		"varint too long":     "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"length past the end": "\x0a\x05abc",
		"length of 2^63":      "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"invalid UTF-8":       "\x0a\x01\xff",
		"wire type 7":         "\x0f",
		"group not closed":    "\x0b",
		"group closed twice":  "\x0b\x0c\x0c",
		"other group closed":  "\x0b\x14",
		"deep groups":         strings.Repeat("\x0b", 1000),
		"fixed64 cut":         "\x09\x00",
		"packed float cut":    "\x2a\x10\x0a\x01x\x12\x04FP32\x1a\x01\x01\x2a\x02\x32\x00\x2a\x05\x32\x03\x00\x00\x00",
	} {
		for _, n := range []int{1, 1000} {
			var req Request
			err := req.unmarshal(split([]byte(wire), n))
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: got %v, want ErrInvalid", name, err)
			}
		}
	}
}

// TestUnknownFields sends what a later version of the protocol might add.
func TestUnknownFields(t *testing.T) {
	wire := marshal(t, &inference.ModelInferRequest{ModelName: "m"})
	wire = protowire.AppendBytes(protowire.AppendTag(wire, 1000, protowire.BytesType),
		[]byte("new"))
	wire = protowire.AppendVarint(protowire.AppendTag(wire, 1001, protowire.VarintType), 1)
	wire = protowire.AppendFixed32(protowire.AppendTag(wire, 1002, protowire.Fixed32Type), 1)
	wire = append(wire, "\x0b\x13\x14\x0c"...) // a group in a group
	var req Request
	if err := req.unmarshal(split(wire, 3)); err != nil || req.Model != "m" {
		t.Errorf("got %q, %v", req.Model, err)
	}
}

// randomResponse has tensors below and above the size that is sent by
// reference.
func randomResponse(r *rand.Rand) *Response {
	resp := &Response{
		Model: "m", Version: "1", ID: "7", Parameters: map[string]any{"a": int64(-1), "b": "x"},
	}
	for i := range 1 + r.IntN(4) {
		data := make([]byte, 4*r.IntN(1000))
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		resp.Outputs = append(resp.Outputs, tensor.Tensor{
			Name: fmt.Sprint("out", i), DataType: tensor.FP32,
			Shape: []int64{int64(len(data) / 4), 1}, Data: data,
		})
	}
	return resp
}

// TestMarshalResponse compares with the generated code, and checks that the
// outputs are released when the last buffer has been freed and not before.
func TestMarshalResponse(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		resp := randomResponse(r)
		released := 0
		resp.OnRelease(func() { released++ })
		want := &inference.ModelInferResponse{ModelName: "m", ModelVersion: "1", Id: "7",
			Parameters: map[string]*inference.InferParameter{
				"a": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: -1}},
				"b": {ParameterChoice: &inference.InferParameter_StringParam{StringParam: "x"}},
			}}
		large := false
		for _, o := range resp.Outputs {
			want.Outputs = append(want.Outputs, &outputTensor{
				Name: o.Name, Datatype: string(o.DataType), Shape: o.Shape,
			})
			want.RawOutputContents = append(want.RawOutputContents, o.Data)
			large = large || len(o.Data) > 1024
		}
		bufs, err := Codec{}.Marshal(resp)
		if err != nil {
			t.Fatal(err)
		}
		got := new(inference.ModelInferResponse)
		if err := proto.Unmarshal(bufs.Materialize(), got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want, got) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
		if large && released != 0 {
			t.Fatal("released while the transport has it")
		}
		var back Response
		if err := (Codec{}).Unmarshal(bufs, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(resp.Outputs, back.Outputs); diff != "" {
			t.Fatal(diff)
		}
		back.Release()
		bufs.Free()
		if released != 1 {
			t.Fatalf("released %d times, want once", released)
		}
	}
}

func TestMarshalRequest(t *testing.T) {
	big, _ := tensor.Of("big", make([]float32, 1000), 10, 100)
	small, _ := tensor.Of("small", []int64{1, 2}, 2)
	req := &Request{
		Model: "m", Version: "2", ID: "i", Timeout: time.Second,
		Inputs: []tensor.Tensor{big, small}, Outputs: []RequestedOutput{{Name: "o"}},
	}
	released := 0
	req.OnRelease(func() { released++ })
	// Sent twice, as when the first server cannot be reached.
	first, err := Codec{}.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Codec{}.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	got := new(inference.ModelInferRequest)
	if err := proto.Unmarshal(second.Materialize(), got); err != nil {
		t.Fatal(err)
	}
	want := &inference.ModelInferRequest{
		ModelName: "m", ModelVersion: "2", Id: "i", Parameters: timeout(1e6),
		Inputs: []*inputTensor{
			{Name: "big", Datatype: "FP32", Shape: []int64{10, 100}},
			{Name: "small", Datatype: "INT64", Shape: []int64{2}},
		},
		Outputs:          []*requestedOutput{{Name: "o"}},
		RawInputContents: [][]byte{big.Data, small.Data},
	}
	if !proto.Equal(want, got) {
		t.Fatalf("got %v\nwant %v", got, want)
	}
	first.Free()
	req.Release()
	if released != 0 {
		t.Fatal("released while the second connection reads the inputs")
	}
	second.Free()
	if released != 1 {
		t.Fatalf("released %d times, want once", released)
	}
}

func TestMarshalErrors(t *testing.T) {
	for _, tt := range []struct {
		req  Request
		want string
	}{
		{Request{Inputs: []tensor.Tensor{{Name: "x", DataType: "FLOAT"}}},
			`encode input "x": unknown datatype "FLOAT"` + knownTypes},
		{Request{Inputs: []tensor.Tensor{{Name: "x", DataType: tensor.Int8, Shape: []int64{2}}}},
			`encode input "x": data has 0 bytes, expected 2 for INT8 [2]`},
		{Request{Parameters: map[string]any{"p": 1}},
			`encode parameter "p": it is a int, expected bool, int64, uint64, float64 or string`},
	} {
		if _, err := (Codec{}).Marshal(&tt.req); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// TestReuse decodes into a request that still holds memory.
func TestReuse(t *testing.T) {
	wire := marshal(t, &inference.ModelInferRequest{
		Inputs:           []*inputTensor{{Name: "x", Datatype: "INT8", Shape: []int64{1}}},
		RawInputContents: [][]byte{{1}},
	})
	var req Request
	for range 2 {
		if err := req.unmarshal(split(wire, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if len(req.Inputs) != 1 {
		t.Errorf("%d inputs, want 1", len(req.Inputs))
	}
	req.Release()
}
