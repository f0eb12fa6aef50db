package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// errLoad is wrapped when a model that was asked for could not be loaded.
var errLoad = errors.New("load")

// errRefused is wrapped when this agent does not run an attempt that another
// agent might: the gateway tries elsewhere.
var errRefused = errors.New("refused")

// errNoAgent is wrapped when an agent was named that is no member.
var errNoAgent = errors.New("not found")

// errSlow is wrapped when a client takes too long to send a query.
var errSlow = errors.New("too slow")

// errPanic is wrapped when a handler panicked.
var errPanic = errors.New("internal error")

// A failure is what the agent tells of an error: in gRPC, in REST, and in the
// metrics. This file is the only place where codes are chosen.
type failure struct {
	code       codes.Code
	httpStatus int
	reason     string        // the metrics' label
	retryAfter time.Duration // > 0 where another try may help
}

func classify(err error) failure {
	var overloaded *runtime.OverloadedError
	switch {
	case errors.Is(err, errRefused):
		return failure{codes.Unavailable, http.StatusServiceUnavailable, "refused", 0}
	case errors.As(err, &overloaded):
		return failure{codes.ResourceExhausted, http.StatusTooManyRequests, "overloaded", max(overloaded.RetryAfter, time.Millisecond)}
	case errors.Is(err, errInvalid), errors.Is(err, oip.ErrInvalid), errors.Is(err, models.ErrName):
		return failure{codes.InvalidArgument, http.StatusBadRequest, "invalid", 0}
	case errors.Is(err, oip.ErrTooLarge):
		return failure{codes.InvalidArgument, http.StatusRequestEntityTooLarge, "too_large", 0}
	case errors.Is(err, errSlow):
		return failure{codes.DeadlineExceeded, http.StatusRequestTimeout, "slow", 0}
	case errors.Is(err, errLoad), errors.Is(err, errRotation), errors.Is(err, gossip.ErrNotEncrypted):
		return failure{codes.FailedPrecondition, http.StatusBadRequest, "load", 0}
	case errors.Is(err, models.ErrNotFound), errors.Is(err, errNoAgent):
		return failure{codes.NotFound, http.StatusNotFound, "not_found", 0}
	case errors.Is(err, models.ErrNotReady), errors.Is(err, runtime.ErrClosed):
		return failure{codes.Unavailable, http.StatusServiceUnavailable, "not_ready", 0}
	case errors.Is(err, runtime.ErrDraining):
		return failure{codes.Unavailable, http.StatusServiceUnavailable, "draining", 0}
	case errors.Is(err, runtime.ErrLate):
		return failure{codes.ResourceExhausted, http.StatusTooManyRequests, "late", time.Millisecond}
	case errors.Is(err, context.DeadlineExceeded):
		return failure{codes.DeadlineExceeded, http.StatusGatewayTimeout, "deadline", 0}
	case errors.Is(err, context.Canceled):
		return failure{codes.Canceled, 499, "cancelled", 0} // 499: nginx's "client closed request"
	}
	if s, ok := status.FromError(err); ok { // what another agent, or the gateway, has said
		return classifyStatus(s)
	}
	return failure{codes.Internal, http.StatusInternalServerError, "internal", 0}
}

// classifyStatus is the same of an error that has its code already.
func classifyStatus(s *status.Status) failure {
	f := failure{s.Code(), http.StatusInternalServerError, "internal", 0}
	switch s.Code() {
	case codes.InvalidArgument:
		f.httpStatus, f.reason = http.StatusBadRequest, "invalid"
	case codes.NotFound:
		f.httpStatus, f.reason = http.StatusNotFound, "not_found"
	case codes.Unavailable:
		f.httpStatus, f.reason = http.StatusServiceUnavailable, "unavailable"
	case codes.FailedPrecondition:
		f.httpStatus, f.reason = http.StatusBadRequest, "load"
	case codes.ResourceExhausted:
		f.httpStatus, f.reason, f.retryAfter = http.StatusTooManyRequests, "overloaded", time.Millisecond
		for _, detail := range s.Details() {
			if info, ok := detail.(*errdetails.RetryInfo); ok {
				f.retryAfter = max(f.retryAfter, info.GetRetryDelay().AsDuration())
			}
		}
	case codes.DeadlineExceeded:
		f.httpStatus, f.reason = http.StatusGatewayTimeout, "deadline"
	case codes.Canceled:
		f.httpStatus, f.reason = 499, "cancelled"
	}
	return f
}

// failureReasons are the values of failure.reason that a query can end with
// where it runs.
var failureReasons = []string{
	"invalid", "too_large", "slow", "not_found", "not_ready", "overloaded", "late", "deadline", "cancelled", "draining", "internal",
}

// grpcError is err as gRPC's status, with RetryInfo where another try may
// help. A status passes through.
func grpcError(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	f := classify(err)
	s := status.New(f.code, oip.ErrorText(err.Error()))
	if f.retryAfter > 0 {
		if detailed, e := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(f.retryAfter)}); e == nil {
			s = detailed
		}
	}
	return s.Err()
}

// writeError answers with err as REST's `{"error": ...}`.
func writeError(w http.ResponseWriter, err error) {
	f := classify(err)
	if f.retryAfter > 0 { // whole seconds are all the header can say
		w.Header().Set("Retry-After", fmt.Sprint(math.Ceil(f.retryAfter.Seconds())))
	}
	message := err.Error()
	if s, ok := status.FromError(err); ok {
		message = s.Message()
	}
	writeErrorStatus(w, f.httpStatus, message)
}
