package releasecmd

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// A loadingFleet serves version 2 of ncf after a time, and says until then that it loads it.
type loadingFleet struct {
	control.ControlClient
	inference.GRPCInferenceServiceClient
	serves time.Time
}

func (f loadingFleet) SetRelease(context.Context, *control.SetReleaseRequest,
	...grpc.CallOption) (*control.ReleaseResponse, error) {
	if time.Now().Before(f.serves) {
		return nil, status.Error(codes.NotFound, "no agent serves version 2 of ncf, there are [1]")
	}
	return &control.ReleaseResponse{}, nil
}

func (f loadingFleet) RepositoryIndex(context.Context, *inference.RepositoryIndexRequest,
	...grpc.CallOption) (*inference.RepositoryIndexResponse, error) {
	return &inference.RepositoryIndexResponse{
		Models: []*inference.RepositoryIndexResponse_ModelIndex{
			{Name: "ncf", Version: "2", State: "LOADING", Reason: "being loaded"},
		},
	}, nil
}

// TestPromoteWaits: a version that has just been copied is promoted once it serves, or the error
// says that it is being loaded.
func TestPromoteWaits(t *testing.T) {
	for _, tt := range []struct {
		wait time.Duration
		want string // "": it is promoted
	}{
		{0, "version 2 of ncf does not serve yet: loading, being loaded; --wait 1m waits for it"},
		{5 * time.Second, "version 2 of ncf does not serve yet: loading, being loaded"},
		{time.Minute, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := loadingFleet{serves: time.Now().Add(10 * time.Second)}
			_, err := agentKeeper{f, f}.promote(t.Context(),
				&control.SetReleaseRequest{Model: "ncf", Version: 2}, tt.wait)
			if tt.want == "" && err != nil ||
				tt.want != "" && !strings.HasSuffix(status.Convert(err).Message(), tt.want) {
				t.Errorf("with --wait %v: got %v, want %q", tt.wait, err, tt.want)
			}
		})
	}
}
