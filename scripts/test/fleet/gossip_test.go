//go:build fleet

package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/muster-serve/muster/gossip"
	"github.com/muster-serve/muster/scripts/test/harness"
)

const (
	metaSize = 200 // bytes that each agent says about itself
	loadSize = 32  // bytes of the load that each announces every second
)

// A measurement measures the gossip of several agents in this process.
type measurement struct {
	agents  int
	running []*gossip.Gossip
}

// headers is the size of a packet's IPv4 and UDP headers, in bytes.
const headers = 28

// testGossip runs the encrypted gossip of 50 agents in this process, over UDP and TCP on loopback.
// Each announces a load every second, for twenty seconds. Then one ends without a goodbye. Wanted:
// all see each other; all notice that the one has failed; an agent sends at most 25 kB/s, headers
// included. The short form has 15 agents, for three seconds.
func (r *run) testGossip(ctx context.Context) error {
	m := measurement{agents: max(3, cmp.Or(*agentCount, pick(r, 50, 15)))}
	window := pick(r, 20*time.Second, 3*time.Second)
	var level slog.LevelVar
	level.Set(slog.LevelWarn)
	defer func() {
		level.Set(slog.LevelError) // the last agents warn that the first do not answer
		for _, g := range m.running {
			g.Close()
		}
	}()
	start := time.Now()
	var seeds []string
	for i := range m.agents {
		g, err := gossip.Open(ctx, gossip.Config{
			Name:   gossip.NewName(fmt.Sprintf("agent-%d", i)),
			Bind:   "127.0.0.1:0",
			Seeds:  seeds,
			Keys:   [][]byte{bytes.Repeat([]byte{1}, gossip.KeySize)},
			Meta:   bytes.Repeat([]byte{byte(i)}, metaSize),
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &level})),
		})
		if err != nil {
			return err
		}
		m.running = append(m.running, g)
		if i < 3 {
			seeds = append(seeds, g.Addr().String())
		}
	}
	err := m.waitForMembers(ctx, m.agents)
	r.wantNil(err, "%d agents see each other, %.1f s after the first started", m.agents,
		time.Since(start).Seconds())

	telling, stop := context.WithCancel(ctx)
	defer stop()
	for i, g := range m.running {
		go m.announceTimes(telling, g, time.Duration(i)*time.Second/time.Duration(m.agents))
	}
	if err := harness.Settle(ctx, 3*time.Second); err != nil {
		return err
	}
	before := m.measureTraffic()
	used := processorTime()
	began := time.Now()
	var ages []time.Duration
	for time.Since(began) < window {
		if err := harness.Settle(ctx, 250*time.Millisecond); err != nil {
			return err
		}
		ages = append(ages, m.loadAges()...)
	}
	took := time.Since(began).Seconds()
	used = processorTime() - used
	sent := m.measureTraffic().subtract(before)
	each := float64(m.agents) * took
	rate := float64(sent.bytes+headers*sent.packets) / each / 1000
	slices.Sort(ages)
	var sum time.Duration
	for _, age := range ages {
		sum += age
	}
	r.printLine(
		"an agent sends %.1f kB/s: %.1f packets/s of %.0f bytes, and %.1f kB/s in streams; it "+
			"uses "+
			"%.2f %% of a core", rate,
		float64(sent.packets)/each, float64(sent.bytes-sent.streams)/float64(sent.packets),
		float64(sent.streams)/each/1000, 100*used.Seconds()/each)
	r.printLine("loads are %.2f s old (mean), %.2f s (p99), %.2f s (oldest of %d)",
		(sum / time.Duration(len(ages))).Seconds(),
		ages[len(ages)*99/100].Seconds(), ages[len(ages)-1].Seconds(), len(ages))

	killed := time.Now()
	last := len(m.running) - 1
	if err := m.running[last].Close(); err != nil {
		return err
	}
	m.running = m.running[:last]
	err = m.waitForMembers(ctx, last)
	r.wantNil(err, "all agents know that one has failed, after %.1f s",
		time.Since(killed).Seconds())
	r.wantQuiet(rate <= 25, "an agent sends %.1f kB/s, want at most 25", rate)
	return nil
}

// waitForMembers waits until every agent sees n members.
func (m *measurement) waitForMembers(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for slices.ContainsFunc(m.running,
		func(g *gossip.Gossip) bool { return g.Stats().Members != n }) {
		if err := harness.Settle(ctx, 20*time.Millisecond); err != nil {
			return errors.Join(fmt.Errorf("not all agents see %d members after two minutes", n),
				err)
		}
	}
	return nil
}

// announceTimes announces the time as g's load, first after the delay and then every second.
func (m *measurement) announceTimes(ctx context.Context, g *gossip.Gossip, delay time.Duration) {
	for ; harness.Settle(ctx, delay) == nil; delay = time.Second {
		load := make([]byte, loadSize)
		binary.BigEndian.PutUint64(load, uint64(time.Now().UnixNano()))
		if err := g.SetLoad(load); err != nil {
			fmt.Fprintf(os.Stderr, "gossip: %v\n", err)
			return
		}
	}
}

// loadAges are the ages of all loads that agents have of each other. A missing load counts as a
// minute old.
func (m *measurement) loadAges() []time.Duration {
	var ages []time.Duration
	for _, g := range m.running {
		loads := g.Loads()
		now := time.Now()
		for _, l := range loads {
			ages = append(ages, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(l.Data)))))
		}
		for range m.agents - 1 - len(loads) {
			ages = append(ages, time.Minute)
		}
	}
	return ages
}

// traffic is what all agents together have sent.
type traffic struct {
	packets int64
	bytes   int64 // without headers
	streams int64 // those of bytes that went in streams
}

func (t traffic) subtract(o traffic) traffic {
	return traffic{t.packets - o.packets, t.bytes - o.bytes, t.streams - o.streams}
}

func (m *measurement) measureTraffic() traffic {
	var t traffic
	for _, g := range m.running {
		s := g.Stats()
		t.packets += s.PacketsSent
		t.bytes += s.PacketBytesSent + s.StreamBytesSent
		t.streams += s.StreamBytesSent
	}
	return t
}

// processorTime is the CPU time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
