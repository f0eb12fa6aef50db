package serve_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// A hostile request is one that the agent must refuse. send returns the gRPC
// code or the REST status, and the message; code is what must come back, with
// all the words in the message.
type hostile struct {
	name  string
	send  func(a *agenttest.Agent) (code, message string)
	code  string
	words []string
}

// hostileRequests are bad input of every kind we could think of.
func hostileRequests() []hostile {
	var all []hostile
	add := func(name, code string, send func(a *agenttest.Agent) (code, message string),
		words ...string) {
		all = append(all, hostile{name, send, code, words})
	}

	// What is wrong with a query, in both protocols: change alters a valid
	// query for NCF, which is sent as protobuf and as the equivalent JSON.
	both := func(name string, code codes.Code, change func(*inference.ModelInferRequest),
		words ...string) {
		restStatus := map[codes.Code]string{
			codes.InvalidArgument: "400", codes.NotFound: "404",
		}[code]
		add("gRPC: "+name, code.String(), func(a *agenttest.Agent) (string, string) {
			req := agenttest.NCFRequest(2)
			change(req)
			return grpcOutcome(a.InferGRPC(req))
		}, words...)
		add("REST: "+name, restStatus, func(a *agenttest.Agent) (string, string) {
			req := agenttest.NCFRequest(2)
			change(req)
			path := "/v2/models/" + req.GetModelName()
			if req.GetModelVersion() != "" {
				path += "/versions/" + req.GetModelVersion()
			}
			return restOutcome(a, "POST", path+"/infer", restBody(req), nil)
		}, words...)
	}
	input := func(change func(*inference.ModelInferRequest_InferInputTensor)) func(
		*inference.ModelInferRequest) {
		return func(r *inference.ModelInferRequest) { change(r.GetInputs()[0]) }
	}
	ids := func(position int, id int64) func(*inference.ModelInferRequest) {
		return func(r *inference.ModelInferRequest) {
			r.GetInputs()[0].GetContents().Int64Contents[position] = id
		}
	}
	bad := codes.InvalidArgument
	both("unknown model", codes.NotFound,
		func(r *inference.ModelInferRequest) { r.ModelName = "dlrm" }, `"dlrm"`)
	both("unknown version", codes.NotFound,
		func(r *inference.ModelInferRequest) { r.ModelVersion = "7" }, "7")
	both("version that is no number", bad,
		func(r *inference.ModelInferRequest) { r.ModelVersion = "latest" }, `version "latest"`)
	both("version 0", bad, func(r *inference.ModelInferRequest) { r.ModelVersion = "0" },
		`version "0"`)
	both("huge version", bad,
		func(r *inference.ModelInferRequest) { r.ModelVersion = "99999999999999999999" },
		"99999999999999999999")
	both("unknown input", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Name = "dense" }),
		`unknown input "dense"`, `"ids"`)
	both("no input", bad, func(r *inference.ModelInferRequest) { r.Inputs = nil }, "input")
	both("input twice", bad,
		func(r *inference.ModelInferRequest) { r.Inputs = append(r.Inputs, r.Inputs[0]) }, `"ids"`)
	both("unknown output", bad, func(r *inference.ModelInferRequest) {
		r.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "clicks"}}
	}, `unknown output "clicks"`, `"scores"`)
	both("output twice", bad, func(r *inference.ModelInferRequest) {
		r.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{
			{Name: "scores"}, {Name: "scores"},
		}
	}, `output "scores"`)
	both("wrong type", bad, input(func(in *inference.ModelInferRequest_InferInputTensor) {
		in.Datatype = "INT32"
		in.Contents = &inference.InferTensorContents{IntContents: make([]int32, 8)}
	}), `"ids"`, "INT32", "INT64")
	both("no such type", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Datatype = "INT63" }),
		"INT63")
	both("rank too low", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Shape = []int64{8} }),
		"rank 1", "rank 2")
	both("rank too high", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) {
			in.Shape = []int64{2, 2, 2}
		}), "rank 3", "rank 2")
	both("no shape", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Shape = nil }), `"ids"`)
	both("wrong shape", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Shape = []int64{4, 2} }),
		"[4 2]", "[N 4]")
	both("negative dimension", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Shape = []int64{-2, 4} }),
		"-2")
	both("shape that overflows", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) {
			in.Shape = []int64{1 << 62, 4}
		}), `"ids"`)
	both("contents too short", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Shape = []int64{3, 4} }),
		`"ids"`, "12")
	both("contents too long", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) { in.Shape = []int64{1, 4} }),
		`"ids"`, "4")
	both("batch size 0", bad, input(func(in *inference.ModelInferRequest_InferInputTensor) {
		in.Shape, in.Contents.Int64Contents = []int64{0, 4}, nil
	}), "batch size 0", "1 to 1000")
	both("batch size above the limit", bad,
		input(func(in *inference.ModelInferRequest_InferInputTensor) {
			in.Shape, in.Contents.Int64Contents = []int64{1001, 4}, agenttest.NCFIDs(1001)
		}), "batch size 1001", "1 to 1000")
	both("negative id", bad, ids(5, -1), `"ids"`, "-1", "[1 1]", "0 to 139")
	both("id beyond its table", bad, ids(2, 28), `"ids"`, "28", "[0 2]", "0 to 27")
	both("huge id", bad, ids(0, 1<<62), `"ids"`, "[0 0]", "0 to 139")
	both("timeout that is no number", bad, func(r *inference.ModelInferRequest) {
		r.Parameters = map[string]*inference.InferParameter{
			"timeout": {
				ParameterChoice: &inference.InferParameter_StringParam{StringParam: "soon"},
			},
		}
	}, "timeout")
	both("negative timeout", bad,
		func(r *inference.ModelInferRequest) { agenttest.WithTimeout(r, -time.Second) }, "timeout")

	// gRPC alone.
	grpcQuery := func(name string, change func(*inference.ModelInferRequest), words ...string) {
		add("gRPC: "+name, "InvalidArgument", func(a *agenttest.Agent) (string, string) {
			req := agenttest.NCFRequest(2)
			change(req)
			return grpcOutcome(a.InferGRPC(req))
		}, words...)
	}
	raw := func(contents ...[]byte) func(*inference.ModelInferRequest) {
		return func(r *inference.ModelInferRequest) {
			r.GetInputs()[0].Contents, r.RawInputContents = nil, contents
		}
	}
	grpcQuery("raw contents too short", raw(make([]byte, 63)), "63", "64")
	grpcQuery("raw contents too long", raw(make([]byte, 72)), "72", "64")
	grpcQuery("raw contents too many", raw(make([]byte, 64), make([]byte, 64)), "2", "1")
	grpcQuery("raw and typed contents",
		func(r *inference.ModelInferRequest) { r.RawInputContents = [][]byte{make([]byte, 64)} },
		`"ids"`)
	grpcQuery("contents of another type", func(r *inference.ModelInferRequest) {
		r.GetInputs()[0].Contents = &inference.InferTensorContents{Fp32Contents: make([]float32, 8)}
	}, `"ids"`)
	grpcQuery("different batch sizes", func(r *inference.ModelInferRequest) {
		r.ModelName = "wnd"
		r.Inputs = []*inference.ModelInferRequest_InferInputTensor{
			{Name: "dense", Datatype: "FP32", Shape: []int64{2, 512}}, {
				Name: "ids", Datatype: "INT64", Shape: []int64{3, 27},
			},
		}
		r.RawInputContents = [][]byte{make([]byte, 2*512*4), make([]byte, 3*27*8)}
	}, "batch size 3", `"dense" has 2`)
	grpcQuery("missing input", func(r *inference.ModelInferRequest) {
		r.ModelName = "wnd"
		r.Inputs = []*inference.ModelInferRequest_InferInputTensor{
			{Name: "dense", Datatype: "FP32", Shape: []int64{2, 512}},
		}
		r.RawInputContents = [][]byte{make([]byte, 2*512*4)}
	}, `input "ids" is missing`)
	grpcBytes := func(name, code string, body []byte, words ...string) {
		add("gRPC: "+name, code, func(a *agenttest.Agent) (string, string) {
			return sendFrames(a, inference.GRPCInferenceService_ModelInfer_FullMethodName, body)
		}, words...)
	}
	valid, err := proto.Marshal(agenttest.NCFRequest(2))
	if err != nil {
		panic(err)
	}
	grpcBytes("no protobuf", "InvalidArgument", frame(bytes.Repeat([]byte{0xff}, 40)))
	grpcBytes("truncated protobuf", "InvalidArgument", frame(valid[:len(valid)-3]))
	grpcBytes("absurd message length", "ResourceExhausted",
		append([]byte{0, 0xff, 0xff, 0xff, 0xff}, valid...))
	grpcBytes("compressed without saying how", "Internal", append([]byte{1}, frame(valid)[1:]...))
	grpcBytes("message cut off", "Internal", frame(valid)[:20])
	grpcBytes("no message", "Internal", nil)
	add("gRPC: a large query that announces a petabyte more", "InvalidArgument",
		func(a *agenttest.Agent) (string, string) {
			return grpcOutcome(a.InferGRPC(&inference.ModelInferRequest{
				ModelName: "ncf",
				Inputs: []*inference.ModelInferRequest_InferInputTensor{
					{Name: "ids", Datatype: "UINT8", Shape: []int64{70_000}},
					{Name: "more", Datatype: "UINT8", Shape: []int64{1 << 50}},
				},
				RawInputContents: [][]byte{make([]byte, 70_000)},
			}))
		})
	add("gRPC: unknown method", "Unimplemented", func(a *agenttest.Agent) (string, string) {
		return grpcOutcome(
			a.Conn.Invoke(context.Background(), "/inference.GRPCInferenceService/Nothing",
				agenttest.NCFRequest(1), &inference.ModelInferResponse{}))
	})
	add("gRPC: unknown service", "Unimplemented", func(a *agenttest.Agent) (string, string) {
		return grpcOutcome(a.Conn.Invoke(context.Background(), "/nothing.Nothing/Nothing",
			agenttest.NCFRequest(1), &inference.ModelInferResponse{}))
	})
	add("gRPC: headers over the limit", "", func(a *agenttest.Agent) (string, string) {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x",
			strings.Repeat("x", 2*(64<<10)))
		code, message := grpcOutcome(
			onOwnConnection(a, func(c inference.GRPCInferenceServiceClient) error {
				_, err := c.ModelInfer(ctx, agenttest.NCFRequest(1))
				return err
			}))
		if code == "OK" {
			return code, message
		}
		return "", message // the client or the server refuses, by whoever is first
	})
	add("gRPC: model name that leaves the directory", "NotFound",
		func(a *agenttest.Agent) (string, string) {
			req := agenttest.NCFRequest(1)
			req.ModelName = "../../etc"
			return grpcOutcome(a.InferGRPC(req))
		}, "../../etc")
	add("gRPC: load that leaves the directory", "InvalidArgument",
		func(a *agenttest.Agent) (string, string) {
			_, err := a.GRPC.RepositoryModelLoad(context.Background(),
				&inference.RepositoryModelLoadRequest{ModelName: "../../etc"})
			return grpcOutcome(err)
		}, "../../etc")

	// REST alone.
	rest := func(name, status, body string, header map[string]string, words ...string) {
		add("REST: "+name, status, func(a *agenttest.Agent) (string, string) {
			return restOutcome(a, "POST", "/v2/models/ncf/infer", body, header)
		}, words...)
	}
	good := agenttest.NCFBody(2)
	rest("empty body", "400", "", nil)
	rest("no JSON", "400", "hello", nil)
	rest("truncated JSON", "400", good[:len(good)-10], nil)
	rest("JSON that is no object", "400", "[1,2,3]", nil)
	rest("text after the JSON", "400", good+"x", nil)
	rest("deeply nested JSON", "400", strings.Repeat(`{"inputs":[`, 10000), nil)
	rest("data that is no number", "400", strings.Replace(good, "[0,", `["zero",`, 1), nil, `"ids"`)
	rest("fraction for an integer", "400", strings.Replace(good, "[0,", `[0.5,`, 1), nil, `"ids"`)
	rest("integer beyond its type", "400", strings.Replace(good, "[0,", `[9223372036854775808,`, 1),
		nil, `"ids"`)
	rest("NUL bytes", "400", strings.Repeat("\x00", 100), nil)
	rest("body over the limit", "413", strings.Repeat(" ", 300_000), nil, "300000")
	rest("unknown content encoding", "400", good, map[string]string{"Content-Encoding": "br"}, "br")
	rest("no gzip", "400", good, map[string]string{"Content-Encoding": "gzip"})
	rest("no deflate", "400", good, map[string]string{"Content-Encoding": "deflate"})
	rest("gzip cut off", "400", gzipped(good)[:40], map[string]string{"Content-Encoding": "gzip"})
	rest("gzip bomb", "413", gzipped(strings.Repeat(" ", 64<<20)), map[string]string{
		"Content-Encoding": "gzip",
	})
	binaryQuery, n := agenttest.BinaryBody([]tensor.Tensor{
		{Name: "ids", DataType: "INT64", Shape: []int64{2, 4}, Data: make([]byte, 64)},
	})
	header := func(length string) map[string]string {
		return map[string]string{"Inference-Header-Content-Length": length}
	}
	rest("truncated binary part", "400", binaryQuery[:len(binaryQuery)-5], header(strconv.Itoa(n)),
		"197", "202")
	rest("binary part too long", "400", binaryQuery+"12345", header(strconv.Itoa(n)))
	rest("header length absurd", "400", binaryQuery, header("99999999999999999999"))
	rest("header length beyond the body", "400", binaryQuery,
		header(strconv.Itoa(len(binaryQuery)+1)))
	rest("header length negative", "400", binaryQuery, header("-1"))
	rest("header length that is no number", "400", binaryQuery, header("many"))
	rest("header length too short", "400", binaryQuery, header(strconv.Itoa(n-1)))
	rest("header length 0", "400", binaryQuery, header("0"))
	rest("binary size that lies", "400",
		strings.Replace(binaryQuery, `"binary_data_size":64`, `"binary_data_size":-1`, 1),
		header(strconv.Itoa(n)))
	add("REST: body over the limit, of unknown length", "413", func(a *agenttest.Agent) (string, string) {
		return rawOutcome(a,
			"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "+
				"chunked\r\n\r\n"+
				strings.Repeat("8000\r\n"+strings.Repeat(" ", 0x8000)+"\r\n", 10)+"0\r\n\r\n",
			false)
	})
	add("REST: bad chunk", "400", func(a *agenttest.Agent) (string, string) {
		return rawOutcome(a,
			"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "+
				"chunked\r\n\r\nzz\r\n", false)
	})
	add("REST: half-closed connection", "400", func(a *agenttest.Agent) (string, string) {
		return rawOutcome(a,
			"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+
				"100\r\n\r\n{\"inputs\":", true)
	})
	add("REST: negative length", "400", func(a *agenttest.Agent) (string, string) {
		return rawOutcome(a,
			"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
			false)
	})
	add("REST: length of a terabyte", "413", func(a *agenttest.Agent) (string, string) {
		return rawOutcome(a,
			"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+
				"1099511627776\r\n\r\n", false)
	})
	add("REST: headers over the limit", "431", func(a *agenttest.Agent) (string, string) {
		return rawOutcome(a,
			"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 2*(64<<10))+"\r\n\r\n",
			false)
	})
	add("REST: no HTTP", "400",
		func(a *agenttest.Agent) (string, string) { return rawOutcome(a, "hello\r\n\r\n", false) })
	add("REST: gone before the answer", "", func(a *agenttest.Agent) (string, string) {
		conn, err := net.Dial("tcp", a.Addresses().HTTP)
		if err != nil {
			return "dial", err.Error()
		}
		defer conn.Close()
		fmt.Fprint(
			conn,
			"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
		return "", ""
	})
	add("REST: path that leaves the directory", "404", func(a *agenttest.Agent) (string, string) {
		return restOutcome(a, "POST", "/v2/models/..%2F..%2Fetc/infer", good, nil)
	}, "../../etc")
	add("REST: load that leaves the directory", "400", func(a *agenttest.Agent) (string, string) {
		return restOutcome(a, "POST", "/v2/repository/models/..%2F..%2Fetc/load", "", nil)
	}, "../../etc")
	add("REST: wrong method", "405", func(a *agenttest.Agent) (string, string) {
		return restOutcome(a, "DELETE", "/v2/models/ncf/infer", "", nil)
	})
	return all
}

// TestBadInput sends every hostile request to an agent with the real ONNX
// Runtime: it must be refused with the right code and words, nothing may be
// run, and the next query must be answered.
func TestBadInput(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), runtimetest.Open(t))
	// NCF's own deadline of 50 ms may pass on a busy machine, with the race detector.
	const patience = 10 * time.Second
	body := fmt.Sprintf(`{"parameters":{"timeout":%d},%s`, patience.Microseconds(), agenttest.NCFBody(2)[1:])
	for _, h := range hostileRequests() {
		t.Run(h.name, func(t *testing.T) {
			before := a.Runs.Load()
			code, message := h.send(a)
			if code != h.code {
				t.Errorf("got %s %q, want %s", code, message, h.code)
			}
			for _, word := range h.words {
				if !strings.Contains(message, word) {
					t.Errorf("got %q, want %q in it", message, word)
				}
			}
			if ran := a.Runs.Load() - before; ran != 0 {
				t.Errorf("%d queries were run", ran)
			}
			if err := a.InferGRPC(agenttest.WithTimeout(agenttest.NCFRequest(2), patience)); err != nil {
				t.Errorf("next query by gRPC: %v", err)
			}
			if status, answer := a.Do("POST", "/v2/models/ncf/infer", body); status != http.StatusOK {
				t.Errorf("next query by REST: %d %s", status, answer)
			}
			// A server hears in its own time that a client has gone. Bytes that it kept for ever
			// would end this test by its time-out.
			for agenttest.Held(a.Inside, "serve: bytes of queries") != 0 {
				goruntime.Gosched()
			}
		})
	}
}

// TestHostile sends a thousand hostile requests and looks for what they leave
// behind: heap and resident memory within 5 % of what they were, no goroutine
// and no descriptor more.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand requests")
	}
	a := agenttest.Start(t, agenttest.Config(t), runtimetest.Open(t))
	all := hostileRequests()
	send := func(n int) {
		for i := range n {
			h := all[i%len(all)]
			if code, message := h.send(a); code != h.code {
				t.Fatalf("%s: got %s %q, want %s", h.name, code, message, h.code)
			}
		}
		if err := a.InferGRPC(agenttest.NCFRequest(1000)); err != nil {
			t.Fatal(err)
		}
	}
	send(0)
	a.Do("GET", "/readyz", "")
	a.HTTP.CloseIdleConnections()
	goroutines, descriptors := goruntime.NumGoroutine(), countDescriptors(a)
	send(3 * len(all)) // warm up: pools fill, the heap finds its size
	before := usageOf(a, goroutines, descriptors)
	send(1000)
	after := usageOf(a, before.goroutines, before.descriptors)
	t.Logf("before %+v, after %+v", before, after)
	if after.heap > before.heap+before.heap/20 {
		t.Errorf("heap: %d bytes before, %d after", before.heap, after.heap)
	}
	if after.resident > before.resident+before.resident/20 {
		t.Errorf("resident: %d bytes before, %d after", before.resident, after.resident)
	}
	if after.goroutines > before.goroutines {
		t.Errorf("goroutines: %d before, %d after", before.goroutines, after.goroutines)
	}
	if after.descriptors > before.descriptors {
		t.Errorf("descriptors: %d before, %d after", before.descriptors, after.descriptors)
	}
}

// TestGarbage sends each port what it does not speak, and streams of control
// that break off. The agent answers others as before, and its log is hardly longer for it.
func TestGarbage(t *testing.T) {
	a := agenttest.Start(t, agenttest.Config(t), agenttest.Emulated())
	random := make([]byte, 64<<10)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	random[0] = 0 // 22 would be TLS's
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	warned := strings.Count(a.Log.String(), "level=WARN")
	for range 20 {
		for _, address := range []string{a.Addresses().HTTP, a.Addresses().GRPC, a.Addresses().Metrics} {
			for _, garbage := range []string{
				"", "\x00", "hello\r\n\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", preface,
				preface + string(random), string(random), "\x16\x03\x01\x02\x00\x01",
			} {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(conn, garbage) // the agent may have had enough
				if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Log(err) // as before
				}
				_, _ = io.Copy(io.Discard, conn) // until the agent ends it
				_ = conn.Close()
			}
		}
	}
	hello, err := proto.Marshal(&control.GatewayMessage{
		Hello: &control.GatewayHello{Gateway: 1, Protocol: control.Spoken.Oldest},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{
		control.Control_Match_FullMethodName, control.Control_Link_FullMethodName,
		control.Control_Probe_FullMethodName, control.Control_Keyring_FullMethodName,
		control.Control_Queries_FullMethodName,
	} {
		for _, body := range [][]byte{
			frame(hello)[:3], frame(hello)[:8], append(frame(hello), frame(hello)[:8]...),
			frame(bytes.Repeat([]byte{0xff}, 40)), {0, 0xff, 0xff, 0xff, 0xff, 1},
		} {
			if code, message := sendFrames(a, method, body); code == codes.OK.String() ||
				code == codes.Unknown.String() {
				t.Errorf("%s with % x: got %s %q, want a refusal", method, body, code, message)
			}
		}
	}
	if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
		t.Errorf("next query by gRPC: %v", err)
	}
	if status, body := a.Do("POST", "/v2/models/ncf/infer", agenttest.NCFBody(2)); status != http.StatusOK {
		t.Errorf("next query by REST: %d %s", status, body)
	}
	if resp, err := a.HTTP.Get("http://" + a.Addresses().Metrics + "/metrics"); err != nil ||
		resp.StatusCode != http.StatusOK {
		t.Errorf("metrics: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if more := strings.Count(a.Log.String(), "level=WARN") - warned; more > 1 ||
		strings.Contains(a.Log.String(), "panic") {
		t.Errorf("%d warnings, want one, of TLS where there is none:\n%s", more, a.Log)
	}
}

type usage struct {
	heap        uint64 // bytes in use after a collection
	resident    uint64 // bytes
	goroutines  int
	descriptors int
}

// usageOf is what the process holds once everything in progress has ended, which
// is when it has no more goroutines and descriptors than given, or after a
// while.
func usageOf(a *agenttest.Agent, goroutines, descriptors int) usage {
	a.T.Helper()
	a.HTTP.CloseIdleConnections()
	// A server that refused a body leaves the connection open for half a
	// second, so that the client can read why.
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	var u usage
	for range 500 {
		u.goroutines, u.descriptors = goruntime.NumGoroutine(), countDescriptors(a)
		if u.goroutines <= goroutines && u.descriptors <= descriptors {
			break
		}
		<-poll.C
	}
	debug.FreeOSMemory()
	debug.FreeOSMemory() // pools let go at the second collection
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	u.heap = m.HeapAlloc
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		a.T.Fatal(err)
	}
	pages, err := strconv.ParseUint(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		a.T.Fatal(err)
	}
	u.resident = pages * uint64(os.Getpagesize())
	return u
}

func countDescriptors(a *agenttest.Agent) int {
	a.T.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		a.T.Fatal(err)
	}
	return len(open)
}

func grpcOutcome(err error) (code, message string) {
	s := status.Convert(err)
	return s.Code().String(), s.Message()
}

// restOutcome sends a request and returns the status and the error's message.
func restOutcome(a *agenttest.Agent, method, path, body string, header map[string]string) (code,
	message string) {
	resp, answer := a.Exchange(method, path, body, header)
	return strconv.Itoa(resp.StatusCode), unquoted(answer)
}

// unquoted is the text of a JSON error, with its quotes as they were.
func unquoted(answer string) string { return strings.ReplaceAll(answer, `\"`, `"`) }

// restBody is a query with typed contents in its REST form.
func restBody(req *inference.ModelInferRequest) string {
	type object = map[string]any
	inputs, outputs := []object{}, []object{}
	for _, in := range req.GetInputs() {
		o := object{
			"name": in.GetName(), "datatype": in.GetDatatype(),
			"shape": append([]int64{}, in.GetShape()...),
		}
		if c := in.GetContents(); c.GetInt64Contents() != nil {
			o["data"] = c.GetInt64Contents()
		} else {
			o["data"] = append([]int32{}, c.GetIntContents()...)
		}
		inputs = append(inputs, o)
	}
	for _, out := range req.GetOutputs() {
		outputs = append(outputs, object{"name": out.GetName()})
	}
	body := object{"inputs": inputs}
	if len(outputs) > 0 {
		body["outputs"] = outputs
	}
	if p := req.GetParameters()["timeout"]; p.GetStringParam() != "" {
		body["parameters"] = object{"timeout": p.GetStringParam()}
	} else if p != nil {
		body["parameters"] = object{"timeout": p.GetInt64Param()}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// rawOutcome sends bytes on a connection of its own, and closes its sending
// side if asked to.
func rawOutcome(a *agenttest.Agent, request string, halfClose bool) (code, message string) {
	conn, err := net.Dial("tcp", a.Addresses().HTTP)
	if err != nil {
		return "dial", err.Error()
	}
	defer conn.Close()
	// The server may answer and close before it has read everything.
	_, _ = io.WriteString(conn, request)
	if halfClose {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return "close", err.Error()
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "read", err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "read", err.Error()
	}
	return strconv.Itoa(resp.StatusCode), unquoted(string(body))
}

// frame is a message as gRPC sends it.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// sendFrames calls a method with bytes of ours in place of messages.
func sendFrames(a *agenttest.Agent, method string, body []byte) (code, message string) {
	conn, err := net.Dial("tcp", a.Addresses().GRPC)
	if err != nil {
		return "dial", err.Error()
	}
	defer conn.Close() // whatever the transport thinks of its state
	transport := &http.Transport{
		Protocols:   new(http.Protocols),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	req, err := http.NewRequest("POST", "http://"+a.Addresses().GRPC+method, bytes.NewReader(body))
	if err != nil {
		return "request", err.Error()
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "round trip", err.Error()
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "read", err.Error()
	}
	trailer := resp.Trailer
	if trailer.Get("Grpc-Status") == "" { // an answer of headers alone
		trailer = resp.Header
	}
	n, err := strconv.Atoi(trailer.Get("Grpc-Status"))
	if err != nil {
		return "status", err.Error()
	}
	return codes.Code(n).String(), trailer.Get("Grpc-Message")
}

// onOwnConnection calls f with a client on a connection that is closed after.
func onOwnConnection(a *agenttest.Agent, f func(inference.GRPCInferenceServiceClient) error) error {
	conn, err := grpc.NewClient(a.Addresses().GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(inference.NewGRPCInferenceServiceClient(conn))
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.String()
}
