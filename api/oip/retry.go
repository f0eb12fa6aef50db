package oip

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// WithRetryAfter returns s with a RetryInfo that tells the client how long to wait; s itself if
// its code is OK, which can have no details.
func WithRetryAfter(s *status.Status, wait time.Duration) *status.Status {
	info := &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}
	if detailed, err := s.WithDetails(info); err == nil {
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
