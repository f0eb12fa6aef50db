package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/triton"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// identified is a query for NCF with an id.
func identified(id string, batchSize int) *inference.ModelInferRequest {
	req := agenttest.NCFRequest(batchSize)
	req.Id = id
	return req
}

// TestStream: the queries of a stream are answered in their order, also while some wait; a query
// that is at fault has its error in its place.
func TestStream(t *testing.T) {
	g := agenttest.NewGate()
	config := agenttest.Config(t)
	config.MaxWaitingBytes = 1 << 20
	a := agenttest.Start(t, config, g)
	stream, err := a.GRPC.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	malformed := identified("malformed", 1)
	malformed.Inputs[0].Shape = []int64{2, 4}
	sequence := identified("sequence", 1)
	sequence.Parameters = map[string]*inference.InferParameter{
		"sequence_id": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 3}},
	}
	missing := identified("missing", 1)
	missing.ModelName = "missing"
	large := identified("large", 1)
	large.RawInputContents = [][]byte{make([]byte, 2<<20)}
	for _, req := range []*inference.ModelInferRequest{
		identified("first", 3), malformed, sequence, missing, large, identified("last", 2),
	} {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	g.Open()
	for _, want := range []struct{ id, fault string }{
		{"first", ""},
		{"malformed", "fewer than the 8 elements"},
		{"sequence", "parameter sequence_id is 3: no model keeps state"},
		{"missing", `model "missing"`},
		{"", "a message of 2097"}, // not read, so its id is not known
		{"last", ""},
	} {
		got, err := stream.Recv()
		if err != nil {
			t.Fatalf("query %q: %v", want.id, err)
		}
		resp := got.GetInferResponse()
		if resp.GetId() != want.id || !strings.Contains(got.GetErrorMessage(), want.fault) ||
			(want.fault == "") != (got.GetErrorMessage() == "") {
			t.Errorf("query %q: got id %q, error %q, want an error with %q", want.id, resp.GetId(),
				got.GetErrorMessage(), want.fault)
		}
		if want.fault == "" && (len(resp.GetOutputs()) != 1 ||
			len(resp.GetRawOutputContents()) != 1) {
			t.Errorf("query %q: got %v", want.id, resp)
		}
		if !resp.GetParameters()["triton_final_response"].GetBoolParam() {
			t.Errorf("query %q: the answer does not say that it is the last", want.id)
		}
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("after the last answer: got %v, want EOF", err)
	}
	if held := sizes(a)["serve: bytes of queries"]; held != 0 {
		t.Errorf("%d bytes of queries are held though all are answered", held)
	}
}

// TestStreamedAnswersCount: the bytes of answers count while they wait for that of an earlier query
// of their stream, and do not when the client has gone.
func TestStreamedAnswersCount(t *testing.T) {
	g := agenttest.NewGate()
	config := agenttest.Config(t)
	config.Cores, config.Lanes = 2, 2
	a := agenttest.Start(t, config, g)
	one, err := a.GRPC.ModelInfer(t.Context(), identified("one", 100))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := a.GRPC.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	defer g.Open()
	if err := stream.Send(identified("first", 1)); err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	held := g.Pass()
	defer close(held)
	for range 8 {
		if err := stream.Send(identified("later", 100)); err != nil {
			t.Fatal(err)
		}
	}
	for want := 8 * len(one.RawOutputContents[0]); sizes(a)["serve: bytes of answers"] != want; {
		goruntime.Gosched()
	}
	cancel()
	for sizes(a)["serve: bytes of answers"] > 0 {
		goruntime.Gosched()
	}
}

// sizes returns what the agent's servers keep.
func sizes(a *agenttest.Agent) map[string]int {
	all := map[string]int{}
	a.Server().Sizes(func(what string, n int) { all[what] = n })
	return all
}

// TestStreamAtDrain: a stream does not keep an agent from stopping, and what it has received is
// answered.
func TestStreamAtDrain(t *testing.T) {
	g := agenttest.NewGate()
	a := agenttest.Start(t, agenttest.Config(t), g)
	stream, err := a.GRPC.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := stream.Send(identified("one", 1)); err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop() }()
	g.Open()
	if got, err := stream.Recv(); err != nil || got.GetInferResponse().GetId() != "one" {
		t.Errorf("got %v, %v, want the answer", got, err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestSequence: a query of a sequence is refused, by gRPC and REST.
func TestSequence(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	for _, id := range []*inference.InferParameter{
		{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 7}},
		{ParameterChoice: &inference.InferParameter_StringParam{StringParam: "seven"}},
		{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: 7}},
	} {
		req := agenttest.NCFRequest(1)
		req.Parameters = map[string]*inference.InferParameter{"sequence_id": id}
		if err := a.InferGRPC(req); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "sequence_id") {
			t.Errorf("%v: got %v, want INVALID_ARGUMENT", id, err)
		}
	}
	none := agenttest.NCFRequest(1)
	none.Parameters = map[string]*inference.InferParameter{
		"sequence_id":    {ParameterChoice: &inference.InferParameter_Int64Param{}},
		"sequence_start": {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}},
	}
	if err := a.InferGRPC(none); err != nil {
		t.Errorf("sequence 0, which is none: %v", err)
	}
	body := strings.Replace(agenttest.NCFBody(1), "{", `{"parameters":{"sequence_id":7},`, 1)
	if code, answer := a.Do("POST", "/v2/models/ncf/infer", body); code != 400 ||
		!strings.Contains(answer, "sequence_id is 7") {
		t.Errorf("REST: got %d %s, want 400", code, answer)
	}
}

// TestNotSupported: each call of Triton's service that an agent lacks says so, and why.
func TestNotSupported(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	for method, why := range map[string]string{
		"SystemSharedMemoryStatus": "memory", "SystemSharedMemoryRegister": "memory",
		"SystemSharedMemoryUnregister": "memory", "CudaSharedMemoryStatus": "memory",
		"CudaSharedMemoryRegister": "memory", "CudaSharedMemoryUnregister": "memory",
		"TraceSetting": "--traces", "LogSettings": "--log-level", "Nonsense": "unknown method",
	} {
		err := a.Conn.Invoke(t.Context(), "/inference.GRPCInferenceService/"+method,
			&emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), why) ||
			!strings.Contains(err.Error(), method) {
			t.Errorf("%s: got %v, want UNIMPLEMENTED with %q", method, err, why)
		}
	}
	for path, why := range map[string]string{
		"GET /v2/systemsharedmemory/status":              "memory",
		"POST /v2/systemsharedmemory/region/x/register":  "memory",
		"POST /v2/systemsharedmemory/unregister":         "memory",
		"GET /v2/cudasharedmemory/region/x/status":       "memory",
		"GET /v2/trace/setting":                          "--traces",
		"POST /v2/models/ncf/trace/setting":              "--traces",
		"POST /v2/logging":                               "--log-level",
		"POST /v2/models/ncf/generate":                   "infer",
		"POST /v2/models/ncf/versions/1/generate_stream": "infer",
	} {
		method, path, _ := strings.Cut(path, " ")
		if code, answer := a.Do(method, path, "{}"); code != 501 ||
			!strings.Contains(answer, why) || !strings.Contains(answer, path) {
			t.Errorf("%s %s: got %d %s, want 501 with %q", method, path, code, answer, why)
		}
	}
}

// TestFullStream: a query's timeout counts from its arrival on, also while its stream is full.
func TestFullStream(t *testing.T) {
	const room = 65
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		a, g := gated(f)
		stream, err := a.OIP.ModelStreamInfer(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		for i := range room + 1 {
			q, timeout := identified(strconv.Itoa(i), 1), time.Minute
			if i == room {
				timeout = 100 * time.Millisecond
			}
			q.Parameters = map[string]*inference.InferParameter{"timeout": {
				ParameterChoice: &inference.InferParameter_Int64Param{
					Int64Param: timeout.Microseconds(),
				},
			}}
			if err := stream.Send(q); err != nil {
				f.Fatal(err)
			}
		}
		synctest.Wait() // all have arrived
		time.Sleep(100 * time.Millisecond)
		g.Open()
		for i := range room + 1 {
			resp, err := stream.Recv()
			if err != nil {
				f.Fatal(err)
			}
			if late := resp.GetErrorMessage() != ""; late != (i == room) {
				f.Errorf("query %d: got %q, want an error of the last alone", i,
					resp.GetErrorMessage())
			}
		}
	})
}

// TestModelConfig: the configuration of a model as tools for Triton read it.
func TestModelConfig(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	resp, err := a.GRPC.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: "wnd"})
	if err != nil {
		t.Fatal(err)
	}
	c := resp.GetConfig()
	if c.GetName() != "wnd" || c.GetMaxBatchSize() != 1000 || len(c.GetInput()) != 2 ||
		c.GetVersionPolicy().GetLatest().GetNumVersions() != 1 ||
		c.GetDefaultModelFilename() != "model.onnx" || c.GetInstanceGroup()[0].GetCount() != 1 ||
		c.GetDynamicBatching() == nil { // its rows are independent
		t.Errorf("got %v", c)
	}
	for _, p := range c.GetInput() {
		if p.GetDataType() == triton.DataType_TYPE_INVALID || len(p.GetDims()) != 1 {
			t.Errorf("input %v, want its type, and its shape without the batch size", p)
		}
	}
	code, body := a.Do("GET", "/v2/models/wnd/versions/1/config", "")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil {
		t.Fatalf("REST: %d %s, %v", code, body, err)
	}
	if got["max_batch_size"] != 1000.0 || got["name"] != "wnd" {
		t.Errorf("REST: got %s", body)
	}
	// perf_analyzer takes a model for one with the features whose messages are there.
	for _, absent := range []string{
		"sequence_batching", "ensemble_scheduling", "response_cache",
		"model_transaction_policy",
	} {
		if _, ok := got[absent]; ok {
			t.Errorf("REST: %s is there, in %v", absent, slices.Collect(maps.Keys(got)))
		}
	}
	input := got["input"].([]any)[0].(map[string]any)
	if _, ok := input["dims"].([]any)[0].(float64); !ok || input["format"] != "FORMAT_NONE" ||
		!strings.HasPrefix(input["data_type"].(string), "TYPE_") || input["optional"] != false {
		t.Errorf("REST: input %v", input)
	}
	for _, name := range []string{"missing", ""} {
		_, err = a.GRPC.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: name})
		if status.Code(err) != codes.NotFound {
			t.Errorf("%q: got %v, want NOT_FOUND", name, err)
		}
	}
	_, err = a.GRPC.ModelConfig(t.Context(),
		&inference.ModelConfigRequest{Name: "wnd", Version: "x"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("version x: got %v, want INVALID_ARGUMENT", err)
	}
}

// relu writes a model y = max(x, 0) whose tensors have the given shape.
func relu(t *testing.T, folder string, shape ...int64) {
	t.Helper()
	m := onnx.Model{
		Inputs:  []onnx.ValueDescription{{Name: "x", DataType: tensor.FP32, Shape: shape}},
		Outputs: []onnx.ValueDescription{{Name: "y", DataType: tensor.FP32, Shape: shape}},
		Nodes:   []onnx.Node{{Op: "Relu", Inputs: []string{"x"}, Outputs: []string{"y"}}},
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "model.onnx"), m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestBatchless: a model whose tensors have fixed shapes takes queries of those shapes, each of
// which counts as one item.
func TestBatchless(t *testing.T) {
	config := agenttest.Config(t)
	config.ModelDir = t.TempDir()
	relu(t, filepath.Join(config.ModelDir, "fixed", "1"), 2, 3)
	a := agenttest.Start(t, config, runtimetest.Open(t))
	values := []float32{-1, 2, -3, 4, 5, -6}
	x, err := tensor.Of("x", values, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := a.GRPC.ModelInfer(t.Context(), agenttest.RawRequest("fixed", []tensor.Tensor{x}))
	if err != nil {
		t.Fatal(err)
	}
	y := tensor.Tensor{
		DataType: tensor.FP32, Shape: resp.GetOutputs()[0].GetShape(),
		Data: resp.GetRawOutputContents()[0],
	}
	if got, err := tensor.Values[float32](y); err != nil ||
		!slices.Equal(got, []float32{0, 2, 0, 4, 5, 0}) || !slices.Equal(y.Shape, x.Shape) {
		t.Errorf("got %v of shape %v, %v", got, y.Shape, err)
	}
	const form = `{"inputs":[{"name":"x","datatype":"FP32","shape":%s,"data":[-1,2,-3,4,5,-6]}]}`
	code, body := a.Do("POST", "/v2/models/fixed/infer", fmt.Sprintf(form, "[2,3]"))
	if code != 200 || !strings.Contains(body, `"shape":[2,3],"data":[0,2,0,4,5,0]`) {
		t.Errorf("REST: got %d %s", code, body)
	}
	for _, shape := range []string{"[1,2,3]", "[3,2]", "[6]"} {
		code, body := a.Do("POST", "/v2/models/fixed/infer", fmt.Sprintf(form, shape))
		if code != 400 || !strings.Contains(body, "[2 3]") {
			t.Errorf("shape %s: got %d %s, want 400 with the shape [2 3]", shape, code, body)
		}
	}
	stats, err := a.GRPC.ModelStatistics(t.Context(), &inference.ModelStatisticsRequest{
		Name: "fixed",
	})
	if err != nil || stats.GetModelStats()[0].GetInferenceCount() != 2 {
		t.Errorf("got %v, %v, want 2 items", stats, err)
	}
	conf, err := a.GRPC.ModelConfig(t.Context(), &inference.ModelConfigRequest{Name: "fixed"})
	if c := conf.GetConfig(); err != nil || c.GetMaxBatchSize() != 0 ||
		!slices.Equal(c.GetInput()[0].GetDims(), []int64{2, 3}) {
		t.Errorf("configuration: got %v, %v, want max_batch_size 0 and the whole shape", c, err)
	}
}
