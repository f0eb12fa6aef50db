package fleetview

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/muster-serve/muster/api/control"
)

// A leavingServer tells of a fleet of which one member less is there at each
// question, down to least.
type leavingServer struct {
	control.UnimplementedControlServer
	least int

	mu      sync.Mutex
	members []string
}

func (s *leavingServer) Status(context.Context, *control.StatusRequest) (*control.FleetStatus,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &control.View{}
	for _, name := range s.members {
		v.Members = append(v.Members, &control.Member{Name: name})
	}
	if len(s.members) > s.least {
		s.members = s.members[1:]
	}
	return &control.FleetStatus{View: v}, nil
}

// startLeaving serves s and returns a source that asks it, and a function that ends the server.
func startLeaving(t *testing.T, s *leavingServer) (*Source, func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	control.RegisterControlServer(server, s)
	go server.Serve(listener) //nolint:errcheck // it ends with Stop
	t.Cleanup(server.Stop)
	source := NewSource([]string{listener.Addr().String()},
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	t.Cleanup(source.Close)
	if _, err := source.Ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	return source, server.Stop
}

func TestWaitGone(t *testing.T) {
	source, _ := startLeaving(t, &leavingServer{members: []string{"a", "b", "c"}, least: 1})
	var gone []string
	var waited [][]string
	err := source.WaitGone(t.Context(), []string{"b", "a"},
		func(name string) { gone = append(gone, name) },
		func(left []string) { waited = append(waited, slices.Clone(left)) })
	if err != nil || !slices.Equal(gone, []string{"a", "b"}) || len(waited) != 1 ||
		!slices.Equal(waited[0], []string{"b"}) {
		t.Errorf("gone %v, waited for %v, error %v; want that a goes, then b", gone, waited, err)
	}

	// One that stays is named when time is over.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = source.WaitGone(ctx, []string{"c"}, func(string) { t.Error("c has not gone") },
		func([]string) {})
	if !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "not gone yet: c") {
		t.Errorf("of one that stays: %v", err)
	}
}

// TestWaitGoneOfAll: where all go, the last ones have gone when nobody answers. Of some that are
// asked to go, this is not known.
func TestWaitGoneOfAll(t *testing.T) {
	for _, agents := range [][]string{{"a", "b"}, {"a"}} {
		source, stop := startLeaving(t, &leavingServer{members: []string{"a", "b"}, least: 2})
		stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gone := 0
		err := source.WaitGone(ctx, agents, func(string) { gone++ }, func([]string) {})
		if all := len(agents) == 2; (err == nil) != all || (gone == 2) != all {
			t.Errorf("%v: %d gone, error %v", agents, gone, err)
		}
	}
}
