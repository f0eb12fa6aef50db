package oip_test

import (
	"context"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

// An echo answers queries with their inputs.
type echo struct {
	oip.Server // nil: other methods are not called
	released   chan struct{}
	collected  chan struct{}
}

func (echo) ServerLive(context.Context, *inference.ServerLiveRequest) (
	*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}

func (e echo) ModelInfer(_ context.Context, req *oip.Request) (*oip.Response, error) {
	if req.Model == "missing" {
		req.Release()
		return nil, status.Error(codes.NotFound, "no such model")
	}
	resp := &oip.Response{Model: req.Model, Version: req.Version, ID: req.ID, Outputs: req.Inputs}
	if e.collected != nil {
		runtime.AddCleanup(&req.Inputs[0].Data[0], func(c chan struct{}) { c <- struct{}{} },
			e.collected)
	}
	resp.OnRelease(func() {
		req.Release()
		if e.released != nil {
			e.released <- struct{}{}
		}
	})
	return resp, nil
}

// serve starts a server in memory and returns a connection to it that uses the
// ordinary codec.
func serve(t testing.TB, srv oip.Server, largest int, opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	s := grpc.NewServer(append(oip.ServerOptions(largest), opts...)...)
	oip.RegisterServer(s, srv)
	reflection.Register(s)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:memory",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return lis.DialContext(ctx)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		s.Stop()
		<-done
	})
	return conn
}

func TestServer(t *testing.T) {
	released := make(chan struct{}, 1)
	conn := serve(t, echo{released: released}, 8<<20)
	// The generated client is any other implementation of the protocol.
	c := inference.NewGRPCInferenceServiceClient(conn)
	if r, err := c.ServerLive(t.Context(), &inference.ServerLiveRequest{}); err != nil || !r.Live {
		t.Fatal(r, err)
	}
	x := strings.Repeat("12345678", 100_000)
	r, err := c.ModelInfer(t.Context(), &inference.ModelInferRequest{
		ModelName: "m", Id: "7",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "INT64", Shape: []int64{1000, 100}},
		},
		RawInputContents: [][]byte{[]byte(x)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.ModelName != "m" || r.Id != "7" || len(r.Outputs) != 1 ||
		r.Outputs[0].Datatype != "INT64" || string(r.RawOutputContents[0]) != x {
		t.Errorf("unexpected answer from %q with %d outputs", r.ModelName, len(r.Outputs))
	}
	<-released

	// The same with our own codec on the client's side.
	var resp oip.Response
	ones, err := tensor.Of("x", make([]float32, 5000), 50, 100)
	if err != nil {
		t.Fatal(err)
	}
	err = conn.Invoke(t.Context(), inference.GRPCInferenceService_ModelInfer_FullMethodName,
		&oip.Request{Model: "m", Inputs: []tensor.Tensor{ones}}, &resp,
		grpc.ForceCodecV2(oip.Codec{}))
	if err != nil {
		t.Fatal(err)
	}
	if out, ok := resp.Output("x"); !ok || len(out.Data) != 20000 {
		t.Errorf("unexpected outputs %v", resp.Outputs)
	}
	resp.Release()
	<-released

	_, err = c.ModelInfer(t.Context(), &inference.ModelInferRequest{ModelName: "missing"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}

// TestServerReleasesUnsent has a client go away while most of an answer waits
// for it to read. What grpc drops because the stream ended just before it was
// queued is never given back; then nothing may keep it from being collected.
func TestServerReleasesUnsent(t *testing.T) {
	released, collected := make(chan struct{}, 1), make(chan struct{}, 1)
	conn := serve(t, echo{released: released, collected: collected}, 32<<20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	big, err := tensor.Of("x", make([]float32, 4<<20), 1<<20, 4)
	if err != nil {
		t.Fatal(err)
	}
	desc := &grpc.StreamDesc{ServerStreams: true}
	stream, err := conn.NewStream(ctx, desc,
		inference.GRPCInferenceService_ModelInfer_FullMethodName, grpc.ForceCodecV2(oip.Codec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&oip.Request{Model: "m", Inputs: []tensor.Tensor{big}}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-released:
		t.Fatal("released before it was read")
	default:
	}
	cancel()
	for {
		select {
		case <-released:
			return
		case <-collected:
			return
		case <-time.After(time.Millisecond):
			runtime.GC()
		}
	}
}

func TestServerRefusesInvalid(t *testing.T) {
	var seen []string
	conn := serve(t, echo{}, 8<<20, grpc.UnaryInterceptor(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			seen = append(seen, info.FullMethod+" "+status.Code(err).String())
			return resp, err
		}))
	c := inference.NewGRPCInferenceServiceClient(conn)
	_, err := c.ModelInfer(t.Context(), &inference.ModelInferRequest{
		ModelName: "m",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "INT64", Shape: []int64{1}},
		},
		RawInputContents: [][]byte{[]byte("1234567")},
	})
	want := `input "x": raw_input_contents has 7 bytes, expected 8 for INT64 [1]`
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != want {
		t.Errorf("got %v, want InvalidArgument %s", err, want)
	}
	// Over the limit on messages.
	_, err = c.ModelInfer(t.Context(), &inference.ModelInferRequest{
		RawInputContents: [][]byte{make([]byte, 8<<20)},
	})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
	if want := "/inference.GRPCInferenceService/ModelInfer InvalidArgument"; len(seen) != 1 ||
		seen[0] != want {
		t.Errorf("the interceptor saw %q, want %q", seen, want)
	}
}

func TestReflection(t *testing.T) {
	conn := serve(t, echo{}, 8<<20)
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range []string{
		"inference.GRPCInferenceService", "inference.GRPCInferenceService.ModelInfer",
		"inference.ModelInferRequest",
	} {
		err := stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
				FileContainingSymbol: symbol,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s is not described: %v", symbol, resp)
		}
	}
	stream.CloseSend()
	stream.Recv()
}
