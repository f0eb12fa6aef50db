package main

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
)

// A startingServer is ready, and then its model is, after some questions.
type startingServer struct {
	inference.UnimplementedGRPCInferenceServiceServer
	control.UnimplementedControlServer
	left atomic.Int64
}

func (s *startingServer) ServerReady(context.Context, *inference.ServerReadyRequest) (
	*inference.ServerReadyResponse, error) {
	return &inference.ServerReadyResponse{Ready: s.left.Add(-1) < 3}, nil
}

func (s *startingServer) ModelReady(_ context.Context, req *inference.ModelReadyRequest) (
	*inference.ModelReadyResponse, error) {
	return &inference.ModelReadyResponse{
		Ready: req.GetName() == "ncf" && s.left.Add(-1) < 0,
	}, nil
}

func (s *startingServer) Status(context.Context, *control.StatusRequest) (*control.FleetStatus,
	error) {
	return &control.FleetStatus{}, nil
}

// TestWait: with --wait a command goes on once the server and its models are ready, and else says
// what is not.
func TestWait(t *testing.T) {
	t.Chdir(t.TempDir())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	starting := &startingServer{}
	server := grpc.NewServer(oip.ServerOptions(1 << 20)...)
	inference.RegisterGRPCInferenceServiceServer(server, starting)
	control.RegisterControlServer(server, starting)
	go server.Serve(listener) //nolint:errcheck // it ends with Stop
	t.Cleanup(server.Stop)
	const asked = "method ModelMetadata not implemented" // it has gone on
	for _, tt := range []struct {
		args, want string
		questions  int64
	}{
		{"status --wait 1m", "", 6},
		{"infer ncf --wait 1m", asked, 6},
		{"bench --model ncf --rate 1 --wait 1m", asked, 6},
		{"infer wnd --wait 300ms", `wait: model "wnd" is not ready after 300ms`, 0},
		{"status --wait 1ms", `wait: the server is not ready after 1ms`, 1 << 40},
		{"status --wait -1s", "wait: -1s, want 0 or more", 6},
	} {
		starting.left.Store(tt.questions)
		_, _, err := execute(t, append(strings.Fields(tt.args), "--server",
			listener.Addr().String())...)
		if tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.args, err, tt.want)
		}
		if tt.want == asked && starting.left.Load() >= 0 {
			t.Errorf("%s: it has not waited", tt.args)
		}
	}
}
