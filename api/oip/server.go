package oip

import (
	"context"
	"math"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	// for clients that compress; gRPC then also compresses the answer
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
)

// A Server is the protocol's gRPC service, with this package's structs for queries and answers. Its
// methods are called concurrently.
type Server interface {
	ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error)
	ServerReady(context.Context, *inference.ServerReadyRequest) (*inference.ServerReadyResponse,
		error)
	ModelReady(context.Context, *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error)
	ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
		*inference.ServerMetadataResponse, error)
	ModelMetadata(context.Context, *inference.ModelMetadataRequest) (
		*inference.ModelMetadataResponse, error)
	// ModelInfer answers a query. A malformed query does not get here: it is refused with
	// codes.InvalidArgument. ModelInfer owns the request, and must Release it when nothing reads
	// the inputs any more. The connection releases the response when it has been sent.
	ModelInfer(context.Context, *Request) (*Response, error)
	// ModelStreamInfer answers the queries of a stream, and owns each as ModelInfer does. It blocks
	// until the stream ends.
	ModelStreamInfer(InferStream) error
	ModelConfig(context.Context, *inference.ModelConfigRequest) (*inference.ModelConfigResponse,
		error)
	ModelStatistics(context.Context, *inference.ModelStatisticsRequest) (
		*inference.ModelStatisticsResponse, error)
	RepositoryIndex(context.Context, *inference.RepositoryIndexRequest) (
		*inference.RepositoryIndexResponse, error)
	RepositoryModelLoad(context.Context, *inference.RepositoryModelLoadRequest) (
		*inference.RepositoryModelLoadResponse, error)
	RepositoryModelUnload(context.Context, *inference.RepositoryModelUnloadRequest) (
		*inference.RepositoryModelUnloadResponse, error)
}

// DialOptions returns the options of a grpc.ClientConn that sends a [Request] and receives a
// [Response], of any size.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(Codec{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(connWindow),
		experimental.WithBufferPool(Buffers),
	}
}

// ServerOptions returns the options of a grpc.Server that serves a [Server]: the codec, the largest
// message in bytes, and flow-control windows in which a large batch arrives without waiting for a
// round trip.
func ServerOptions(largestMessage int) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.MaxRecvMsgSize(largestMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(connWindow),
		experimental.BufferPool(Buffers),
	}
}

// Flow-control windows of a stream and of a connection, in bytes: a query with the zoo's largest
// batch fits into one stream's window.
const (
	window     = 4 << 20
	connWindow = 16 << 20
)

// RegisterServer registers srv as the protocol's service with s, a server made with
// [ServerOptions].
func RegisterServer(s grpc.ServiceRegistrar, srv Server) {
	desc := inference.GRPCInferenceService_ServiceDesc
	desc.Methods, desc.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "ModelInfer" {
			desc.Methods[i].Handler = modelInferHandler(srv)
		}
	}
	for i := range desc.Streams { // ModelStreamInfer is the only one
		desc.Streams[i].Handler = func(_ any, stream grpc.ServerStream) error {
			return srv.ModelStreamInfer(InferStream{stream})
		}
	}
	s.RegisterService(&desc, service{srv})
}

// A service adapts a Server to the interface of the generated code.
type service struct{ Server }

// ModelInfer is never called: modelInferHandler replaces its handler.
func (service) ModelInfer(context.Context, *inference.ModelInferRequest) (
	*inference.ModelInferResponse, error) {
	return nil, status.Error(codes.Unimplemented, "method ModelInfer not implemented")
}

// ModelStreamInfer is never called either.
func (service) ModelStreamInfer(inference.GRPCInferenceService_ModelStreamInferServer) error {
	return status.Error(codes.Unimplemented, "method ModelStreamInfer not implemented")
}

// modelInferHandler returns the generated handler, with Request and Response in place of the
// generated messages. It makes its closures once, not for each query.
func modelInferHandler(srv Server) grpc.MethodHandler {
	// Must not be a nil *Response in an interface: grpc would try to send it.
	infer := func(ctx context.Context, req any) (any, error) {
		r := req.(*Request)
		if r.err != nil {
			return nil, status.Error(codes.InvalidArgument, r.err.Error())
		}
		resp, err := srv.ModelInfer(ctx, r)
		if err != nil {
			return nil, err
		}
		return resp, nil
	}
	info := &grpc.UnaryServerInfo{
		Server: service{srv}, FullMethod: inference.GRPCInferenceService_ModelInfer_FullMethodName,
	}
	return func(_ any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := new(Request)
		if err := decode(req); err != nil {
			req.Release()
			return nil, err
		}
		if interceptor == nil {
			return infer(ctx, req)
		}
		return interceptor(ctx, req, info, infer)
	}
}
