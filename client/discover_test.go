package client

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
)

// sdk makes a client of the named agents. With hidden, members cannot be reached
// under the addresses that the fleet knows.
func (f *testFleet) sdk(servers []string, hidden bool, opts ...Option) *Client {
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		name, byView := address, true
		if len(address) > 5 && address[:5] == "seed-" {
			name, byView = address[5:], false
		}
		if byView && hidden {
			return nil, errors.New("no route to host")
		}
		return f.dial(ctx, name)
	}
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, "passthrough:///seed-"+s)
	}
	c, err := New(addresses, append(opts, WithDialOptions(grpc.WithContextDialer(dial)))...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// answers wants queries to be answered.
func answers(t *testing.T, c *Client, n int) {
	t.Helper()
	for range n {
		resp, err := c.Infer(t.Context(), sumQuery(2))
		if err != nil {
			t.Fatal(err)
		}
		resp.Release()
	}
}

// counts returns how many queries came to workers as attempts, and to agents
// that were to pass them on.
func (f *testFleet) counts() (attempts, asked int) {
	for _, a := range f.agents {
		a.mu.Lock()
		attempts += len(a.seen)
		asked += int(a.calls.Load()) - len(a.seen)
		a.mu.Unlock()
	}
	return attempts, asked
}

func TestSDKGoesStraight(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		f.lead("agent-1", "agent-2")
		c := f.sdk([]string{"agent-0"}, false)
		settle()
		answers(t, c, 9)
		if attempts, asked := f.counts(); attempts != 9 || asked != 0 {
			t.Errorf("%d attempts, %d queries to pass on; want 9 and 0", attempts, asked)
		}
		unknown := sumQuery(1)
		unknown.Model = "y"
		_, err := c.Infer(t.Context(), unknown)
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
		// The agent that was named dies: the client knows others.
		f.agents[0].stop()
		f.agents[0].leave()
		f.lead("agent-1", "agent-2")
		time.Sleep(3 * time.Second)
		answers(t, c, 4)
		if attempts, asked := f.counts(); asked != 1 || attempts < 13 {
			t.Errorf("%d attempts, %d queries to pass on; want at least 13 and 1, of the unknown model", attempts, asked)
		}
	})
}

// TestSDKWatchesAnother freezes the agent through which the client sees the fleet.
func TestSDKWatchesAnother(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *testFleet) {
		f.lead("agent-1", "agent-2")
		c := f.sdk([]string{"agent-0"}, false)
		time.Sleep(10 * time.Second) // one that has nothing new to say is not given up
		if n := len(c.fleet.members()); n != 4 {
			t.Fatalf("the client sees %d members, want 4", n)
		}
		f.agents[0].freeze()
		f.agents[3].leave()
		f.lead("agent-1", "agent-2")
		time.Sleep(2*viewSilence + time.Second) // as a server and as a member
		if n := len(c.fleet.members()); n != 3 {
			t.Errorf("the client sees %d members, want 3", n)
		}
	})
}

func TestSDKPassesOn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		agents int
		hidden bool
		opts   []Option
	}{
		{"members cannot be reached", 3, true, nil},
		{"fleet switched off", 3, false, []Option{WithoutFleet()}},
		{"alone", 1, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, tt.agents, func(t *testing.T, f *testFleet) {
				f.lead("agent-0", "")
				c := f.sdk([]string{"agent-0"}, tt.hidden, tt.opts...)
				time.Sleep(5 * time.Second)
				answers(t, c, 5)
				if attempts, asked := f.counts(); attempts != 0 || asked != 5 {
					t.Errorf("%d attempts, %d queries to pass on; want 0 and 5", attempts, asked)
				}
			})
		})
	}
}

func TestSDKCloses(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *testFleet) {
		f.lead("agent-0", "agent-1")
		f.agents[0].assign = func(*control.Submit, int) *control.MatchMessage { return nil }
		c := f.sdk([]string{"agent-0"}, false)
		settle()
		go func() { time.Sleep(time.Second); c.Close() }()
		start := time.Now()
		if _, err := c.Infer(t.Context(), sumQuery(1)); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v, want 1s", took)
		}
	})
}

// TestSDKFleetRestarted has all agents of a fleet end, and others begin that know nothing
// of them: their elections count from the beginning.
func TestSDKFleetRestarted(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *testFleet) {
		former, later := f.agents[:2], f.agents[2:]
		for _, a := range later {
			a.stop()
			a.leave()
		}
		f.lead("agent-1", "agent-0")
		f.lead("agent-0", "agent-1")
		c := f.sdk([]string{"agent-0", "agent-2"}, false)
		settle()
		answers(t, c, 2)
		for i := range former {
			former[i].stop()
			former[i].leave()
			later[i].start()
			later[i].gone = false
		}
		f.leadership = &control.Leadership{}
		f.lead("agent-2", "agent-3")
		time.Sleep(10 * time.Second)
		answers(t, c, 2)
		if leader := c.Gateway().Leader(); leader != "agent-2" {
			t.Errorf("queries are submitted to %q, want agent-2", leader)
		}
	})
}
