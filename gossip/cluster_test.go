package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-serve/muster/gossip/gossiptest"
)

// read takes what events there are now.
func read(g *Gossip) []MemberEvent {
	var events []MemberEvent
	for {
		synctest.Wait()
		select {
		case e := <-g.Events():
			events = append(events, e)
		default:
			return events
		}
	}
}

// kinds are the events' kinds and members, loads left out.
func kinds(events []MemberEvent) []string {
	var kinds []string
	for _, e := range events {
		if e.Kind != Loaded {
			kinds = append(kinds, e.Kind.String()+" "+e.Member.Name)
		}
	}
	slices.Sort(kinds)
	return kinds
}

func addrs(agents []*Gossip) []netip.AddrPort {
	var addrs []netip.AddrPort
	for _, g := range agents {
		addrs = append(addrs, g.Addr())
	}
	return addrs
}

// TestLeaveAndFail tells a member that goes from one that is gone.
func TestLeaveAndFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 6)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		if got, want := kinds(read(c.agents[0])), []string{
			"joined agent-1", "joined agent-2", "joined agent-3", "joined agent-4",
			"joined agent-5",
		}; !slices.Equal(got, want) {
			t.Errorf("got events %q, want %q", got, want)
		}

		start := time.Now()
		if err := c.agents[5].Leave(10 * time.Second); err != nil {
			t.Error(err)
		}
		t.Logf("left in %v", time.Since(start))
		if err := c.agents[5].Close(); err != nil {
			t.Error(err)
		}
		c.within(10*time.Second, "all know that it left", func() bool { return see(c.agents[:5]) })
		for _, g := range c.agents[:5] {
			if got := kinds(read(g)); got[len(got)-1] != "left agent-5" {
				t.Errorf("%s: got events %q, want the last to be left agent-5", g.Name(), got)
			}
		}

		if err := c.agents[4].Close(); err != nil {
			t.Error(err)
		}
		took := c.within(10*time.Second, "all know that it failed",
			func() bool { return see(c.agents[:4]) })
		t.Logf("failure known after %v", took)
		for _, g := range c.agents[:4] {
			if got, want := kinds(read(g)), []string{"failed agent-4"}; !slices.Equal(got, want) {
				t.Errorf("%s: got events %q, want %q", g.Name(), got, want)
			}
		}
		c.close()
	})
}

// TestLeaveAfterChange has an agent say something else about itself and leave while that goes
// round, as one that drains does: it has left and has not failed.
func TestLeaveAfterChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 12)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		leaving, rest := c.agents[11], c.agents[:11]
		if err := leaving.SetMeta([]byte("draining")); err != nil {
			t.Error(err)
		}
		if err := leaving.Leave(10 * time.Second); err != nil {
			t.Error(err)
		}
		if err := leaving.Close(); err != nil {
			t.Error(err)
		}
		c.within(20*time.Second, "all know that it left", func() bool { return see(rest) })
		for _, g := range rest {
			if lost := g.Lost(); len(lost) > 0 {
				t.Errorf("%s: got %q lost, want none", g.Name(), lost)
			}
		}
		c.close()
	})
}

// TestFailureAtFifty bounds how long the failure of one among fifty is unknown.
func TestFailureAtFifty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 50)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		if err := c.agents[49].Close(); err != nil {
			t.Error(err)
		}
		first := c.within(15*time.Second, "some know", func() bool {
			return slices.ContainsFunc(c.agents[:49],
				func(g *Gossip) bool { return len(g.Members()) == 49 })
		})
		rest := c.within(15*time.Second, "all know", func() bool { return see(c.agents[:49]) })
		t.Logf("first after %v, all after %v", first, first+rest)
		c.close()
	})
}

// TestBadNetwork has a network lose, delay, reorder and duplicate packets.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(2)}
		c.network.SetConditions(gossiptest.Conditions{
			Loss: 0.1, Duplicate: 0.1, Delay: 2 * time.Millisecond, Jitter: 40 * time.Millisecond,
		})
		for range 12 {
			c.add(nil)
		}
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		for _, g := range c.agents {
			read(g)
		}
		ctx, cancel := context.WithCancel(t.Context())
		c.tell(ctx, time.Second)
		time.Sleep(3 * time.Second)
		var old int
		const checks = 30
		for range checks {
			time.Sleep(time.Second)
			for _, age := range c.ages() {
				if age > 3*time.Second {
					old++
				}
			}
		}
		if pairs := checks * 12 * 11; old > pairs/50 {
			t.Errorf("%d of %d loads seen were older than 3 s, want at most 2 %%", old, pairs)
		}
		for _, g := range c.agents {
			seq := map[string]uint64{}
			for _, e := range read(g) {
				if e.Kind == Failed {
					t.Errorf("%s: %s failed, but only packets were lost", g.Name(), e.Member.Name)
				}
				if e.Kind == Loaded && e.Load.Seq <= seq[e.Member.Name] {
					t.Errorf("%s: load %d of %s after %d", g.Name(), e.Load.Seq, e.Member.Name,
						seq[e.Member.Name])
				}
				seq[e.Member.Name] = e.Load.Seq
			}
		}
		cancel()
		c.close()
	})
}

// TestPartition parts a cluster for longer than memberlist remembers members,
// with both seeds on one side.
func TestPartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 10)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		c.network.Partition(addrs(c.agents[:4]), addrs(c.agents[4:]))
		c.within(30*time.Second, "each side alone",
			func() bool { return see(c.agents[:4]) && see(c.agents[4:]) })
		time.Sleep(90 * time.Second)
		c.network.Heal()
		took := c.within(30*time.Second, "all see each other again",
			func() bool { return see(c.agents) })
		t.Logf("together again after %v", took)
		c.close()
	})
}

// TestPartitionWithoutSeeds does so once the seeds are gone, so that only what is
// remembered of the members that failed can help.
func TestPartitionWithoutSeeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 8)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		for _, g := range c.agents[:2] {
			g.Close()
		}
		rest := c.agents[2:]
		c.within(30*time.Second, "the seeds are gone", func() bool { return see(rest) })
		c.network.Partition(addrs(rest[:3]))
		c.within(30*time.Second, "each side alone",
			func() bool { return see(rest[:3]) && see(rest[3:]) })
		time.Sleep(90 * time.Second)
		c.network.Heal()
		c.within(time.Minute, "all see each other again", func() bool { return see(rest) })
		c.close()
	})
}

// TestCutOff has one agent cut off from all others, as one that was stopped is.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		name := c.agents[4].Name()
		c.network.Partition(addrs(c.agents[4:]))
		c.within(30*time.Second, "it failed", func() bool { return see(c.agents[:4]) })
		c.network.Heal()
		c.within(30*time.Second, "it is back", func() bool { return see(c.agents) })
		if got := kinds(read(c.agents[0])); !slices.Contains(got, "joined "+name) {
			t.Errorf("got events %q, want it to have joined again", got)
		}
		c.close()
	})
}

// TestRestart has a host killed and started again, which makes another member at
// the same address.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		read(c.agents[0])
		c.agents[3].Close()
		again := &cluster{
			t: t, network: c.network, agents: slices.Clone(c.agents[:3]),
			logs: slices.Clone(c.logs[:3]),
		}
		again.add(func(config *Config) { config.Name = "agent-3-again" })
		again.within(30*time.Second, "the new one has replaced the old",
			func() bool { return see(again.agents) })
		if got, want := kinds(read(c.agents[0])), []string{
			"failed agent-3", "joined agent-3-again",
		}; !slices.Equal(got, want) {
			t.Errorf("got events %q, want %q", got, want)
		}
		for i, logs := range again.logs {
			if got := logs.warnings(); i > 0 && len(got) > 0 {
				t.Errorf("agent %d warned %q of what is usual", i, got)
			}
		}
		again.close()
	})
}

// TestManyRestarts kills 20 of 25 agents at once and starts them again at their addresses, some at
// once, some while their death is being told, some when it is known: all see all again, and none of
// before is a member again however often states are exchanged. Agents have another name each time;
// with the same ones it holds as well.
func TestManyRestarts(t *testing.T) {
	for _, named := range []string{"-again", ""} {
		if testing.Short() && named == "" {
			continue
		}
		t.Run("name"+named, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 25)
				c.network.SetConditions(gossiptest.Conditions{
					Loss: 0.02, Delay: time.Millisecond, Jitter: 5 * time.Millisecond,
				})
				c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
				time.Sleep(30 * time.Second) // states are exchanged
				for _, g := range c.agents[5:] {
					if err := g.Close(); err != nil {
						t.Error(err)
					}
				}
				again := &cluster{
					t: t, network: c.network, agents: slices.Clone(c.agents[:5]),
					logs: slices.Clone(c.logs[:5]),
				}
				for i := range 20 {
					again.add(func(config *Config) { config.Name += named })
					if i%4 == 3 {
						time.Sleep(2 * time.Second) // the death of all is known after some five
					}
				}
				again.within(time.Minute, "all see all again",
					func() bool { return see(again.agents) })
				watch := 300
				if testing.Short() {
					watch = 60
				}
				for range watch {
					time.Sleep(time.Second)
					if !see(again.agents) {
						for _, g := range again.agents {
							t.Logf("%s sees %v", g.Name(), g.Members())
						}
						t.Fatal("what had been agreed on has changed")
					}
				}
				again.close()
			})
		})
	}
}

// TestLateSeeds starts the seeds last, behind a name that is not known at first.
func TestLateSeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		start := time.Now()
		seeds := func(config *Config) {
			config.Seeds = []string{"muster.example", "10.9.9.9:1"}
			config.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
				// an error as net's, with a port that changes
				if after := time.Since(start); after < 2*time.Minute {
					return nil, fmt.Errorf("lookup %s: read udp 10.9.9.8:%d: connection refused",
						host, 1024+after.Milliseconds()%60000)
				}
				return []netip.Addr{
					netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("10.0.0.5"),
				}, nil
			}
		}
		for range 3 {
			c.add(seeds)
		}
		for _, g := range c.agents {
			<-g.Ready() // tried in vain
		}
		// A name that is not known at first may be that of all others.
		if waited := time.Since(start); waited < 2*time.Second || waited > 5*time.Second {
			t.Errorf("ready after %v, want after four looks", waited)
		}
		time.Sleep(time.Minute)
		for i, logs := range c.logs {
			if w := logs.warnings(); len(w) != 2 ||
				len(logs.with("level=WARN", "seed=muster.example", "connection refused")) != 1 ||
				len(logs.with("level=WARN", "seed=10.9.9.9:1", "nothing listens there")) != 1 {
				t.Errorf("agent %d: got warnings %q, want one for each seed", i, w)
			}
		}
		c.add(seeds)
		c.add(seeds)
		c.within(2*time.Minute, "all see each other", func() bool { return see(c.agents) })
		c.close()
	})
}

// TestOnlyOneSeedAnswers has agents that know different seeds become one cluster.
func TestOnlyOneSeedAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		for i := range 6 {
			c.add(func(config *Config) {
				config.Seeds = []string{addrOf((i + 1) % 6)} // a ring: each knows the next
			})
		}
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		c.close()
	})
}

// TestStrangers are agents that cannot be members: with another key, or none,
// and what is no agent at all. Each is told, once, and so are those it asks; the
// cluster is as before.
func TestStrangers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		members := c.agents
		for _, logs := range c.logs {
			logs.clear()
		}

		otherKey := c.add(func(config *Config) {
			config.Keys = [][]byte{
				bytes.Repeat([]byte{8}, KeySize),
			}
		})
		noKey := c.add(func(config *Config) { config.Keys = nil })
		garbage := c.network.Listen("10.0.9.9:9")
		for i := range 60 {
			if _, err := garbage.WriteTo(bytes.Repeat([]byte{byte(i)}, i), addrOf(0)); err != nil {
				t.Error(err)
			}
			conn, err := garbage.DialTimeout(addrOf(0), time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
			conn.Close()
		}

		if !see(members) || len(otherKey.Members()) != 1 || len(noKey.Members()) != 1 {
			t.Error("the cluster changed")
		}
		for i, reason := range map[int]string{
			4: "its gossip key is not one of ours",
			5: "it asks for a gossip key, and this agent has none",
		} {
			for _, seed := range []string{addrOf(0), addrOf(1)} {
				if got := c.logs[i].with("level=WARN", "cannot join by seed", reason,
					"seed="+seed); len(got) != 1 {
					t.Errorf("agent %d: got %q about seed %s in %q, want one line", i, got, seed,
						c.logs[i].warnings())
				}
			}
		}
		for _, peer := range []string{"10.0.0.5", "10.0.0.6", "10.0.9.9"} {
			if got := c.logs[0].with("level=WARN", "unreadable with our keys",
				"peer="+peer); len(got) != 1 {
				t.Errorf("got %q about %s, want one line", got, peer)
			}
		}
		if got := c.logs[0].warnings(); len(got) > 5 {
			t.Errorf("got %d warnings, want a few: %q", len(got), got)
		}
		if got := slices.Concat(c.logs[2].warnings(), c.logs[3].warnings()); len(got) > 0 {
			t.Errorf("agents that nobody bothered warned: %q", got)
		}
		garbage.Shutdown()
		c.close()
	})
}

// TestGarbageWithoutKey sends nonsense to agents that have no key to tell by.
func TestGarbageWithoutKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		for range 3 {
			c.add(func(config *Config) { config.Keys = nil })
		}
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		garbage := c.network.Listen("10.0.9.9:9")
		for i := range 2000 {
			b := make([]byte, 1+i%97)
			for j := range b {
				b[j] = byte(i*31 + j*j*(7+i/256))
			}
			b[0] = byte(i % 16) // mostly kinds of messages that there are
			if _, err := garbage.WriteTo(b, addrOf(0)); err != nil {
				t.Error(err)
			}
			if i%100 == 0 {
				time.Sleep(time.Second)
			}
		}
		c.within(time.Minute, "as before", func() bool { return see(c.agents) })
		if got := c.logs[0].warnings(); len(got) == 0 || len(got) > 20 {
			t.Errorf("got %d warnings, want some: %q", len(got), got)
		}
		garbage.Shutdown()
		c.close()
	})
}

// TestRefused has agents of two versions meet.
func TestRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		version := func(v byte) func(*Config) {
			return func(config *Config) {
				config.Meta = []byte{v}
				config.Accept = func(m Member) error {
					if !bytes.Equal(m.Meta, []byte{v}) {
						return fmt.Errorf("speaks version %v, not %d", m.Meta, v)
					}
					return nil
				}
			}
		}
		for range 3 {
			c.add(version(1))
		}
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		stranger := c.add(version(2))
		time.Sleep(2 * time.Minute)
		if !see(c.agents[:3]) || !see([]*Gossip{stranger}) {
			t.Error("agents of different versions see each other")
		}
		for _, seed := range []string{addrOf(0), addrOf(1)} {
			if got := c.logs[3].with("cannot join by seed", "speaks version [1], not 2",
				"seed="+seed); len(got) != 1 {
				t.Errorf("got %q of %q, want one line about %s", got, c.logs[3].warnings(), seed)
			}
		}
		if got := c.logs[0].with("level=WARN", "another agent cannot join", "member agent-3",
			"speaks version [2], not 1"); len(got) != 1 {
			t.Errorf("got %q of %q, want one line about agent-3", got, c.logs[0].warnings())
		}
		c.close()
	})
}

// TestSameName has two agents with one name.
func TestSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		c.add(func(config *Config) { config.Name = "agent-2" })
		time.Sleep(time.Minute)
		for i := range 2 {
			if members := c.agents[i].Members(); len(members) != 3 ||
				members[2].Addr != c.agents[2].Addr() {
				t.Errorf("agent %d: got %v, want the first agent-2 to stay", i, members)
			}
		}
		if got := c.logs[0].with("level=WARN", "same name", "member=agent-2"); len(got) == 0 ||
			len(got) > 2 {
			t.Errorf("got %q, want a line or two", got)
		}
		c.close()
	})
}

// TestKeyRotation changes the key of a cluster at work.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		ctx, cancel := context.WithCancel(t.Context())
		c.tell(ctx, time.Second)
		var keys [][]byte
		for i := range byte(3) {
			keys = append(keys, bytes.Repeat([]byte{100 + i}, KeySize))
		}
		each := func(do func(g *Gossip) error) {
			t.Helper()
			for _, g := range c.agents {
				if err := do(g); err != nil {
					t.Errorf("%s: %v", g.Name(), err)
				}
				time.Sleep(2 * time.Second)
			}
		}
		before := testKey
		for _, key := range keys {
			each(func(g *Gossip) error { return g.AddKey(key) })
			each(func(g *Gossip) error { return g.UseKey(key) })
			each(func(g *Gossip) error { return g.RemoveKey(before) })
			before = key
		}
		// A key that is neither in use nor the last.
		for _, key := range [][]byte{testKey, keys[0], keys[1]} {
			each(func(g *Gossip) error { return g.AddKey(key) })
		}
		each(func(g *Gossip) error { return g.RemoveKey(testKey) })
		for _, g := range c.agents {
			if got, want := g.Keys(), [][]byte{
				keys[2], keys[0], keys[1],
			}; !slices.EqualFunc(got, want, bytes.Equal) {
				t.Errorf("%s: got keys %v, want %v", g.Name(), got, want)
			}
			for _, e := range read(g) {
				if e.Kind == Failed {
					t.Errorf("%s: %s failed", g.Name(), e.Member.Name)
				}
			}
		}
		if ages := c.ages(); ages[len(ages)-1] > 5*time.Second {
			t.Errorf("a load is %v old", ages[len(ages)-1])
		}
		for i, logs := range c.logs {
			if w := logs.with("level=WARN", "unreadable"); len(w) > 0 {
				t.Errorf("agent %d warned %q", i, w)
			}
		}
		for _, err := range []error{
			c.agents[0].RemoveKey(keys[2]), c.agents[0].UseKey(testKey),
			c.agents[0].AddKey([]byte("short")),
		} {
			if err == nil {
				t.Error("a wrong change of keys was not refused")
			}
		}
		cancel()
		c.close()
	})
}

func TestNotEncrypted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, network: gossiptest.NewNetwork(1)}
		g := c.add(func(config *Config) { config.Keys = nil })
		for _, err := range []error{g.AddKey(testKey), g.UseKey(testKey), g.RemoveKey(testKey)} {
			if !errors.Is(err, ErrNotEncrypted) {
				t.Errorf("got %v, want %v", err, ErrNotEncrypted)
			}
		}
		if got := g.Keys(); got != nil {
			t.Errorf("got keys %v, want none", got)
		}
		c.close()
	})
}

func TestSetMeta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		read(c.agents[0])
		meta := bytes.Repeat([]byte("m"), MaxMeta)
		if err := c.agents[3].SetMeta(meta); err != nil {
			t.Error(err)
		}
		c.within(10*time.Second, "all know", func() bool {
			return !slices.ContainsFunc(c.agents,
				func(g *Gossip) bool { return !bytes.Equal(g.Members()[3].Meta, meta) })
		})
		if got, want := kinds(read(c.agents[0])), []string{
			"updated agent-3",
		}; !slices.Equal(got, want) {
			t.Errorf("got events %q, want %q", got, want)
		}
		if err := c.agents[3].SetMeta(append(meta, 'x')); err == nil {
			t.Error("too much meta was not refused")
		}
		c.close()
	})
}

// TestSetLoad checks that loads go out once a second, the newest only, and that
// who joins has them at once.
func TestSetLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		read(c.agents[0])
		const sets = 1000
		for i := range sets {
			if err := c.agents[1].SetLoad(fmt.Appendf(nil, "load %d", i)); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		loads := c.agents[0].Loads()
		if len(loads) != 1 || loads[0].From != "agent-1" ||
			string(loads[0].Data) != fmt.Sprintf("load %d", sets-1) {
			t.Fatalf("got %v, want only the last load of agent-1", loads)
		}
		if got := loads[0].Seq; got < 10 || got > 11 {
			t.Errorf("got %d loads in 10 s, want one a second", got)
		}
		c.add(nil)
		c.within(2*time.Second, "who joins has the loads",
			func() bool { return len(c.agents[3].Loads()) == 1 })
		if got, want := c.agents[3].Loads()[0].At, loads[0].At; got.Sub(
			want).Abs() > time.Millisecond {
			t.Errorf("who joins takes the load to be of %v, want %v", got, want)
		}
		if err := c.agents[1].SetLoad(make([]byte, MaxLoad+1)); err == nil {
			t.Error("too much load was not refused")
		}
		c.close()
		if err := c.agents[1].SetLoad(nil); err != nil { // no news, no harm
			t.Error(err)
		}
	})
}

// TestSlowReader checks what replaces what in front of a reader that does not
// read: one event a member and one load, and the last word of each.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		for i := range 20 {
			for _, g := range c.agents[1:] {
				if err := g.SetLoad([]byte{byte(i)}); err != nil {
					t.Error(err)
				}
				if err := g.SetMeta([]byte{byte(i)}); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(2 * time.Second)
		}
		events := read(c.agents[0])
		if len(events) > 2*3+1 { // one was on its way
			t.Errorf("got %d events, want two a member: %v", len(events), kinds(events))
		}
		last := map[string]MemberEvent{}
		for _, e := range events {
			if e.Kind == Updated { // of the one on its way
				e.Kind = Joined
			}
			last[e.Kind.String()+e.Member.Name] = e
		}
		for _, g := range c.agents[1:] {
			if m := last["joined"+g.Name()]; !bytes.Equal(m.Member.Meta, []byte{19}) {
				t.Errorf("got %v of %s, want it joined with its last meta", m, g.Name())
			}
			if l := last["loaded"+g.Name()]; !bytes.Equal(l.Load.Data, []byte{19}) {
				t.Errorf("got %v of %s, want its last load", l, g.Name())
			}
		}
		c.close()
	})
}

// TestVouchAtMember: many agents are vouched for that cannot be joined, because others are at their
// addresses, as when agents have started anew. The next one is joined all the same.
func TestVouchAtMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		c.within(time.Minute, "all see each other", func() bool { return see(c.agents) })
		g := c.agents[0]
		for i := range maxVouched {
			g.Vouch(Member{
				Name: fmt.Sprint("former-", i), Addr: netip.MustParseAddrPort(addrOf(1)),
			})
		}
		time.Sleep(rejoinInterval)
		unknown := c.add(func(config *Config) { config.Seeds = nil })
		g.Vouch(Member{Name: unknown.Name(), Addr: unknown.Addr()})
		c.within(rejoinInterval, "the last one is joined",
			func() bool { return see(c.agents) })
		c.close()
	})
}

// TestSetMetaAtOnce: of metas that are set at the same time, the others get the one that is kept
// here.
func TestSetMetaAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		g := c.agents[0]
		for i := range 2000 {
			var both sync.WaitGroup
			for j := range 2 {
				both.Go(func() {
					if err := g.SetMeta(fmt.Append(nil, i, " ", j)); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			g.mu.Lock()
			kept := string(g.meta)
			g.mu.Unlock()
			if told := string(g.Members()[0].Meta); told != kept {
				t.Fatalf("round %d: others are told %q, want %q", i, told, kept)
			}
		}
		c.close()
	})
}
