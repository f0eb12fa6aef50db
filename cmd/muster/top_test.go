package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
)

// A statusServer tells the status of a fleet.
type statusServer struct {
	control.UnimplementedControlServer
	status *control.FleetStatus
}

func (s statusServer) Status(context.Context, *control.StatusRequest) (*control.FleetStatus,
	error) {
	return s.status, nil
}

func TestTopOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	serve := func(register func(*grpc.Server)) (address string) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(oip.ServerOptions(1 << 20)...)
		register(server)
		go server.Serve(listener) //nolint:errcheck // it ends with Stop
		t.Cleanup(server.Stop)
		return listener.Addr().String()
	}
	long := "reject query=2/16 reason=" + strings.Repeat("overloaded,", 30) + "end"
	agent := serve(func(s *grpc.Server) {
		control.RegisterControlServer(s, statusServer{status: &control.FleetStatus{
			View: &control.View{
				Leadership: &control.Leadership{Epoch: 1},
				Members: []*control.Member{
					{Name: "agent-0", Lanes: 1}, {Name: "agent-1", Lanes: 1},
				},
			},
			Agents: []*control.AgentStatus{
				{Name: "agent-1", Overdue: true, RemainingNs: []int64{5e6}},
			},
			Decisions: []string{long},
		}})
	})
	other := serve(func(*grpc.Server) {})
	want := `2 agents, 2 lanes
NO LEADER (the last epoch was 1): gateways decide alone, and rates are not known
`
	for _, args := range [][]string{{"--once"}, {}} { // what run writes to is no terminal
		out, _, err := execute(t, append([]string{"top", "--server", agent}, args...)...)
		if err != nil || !strings.HasPrefix(out, want) || !strings.Contains(out, "overdue") ||
			!strings.Contains(out, long) ||
			strings.Contains(out, "\x1b") {
			t.Errorf("%v: got %v, %q, want it to begin %q", args, err, out, want)
		}
	}

	for _, tt := range []struct{ args, want string }{
		{"--server " + other, other + " cannot report on a fleet"},
		{"--server 127.0.0.1:1", "127.0.0.1:1 cannot be reached: "},
		{"--interval 1ms", "interval: 1ms, want at least 100ms"},
		{"now", "unknown command"},
	} {
		if _, _, err := execute(t, append([]string{"top"}, strings.Fields(tt.args)...)...); err ==
			nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q in it", tt.args, err, tt.want)
		}
	}
}
