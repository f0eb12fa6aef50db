package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/agent/picker"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/openapi"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/runtime"
)

// newHTTPServer returns a server for handler that bounds how long a client may take to send a
// request and how large the headers may be.
func (s *Server) newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.ContentLength != 0 {
				// net/http clears this deadline once it has read the whole body, which it also
				// tries for a refused request. Later reads only notice that the client has gone.
				if err := http.NewResponseController(w).SetReadDeadline(
					time.Now().Add(s.config.ReceiveTimeout)); err != nil {
					s.config.Log.Debug("cannot set the deadline to receive a body", "error", err)
				}
			}
			closing := &closingWriter{ResponseWriter: w, draining: s.config.Draining}
			handler.ServeHTTP(closing, req)
			closing.beginAnswer() // net/http writes the header of an answer without a body
		}),
		ReadHeaderTimeout: connectTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    largestHeader,
		// The server's own log lines are about single connections of clients, so they are debug
		// lines.
		ErrorLog: slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return s.conns.connContext(s.config.Guard.ConnContext(ctx, conn), conn)
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			s.config.Guard.ConnState(conn, state)
			s.conns.connState(conn, state)
		},
	}
}

// A rest is the handler of the inference protocol's REST form.
type rest struct {
	*Server
	service service
	mux     *http.ServeMux
}

// A route is a pattern of a path, as http.ServeMux reads it, and what answers it.
type route struct {
	pattern string
	serve   func(http.ResponseWriter, *http.Request) error
}

// newREST returns a handler with all paths of the protocol.
func (s *Server) newREST() *rest {
	r := &rest{Server: s, service: service{s}, mux: http.NewServeMux()}
	routes := r.listRoutes()
	for path, why := range missingPaths {
		routes = append(routes, route{path, missingPath(why)})
	}
	for _, route := range routes {
		r.mux.HandleFunc(route.pattern, func(w http.ResponseWriter, req *http.Request) {
			if err := route.serve(w, req); err != nil {
				writeError(w, s.hideNames(req.Context(), err))
			}
		})
	}
	return r
}

// healthRoutes returns what probes ask.
func (r *rest) healthRoutes() []route {
	return []route{
		{"GET /livez", r.serveLive},
		{"GET /readyz", r.serverReady},
		{"GET /v2/health/live", r.serveLive},
		{"GET /v2/health/ready", r.serverReady},
	}
}

// listRoutes returns what an agent answers by REST. api/openapi describes each of them.
func (r *rest) listRoutes() []route {
	routes := append(r.healthRoutes(), []route{
		{"GET /{$}", r.serveRoot},
		{"GET /v2", r.serverMetadata},
		{"GET /v2/openapi.json", serveOpenAPI},
		{"GET /v2/models/stats", r.modelStatistics},
		{"POST /v2/repository/index", r.repositoryIndex},
		{"POST /v2/repository/models/{model}/load", r.modelLoad},
		{"POST /v2/repository/models/{model}/unload", r.modelUnload},
	}...)
	for _, model := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		routes = append(routes,
			route{"GET " + model, r.modelMetadata},
			route{"GET " + model + "/ready", r.modelReady},
			route{"GET " + model + "/config", r.modelConfig},
			route{"GET " + model + "/stats", r.modelStatistics},
			route{"POST " + model + "/infer", r.serveInfer})
	}
	return routes
}

// serveOpenAPI answers with the description of this interface.
func serveOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi.Document) // fails only if the client has gone
	return nil
}

func (r *rest) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p) // net/http's own panic, which aborts a response
			}
			writeError(w, r.panicError(req.Pattern, p))
		}
	}()
	if d := r.dashboard; d != nil && isDashboard(req.URL.Path) {
		d.ServeHTTP(w, req)
		return
	}
	// The mux would redirect such a path to its clean form.
	req = withoutLastSlash(req)
	if p := req.URL.EscapedPath(); p != path.Clean("/"+p) {
		writeErrorStatus(w, http.StatusBadRequest,
			fmt.Sprintf("path %q, want one without empty parts and dots", p))
		return
	}
	// The mux's own errors get the same JSON form as all others.
	if handler, pattern := r.mux.Handler(req); pattern == "" {
		refusal := &statusRecorder{header: w.Header()}
		handler.ServeHTTP(refusal, req)
		if refusal.status == http.StatusNotFound || refusal.status == http.StatusMethodNotAllowed {
			writeErrorStatus(w, refusal.status,
				fmt.Sprintf("%s %s: %s; see GET /", req.Method, req.URL.Path,
					strings.ToLower(http.StatusText(refusal.status))))
			return
		}
		handler.ServeHTTP(w, req)
		return
	}
	r.mux.ServeHTTP(w, req)
}

// withoutLastSlash returns req without the slash at the end of its path, which some clients send.
func withoutLastSlash(req *http.Request) *http.Request {
	if len(req.URL.Path) < 2 || !strings.HasSuffix(req.URL.Path, "/") {
		return req
	}
	cut := *req.URL
	cut.Path, cut.RawPath = strings.TrimSuffix(cut.Path, "/"), strings.TrimSuffix(cut.RawPath, "/")
	req = req.WithContext(req.Context())
	req.URL = &cut
	return req
}

// isDashboard reports whether a path is the dashboard's.
func isDashboard(path string) bool {
	return path == "/dashboard" || strings.HasPrefix(path, "/dashboard/")
}

// A statusRecorder is a ResponseWriter that stores the status and drops the body.
type statusRecorder struct {
	header http.Header
	status int
}

func (s *statusRecorder) Header() http.Header         { return s.header }
func (s *statusRecorder) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusRecorder) WriteHeader(status int)      { s.status = status }

// serveRoot describes the server to people who open its address in a browser.
func (r *rest) serveRoot(w http.ResponseWriter, req *http.Request) error {
	names := []string{}
	for _, m := range r.anyIndex(true, r.visibilityOf(req.Context())).Models {
		names = append(names, fmt.Sprintf("/v2/models/%s/versions/%s", m.Name, m.Version))
	}
	scheme := "http"
	if r.config.Encrypted {
		scheme = "https"
	}
	about := map[string]any{
		"name":     "muster",
		"what":     "serves recommendation models by the Open Inference Protocol, version 2",
		"version":  r.config.Version,
		"ready":    r.Ready(),
		"models":   names,
		"protocol": "/v2",
		"health":   []string{"/livez", "/readyz"},
		"grpc":     r.config.GRPCAddress,
		"metrics":  scheme + "://" + r.config.MetricsAddress + "/metrics",
	}
	if r.dashboard != nil {
		about["dashboard"] = "/dashboard/"
	}
	return writeJSON(w, about)
}

func (r *rest) serveLive(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, map[string]any{"live": true})
}

func (r *rest) serverReady(w http.ResponseWriter, _ *http.Request) error {
	if !r.Ready() {
		writeErrorStatus(w, http.StatusServiceUnavailable, "not ready: "+r.unreadyReason())
		return nil
	}
	return writeJSON(w, map[string]any{"ready": true})
}

func (r *rest) serverMetadata(w http.ResponseWriter, req *http.Request) error {
	return answerCall(w, req, r.service.ServerMetadata, &inference.ServerMetadataRequest{})
}

func (r *rest) modelMetadata(w http.ResponseWriter, req *http.Request) error {
	return answerCall(w, req, r.service.ModelMetadata, &inference.ModelMetadataRequest{
		Name: req.PathValue("model"), Version: req.PathValue("version"),
	})
}

func (r *rest) modelConfig(w http.ResponseWriter, req *http.Request) error {
	return answerCall(w, req, r.service.ModelConfig, &inference.ModelConfigRequest{
		Name: req.PathValue("model"), Version: req.PathValue("version"),
	})
}

func (r *rest) modelReady(w http.ResponseWriter, req *http.Request) error {
	isReady, err := r.anyReady(req.PathValue("model"), req.PathValue("version"))
	switch {
	case err != nil:
		return err
	case isReady:
		return writeJSON(w, map[string]any{"name": req.PathValue("model"), "ready": true})
	}
	if r.alone.Load() { // for the reason
		loaded, err := r.config.Worker.Acquire(req.PathValue("model"), req.PathValue("version"))
		if err != nil {
			return err
		}
		loaded.Release()
	} else if _, err := r.anyMetadata(req.PathValue("model"),
		req.PathValue("version")); err != nil {
		return err
	}
	if r.Ready() {
		writeErrorStatus(w, http.StatusServiceUnavailable,
			"not ready: the agents that have the model drain")
		return nil
	}
	return r.serverReady(w, req)
}

func (r *rest) modelStatistics(w http.ResponseWriter, req *http.Request) error {
	return answerCall(w, req, r.service.ModelStatistics, &inference.ModelStatisticsRequest{
		Name: req.PathValue("model"), Version: req.PathValue("version"),
	})
}

func (r *rest) repositoryIndex(w http.ResponseWriter, req *http.Request) error {
	var body struct {
		Ready bool `json:"ready"`
	}
	if err := readBody(req, &body); err != nil {
		return err
	}
	return answerCall(w, req, r.service.RepositoryIndex, &inference.RepositoryIndexRequest{
		Ready: body.Ready,
	})
}

func (r *rest) modelLoad(w http.ResponseWriter, req *http.Request) error {
	parameters, err := readParameters(req)
	if err != nil {
		return err
	}
	_, err = r.service.RepositoryModelLoad(req.Context(), &inference.RepositoryModelLoadRequest{
		ModelName: req.PathValue("model"), Parameters: parameters,
	})
	return err
}

func (r *rest) modelUnload(w http.ResponseWriter, req *http.Request) error {
	parameters, err := readParameters(req)
	if err != nil {
		return err
	}
	_, err = r.service.RepositoryModelUnload(req.Context(), &inference.RepositoryModelUnloadRequest{
		ModelName: req.PathValue("model"), Parameters: parameters,
	})
	return err
}

// serveInfer answers a query that came by REST, and makes its span.
func (r *rest) serveInfer(w http.ResponseWriter, req *http.Request) error {
	arrival := time.Now()
	r.conns.noteQuery(req.Context(), arrival)
	ctx, span := r.traceRequest(withTrace(req), req, arrival)
	err := r.answerQuery(ctx, w, req, arrival)
	endRequest(span, err)
	return err
}

func (r *rest) answerQuery(ctx context.Context, w http.ResponseWriter, req *http.Request,
	arrival time.Time) error {
	charge := oip.NewCharge(req.Context(), &r.intake)
	defer charge.Only(0)
	query, err := r.receiveQuery(req, charge)
	if err != nil {
		r.countRefusedEarly(ctx, req.PathValue("model"), req.PathValue("version"), err)
		return err
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(tracing.Query(query)...)
	}
	kept := oip.NewCharge(req.Context(), &r.answers)
	defer kept.Only(0)
	resp, err := r.Server.answerQuery(ctx, query, arrival, kept)
	r.loads.toResponse(w.Header())
	if err != nil {
		return err
	}
	defer resp.Release()
	if span := trace.SpanFromContext(ctx); span.IsRecording() && resp.Variant != "" {
		span.SetAttributes(tracing.Answer(resp)...)
	}
	// The time for sending is over; the client now has SendTimeout to read the answer.
	if err := http.NewResponseController(w).SetWriteDeadline(
		time.Now().Add(r.config.SendTimeout)); err != nil {
		return err
	}
	out := newCompressor(w, req)
	var overloaded *runtime.OverloadedError
	if err := oip.EncodeResponse(out, query, resp, kept); errors.Is(err, oip.ErrUnencodable) ||
		errors.As(err, &overloaded) {
		r.countUnsendable(ctx, query, resp.Version, err)
		return err // nothing has been written yet
	}
	out.finishStream() // any other error means that the client has gone
	return nil
}

// withTrace returns the request's context with its ids in headers, and the ticket of a picker, as gRPC
// metadata, where the code for all protocols looks for them.
func withTrace(req *http.Request) context.Context {
	headers := metadata.MD{}
	for _, name := range tracing.Headers {
		headers.Append(name, req.Header.Values(name)...)
	}
	for _, name := range []string{requestIDHeader, picker.TicketHeader} {
		headers.Append(name, req.Header.Values(name)...)
	}
	return metadata.NewIncomingContext(req.Context(), headers)
}

// receiveQuery reads the query of a request. It adds the Content-Length to charge before it reads
// the body; without one, it adds bytes as they arrive. The caller releases the query.
func (r *rest) receiveQuery(req *http.Request, charge *oip.Charge) (*oip.Request, error) {
	model, version := req.PathValue("model"), req.PathValue("version")
	limit, err := r.largestBody(model, version)
	if err != nil {
		return nil, err
	}
	if req.ContentLength > limit {
		return nil, fmt.Errorf("%w: body of %d bytes, want at most %d for model %q",
			oip.ErrTooLarge, req.ContentLength, limit, model)
	}
	if err := r.intake.checkRoom(req.Context()); err != nil {
		return nil, err
	}
	if err := r.config.Guard.Query(req.Context(), secure.Asked, 0); err != nil {
		return nil, err
	}
	if err := charge.AtLeast(req.ContentLength); err != nil {
		return nil, err
	}
	query, err := r.decodeQuery(req, limit, charge)
	if err != nil {
		return nil, err
	}
	query.Model, query.Version = model, version
	return query, nil
}

// decodeBody decodes a query in any of the forms that a body may have.
func (s *Server) decodeBody(req *http.Request, limit int64, charge *oip.Charge) (*oip.Request,
	error) {
	if !oip.IsRawTensor(req.Header) {
		return oip.DecodeRequest(req, limit, charge)
	}
	metadata, err := s.anyMetadata(req.PathValue("model"), req.PathValue("version"))
	if err != nil {
		return nil, err
	}
	var inputs []tensor.Tensor
	for _, in := range metadata.GetInputs() {
		inputs = append(inputs, tensor.Tensor{
			Name: in.GetName(), DataType: tensor.DataType(in.GetDatatype()), Shape: in.GetShape(),
		})
	}
	return oip.DecodeRawTensor(req, inputs, limit, charge)
}

// decodeQuery decodes a query of at most limit bytes after decompression, and adds its bytes to
// charge.
func (s *Server) decodeQuery(req *http.Request, limit int64, charge *oip.Charge) (*oip.Request,
	error) {
	plain, err := decompressBody(req)
	if err != nil {
		return nil, err
	}
	query, err := s.decodeBody(plain, limit, charge)
	var overloaded *runtime.OverloadedError
	switch {
	case err == nil:
		return query, nil
	case errors.Is(err, oip.ErrInvalid), errors.Is(err, oip.ErrTooLarge),
		errors.As(err, &overloaded):
		return nil, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("%w: body not received within %v", outcome.ErrSlow,
			s.config.ReceiveTimeout)
	}
	return nil, outcome.Invalid("%w", err) // the client's body cannot be read
}

// answerCall calls a method of the service and writes its answer as JSON.
func answerCall[Req, Resp proto.Message](w http.ResponseWriter, req *http.Request,
	call func(context.Context, Req) (Resp, error), message Req) error {
	resp, err := call(req.Context(), message)
	if err != nil {
		return err
	}
	writeBody(w, http.StatusOK, oip.JSON(resp))
	return nil
}

// writeJSON answers with v as JSON, and returns an error without answering if v cannot be encoded.
func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeBody(w, http.StatusOK, body)
	return nil
}

// writeError answers with the HTTP status of err and the body `{"error": ...}`.
func writeError(w http.ResponseWriter, err error) {
	f := outcome.Of(err)
	if f.RetryAfter > 0 { // the header holds whole seconds only
		w.Header().Set("Retry-After", fmt.Sprintf("%.0f", math.Ceil(f.RetryAfter.Seconds())))
	}
	writeErrorStatus(w, f.HTTPStatus, messageOf(err))
}

// messageOf is what an error says to clients: of a gRPC status its message alone.
func messageOf(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func writeErrorStatus(w http.ResponseWriter, status int, message string) {
	writeBody(w, status, oip.ErrorJSON(message))
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // fails only if the client has gone
}

// largestMessage bounds the body of a request that is not a query, in bytes. Chosen: such requests,
// as to load a model, have below 1 KiB, and many of this size at once take little memory.
const largestMessage = 64 << 10

// readBody decodes the body of a request that is not a query into v: a JSON object, or nothing,
// which leaves v unchanged.
func readBody(req *http.Request, v any) error {
	body, err := io.ReadAll(io.LimitReader(req.Body, largestMessage+1))
	switch {
	case err != nil:
		return outcome.Invalid("read body: %w", err)
	case len(body) > largestMessage:
		return fmt.Errorf("%w: body of more than %d bytes", oip.ErrTooLarge, largestMessage)
	case len(bytes.TrimSpace(body)) == 0:
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return outcome.Invalid("body: %w", err)
	}
	return nil
}

// readParameters decodes the parameters of a load or unload call. The agent understands string
// values only; other values become nil, so that an error can name the parameter.
func readParameters(req *http.Request) (map[string]*inference.ModelRepositoryParameter, error) {
	var body struct {
		Parameters map[string]any `json:"parameters"`
	}
	if err := readBody(req, &body); err != nil {
		return nil, err
	}
	parameters := map[string]*inference.ModelRepositoryParameter{}
	for name, value := range body.Parameters {
		parameters[name] = nil
		if text, ok := value.(string); ok {
			parameters[name] = &inference.ModelRepositoryParameter{
				ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: text},
			}
		}
	}
	return parameters, nil
}
