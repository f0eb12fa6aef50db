package picker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/extproc"
	"github.com/muster-serve/muster/api/inference"
)

// onWire is a message as it comes on a gRPC stream.
func onWire(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

func sample(raw bool) *inference.ModelInferRequest {
	req := &inference.ModelInferRequest{
		ModelName: "rank", ModelVersion: "3", Id: "q",
		Parameters: map[string]*inference.InferParameter{
			"timeout":  {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 25_000}},
			"priority": {ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 1}},
		},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "item", Datatype: "INT64", Shape: []int64{7, 2}},
			{Name: "user", Datatype: "FP32", Shape: []int64{1, 4}},
		},
		Outputs: []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "score"}},
	}
	if raw {
		req.RawInputContents = [][]byte{make([]byte, 112), make([]byte, 16)}
	} else {
		req.Inputs[0].Contents = &inference.InferTensorContents{Int64Contents: make([]int64, 14)}
		req.Inputs[1].Contents = &inference.InferTensorContents{Fp32Contents: make([]float32, 4)}
	}
	return req
}

// says is what a body says, for comparison.
func says(q readQuery) string {
	text := fmt.Sprintf("%s/%s %v", q.model, q.version, q.timeout)
	for _, in := range q.inputs {
		text += fmt.Sprintf(" %s:%s%v", in.Name, in.DataType, in.Shape)
	}
	return text
}

// TestShapesOfMessages: the shapes are known as soon as the tensors begin, and a message that is cut
// off anywhere says what is there, and nothing else.
func TestShapesOfMessages(t *testing.T) {
	const all = "rank/3 25ms item:INT64[7 2] user:FP32[1 4]"
	for _, raw := range []bool{true, false} {
		b := onWire(t, sample(raw))
		first := 0
		for n := range len(b) + 1 {
			q, whole := readMessage(b[:n])
			if whole && first == 0 {
				first = n
			}
			if got := says(q); whole && got != all {
				t.Fatalf("raw %v, %d bytes: %s, want %s", raw, n, got, all)
			}
			for _, in := range q.inputs {
				if want := map[string]string{"item": "[7 2]", "user": "[1 4]"}[in.Name]; fmt.Sprint(
					in.Shape) != want && n > 0 && whole {
					t.Fatalf("raw %v, %d bytes: %s has the shape %v", raw, n, in.Name, in.Shape)
				}
			}
		}
		if want := len(b) - 112 - 16 - 6; raw && first > want+6 || first == 0 {
			t.Errorf("raw %v: known after %d of %d bytes", raw, first, len(b))
		}
	}
	compressed := onWire(t, sample(true))
	compressed[0] = 1
	if q, whole := readMessage(compressed); !whole || says(q) != "/ 0s" {
		t.Errorf("compressed: %v, %s", whole, says(q))
	}
}

// TestShapesOfJSON: the same of JSON, alone and before binary data.
func TestShapesOfJSON(t *testing.T) {
	text := []byte(`{"id": "q", "parameters": {"priority": 1, "timeout": 25000}, "inputs": [
		{"name": "item", "shape": [7, 2], "datatype": "INT64", "parameters": {}, "data": [[1, 2], [3]]},
		{"name": "user", "datatype": "fp32", "shape": [1, 4], "data": [1.5]}], "outputs": []}`)
	const all = "/ 25ms item:INT64[7 2] user:FP32[1 4]"
	if got := says(readJSON(text)); got != all {
		t.Errorf("got %s, want %s", got, all)
	}
	for n := range text {
		q := readJSON(text[:n])
		for _, in := range q.inputs {
			if want := map[string]string{"item": "[7 2]", "user": "[1 4]"}[in.Name]; fmt.Sprint(
				in.Shape) != want {
				t.Fatalf("%d bytes: %s has the shape %v", n, in.Name, in.Shape)
			}
		}
	}
	at := bytes.Index(text, []byte(`[[1, 2]`)) + 3 // in the first input's data
	if got := says(readJSON(text[:at])); got != "/ 25ms item:INT64[7 2]" {
		t.Errorf("cut in the data: %s", got)
	}
	s := shapeReader{readable: true, jsonBytes: len(text)}
	if s.add(text[:40], false) {
		t.Error("enough after 40 bytes")
	}
	if !s.add(append(text[40:], 0, 1, 2), false) || says(s.read()) != all {
		t.Errorf("before binary data: %s", says(s.read()))
	}
	s = shapeReader{}
	if !s.add(text, false) || says(s.read()) != "/ 0s" {
		t.Errorf("of a body that cannot be read: %s", says(s.read()))
	}
}

// TestBodiesAreBounded: of a body that never says its shapes, no more is kept than shapeBytes.
func TestBodiesAreBounded(t *testing.T) {
	s := shapeReader{readable: true}
	enough := false
	for range 100 {
		if enough = s.add(bytes.Repeat([]byte(" "), 4096), false); enough {
			break
		}
	}
	if !enough || len(s.data) != shapeBytes {
		t.Errorf("%d bytes are kept, enough: %v", len(s.data), enough)
	}
}

func FuzzShapes(f *testing.F) {
	f.Add(onWire(f, sample(true)), true, 0)
	f.Add(onWire(f, sample(false)), true, 0)
	f.Add([]byte(`{"inputs":[{"name":"a","shape":[1,2],"data":[1]}]}`), false, 20)
	f.Fuzz(func(t *testing.T, b []byte, isGRPC bool, jsonBytes int) {
		s := shapeReader{isGRPC: isGRPC, readable: true, jsonBytes: jsonBytes}
		s.add(b, true)
		if q := s.read(); len(q.inputs) > maxInputs || q.timeout < 0 {
			t.Fatalf("%d inputs, timeout %v", len(q.inputs), q.timeout)
		}
	})
}

// TestHeads: what requests' headers say.
func TestHeads(t *testing.T) {
	for _, tt := range []struct {
		headers string // as JSON
		want    string
	}{
		{`{":method":"POST",":path":"/v2/models/rank/infer"}`, "rank/ query 0s 0"},
		{`{":method":"POST",":path":"/v2/models/a%20b/versions/2/infer?x=1"}`, "a b/2 query 0s 0"},
		{`{":method":"POST",":path":"/v2/models/rank/infer","muster-rows":"12",
			"x-envoy-expected-rq-timeout-ms":"250"}`, "rank/ query 250ms 12"},
		{`{":method":"GET",":path":"/v2/models/rank"}`, "/ other 0s 0"},
		{`{":method":"POST",":path":"/v2/repository/index"}`, "/ other 0s 0"},
		{`{":method":"POST",":path":"/inference.GRPCInferenceService/ModelInfer",
			"content-type":"application/grpc+proto","grpc-timeout":"20m"}`, "/ query 20ms 0"},
		{`{":method":"POST",":path":"/inference.GRPCInferenceService/ServerLive",
			"content-type":"application/grpc"}`, "/ other 0s 0"},
		{`{":method":"POST",":path":"/v2/models/rank/infer","muster-rows":"-1",
			"x-envoy-expected-rq-timeout-ms":"1e9"}`, "rank/ query 0s 0"},
	} {
		var of map[string]string
		if err := json.Unmarshal([]byte(tt.headers), &of); err != nil {
			t.Fatal(err)
		}
		headers := &extproc.HeaderMap{}
		for key, value := range of {
			headers.Headers = append(headers.Headers,
				&extproc.HeaderValue{Key: key, RawValue: []byte(value)})
		}
		h := readHead(headers)
		kind := map[bool]string{true: "query", false: "other"}[h.isQuery]
		if got := fmt.Sprintf("%s/%s %s %v %d", h.model, h.version, kind, h.timeout,
			h.rows); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.headers, got, tt.want)
		}
	}
	if d, ok := readGRPCTimeout("99999999H"); !ok || d != 24*time.Hour {
		t.Errorf("the longest timeout is %v", d)
	}
}
