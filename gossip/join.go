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
	// Without another member, join tries the seeds again after firstRetry, and doubles the wait
	// each time up to rejoinInterval. With other members, it tries them every rejoinInterval.
	// Chosen: agents that start together find each other in a second, and the two sides of a mended
	// partition in a quarter of a minute at four tries a minute.
	firstRetry     = 500 * time.Millisecond
	rejoinInterval = 15 * time.Second
	// failedTries is how many failed members, chosen at random, are tried each time: a single one
	// that answers sends all members that it knows.
	failedTries = 4
	// parallelJoins bounds how many addresses are tried at once. Chosen: addresses that do not
	// answer take seconds each, and eight joins at once bring eight whole states.
	parallelJoins = 8
	// If a wait of tick takes longer than tick+pause, this process was suspended. By then the
	// others have declared it dead and forgotten it, so it joins resumeTries of them again.
	tick        = 500 * time.Millisecond
	pause       = 2 * time.Second
	resumeTries = 3

	resolveTimeout = 5 * time.Second
	// resolveRounds is how often this agent looks for seeds without an address before it goes on
	// without them. Chosen: 3.5 s where a server of names knows none of them, such as those of a
	// Kubernetes Service whose first pod this is, and half a minute where none answers.
	resolveRounds = 4
)

// joinAgain joins the seeds and lost members, again and again, until ctx ends.
func (g *Gossip) joinAgain(ctx context.Context) {
	ready := sync.OnceFunc(func() { close(g.ready) })
	defer ready()
	retry := firstRetry
	again := false // this agent may have missed members
	for round := 1; ; round++ {
		targets, resolved := g.joinTargets(ctx, again)
		g.joinAll(ctx, targets, ready)
		// A name that does not resolve yet may be that of all others.
		if resolved || round >= resolveRounds {
			ready()
		}
		wait := rejoinInterval
		if g.count.Load() > 1 {
			retry = firstRetry
		} else {
			wait, retry = retry, min(2*retry, rejoinInterval)
		}
		// Spread the attempts of agents that were started together.
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

// sleep waits for d, or less if g.rejoin asks for it. resumed reports that this process was
// suspended meanwhile. ok is false once ctx has ended.
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

// A target is an address to join.
type target struct {
	addr netip.AddrPort
	what string // the seed as configured, or the member's name
}

// joinTargets returns the addresses to join: seeds and failed members that are not members now,
// vouched agents and, if missed is set, some members as well. It logs seeds that cannot be
// resolved; resolved reports that there are none.
func (g *Gossip) joinTargets(ctx context.Context, missed bool) (targets []target, resolved bool) {
	resolved = true
	for _, seed := range g.config.Seeds {
		host, port, err := splitHostPort(seed, DefaultPort)
		var addrs []netip.Addr
		if err == nil {
			addrs, err = lookup(ctx, g.config, host)
		}
		if ctx.Err() != nil {
			return nil, true
		}
		if err != nil {
			resolved = false
			// The error about an unreachable resolver contains the local port, which differs each
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
	return targets, resolved
}

// Unseen returns the seeds at whose addresses there is neither a member now nor this agent. It
// blocks to resolve host names, until ctx ends.
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

// joinAll tries to join all targets, and blocks until all attempts have ended. It calls joined as
// soon as one of them brings another member.
func (g *Gossip) joinAll(ctx context.Context, targets []target, joined func()) {
	defer func() { // an agent that could not be joined needs another Vouch
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
				reason := explainJoin(err, t.addr)
				g.faults.logAs(fmt.Sprint("join ", t, withoutNumbers(reason)), slog.LevelWarn,
					"gossip: cannot join by seed, will try again",
					"seed", t.what, "addr", t.addr, "reason", reason)
			case err != nil: // a failed member: its failure has been logged
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

// lookup returns the addresses of a host, at least one, IPv4 first. It blocks for at most
// resolveTimeout.
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

// explainJoin translates an error of memberlist's Join for the log. memberlist's errors have no
// types, so it compares their text.
func explainJoin(err error, addr netip.AddrPort) string {
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

// joinErrors maps parts of memberlist's error texts to explanations.
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
