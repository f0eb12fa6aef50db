package agent_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// What serving costs, as ratios of things measured in turn within one run:
// machines differ, and so do their days. Each benchmark measures pairs and
// reports the median.
const pairs = 15

// A served model, and the same model for running alone.
type benchmark struct {
	agent   *agenttest.Agent
	client  *client.Client
	alone   runtime.Model
	version *models.Version
	inputs  []tensor.Tensor
}

// newBenchmark serves a model on so many cores; 0 means all.
func newBenchmark(b *testing.B, model string, batchSize, cores int) *benchmark {
	b.Helper()
	executor, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(b), Provider: runtime.CPU, Cores: cores,
	})
	if err != nil {
		b.Fatal(err)
	}
	config := agenttest.Config(b)
	zoo := config.ModelDir
	config.ModelDir = b.TempDir()
	// An agent that is alone refuses what would be late.
	unhurried := func([]byte) []byte { return []byte("qos_target_ms: 1000\ndeadline_ms: 60000\n") }
	if err := agenttest.CopyModel(filepath.Join(zoo, model), filepath.Join(config.ModelDir, model),
		unhurried); err != nil {
		b.Fatal(err)
	}
	s := &benchmark{agent: agenttest.Start(b, config, executor)}
	if s.version, err = models.ReadVersion(s.agent.Config().ModelDir, model, 1); err != nil {
		b.Fatal(err)
	}
	s.version.Config.Deadline = time.Minute
	if s.alone, err = executor.Load(b.Context(), s.version); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.alone.Close() }) // nothing runs on it any more
	if s.client, err = client.New([]string{s.agent.Addresses().GRPC}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.client.Close() })
	s.inputs = agenttest.RandomInputs(b, s.version, batchSize)
	return s
}

// run runs the model alone, n times.
func (s *benchmark) run(b *testing.B, n int) time.Duration {
	start := time.Now()
	for range n {
		result, err := s.alone.Run(b.Context(), s.inputs)
		if err != nil {
			b.Fatal(err)
		}
		result.Release()
	}
	return time.Since(start)
}

// infer sends n queries through the SDK, clients of them at a time.
func (s *benchmark) infer(b *testing.B, n, clients int) time.Duration {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	return together(clients, func() {
		for range n / clients {
			response, err := s.client.Infer(ctx, &oip.Request{
				Model: s.version.Model, Inputs: s.inputs,
			})
			if err != nil {
				b.Error(err)
				return
			}
			response.Release()
		}
	})
}

// together has clients call at the same time, a single one without a goroutine of its own.
func together(clients int, call func()) time.Duration {
	start := time.Now()
	if clients == 1 {
		call()
		return time.Since(start)
	}
	var group sync.WaitGroup
	for range clients {
		group.Go(call)
	}
	group.Wait()
	return time.Since(start)
}

// BenchmarkThroughputWND256 compares the throughput by the SDK on loopback, two
// clients keeping the one lane busy, with that of the model alone. Wanted: 0.90.
// It also compares with a run of the model alone and then a bare gRPC echo of the
// same bytes, for two clients and for one, by the SDK and by gRPC's generated
// code with its defaults. Wanted: 0.95.
//
// With all cores for the model, there is none left for client and server: ONNX
// Runtime gives each core its part of a run, and waits for the one that was
// also moving tensors. With one core for the model, the others do that.
func BenchmarkThroughputWND256(b *testing.B) {
	b.Run("cores=1", func(b *testing.B) { benchmarkThroughputWND256(b, 1) })
	b.Run("cores=all", func(b *testing.B) { benchmarkThroughputWND256(b, 0) })
}

func benchmarkThroughputWND256(b *testing.B, cores int) {
	s := newBenchmark(b, "wnd", 256, cores)
	request := 100 // names and shapes apart
	for _, in := range s.inputs {
		request += len(in.Data)
	}
	echo, plain := newEcho(b, request, 256*4+100), newPlain(b, s)
	const n = 40
	ways := []struct {
		name string
		send func() time.Duration
	}{
		{"sdk-2-clients", func() time.Duration { return s.infer(b, n, 2) }},
		{"sdk-1-client", func() time.Duration { return s.infer(b, n, 1) }},
		{"plain-2-clients", func() time.Duration {
			return together(2, func() { plain.call(b, n/2) })
		}},
		{"plain-1-client", func() time.Duration { return plain.call(b, n) }},
	}
	s.run(b, 5)
	echo.call(b, 10)
	for _, w := range ways {
		w.send()
	}
	for b.Loop() {
		var ofRun []float64
		ofBoth := make([][]float64, len(ways))
		for range pairs {
			alone, bare := s.run(b, n), echo.call(b, n)
			for i, w := range ways {
				took := w.send().Seconds()
				ofBoth[i] = append(ofBoth[i], (alone+bare).Seconds()/took)
				if i == 0 {
					ofRun = append(ofRun, alone.Seconds()/took)
				}
			}
		}
		b.ReportMetric(median(ofRun), "of-bare-throughput")
		for i, w := range ways {
			b.ReportMetric(median(ofBoth[i]), "of-run+echo-"+w.name)
		}
	}
}

// BenchmarkLatency compares what serving adds to a query's execution with the
// time that a bare gRPC echo takes for the same bytes. Wanted for NCF 8: 1.5.
//
// The execution itself is slower than where nothing but the model runs, and is
// reported as a multiple of that, and of one of the model alone after each echo.
// Wanted: 1.05. A small run gains nothing from a second thread, which must be
// woken for it on a core that server and client use as well. With one core for
// the model, the others are left to them.
//
// These take turns in short blocks, and the median of each block is taken, so
// that what else the machine does falls on all alike.
func BenchmarkLatency(b *testing.B) {
	for _, q := range []struct {
		model     string
		batchSize int
		answer    int // bytes for each row
	}{{"ncf", 8, 256}, {"ncf", 256, 256}, {"wnd", 256, 4}} {
		b.Run(fmt.Sprintf("%s-%d/cores=1", q.model, q.batchSize), func(b *testing.B) {
			benchmarkLatency(b, newBenchmark(b, q.model, q.batchSize, 1), q.answer*q.batchSize)
		})
		b.Run(fmt.Sprintf("%s-%d/cores=all", q.model, q.batchSize), func(b *testing.B) {
			benchmarkLatency(b, newBenchmark(b, q.model, q.batchSize, 0), q.answer*q.batchSize)
		})
	}
}

func benchmarkLatency(b *testing.B, s *benchmark, answer int) {
	const blocks, block = 31, 50
	request, response := 100, answer+100 // names and shapes apart
	for _, in := range s.inputs {
		request += len(in.Data)
	}
	echo := newEcho(b, request, response)
	// A block's median time of one call, in us, once the caches are warm.
	measure := func(call func() time.Duration) float64 {
		var times []float64
		for i := range block {
			if took := call(); i >= block/5 {
				times = append(times, float64(took.Nanoseconds())/1e3)
			}
		}
		return median(times)
	}
	for b.Loop() {
		var ratios, added, echoed, executed, executedAlone, ofAlone, ofAfter []float64
		for range blocks {
			var executions []float64
			alone := measure(func() time.Duration { return s.run(b, 1) })
			over := measure(func() time.Duration {
				took := s.infer(b, 1, 1)
				execution := time.Duration(s.agent.Execution.Load())
				executions = append(executions, float64(execution.Nanoseconds())/1e3)
				return took - execution
			})
			bare := measure(func() time.Duration { return echo.call(b, 1) })
			after := measure(func() time.Duration {
				echo.call(b, 1)
				return s.run(b, 1)
			})
			ratios = append(ratios, over/bare)
			added, echoed = append(added, over), append(echoed, bare)
			execution := median(executions)
			executed, executedAlone = append(executed, execution), append(executedAlone, alone)
			ofAlone, ofAfter = append(ofAlone, execution/alone), append(ofAfter, execution/after)
		}
		b.ReportMetric(median(ratios), "of-bare-echo")
		b.ReportMetric(median(added), "us-added")
		b.ReportMetric(median(echoed), "us-echo")
		b.ReportMetric(median(executed), "us-execution")
		b.ReportMetric(median(executedAlone), "us-execution-alone")
		b.ReportMetric(median(ofAlone), "execution-of-alone")
		b.ReportMetric(median(ofAfter), "execution-of-after-echo")
	}
}

// BenchmarkAllocation reports what a query allocates, client included, at two
// sizes: it must not grow with the payload.
func BenchmarkAllocation(b *testing.B) {
	for _, batchSize := range []int{8, 512} {
		b.Run(fmt.Sprintf("wnd/batch=%d", batchSize), func(b *testing.B) {
			s := newBenchmark(b, "wnd", batchSize, 0)
			s.infer(b, 50, 1)
			b.ReportAllocs()
			b.ResetTimer()
			s.infer(b, b.N, 1)
		})
	}
}

// BenchmarkLarge compares the time of large queries whose runs take none, and of a small one beside
// them, by the SDK and by gRPC's generated code with its defaults, with that of as many bytes by a
// bare gRPC echo with its defaults and by bare TCP. The four take turns.
func BenchmarkLarge(b *testing.B) {
	for _, q := range []struct {
		model     string
		batchSize int
	}{{"ncf", 1}, {"wnd", 256}, {"rm2", 64}, {"rm2", 256}} {
		b.Run(fmt.Sprint(q.model, "-", q.batchSize), func(b *testing.B) {
			benchmarkLarge(b, q.model, q.batchSize)
		})
	}
}

func benchmarkLarge(b *testing.B, model string, batchSize int) {
	s := &benchmark{agent: agenttest.Start(b, agenttest.Config(b), agenttest.Emulated())}
	var err error
	if s.version, err = models.ReadVersion(s.agent.Config().ModelDir, model, 1); err != nil {
		b.Fatal(err)
	}
	if s.client, err = client.New([]string{s.agent.Addresses().GRPC}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.client.Close() })
	s.inputs = agenttest.RandomInputs(b, s.version, batchSize)
	plain := newPlain(b, s)
	request, response := proto.Size(plain.request), plain.answer(b)
	echo, tcp := newEcho(b, request, response), newTCPEcho(b, request, response)
	ways := []struct {
		name string
		call func(b *testing.B, n int) time.Duration
		us   []float64
	}{
		{name: "sdk", call: func(b *testing.B, n int) time.Duration { return s.infer(b, n, 1) }},
		{name: "plain", call: plain.call},
		{name: "echo", call: echo.call},
		{name: "tcp", call: tcp.call},
	}
	n := max(5, min(200, 20<<20/request))
	for i := range ways {
		ways[i].call(b, n)
	}
	for b.Loop() {
		for range pairs {
			for i := range ways {
				took := ways[i].call(b, n)
				ways[i].us = append(ways[i].us, float64(took.Nanoseconds())/1e3/float64(n))
			}
		}
		for _, w := range ways {
			b.ReportMetric(median(w.us), "us-"+w.name)
		}
	}
}

// A plain sends queries as clients of other makers do: by the generated code and gRPC's defaults.
type plain struct {
	client  inference.GRPCInferenceServiceClient
	request *inference.ModelInferRequest
}

func newPlain(b *testing.B, s *benchmark) *plain {
	b.Helper()
	conn, err := grpc.NewClient(s.agent.Addresses().GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	request := &inference.ModelInferRequest{ModelName: s.version.Model}
	for _, in := range s.inputs {
		request.Inputs = append(request.Inputs, &inference.ModelInferRequest_InferInputTensor{
			Name: in.Name, Datatype: string(in.DataType), Shape: in.Shape,
		})
		request.RawInputContents = append(request.RawInputContents, in.Data)
	}
	return &plain{inference.NewGRPCInferenceServiceClient(conn), request}
}

// answer returns the size of an answer.
func (p *plain) answer(b *testing.B) int {
	b.Helper()
	answer, err := p.client.ModelInfer(b.Context(), p.request)
	if err != nil {
		b.Error(err)
	}
	return proto.Size(answer)
}

func (p *plain) call(b *testing.B, n int) time.Duration {
	start := time.Now()
	for range n {
		p.answer(b)
	}
	return time.Since(start)
}

// A tcpEcho is a connection whose other end answers each request with bytes.
type tcpEcho struct {
	conn              net.Conn
	request, response []byte
}

func newTCPEcho(b *testing.B, request, response int) *tcpEcho {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the connection
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		received, answer := make([]byte, request), make([]byte, response)
		for {
			if _, err := io.ReadFull(conn, received); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return &tcpEcho{conn, make([]byte, request), make([]byte, response)}
}

func (e *tcpEcho) call(b *testing.B, n int) time.Duration {
	start := time.Now()
	for range n {
		if _, err := e.conn.Write(e.request); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(e.conn, e.response); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

// An echo is a gRPC server that answers with bytes, and a client of it.
type echo struct {
	conn    *grpc.ClientConn
	request []byte
}

func newEcho(b *testing.B, request, response int) *echo {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	answer := make([]byte, response)
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.MaxRecvMsgSize(32<<20))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo",
			Handler: func(_ any, _ context.Context, decode func(any) error,
				_ grpc.UnaryServerInterceptor) (any, error) {
				var request []byte
				err := decode(&request)
				return &answer, err
			}}},
	}, nil)
	go func() { _ = server.Serve(l) }() // ends with Stop
	b.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return &echo{conn, make([]byte, request)}
}

func (e *echo) call(b *testing.B, n int) time.Duration {
	start := time.Now()
	for range n {
		var answer []byte
		if err := e.conn.Invoke(b.Context(), "/Echo/Echo", &e.request, &answer); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "bytes" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
