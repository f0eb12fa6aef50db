package oip

import (
	"context"
	"math"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // for clients that compress; then so is the answer
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
)

// A Server is the protocol's gRPC service, with queries and answers as this
// package's structs. Its methods are called concurrently.
type Server interface {
	ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error)
	ServerReady(context.Context, *inference.ServerReadyRequest) (*inference.ServerReadyResponse,
		error)
	ModelReady(context.Context, *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error)
	ServerMetadata(context.Context, *inference.ServerMetadataRequest) (
		*inference.ServerMetadataResponse, error)
	ModelMetadata(context.Context, *inference.ModelMetadataRequest) (
		*inference.ModelMetadataResponse, error)
	// ModelInfer answers a query whose form has been checked; a malformed one
	// is refused with codes.InvalidArgument before. ModelInfer owns the
	// request and must Release it when nothing reads the inputs any more.
	// The response is released when the transport has sent it.
	ModelInfer(context.Context, *Request) (*Response, error)
	ModelStatistics(context.Context, *inference.ModelStatisticsRequest) (
		*inference.ModelStatisticsResponse, error)
	RepositoryIndex(context.Context, *inference.RepositoryIndexRequest) (
		*inference.RepositoryIndexResponse, error)
	RepositoryModelLoad(context.Context, *inference.RepositoryModelLoadRequest) (
		*inference.RepositoryModelLoadResponse, error)
	RepositoryModelUnload(context.Context, *inference.RepositoryModelUnloadRequest) (
		*inference.RepositoryModelUnloadResponse, error)
}

// DialOptions are what a grpc.ClientConn needs to send a [Request] and to
// receive a [Response], of any size.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(Codec{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(connWindow),
	}
}

// ServerOptions are what a grpc.Server needs to serve a [Server]: the codec, a
// limit on the size of a message, in bytes, and flow-control windows that let
// a large batch arrive without a round trip in between.
func ServerOptions(largestMessage int) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.MaxRecvMsgSize(largestMessage),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(connWindow),
	}
}

// Flow-control windows of a stream and of a connection, in bytes: a query of
// the zoo's largest batch fits one stream window.
const (
	window     = 4 << 20
	connWindow = 16 << 20
)

// RegisterServer has srv serve the protocol on s, which must have been made
// with [ServerOptions].
func RegisterServer(s grpc.ServiceRegistrar, srv Server) {
	desc := inference.GRPCInferenceService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "ModelInfer" {
			desc.Methods[i].Handler = modelInferHandler(srv)
		}
	}
	s.RegisterService(&desc, service{srv})
}

// A service is a Server in the form the generated code asks for.
type service struct{ Server }

// ModelInfer is never called: modelInferHandler's takes its place.
func (service) ModelInfer(context.Context, *inference.ModelInferRequest) (
	*inference.ModelInferResponse, error) {
	return nil, status.Error(codes.Unimplemented, "method ModelInfer not implemented")
}

// modelInferHandler is the generated handler with Request and Response instead of the generated
// messages. What it needs is made once, and not for each query.
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
