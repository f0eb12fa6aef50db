package picker

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/extproc"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
)

// A Config holds what a [Picker] needs of its agent. The functions must not block.
type Config struct {
	// Infer has a query run through this agent's gateway, whose transport is a [Transport].
	Infer func(ctx context.Context, req *oip.Request, arrival time.Time) (*oip.Response, error)
	// Own describes this agent.
	Own func() *control.Member
	// MayQuery returns an error if the caller of a stream may not query a model.
	MayQuery func(ctx context.Context, model string) error
	// Refuse counts a query that no agent gets, and says how the Open Inference Protocol reports it.
	Refuse   func(ctx context.Context, req *oip.Request, arrival time.Time, err error) Refusal
	Signer   Signer
	Registry prometheus.Registerer
}

// A Refusal is the answer to a query that no agent gets.
type Refusal struct {
	Code       codes.Code
	HTTPStatus int
	Message    string
	RetryAfter time.Duration // 0: another try does not help
}

// A Picker answers gateways that ask where requests should go.
type Picker struct {
	config Config
	picks  *prometheus.CounterVec
}

// New returns a Picker.
func New(config Config) *Picker {
	p := &Picker{config: config, picks: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_picks_total",
		Help: "Requests of gateways that asked this agent where they should go, by outcome.",
	}, []string{"outcome"})}
	for _, outcome := range []string{assigned, refused, unroutable, unread, otherRequest} {
		p.picks.WithLabelValues(outcome)
	}
	config.Registry.MustRegister(p.picks)
	return p
}

// Outcomes of picks.
const (
	assigned = "assigned"
	refused  = "refused"
	// unread: the picker does not see which model the query is for.
	unread = "unread"
	// unroutable: the agent assigned cannot be reached by the request's protocol.
	unroutable = "unroutable"
	// otherRequest: it is no query, so any agent answers it.
	otherRequest = "no_query"
)

// A head is what a request's headers say.
type head struct {
	isQuery        bool
	isGRPC         bool
	model, version string
	timeout        time.Duration
	rows           int64 // that the client says; 0: it does not
	shapes         shapeReader
}

// Names of headers, as Envoy writes them.
const (
	rowsHeader        = "muster-rows"
	destinationHeader = "x-gateway-destination-endpoint"
	jsonLengthHeader  = "inference-header-content-length"
	// expectedHeader is how long Envoy waits for an answer, in ms.
	expectedHeader = "x-envoy-expected-rq-timeout-ms"
)

// readHead reads the headers of a request.
func readHead(headers *extproc.HeaderMap) (h head) {
	of := map[string]string{}
	for _, header := range headers.GetHeaders() {
		of[header.GetKey()] = valueOf(header)
	}
	path, _, _ := strings.Cut(of[":path"], "?")
	h.isGRPC = strings.HasPrefix(of["content-type"], "application/grpc")
	h.shapes = shapeReader{isGRPC: h.isGRPC, readable: of["content-encoding"] == "" &&
		!strings.HasPrefix(of["content-type"], "application/octet-stream")}
	if h.isGRPC {
		h.isQuery = path == inference.GRPCInferenceService_ModelInfer_FullMethodName
		h.timeout, _ = readGRPCTimeout(of["grpc-timeout"])
	} else if of[":method"] == "POST" {
		h.model, h.version, h.isQuery = modelOfPath(path)
	}
	if n, err := strconv.Atoi(of[jsonLengthHeader]); err == nil && n > 0 {
		// The whole body is then application/octet-stream, with JSON first.
		h.shapes.jsonBytes, h.shapes.readable = n, of["content-encoding"] == ""
	}
	if ms, err := strconv.ParseInt(of[expectedHeader], 10, 32); err == nil && ms > 0 &&
		h.timeout == 0 {
		h.timeout = time.Duration(ms) * time.Millisecond
	}
	if n, err := strconv.ParseInt(of[rowsHeader], 10, 32); err == nil && n > 0 {
		h.rows = n
	}
	return h
}

// valueOf is the value of a header, in whichever of its two fields it is.
func valueOf(h *extproc.HeaderValue) string {
	if raw := h.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return h.GetValue()
}

// modelOfPath returns what POST /v2/models/MODEL[/versions/VERSION]/infer names.
func modelOfPath(path string) (model, version string, ok bool) {
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	if len(parts) == 7 && parts[4] == "versions" {
		version = parts[5]
		parts = append(parts[:4], parts[6])
	}
	if len(parts) != 5 || parts[1] != "v2" || parts[2] != "models" || parts[4] != "infer" {
		return "", "", false
	}
	model, err := url.PathUnescape(parts[3])
	return model, version, err == nil && model != ""
}

// readGRPCTimeout reads the header grpc-timeout: digits and a unit.
func readGRPCTimeout(text string) (time.Duration, bool) {
	if len(text) < 2 || len(text) > 9 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	unit, ok := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second,
		'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}[text[len(text)-1]]
	if err != nil || !ok {
		return 0, false
	}
	return time.Duration(min(n, uint64(24*time.Hour/unit))) * unit, true // no query waits for a day
}

// ErrAlone is the error of a pick of an agent that has no other to choose.
var ErrAlone = errors.New("the fleet has no other agent")

// IsPick reports whether the context is that of a query whose data a gateway sends elsewhere.
func IsPick(ctx context.Context) bool { return ctx.Value(pickKey{}) != nil }

// An assignment is where a query goes.
type assignment struct {
	to     *control.Member
	ticket Ticket
}

// A pick is a query whose attempt somebody else makes.
type pick struct {
	assigned chan assignment // receives one
	taken    atomic.Bool
	ended    chan error // receives how the attempt has ended; nil: it was answered
}

type pickKey struct{}

// A Transport makes attempts like the [client.Transport] in it, but leaves those of picks to the
// gateway that has asked for them.
type Transport struct{ client.Transport }

// Infer implements [client.Transport].
func (t Transport) Infer(ctx context.Context, to *control.Member, req *oip.Request,
	attempt *client.Attempt) (*oip.Response, error) {
	p, ok := ctx.Value(pickKey{}).(*pick)
	if !ok {
		return t.Transport.Infer(ctx, to, req, attempt)
	}
	if p.taken.Swap(true) {
		attempt.Unsent = true
		return nil, status.Errorf(codes.Unavailable,
			"the query was sent to an agent, and cannot be sent to agent %q, too", to.GetName())
	}
	attempt.Waited = time.Since(attempt.Arrival)
	a := assignment{to: to, ticket: Ticket{
		Agent: to.AgentName(), Attempt: attempt.String(), Model: req.Model, Version: req.Version,
	}}
	if attempt.Merge != 0 {
		a.ticket.Merge = attempt.MergeString()
	}
	if deadline, ok := ctx.Deadline(); ok {
		a.ticket.Left = max(1, time.Until(deadline))
	}
	p.assigned <- a
	select {
	case err := <-p.ended:
		if err != nil {
			return nil, err
		}
		return &oip.Response{Model: req.Model, Version: req.Version}, nil
	case <-ctx.Done(): // the request has not come, as far as anybody knows
		attempt.Unsent = true
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// addressOf is where a member takes requests of a protocol; "" if nobody knows.
func addressOf(m *control.Member, isGRPC bool) string {
	if isGRPC {
		return m.GetAddress()
	}
	return m.GetHttpAddress()
}

// Process implements [extproc.ExternalProcessorServer]: one stream for each request.
func (p *Picker) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	first, err := stream.Recv()
	if err == io.EOF {
		return nil
	}
	if err != nil {
		return err
	}
	headers := first.GetRequestHeaders()
	if headers == nil {
		return status.Error(codes.InvalidArgument, "the first message has no request_headers; set "+
			"request_header_mode to SEND")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	r := &request{
		Picker: p, stream: stream, ctx: ctx, cancel: cancel, arrival: time.Now(),
		head: readHead(headers.GetHeaders()),
		mode: first.GetProtocolConfig().GetRequestBodyMode(),
		pick: &pick{assigned: make(chan assignment, 1), ended: make(chan error, 1)},
	}
	if headers.GetEndOfStream() {
		r.mode = extproc.BodySendMode_NONE
	}
	defer r.wait()
	return r.serve()
}
