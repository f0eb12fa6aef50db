package gossip

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/gossip/gossiptest"
)

// A cluster is some agents on a network in memory. Agent i is named "agent-i".
type cluster struct {
	t       *testing.T
	network *gossiptest.Network
	agents  []*Gossip
	logs    []*logs
}

var testKey = bytes.Repeat([]byte{7}, KeySize)

func addrOf(i int) string { return fmt.Sprintf("10.0.%d.%d:7946", i/250, i%250+1) }

// newCluster makes n agents that know the first two as seeds. The test ends them.
func newCluster(t *testing.T, n int) *cluster {
	c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
	for range n {
		c.add(nil)
	}
	return c
}

// add makes one more agent, its configuration changed by change.
func (c *cluster) add(change func(*Config)) *Gossip {
	i := len(c.agents)
	logs := &logs{}
	config := Config{
		Name:   fmt.Sprintf("agent-%d", i),
		Seeds:  []string{addrOf(0), addrOf(1)},
		Keys:   [][]byte{testKey},
		Meta:   bytes.Repeat([]byte{byte(i)}, 200),
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	}
	config.Transport = c.network.Listen(addrOf(i))
	if change != nil {
		change(&config)
	}
	g, err := Open(c.t.Context(), config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { g.Close() })
	c.agents, c.logs = append(c.agents, g), append(c.logs, logs)
	return g
}

// close ends all agents, and waits for what memberlist leaves behind: a bubble
// must be empty when its test ends.
func (c *cluster) close() {
	c.t.Helper()
	for _, g := range c.agents {
		if err := g.Close(); err != nil {
			c.t.Error(err)
		}
	}
	time.Sleep(gossiptest.Settle)
}

// within waits until ok, and fails the test if that takes longer than limit.
func (c *cluster) within(limit time.Duration, what string, ok func() bool) time.Duration {
	c.t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			for i, g := range c.agents {
				c.t.Logf("%s sees %d members", g.Name(), len(g.Members()))
				if i == 9 {
					break
				}
			}
			c.t.Fatalf("after %v: not %s", limit, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(start)
}

// see reports whether each of agents sees just these agents as members.
func see(agents []*Gossip) bool {
	for _, g := range agents {
		if int(g.count.Load()) != len(agents) {
			return false
		}
		for _, m := range g.Members() {
			if !slices.ContainsFunc(agents, func(a *Gossip) bool { return a.Name() == m.Name }) {
				return false
			}
		}
	}
	return true
}

// logs are what an agent logged.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

// with are the lines that have all parts.
func (l *logs) with(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
lines:
	for _, line := range l.lines {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// clear forgets the lines so far.
func (l *logs) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = nil
}

// warnings are the lines that tell an operator of a fault.
func (l *logs) warnings() []string {
	return slices.Concat(l.with("level=WARN"), l.with("level=ERROR"))
}

// tell has each agent say the time as its load every interval, until the context
// ends.
func (c *cluster) tell(ctx context.Context, interval time.Duration) {
	for _, g := range c.agents {
		go func() {
			for ctx.Err() == nil {
				load := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
				if err := g.SetLoad(append(load, make([]byte, 24)...)); err != nil {
					c.t.Error(err)
				}
				select {
				case <-time.After(interval):
				case <-ctx.Done():
				}
			}
		}()
	}
}

// ages are how old each agent's loads of the others are, the oldest last. A
// member without a load counts as an hour.
func (c *cluster) ages() []time.Duration {
	now := time.Now()
	var ages []time.Duration
	for _, g := range c.agents {
		loads := g.Loads()
		for _, l := range loads {
			ages = append(ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(l.Data)))))
		}
		for range len(c.agents) - 1 - len(loads) {
			ages = append(ages, time.Hour)
		}
	}
	slices.Sort(ages)
	return ages
}

func TestClusterOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		g := c.add(func(config *Config) { config.Seeds = nil })
		<-g.Ready()
		if got := g.Members(); len(got) != 1 || got[0].Name != "agent-0" ||
			got[0].Addr != netip.MustParseAddrPort(addrOf(0)) {
			t.Errorf("got members %v, want only agent-0 at %s", got, addrOf(0))
		}
		if err := g.SetLoad([]byte("idle")); err != nil {
			t.Error(err)
		}
		if err := g.Leave(time.Second); err != nil {
			t.Errorf("leave a cluster of one: %v", err)
		}
		c.close()
		if _, ok := <-g.Events(); ok {
			t.Error("got an event about the agent itself")
		}
	})
}

// TestConverge is fifty agents that start at once, and what their gossip costs.
func TestConverge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 50)
		took := c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		t.Logf("50 agents see each other after %v", took)

		ctx, cancel := context.WithCancel(t.Context())
		c.tell(ctx, 300*time.Millisecond)
		time.Sleep(5 * time.Second)
		before := c.sent()
		const seconds = 5
		var ages []time.Duration
		for range seconds * 4 {
			time.Sleep(250 * time.Millisecond)
			ages = append(ages, c.ages()...)
		}
		rate := float64(c.sent()-before) / seconds / float64(len(c.agents))
		slices.Sort(ages)
		var sum time.Duration
		for _, age := range ages {
			sum += age
		}
		mean, p99 := sum/time.Duration(len(ages)), ages[len(ages)*99/100]
		t.Logf("%.1f kB/s an agent; loads are %v old (mean), %v (p99)", rate/1000, mean, p99)
		if rate > 25000 {
			t.Errorf("got %.0f bytes per second an agent, want at most 25000", rate)
		}
		if mean > 1500*time.Millisecond || p99 > 3*time.Second {
			t.Errorf("loads are %v old (mean), %v (p99), want at most 1.5 s and 3 s", mean, p99)
		}
		for i := range c.agents {
			if w := c.logs[i].warnings(); len(w) > 1 { // a seed that was not there yet
				t.Errorf("agent %d warned %q", i, w)
			}
		}
		cancel()
		c.close()
	})
}

// sent is the bytes that all agents sent so far.
func (c *cluster) sent() int64 {
	var sum int64
	for _, g := range c.agents {
		s := g.Stats()
		sum += s.PacketBytesSent + s.StreamBytesSent
	}
	return sum
}
