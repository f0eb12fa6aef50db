package serve

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
)

// TestGoneBeforeReceived: a call that ends before its query has been read leaves no timeout,
// whether it is handled or has ended too early for that.
func TestGoneBeforeReceived(t *testing.T) {
	s := &Server{config: Config{ReceiveTimeout: time.Minute}}
	ctx, cancel := context.WithCancel(t.Context())
	// An attempt with a malformed header, which is not counted: there is no worker here.
	header := metadata.MD{control.AttemptHeader: {"?"}}
	ctx, err := s.tapQuery(ctx, header)
	if err != nil {
		t.Fatal(err)
	}
	if s.arriving.begun.Len() == 0 {
		t.Error("nothing bounds the time to receive the query")
	}
	cancel()
	handle := s.untilEnd(func(_ any, ctx context.Context, _ func(any) error,
		_ grpc.UnaryServerInterceptor) (any, error) {
		return nil, ctx.Err()
	})
	if _, err := handle(nil, ctx, nil, nil); err == nil {
		t.Error("the call has not ended")
	}
	if s.arriving.begun.Len() > 0 {
		t.Error("a timeout is left")
	}
	if _, err := s.tapQuery(ctx, header); status.Code(err) != codes.Canceled ||
		s.arriving.begun.Len() > 0 {
		t.Errorf("a call that has ended: %v, and %d are left", err, s.arriving.begun.Len())
	}
}
