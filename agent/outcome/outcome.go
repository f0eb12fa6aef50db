package outcome

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

var (
	// ErrInvalid is wrapped by the errors of requests that are malformed or impossible: a query
	// that does not fit its model's signature, for example.
	ErrInvalid = errors.New("invalid query")
	// ErrLoad is wrapped when a client asked to load a model and the load failed.
	ErrLoad = errors.New("load")
	// ErrRefused is wrapped when this agent does not run an attempt that another agent might run.
	// The gateway then tries another agent.
	ErrRefused = errors.New("refused")
	// ErrNoAgent is wrapped when a request names an agent that is not a member of the fleet.
	ErrNoAgent = errors.New("not found")
	// ErrRotation is wrapped when a rotation of the gossip keys cannot continue.
	ErrRotation = errors.New("gossip keys")
	// ErrSlow is wrapped when a client takes too long to send a query.
	ErrSlow = errors.New("too slow")
	// ErrPanic is wrapped when a handler panicked.
	ErrPanic = errors.New("internal error")
)

// Invalid returns an error that wraps [ErrInvalid], with a message formatted as by fmt.Errorf. The
// message must name the thing, the value found and the value expected.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// An ErrorResponse is how the agent reports an error to a client and in the metrics.
type ErrorResponse struct {
	Code       codes.Code
	HTTPStatus int
	Reason     string // the value of the metrics' label "reason" or "outcome"
	// how long the client should wait before it tries again; 0: a retry does not help
	RetryAfter time.Duration
}

// drainRetryAfter is how long a client should wait that a draining agent refuses. This agent takes
// no query any more, but another one behind the same address may take it at once, so it is the
// shortest time that the header Retry-After can say.
const drainRetryAfter = time.Second

// Of returns the outcome of a request that failed with err, which must not be nil. An error of
// unknown kind is an internal error.
func Of(err error) ErrorResponse {
	var overloaded *runtime.OverloadedError
	var late *runtime.LateError
	var over *secure.LimitError
	var device *runtime.DeviceError
	var index *runtime.IndexError
	switch {
	case errors.As(err, &device):
		return ErrorResponse{codes.Unavailable, http.StatusServiceUnavailable, "gpu", 0}
	case errors.Is(err, ErrRefused):
		return ErrorResponse{codes.Unavailable, http.StatusServiceUnavailable, "refused", 0}
	case errors.As(err, &over):
		return ErrorResponse{
			codes.ResourceExhausted, http.StatusTooManyRequests, "limit", over.RetryAfter,
		}
	case errors.As(err, &overloaded):
		return ErrorResponse{
			codes.ResourceExhausted, http.StatusTooManyRequests, "overloaded",
			max(overloaded.RetryAfter, time.Millisecond),
		}
	case errors.Is(err, ErrInvalid), errors.Is(err, oip.ErrInvalid), errors.Is(err, models.ErrName),
		errors.As(err, &index):
		return ErrorResponse{codes.InvalidArgument, http.StatusBadRequest, "invalid", 0}
	case errors.Is(err, oip.ErrTooLarge):
		return ErrorResponse{codes.InvalidArgument, http.StatusRequestEntityTooLarge, "too_large",
			0}
	case errors.Is(err, ErrSlow):
		return ErrorResponse{codes.DeadlineExceeded, http.StatusRequestTimeout, "slow", 0}
	case errors.Is(err, ErrLoad), errors.Is(err, ErrRotation),
		errors.Is(err, gossip.ErrNotEncrypted):
		return ErrorResponse{codes.FailedPrecondition, http.StatusBadRequest, "load", 0}
	case errors.Is(err, models.ErrNotFound), errors.Is(err, ErrNoAgent):
		return ErrorResponse{codes.NotFound, http.StatusNotFound, "not_found", 0}
	case errors.Is(err, models.ErrNotReady), errors.Is(err, runtime.ErrClosed):
		return ErrorResponse{codes.Unavailable, http.StatusServiceUnavailable, "not_ready", 0}
	case errors.Is(err, runtime.ErrDraining):
		return ErrorResponse{
			codes.Unavailable, http.StatusServiceUnavailable, "draining", drainRetryAfter,
		}
	case errors.Is(err, runtime.ErrLate):
		again := time.Millisecond
		if errors.As(err, &late) {
			again = max(again, late.RetryAfter)
		}
		return ErrorResponse{codes.ResourceExhausted, http.StatusTooManyRequests, "late", again}
	case errors.Is(err, context.DeadlineExceeded):
		return ErrorResponse{codes.DeadlineExceeded, http.StatusGatewayTimeout, "deadline", 0}
	case errors.Is(err, context.Canceled):
		return ErrorResponse{codes.Canceled, 499, "cancelled",
			0} // 499: nginx's "client closed request"
	}
	if s, ok := status.FromError(err); ok { // the status that another agent or the gateway returned
		return ofStatus(s)
	}
	return ErrorResponse{codes.Internal, http.StatusInternalServerError, "internal", 0}
}

// ofStatus is the outcome of an error that already has a gRPC code, as the errors of other agents
// do.
func ofStatus(s *status.Status) ErrorResponse {
	f := ErrorResponse{s.Code(), http.StatusInternalServerError, oip.Reason(s), 0}
	switch s.Code() {
	case codes.InvalidArgument:
		f.HTTPStatus = http.StatusBadRequest
		if f.Reason == "too_large" {
			f.HTTPStatus = http.StatusRequestEntityTooLarge
		}
	case codes.NotFound:
		f.HTTPStatus = http.StatusNotFound
	case codes.Unavailable:
		f.HTTPStatus, f.RetryAfter = http.StatusServiceUnavailable, oip.RetryAfter(s)
		if f.Reason == "draining" {
			f.RetryAfter = max(f.RetryAfter, drainRetryAfter)
		}
	case codes.FailedPrecondition:
		if f.HTTPStatus = http.StatusBadRequest; f.Reason != "not_found" { // of a query
			f.Reason = "load"
		}
	case codes.ResourceExhausted:
		f.HTTPStatus, f.RetryAfter = http.StatusTooManyRequests,
			max(time.Millisecond, oip.RetryAfter(s))
	case codes.DeadlineExceeded:
		f.HTTPStatus = http.StatusGatewayTimeout
	case codes.Canceled:
		f.HTTPStatus = 499
	case codes.Unimplemented:
		f.HTTPStatus = http.StatusNotImplemented
	}
	return f
}

// Reasons lists the values of Outcome.Reason with which a client's query can fail.
func Reasons() []string { return oip.Reasons() }

// Excuses reports whether a query that failed for the reason says nothing about the QoS: it was
// wrong, its client was beyond its limits, or the client gave it up.
func Excuses(reason string) bool {
	switch reason {
	case "invalid", "too_large", "slow", "not_found", "limit", "cancelled":
		return true
	}
	return false
}

// GRPC returns err as a gRPC status error with the code of its [ErrorResponse], its reason, and
// RetryInfo if RetryAfter > 0. It returns err unchanged if err is a status already; nil counts as
// one.
func GRPC(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	f := Of(err)
	return oip.Explain(status.New(f.Code, oip.ErrorText(err.Error())), f.Reason, f.RetryAfter).Err()
}
