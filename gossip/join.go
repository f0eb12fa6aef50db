package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Without another member the seeds are tried after firstRetry, then twice as
	// long each time, up to rejoinInterval; with others every rejoinInterval.
	firstRetry     = 500 * time.Millisecond
	rejoinInterval = 15 * time.Second
	// failedTries is how many members that failed are tried each time, at random:
	// one that answers brings all it knows.
	failedTries = 4
	// parallelJoins bounds how many addresses are tried at once.
	parallelJoins = 8
	// A wait for tick that takes pause longer means that this process was stopped.
	// The others have taken it for dead and forgotten it by the time they hear of
	// it, so it joins some of them anew.
	tick        = 500 * time.Millisecond
	pause       = 2 * time.Second
	resumeTries = 3

	resolveTimeout = 5 * time.Second
)

// join joins the seeds, and rejoins lost members, until the context ends.
func (g *Gossip) join(ctx context.Context) {
	ready := sync.OnceFunc(func() { close(g.ready) })
	defer ready()
	retry := firstRetry
	again := false // members may have been missed
	for {
		g.joinAll(ctx, g.targets(ctx, again), ready)
		ready()
		wait := rejoinInterval
		if g.count.Load() > 1 {
			retry = firstRetry
		} else {
			wait, retry = retry, min(2*retry, rejoinInterval)
		}
		// Agents that started together need not all call at the same time.
		wait += time.Duration((rand.Float64() - 0.5) * 0.5 * float64(wait))
		resumed, ok := g.sleep(ctx, wait)
		if !ok {
			return
		}
		g.mu.Lock()
		again = resumed || g.strangers > 0
		g.mu.Unlock()
	}
}

// sleep waits for d, less if somebody is to be joined, or if this process was stopped
// meanwhile, which resumed tells. It is not ok once the context ended.
func (g *Gossip) sleep(ctx context.Context, d time.Duration) (resumed, ok bool) {
	for end := time.Now().Add(d); ; {
		before := time.Now()
		step := min(end.Sub(before), tick)
		if step <= 0 {
			return false, true
		}
		select {
		case <-time.After(step):
		case <-g.rejoin:
			return false, true
		case <-ctx.Done():
			return false, false
		}
		if time.Since(before) > step+pause {
			return true, true
		}
	}
}

// A target is an address to join by.
type target struct {
	addr netip.AddrPort
	what string // the seed as configured, or the member
}

// targets are where others may be that are not members now, and where members may have been
// missed some members too. Seeds that have no address are logged.
func (g *Gossip) targets(ctx context.Context, missed bool) []target {
	var targets []target
	for _, seed := range g.config.Seeds {
		host, port, err := splitHostPort(seed, DefaultPort)
		var addrs []netip.Addr
		if err == nil {
			addrs, err = lookup(ctx, g.config, host)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// A resolver that cannot be reached is told with the port that asked it, another each
			// time.
			g.faults.logAs("no address "+seed+withoutNumbers(err.Error()), slog.LevelWarn,
				"gossip: seed has no address, will be tried again",
				"seed", seed, "error", err)
			continue
		}
		for _, addr := range addrs {
			targets = append(targets, target{netip.AddrPortFrom(addr, port), seed})
		}
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	known := map[netip.AddrPort]bool{g.advertise: true}
	for _, e := range g.members {
		known[e.Addr] = true
	}
	g.forgetFailed()
	failed := slices.Collect(maps.Values(g.failed))
	rand.Shuffle(len(failed), func(i, j int) { failed[i], failed[j] = failed[j], failed[i] })
	for _, f := range failed[:min(len(failed), failedTries)] {
		targets = append(targets, target{f.Addr, f.Name})
	}
	for name, addr := range g.vouched {
		targets = append(targets, target{addr, name})
	}
	targets = slices.DeleteFunc(targets, func(t target) bool {
		was := known[t.addr]
		known[t.addr] = true
		return was
	})
	if missed {
		tries := resumeTries
		for _, e := range g.members { // in random order
			if tries > 0 && e.Name != g.config.Name && !e.stranger {
				targets = append(targets, target{e.Addr, e.Name})
				tries--
			}
		}
	}
	return targets
}

// Unseen are the seeds at whose addresses there is no member now, nor this agent.
func (g *Gossip) Unseen(ctx context.Context) []string {
	var unseen []string
	for _, seed := range g.config.Seeds {
		host, port, err := splitHostPort(seed, DefaultPort)
		var addrs []netip.Addr
		if err == nil {
			addrs, err = lookup(ctx, g.config, host)
		}
		here := func(addr netip.Addr) bool {
			at := netip.AddrPortFrom(addr, port)
			return at == g.advertise ||
				slices.ContainsFunc(g.Members(), func(m Member) bool { return m.Addr == at })
		}
		if err != nil || !slices.ContainsFunc(addrs, here) {
			unseen = append(unseen, seed)
		}
	}
	return unseen
}

// joinAll tries the targets and waits for all of them; joined is called as soon
// as one brings another member.
func (g *Gossip) joinAll(ctx context.Context, targets []target, joined func()) {
	defer func() { // who did not let itself be joined is to be vouched for again
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, t := range targets {
			delete(g.vouched, t.what)
		}
	}()
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallelJoins)
	for _, t := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			before := g.count.Load()
			_, err := g.list.Join([]string{t.addr.String()})
			after := g.count.Load()
			switch {
			case ctx.Err() != nil:
			case err != nil && slices.Contains(g.config.Seeds, t.what):
				reason := explain(err, t.addr)
				g.faults.logAs(fmt.Sprint("join ", t, withoutNumbers(reason)), slog.LevelWarn,
					"gossip: cannot join by seed, will try again",
					"seed", t.what, "addr", t.addr, "reason", reason)
			case err != nil: // a member that failed: it was said when it did
			case after > 1:
				joined()
				if after > before {
					g.config.Logger.Info("gossip: joined", "by", t.what, "addr", t.addr, "members",
						after)
				}
			}
		})
	}
	wg.Wait()
}

// lookup is the addresses of a host, at least one, IPv4 first.
func lookup(ctx context.Context, config Config, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := config.Resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no address of host %q", host)
	}
	addrs = slices.Clone(addrs)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return addrs, nil
}

// explain says what an error of memberlist's Join by one address means for who
// reads the log. memberlist's errors have no types.
func explain(err error, addr netip.AddrPort) string {
	text := err.Error()
	if _, cause, ok := strings.Cut(text, addr.String()+": "); ok {
		text = cause
	}
	text = strings.TrimSpace(text)
	for _, known := range joinErrors {
		if strings.Contains(text, known.has) {
			return known.means
		}
	}
	return text
}

var joinErrors = []struct{ has, means string }{
	{"no installed keys could decrypt", "its gossip key is not one of ours"},
	{"remote state is encrypted and encryption is not configured",
		"it asks for a gossip key, and this agent has none"},
	{"encryption is configured but remote state is not encrypted",
		"it has no gossip key, or it is not an agent"},
	{"connection refused", "nothing listens there"},
	{"i/o timeout", "it does not answer in time"},
	{"unsupported encryption version", "it is not an agent"},
	{"connection reset", "it closed the connection: it may not be an agent, or be overloaded"},
	{"EOF", "it closed the connection: it may not be an agent, or be overloaded"},
}
