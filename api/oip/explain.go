package oip

import (
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// domain is that of the ErrorInfo of Muster's errors.
const domain = "muster"

// Explain returns s with an ErrorInfo that names the reason, one of [Reasons], and if wait is above 0
// with a RetryInfo that tells the client how long to wait. It returns s itself if its code is OK,
// which can have no details.
func Explain(s *status.Status, reason string, wait time.Duration) *status.Status {
	details := make([]protoadapt.MessageV1, 0, 2)
	details = append(details,
		protoadapt.MessageV1Of(&errdetails.ErrorInfo{Reason: reason, Domain: domain}))
	if wait > 0 {
		details = append(details,
			protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}))
	}
	if detailed, err := s.WithDetails(details...); err == nil {
		return detailed
	}
	return s
}

// RetryAfter returns how long the RetryInfo of s tells the client to wait; 0 if s has none.
func RetryAfter(s *status.Status) time.Duration {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// Reason returns the reason of a query's error: the one that [Explain] has given s, if it is one of
// [Reasons], else that of its code.
func Reason(s *status.Status) string {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain &&
			slices.Contains(reasons, info.GetReason()) {
			return info.GetReason()
		}
	}
	switch s.Code() {
	case codes.InvalidArgument:
		return "invalid"
	case codes.NotFound:
		return "not_found"
	case codes.Unavailable:
		return "unavailable"
	case codes.ResourceExhausted:
		return "overloaded"
	case codes.DeadlineExceeded:
		return "deadline"
	case codes.Canceled:
		return "cancelled"
	}
	return "internal"
}

// ReasonAfter returns the reason for which a query counts that failed for the given one, a time after
// its arrival; target is its QoS target, 0 if that is not known. A client that goes away after the
// target has waited for too long: its query counts as one whose deadline passed. (The client's end
// of a gRPC deadline often passes before the server's.)
func ReasonAfter(reason string, after, target time.Duration) string {
	if reason == "cancelled" && target > 0 && after > target {
		return "deadline"
	}
	return reason
}

// Reasons returns all reasons for which a client's query can fail, the values of the metrics' label
// "reason". The caller owns the slice.
func Reasons() []string { return slices.Clone(reasons) }

var reasons = []string{
	"invalid", "too_large", "slow", "not_found", "not_ready", "overloaded", "limit", "late",
	"deadline", "cancelled", "draining", "gpu", "unavailable", "internal",
}
