package outcome

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// TestOf: every error that a query can end with has its codes.
func TestOf(t *testing.T) {
	for _, tt := range []struct {
		err        error
		code       codes.Code
		httpStatus int
		reason     string
		retry      bool
	}{
		{Invalid("input"), codes.InvalidArgument, 400, "invalid", false},
		{oip.ErrInvalid, codes.InvalidArgument, 400, "invalid", false},
		{models.ErrName, codes.InvalidArgument, 400, "invalid", false},
		{&runtime.IndexError{Index: "99"}, codes.InvalidArgument, 400, "invalid", false},
		{oip.ErrTooLarge, codes.InvalidArgument, 413, "too_large", false},
		{ErrSlow, codes.DeadlineExceeded, 408, "slow", false},
		{models.ErrNotFound, codes.NotFound, 404, "not_found", false},
		{models.ErrNotReady, codes.Unavailable, 503, "not_ready", false},
		{runtime.ErrClosed, codes.Unavailable, 503, "not_ready", false},
		{&runtime.OverloadedError{}, codes.ResourceExhausted, 429, "overloaded", true},
		{runtime.ErrLate, codes.ResourceExhausted, 429, "late", true},
		{runtime.ErrDeadline, codes.DeadlineExceeded, 504, "deadline", false},
		{context.DeadlineExceeded, codes.DeadlineExceeded, 504, "deadline", false},
		{context.Canceled, codes.Canceled, 499, "cancelled", false},
		{runtime.ErrDraining, codes.Unavailable, 503, "draining", true},
		{ErrPanic, codes.Internal, 500, "internal", false},
		{errors.New("what nobody thought of"), codes.Internal, 500, "internal", false},
	} {
		f := Of(fmt.Errorf("wrapped: %w", tt.err))
		if f.Code != tt.code || f.HTTPStatus != tt.httpStatus || f.Reason != tt.reason ||
			f.RetryAfter > 0 != tt.retry {
			t.Errorf("%v: got %+v, want %+v", tt.err, f, tt)
		}
		if !slices.Contains(Reasons(), f.Reason) {
			t.Errorf("reason %q is not counted", f.Reason)
		}
	}
}

// TestForeignBytes: an error reaches the client with its details whatever bytes its text has.
func TestForeignBytes(t *testing.T) {
	s := status.Convert(GRPC(Invalid("operator \xff\xfe of the model")))
	if _, err := proto.Marshal(s.Proto()); err != nil {
		t.Errorf("%q cannot be sent: %v", s.Message(), err)
	}
	if want := "invalid query: operator \ufffd of the model"; s.Message() != want {
		t.Errorf("got %q, want %q", s.Message(), want)
	}
}
