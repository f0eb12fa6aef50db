package gossip

import (
	"context"
	"flag"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/gossip/gossiptest"
)

var scaleMembers = flag.String("members", "30",
	"numbers of agents whose gossip TestScale measures, such as 100,300,1000")

// TestScale measures what gossip costs an agent of fleets of several sizes, in virtual time: all
// run the real code in this process, on a network in memory. With the default it holds that a join
// and a death are known within bounds.
func TestScale(t *testing.T) {
	for _, text := range strings.Split(*scaleMembers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { measureScale(t, n) })
		})
	}
}

func measureScale(t *testing.T, n int) {
	c := newCluster(t, 0)
	c.network.SetConditions(gossiptest.Conditions{Delay: time.Millisecond})
	for i := range n {
		c.add(nil)
		if i%10 == 9 { // a rented fleet comes some at a time
			time.Sleep(100 * time.Millisecond)
		}
	}
	know := func(agents []*Gossip, members int) func() bool {
		return func() bool {
			for _, g := range agents {
				if int(g.count.Load()) != members {
					return false
				}
			}
			return true
		}
	}
	formed := c.within(5*time.Minute, "all see each other", know(c.agents, n))

	ctx, cancel := context.WithCancel(t.Context())
	c.tell(ctx, time.Second)
	time.Sleep(10 * time.Second)
	const seconds = 20
	sent, cpu := c.sent(), processCPU(t)
	time.Sleep(seconds * time.Second)
	cpu = processCPU(t) - cpu
	rate := float64(c.sent()-sent) / seconds / float64(n)

	c.add(nil)
	joined := c.within(3*time.Minute, "all see one that joined", know(c.agents, n+1))
	last := c.agents[n]
	c.agents = c.agents[:n]
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	died := c.within(3*time.Minute, "all know of a death", know(c.agents, n))
	cancel()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d agents: formed after %v more; an agent: %.2f %% of a core, %.1f kB/s, %d KB of heap; "+
		"a join known to all after %v, a death after %v", n, formed,
		100*cpu.Seconds()/seconds/float64(n), rate/1000, m.HeapAlloc/uint64(n)/1024, joined, died)
	if joined > time.Minute || died > time.Minute {
		t.Errorf("a join is known after %v and a death after %v, want a minute at most", joined, died)
	}
	c.close()
}

// processCPU is the CPU time of this process so far.
func processCPU(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
