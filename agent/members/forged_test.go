package members_test

import (
	"context"
	"fmt"
	"net"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/names"
)

// TestForgedMembers: without a gossip key anybody can say that there are thousands of agents. The
// agent lists few of them, asks a few at a time what they are, says so in a few lines,
// answers queries meanwhile, and takes in the agents that are there.
func TestForgedMembers(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		var asked atomic.Int64
		a := f.Start(func(a agent.Inside) {
			dial := a.Environment().Network.Dial
			a.Environment().Network.Dial = func(ctx context.Context, to string) (net.Conn, error) {
				if strings.HasPrefix(to, "10.9.") {
					asked.Add(1)
				}
				return dial(ctx, to)
			}
		})
		b := f.Start()
		f.Settled(a, b)
		leader := f.Led(a, b)
		forger := f.Gossip.Listen("10.0.0.99:7946")
		defer forger.Shutdown()
		goroutines, lines := goruntime.NumGoroutine(), strings.Count(a.Log.String(), "level=WARN")
		sent := 0
		forge := func(n int) {
			for range n {
				if _, err := forger.WriteTo(
					agenttest.ForgedAlive(fmt.Sprint("forged-", sent),
						fmt.Sprintf("10.9.%d.%d:8001", sent/250%250, sent%250)),
					a.Wire.Addr().String()); err != nil {
					f.Error(err)
				}
				if sent++; sent%500 == 0 {
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
		begun := time.Now()
		forge(5000)
		if n := len(a.Gossip().Members()); n > 2+members.MostStrangers || n < 3 {
			f.Errorf("gossip has %d members, want at most %d strangers, and some", n,
				members.MostStrangers)
		}
		// 8 that ask, and their connections
		if more := goruntime.NumGoroutine() - goroutines; more > 160 {
			f.Errorf("%d more goroutines", more)
		}
		if failed := f.Send(200, 10*time.Millisecond, a, b); len(failed) > 0 {
			f.Errorf("failed: %v", failed)
		}
		if said := strings.Count(a.Log.String(), "level=WARN") - lines; said < 1 || said > 2 {
			f.Errorf("%d lines of warnings, want 1 or 2", said)
		}
		if now := f.Led(a, b); now != leader {
			f.Errorf("%s leads, before it was %s: they play agents that must", now.AgentName(),
				leader.AgentName())
		}
		// Eight at a time are asked, and fifty a second.
		if most := int64(16 + 50*time.Since(begun).Seconds()); asked.Load() > most {
			f.Errorf("%d forged agents were asked what they are within %v, want at most %d",
				asked.Load(), time.Since(begun), most)
		}
		c := f.Start()
		f.Eventually(time.Minute, func() string {
			for _, x := range []*agenttest.Member{a, b} {
				if m := x.Members().Member(names.AgentName(c.AgentName())); m == nil || len(m.Models) == 0 {
					forge(50)
					return string(x.AgentName() + " does not know the new agent")
				}
			}
			return ""
		})
	})
}
