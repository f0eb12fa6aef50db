package serve

import (
	"net/http"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
)

// Why an agent does not have calls that Triton's clients may make.
const (
	noSharedMemory = "an agent does not read its clients' memory: send tensors with the query, " +
		"as " +
		"binary data"
	noTraceSettings = "traces are set by the agent's --traces, for all models"
	noLogSettings   = "logs are set by the agent's --log-level and --log-format"
	noGenerate      = "models answer each query with tensors, once: use infer"
)

// missing are the methods of Triton's service that an agent does not have, and why.
var missing = map[string]string{
	"SystemSharedMemoryStatus":     noSharedMemory,
	"SystemSharedMemoryRegister":   noSharedMemory,
	"SystemSharedMemoryUnregister": noSharedMemory,
	"CudaSharedMemoryStatus":       noSharedMemory,
	"CudaSharedMemoryRegister":     noSharedMemory,
	"CudaSharedMemoryUnregister":   noSharedMemory,
	"TraceSetting":                 noTraceSettings,
	"LogSettings":                  noLogSettings,
}

// missingPaths are the same by REST.
var missingPaths = map[string]string{
	"/v2/systemsharedmemory/":                               noSharedMemory,
	"/v2/cudasharedmemory/":                                 noSharedMemory,
	"/v2/trace/setting":                                     noTraceSettings,
	"/v2/models/{model}/trace/setting":                      noTraceSettings,
	"/v2/logging":                                           noLogSettings,
	"/v2/models/{model}/generate":                           noGenerate,
	"/v2/models/{model}/generate_stream":                    noGenerate,
	"/v2/models/{model}/versions/{version}/generate":        noGenerate,
	"/v2/models/{model}/versions/{version}/generate_stream": noGenerate,
}

// unknownMethod answers calls of methods that the gRPC server does not have. It reads no message.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	service, name := path.Split(method)
	why, ok := missing[name]
	if !ok || service != "/"+inference.GRPCInferenceService_ServiceDesc.ServiceName+"/" {
		return status.Errorf(codes.Unimplemented, "unknown method %.255s", method)
	}
	return notHere(name, why)
}

// missingPath answers requests for a path of missingPaths.
func missingPath(why string) func(http.ResponseWriter, *http.Request) error {
	return func(_ http.ResponseWriter, req *http.Request) error {
		return notHere(req.URL.Path, why)
	}
}

func notHere(what, why string) error {
	return status.Errorf(codes.Unimplemented, "%.255s is not supported: %s", what, why)
}
