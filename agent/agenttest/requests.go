package agenttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// RandomInputs are inputs that the version accepts.
func RandomInputs(t testing.TB, v *models.Version, batchSize int) []tensor.Tensor {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(batchSize)))
	inputs := make([]tensor.Tensor, len(v.Inputs))
	for i, p := range v.Inputs {
		shape := append([]int64{int64(batchSize)}, p.Shape[1:]...)
		n, err := tensor.Elements(shape)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, n*p.DataType.Size())
		for e := range n {
			switch p.DataType {
			case tensor.FP32:
				binary.LittleEndian.PutUint32(data[4*e:],
					math.Float32bits(float32(r.NormFloat64())))
			case tensor.Int64:
				// every table has ten rows
				binary.LittleEndian.PutUint64(data[8*e:], uint64(r.Int64N(10)))
			default:
				t.Fatalf("input %q is of type %s", p.Name, p.DataType)
			}
		}
		inputs[i] = tensor.Tensor{Name: p.Name, DataType: p.DataType, Shape: shape, Data: data}
	}
	return inputs
}

// RawRequest is a query with raw contents by gRPC.
func RawRequest(model string, inputs []tensor.Tensor) *inference.ModelInferRequest {
	req := &inference.ModelInferRequest{ModelName: model}
	for _, in := range inputs {
		req.Inputs = append(req.Inputs, &inference.ModelInferRequest_InferInputTensor{
			Name: in.Name, Datatype: string(in.DataType), Shape: in.Shape,
		})
		req.RawInputContents = append(req.RawInputContents, in.Data)
	}
	return req
}

func WithTimeout(req *inference.ModelInferRequest,
	timeout time.Duration) *inference.ModelInferRequest {
	if req.Parameters == nil {
		req.Parameters = map[string]*inference.InferParameter{}
	}
	req.Parameters["timeout"] = &inference.InferParameter{
		ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: timeout.Microseconds()},
	}
	return req
}

// InferGRPC sends a query and returns only the error.
func (a *Agent) InferGRPC(req *inference.ModelInferRequest) error {
	_, err := a.GRPC.ModelInfer(a.T.Context(), req)
	return err
}

// BinaryBody is a query with the binary tensor extension, and the length of its
// JSON part.
func BinaryBody(inputs []tensor.Tensor) (body string, jsonLength int) {
	type input struct {
		Name       string         `json:"name"`
		Datatype   string         `json:"datatype"`
		Shape      []int64        `json:"shape"`
		Parameters map[string]any `json:"parameters"`
	}
	header := struct {
		Inputs     []input        `json:"inputs"`
		Parameters map[string]any `json:"parameters"`
	}{Parameters: map[string]any{"binary_data_output": true}}
	var data bytes.Buffer
	for _, in := range inputs {
		header.Inputs = append(header.Inputs, input{
			in.Name, string(in.DataType), in.Shape, map[string]any{
				"binary_data_size": len(in.Data),
			},
		})
		data.Write(in.Data)
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return string(text) + data.String(), len(text)
}

// WantCode checks the code of a gRPC error, by name, and words of its message.
func WantCode(t testing.TB, err error, code string, words ...string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code().String() != code {
		t.Errorf("got %v, want code %s", err, code)
	}
	for _, word := range words {
		if !strings.Contains(s.Message(), word) {
			t.Errorf("got %q, want %q in it", s.Message(), word)
		}
	}
}

// Patient is a query whose client waits for as long as it may.
func Patient(batchSize int) *inference.ModelInferRequest {
	return WithTimeout(NCFRequest(batchSize), 5*time.Minute)
}

const AdsKey, FeedKey = "ads-ads-ads-ads-ads", "feed-feed-feed-feed"

func WithKey(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
}

const (
	TestTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	TestSpan  = "00f067aa0ba902b7"
)

// TestHeaders are those of a client that traces.
var TestHeaders = map[string]string{
	"traceparent": "00-" + TestTrace + "-" + TestSpan + "-01", "tracestate": "shop=cart7",
	"baggage": "tenant=acme",
}
