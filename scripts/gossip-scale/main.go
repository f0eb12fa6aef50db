// Command gossip-scale measures what gossip costs and how old its view is: it
// runs agents' gossip, encrypted, over UDP and TCP on loopback, all in one
// process, has each say a load every second, and then kills one.
//
//	go run ./scripts/gossip-scale
//	go run ./scripts/gossip-scale -agents 100 -meta 512
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/muster-serve/muster/gossip"
)

func main() {
	var m measurement
	flag.IntVar(&m.agents, "agents", 50, "how many")
	flag.IntVar(&m.meta, "meta", 200, "bytes that each says about itself")
	flag.IntVar(&m.load, "load", 32, "bytes of a load, at least 8")
	flag.DurationVar(&m.window, "window", 20*time.Second, "how long to measure")
	flag.Float64Var(&m.limit, "limit", 25, "fail above so many kB/s sent by an agent, UDP and IP headers included")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := m.run(ctx, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "gossip-scale: %v\n", err)
		os.Exit(1)
	}
}

type measurement struct {
	agents, meta, load int
	window             time.Duration
	limit              float64

	running []*gossip.Gossip
}

// headers are a packet's IPv4 and UDP headers, in bytes.
const headers = 28

func (m *measurement) run(ctx context.Context, out io.Writer) error {
	if m.agents < 3 || m.load < 8 || m.window < time.Second {
		return errors.New("want at least 3 agents, loads of 8 bytes and a window of 1 s")
	}
	var level slog.LevelVar
	level.Set(slog.LevelWarn)
	defer func() {
		level.Set(slog.LevelError) // the last ones miss the first
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
			Meta:   bytes.Repeat([]byte{byte(i)}, m.meta),
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
	if err := m.until(ctx, m.agents); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d agents see each other %.1f s after the first started\n", m.agents, time.Since(start).Seconds())

	telling, stop := context.WithCancel(ctx)
	defer stop()
	for i, g := range m.running {
		go m.tell(telling, g, time.Duration(i)*time.Second/time.Duration(m.agents))
	}
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	before := m.traffic()
	used := processorTime()
	began := time.Now()
	var ages []time.Duration
	for time.Since(began) < m.window {
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
		ages = append(ages, m.ages()...)
	}
	took := time.Since(began).Seconds()
	used = processorTime() - used
	sent := m.traffic().minus(before)
	each := float64(m.agents) * took
	rate := float64(sent.bytes+headers*sent.packets) / each / 1000
	slices.Sort(ages)
	var sum time.Duration
	for _, age := range ages {
		sum += age
	}
	fmt.Fprintf(out, "an agent sends %.1f kB/s: %.1f packets/s of %.0f bytes, %.1f kB/s in streams; it uses %.2f %% of a core\n", rate,
		float64(sent.packets)/each, float64(sent.bytes-sent.streams)/float64(sent.packets), float64(sent.streams)/each/1000, 100*used.Seconds()/each)
	fmt.Fprintf(out, "loads are %.2f s old (mean), %.2f s (p99), %.2f s (oldest of %d)\n", (sum / time.Duration(len(ages))).Seconds(),
		ages[len(ages)*99/100].Seconds(), ages[len(ages)-1].Seconds(), len(ages))

	killed := time.Now()
	last := len(m.running) - 1
	if err := m.running[last].Close(); err != nil {
		return err
	}
	m.running = m.running[:last]
	if err := m.until(ctx, last); err != nil {
		return err
	}
	fmt.Fprintf(out, "all know of a failure after %.1f s\n", time.Since(killed).Seconds())
	if rate > m.limit {
		return fmt.Errorf("an agent sends %.1f kB/s, want at most %.1f", rate, m.limit)
	}
	return nil
}

// until waits until every agent sees n members.
func (m *measurement) until(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, fmt.Errorf("not all agents see %d members after two minutes", n))
	defer cancel()
	for slices.ContainsFunc(m.running, func(g *gossip.Gossip) bool { return g.Stats().Members != n }) {
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// tell has g say what time it is, at first after a delay.
func (m *measurement) tell(ctx context.Context, g *gossip.Gossip, delay time.Duration) {
	for ; sleep(ctx, delay) == nil; delay = time.Second {
		load := make([]byte, m.load)
		binary.BigEndian.PutUint64(load, uint64(time.Now().UnixNano()))
		if err := g.SetLoad(load); err != nil {
			fmt.Fprintf(os.Stderr, "gossip-scale: %v\n", err)
			return
		}
	}
}

// ages are how old the agents' loads of each other are. One that is missing
// counts as a minute.
func (m *measurement) ages() []time.Duration {
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

// traffic is what agents sent.
type traffic struct {
	packets int64
	bytes   int64 // without headers
	streams int64 // the part of bytes in streams
}

func (t traffic) minus(o traffic) traffic {
	return traffic{t.packets - o.packets, t.bytes - o.bytes, t.streams - o.streams}
}

func (m *measurement) traffic() traffic {
	var t traffic
	for _, g := range m.running {
		s := g.Stats()
		t.packets += s.PacketsSent
		t.bytes += s.PacketBytesSent + s.StreamBytesSent
		t.streams += s.StreamBytesSent
	}
	return t
}

// processorTime is what this process used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
