package oip

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
)

// queries are those that the targets on speed name.
var queries = []struct {
	name    string
	inputs  []tensor.Tensor
	outputs []tensor.Tensor
}{
	{"wnd-256",
		[]tensor.Tensor{zeros("dense", tensor.FP32, 256, 512), zeros("ids", tensor.Int64, 256, 27)},
		[]tensor.Tensor{zeros("score", tensor.FP32, 256, 1)}},
	{"ncf-8",
		[]tensor.Tensor{zeros("ids", tensor.Int64, 8, 4)},
		[]tensor.Tensor{zeros("score", tensor.FP32, 8, 64)}},
}

func zeros(name string, d tensor.DataType, shape ...int64) tensor.Tensor {
	n, err := tensor.Elements(shape)
	if err != nil {
		panic(err)
	}
	return tensor.Tensor{Name: name, DataType: d, Shape: shape, Data: make([]byte, n*d.Size())}
}

func generatedRequest(inputs []tensor.Tensor) *inference.ModelInferRequest {
	m := &inference.ModelInferRequest{ModelName: "model"}
	for _, in := range inputs {
		m.Inputs = append(m.Inputs, &inputTensor{
			Name: in.Name, Datatype: string(in.DataType), Shape: in.Shape,
		})
		m.RawInputContents = append(m.RawInputContents, in.Data)
	}
	return m
}

func generatedResponse(outputs []tensor.Tensor) *inference.ModelInferResponse {
	m := &inference.ModelInferResponse{ModelName: "model", ModelVersion: "1"}
	for _, out := range outputs {
		m.Outputs = append(m.Outputs, &outputTensor{
			Name: out.Name, Datatype: string(out.DataType), Shape: out.Shape,
		})
		m.RawOutputContents = append(m.RawOutputContents, out.Data)
	}
	return m
}

// BenchmarkDecode decodes a query from 16 KiB pieces, as grpc receives it.
func BenchmarkDecode(b *testing.B) {
	for _, q := range queries {
		wire, err := proto.Marshal(generatedRequest(q.inputs))
		if err != nil {
			b.Fatal(err)
		}
		pieces := split(wire, 16<<10)
		b.Run(q.name+"/codec", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(wire)))
			for b.Loop() {
				var req Request
				if err := (Codec{}).Unmarshal(pieces, &req); err != nil || req.err != nil {
					b.Fatal(err, req.err)
				}
				req.Release()
			}
		})
		b.Run(q.name+"/generated", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(wire)))
			for b.Loop() {
				var req inference.ModelInferRequest
				if err := ordinary.Unmarshal(pieces, &req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, q := range queries {
		generated := generatedResponse(q.outputs)
		b.Run(q.name+"/codec", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp := Response{Model: "model", Version: "1", Outputs: q.outputs}
				resp.OnRelease(func() {})
				bufs, err := Codec{}.Marshal(&resp)
				if err != nil {
					b.Fatal(err)
				}
				bufs.Free()
			}
		})
		b.Run(q.name+"/generated", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bufs, err := ordinary.Marshal(generated)
				if err != nil {
					b.Fatal(err)
				}
				bufs.Free()
			}
		})
	}
}

// BenchmarkDecodeJSON decodes a query that a client sends as JSON, with its data in one flat array
// or nested as its shape says.
func BenchmarkDecodeJSON(b *testing.B) {
	for _, q := range []struct {
		name, element string
		d             tensor.DataType
		rows, columns int
	}{
		{"8x4", "123456", tensor.Int64, 8, 4},
		{"1000x64", "123456", tensor.Int64, 1000, 64},
		{"1000x64", "0.12345678", tensor.FP32, 1000, 64},
	} {
		row := strings.TrimSuffix(strings.Repeat(q.element+",", q.columns), ",")
		flat := strings.TrimSuffix(strings.Repeat(row+",", q.rows), ",")
		nested := strings.TrimSuffix(strings.Repeat("["+row+"],", q.rows), ",")
		for i, data := range []string{flat, nested} {
			text := fmt.Sprintf(
				`{"inputs":[{"name":"x","shape":[%d,%d],"datatype":"%s","data":[%s]}]}`,
				q.rows, q.columns, q.d, data)
			b.Run(fmt.Sprint(q.name, "/", q.d, "/", []string{"flat", "nested"}[i]), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				r := &http.Request{Header: http.Header{}, ContentLength: int64(len(text))}
				for b.Loop() {
					r.Body = io.NopCloser(strings.NewReader(text))
					req, err := DecodeRequest(r, 1<<30, nil)
					if err != nil {
						b.Fatal(err)
					}
					req.Release()
				}
			})
		}
	}
}
