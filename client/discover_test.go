package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/leader/match"
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
			t.Errorf(
				"%d attempts, %d queries to pass on; want at least 13 and 1, of the unknown model",
				attempts, asked)
		}
	})
}

// TestSDKWatchesAnother freezes the agent through which the client sees the fleet.
func TestSDKWatchesAnother(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *testFleet) {
		f.lead("agent-1", "agent-2")
		c := f.sdk([]string{"agent-0"}, false)
		time.Sleep(10 * time.Second) // one that has nothing new to say is not given up
		if n := len(c.fleet.peersOf()); n != 4 {
			t.Fatalf("the client sees %d members, want 4", n)
		}
		f.agents[0].freeze()
		f.agents[3].leave()
		f.lead("agent-1", "agent-2")
		time.Sleep(2*viewSilence + time.Second) // as a server and as a member
		if n := len(c.fleet.peersOf()); n != 3 {
			t.Errorf("the client sees %d members, want 3", n)
		}
	})
}

// TestSDKSeesTheFleet has members leave and be back, leaders follow each other, agents freeze,
// and lose changes that they should tell of: in the end the client has the same view as whoever
// sees all of it.
func TestSDKSeesTheFleet(t *testing.T) {
	for seed := range uint64(5) {
		bubble(t, 5, func(t *testing.T, f *testFleet) {
			rng := rand.New(rand.NewPCG(seed, 3))
			f.agents[2].old.Store(true)
			c := f.sdk([]string{"agent-0", "agent-1"}, false)
			for range 60 {
				a := f.agents[rng.IntN(len(f.agents))]
				switch rng.IntN(6) {
				case 0, 1:
					f.mu.Lock()
					a.gone = !a.gone
					f.mu.Unlock()
				case 2:
					f.lead(a.name, "agent-0")
				case 3:
					a.freeze()
					time.Sleep(viewSilence + time.Second)
					a.thaw()
				case 4:
					a.loseEach.Store(int64(rng.IntN(4)))
				case 5:
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
				}
				f.tell()
				time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
			}
			for _, a := range f.agents {
				a.loseEach.Store(0)
			}
			time.Sleep(10 * time.Second)
			watches := int64(0)
			for _, a := range f.agents {
				watches += a.watched.Load()
			}
			if watches < 2 {
				t.Errorf("seed %d: the client has watched %d times", seed, watches)
			}
			got, want := proto.CloneOf(c.fleet.gateway.Load().members.Load().view), f.view()
			for _, m := range got.Members {
				m.Held = nil
				for _, model := range m.Models {
					model.Number = 0
				}
			}
			if got.Revision = 0; !proto.Equal(got, want) {
				t.Errorf("seed %d: the client has\n%v\nwant\n%v", seed, got, want)
			}
		})
	}
}

// TestLoadsRank: without a leader a gateway asks whom loads say free, as of the newest of them, and
// hears of a load without arranging all it knows anew.
func TestLoadsRank(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *testFleet) {
		g := f.gateway()
		first := func() string {
			g.leaderless.mu.Lock()
			defer g.leaderless.mu.Unlock()
			g.leaderless.remakePriced()
			return string(g.leaderless.agents[g.leaderless.priced.Rank(time.Now(),
				&match.Inquiry{Model: "sum/1", BatchSize: 1}, 0, 1)[0].Lane])
		}
		load := func(agent string, age, remaining time.Duration) *control.LaneLoad {
			return &control.LaneLoad{
				Agent: agent, AgeNs: int64(age), RemainingNs: []int64{
					int64(time.Hour), int64(remaining),
				},
			}
		}
		settle()
		g.SetLoads([]*control.LaneLoad{
			load("agent-0", 0, 20*time.Millisecond), load("agent-1", 0, 20*time.Millisecond),
		})
		if got := first(); got != "agent-2" {
			t.Errorf("got %s, want the only agent that is free", got)
		}
		priced := g.leaderless.priced
		g.SetLoads([]*control.LaneLoad{
			load("agent-2", 0, 30*time.Millisecond), load("agent-1", time.Second, 0),
			load("nobody", 0, 0),
		})
		g.SetLoads([]*control.LaneLoad{load("agent-0", 0, 5*time.Millisecond)})
		if got := first(); got != "agent-0" {
			t.Errorf("got %s, want the one that is free first", got)
		}
		g.SetView(g.members.Load().view) // nothing new
		if first(); g.leaderless.priced != priced {
			t.Error("loads had everything arranged anew")
		}
		if n := len(g.leaderless.loads); n != 3 {
			t.Errorf("%d loads are kept, want those of 3 members", n)
		}
		// Members that change leave what is known of the others.
		f.agents[2].leave()
		g.SetView(f.view())
		if got := first(); got != "agent-0" || len(g.leaderless.loads) != 2 {
			t.Errorf("after one has left: got %s, and %d loads", got, len(g.leaderless.loads))
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
