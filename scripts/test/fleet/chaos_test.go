//go:build fleet

package fleet

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/scripts/test/harness"
)

// chaosModels are the models that are served, with their shares of the queries.
var chaosModels = map[string]float64{"dien": 1, "wnd": 1, "rm2": 2}

var stormTime = flag.Duration("for", 0,
	"how long events happen in TestChaos (default 10m, with -short 10s)")

// A chaos is a run of this scenario. The loop in storm owns all that events change.
type chaos struct {
	*run
	ctx     context.Context
	size    int           // agents
	load    float64       // of the fluid limit
	every   time.Duration // the mean time between two events
	lasts   time.Duration // how long events happen
	fleet   *harness.Fleet
	agents  []*agent
	sdk     *client.Client
	driver  *harness.Driver
	rate    float64   // queries/s
	begun   time.Time // when the storm began
	network *harness.Network

	todo       chan func()    // what the loop is to call
	pending    int            // events and work that have begun and not ended
	happened   uint64         // how many events were drawn
	counts     map[string]int // of events, by name
	leader     string
	rotating   bool      // the gossip key is being changed
	draining   int       // agents that drain, or have drained
	certifying bool      // certificates are being changed
	looked     time.Time // when look was called last
}

// testChaos disturbs a fleet at random for ten minutes, as the seed says. Agents are killed,
// frozen, slowed, cut off (as root, in network namespaces), drained and restarted, and the gossip
// key and certificates are changed. Meanwhile twelve agents serve three models, at half of their
// fluid limit, to three kinds of clients: the SDK, plain gRPC and plain REST.
//
// Wanted: every query is answered, or refused with a reason; none is answered wrongly or twice. No
// agent ends by itself or logs an error. Afterwards the fleet is whole, answers everything, has one
// gossip key, shows the certificates in its files, and uses no more goroutines, descriptors and
// memory than before. The short form has six agents at 0.3 of their limit, for ten seconds.
func (r *run) testChaos(ctx context.Context) error {
	c := &chaos{
		run: r, ctx: ctx, size: pick(r, 12, 6), load: pick(r, 0.5, 0.3),
		every: pick(r, 2*time.Second, time.Second),
		lasts: cmp.Or(*stormTime, pick(r, 10*time.Minute, 10*time.Second)),
		todo:  make(chan func()), counts: map[string]int{},
	}
	if err := harness.Unshare(); err != nil { // returns nil in the new process only
		r.printLine("No agent will be cut off: %v", err)
	} else if c.network, err = harness.NewNetwork(c.size); err != nil {
		return err
	} else {
		r.atEnd = append(r.atEnd, func() {
			if err := c.network.Remove(); err != nil {
				r.printLine("%v", err)
			}
		})
	}
	if err := c.startAgents(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	r.printLine("seed %d; %d agents; %.0f queries/s, %.2f of their fluid limit; logs in %s", r.seed,
		c.size, c.rate, c.load, r.dir)
	// After this, agents have the goroutines and the memory that they need under load.
	if _, err := c.driver.Run(ctx, c.calmLoad()); err != nil {
		return err
	}
	before, err := c.measureUsages()
	if err != nil {
		return err
	}
	c.begun = time.Now()
	if err := c.runStorm(); err != nil {
		return err
	}
	return c.reportFindings(before)
}

// calmLoad is the load before and after the storm.
func (c *chaos) calmLoad() harness.Load {
	return harness.Load{
		Rate: c.rate, Duration: pick(c.run, 5*time.Second, 2*time.Second), Seed: c.seed,
	}
}

// startAgents starts the agents: a quarter are g4dn.xlarge, a third c5n.2xlarge, the others
// r5n.large.
func (c *chaos) startAgents() (err error) {
	if c.fleet, err = c.newFleet(c.ctx, slices.Sorted(maps.Keys(chaosModels))...); err != nil {
		return err
	}
	// The plain client that speaks REST asks a draining agent as long as it answers.
	c.fleet.Args = append(c.fleet.Args, "--drain-timeout", "2s")
	clients, err := os.Create(filepath.Join(c.dir, "clients.log"))
	if err != nil {
		return err
	}
	c.atEnd = append(c.atEnd, func() { clients.Close() })
	log := slog.New(slog.NewTextHandler(clients, nil))
	if c.fleet.Certificates, err = harness.NewCertificates(c.ctx, c.muster, c.dir, log,
		"sdk"); err != nil {
		return err
	}
	c.fleet.Network = c.network
	types := pool((c.size+3)/4, c.size-(c.size+3)/4)
	for i := range c.size / 3 {
		types[len(types)-1-i] = "c5n.2xlarge"
	}
	order := rand.New(rand.NewPCG(c.seed, 0))
	order.Shuffle(len(types), func(a, b int) { types[a], types[b] = types[b], types[a] })
	if err := c.start(c.ctx, c.fleet, types); err != nil {
		return err
	}
	for i, n := range c.fleet.Nodes {
		c.agents = append(c.agents, &agent{Node: n, spared: i < c.size/4})
	}
	limit, err := harness.FluidLimit(c.ctx, c.muster, harness.Pool(types), chaosModels)
	c.rate = c.load * limit
	return err
}

// connect makes the clients. Each of the two plain ones has the addresses of one half of the
// agents. That is more than are in trouble at a time.
func (c *chaos) connect() error {
	var addresses [2][]string
	for i, a := range c.agents {
		addresses[i%2] = append(addresses[i%2], []string{a.GRPC, a.HTTP}[i%2])
	}
	config, err := c.fleet.Certificates.TLS(harness.Admin)
	if err != nil {
		return err
	}
	grpc, err := harness.NewPlainGRPC(addresses[0], config)
	if err != nil {
		return err
	}
	rest := harness.NewPlainREST(addresses[1], config)
	c.atEnd = append(c.atEnd, grpc.Close, rest.Close)
	options, err := c.fleet.Certificates.DialOptions("sdk")
	if err != nil {
		return err
	}
	if c.sdk, err = c.newClient(c.fleet.Addresses()[:3],
		client.WithDialOptions(options...)); err != nil {
		return err
	}
	c.driver, err = harness.NewDriver(c.ctx, c.sdk, chaosModels, harness.Patience,
		harness.Client{Name: "SDK", Share: 4, Infer: c.sdk.Infer},
		harness.Client{Name: "plain gRPC", Share: 2, Infer: grpc.Infer},
		harness.Client{Name: "plain REST", Share: 1, Infer: rest.Infer})
	return err
}

// runStorm starts the load and lets events happen. It returns when the load and all events have
// ended.
func (c *chaos) runStorm() error {
	c.looked = c.begun
	if err := c.driver.Start(c.ctx,
		harness.Load{Rate: c.rate, Duration: c.lasts, Seed: c.seed}); err != nil {
		return err
	}
	c.runInBackground(func() error { _, err := c.driver.Wait(); return err }, func(err error) {
		if err != nil {
			c.fail("%v", err)
		}
	})
	order := rand.New(rand.NewPCG(c.seed, 0))
	next := time.NewTimer(c.every)
	look := time.NewTicker(50 * time.Millisecond)
	defer next.Stop()
	defer look.Stop()
	for c.pending > 0 {
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case f := <-c.todo:
			f()
		case <-look.C:
			c.observeFleet()
		case <-next.C:
			if time.Since(c.begun) < c.lasts-c.every {
				c.startRandomEvent()
				next.Reset(seconds(order, 0.1, 1.9) * c.every / time.Second)
			}
		}
	}
	return nil
}

// printEvent prints an event, with its time.
func (c *chaos) printEvent(format string, args ...any) {
	c.printLine("%7.1f s  %s", time.Since(c.begun).Seconds(), fmt.Sprintf(format, args...))
}

// fail prints something that must not happen, and counts it as missed.
func (c *chaos) fail(format string, args ...any) {
	c.printEvent("%s", missed+": "+fmt.Sprintf(format, args...))
	c.missed = append(c.missed, fmt.Sprintf(format, args...))
}

// measureUsages returns the usage of each agent, and as the last one that of this process: its
// goroutines.
func (c *chaos) measureUsages() ([]harness.Usage, error) {
	all, err := c.fleet.Usages(c.ctx)
	return append(all, harness.Usage{Goroutines: runtime.NumGoroutine()}), err
}

// reportFindings examines the fleet after the storm, and prints what was found and what was wanted.
func (c *chaos) reportFindings(before []harness.Usage) error {
	c.printLine("Calm again")
	ended := c.begun.Add(c.lasts) // when the load ended
	whole := c.fleet.WaitAgreed(c.ctx)
	key := c.changeKeyInCalm()
	calm := time.Now()
	if _, err := c.driver.Run(c.ctx, c.calmLoad()); err != nil {
		return err
	}
	was, is, clients, err := c.awaitFlat(before)
	if err != nil {
		return err
	}
	var shown error // agents read changed files within a second, so by now they have
	for _, a := range c.agents {
		shown = errors.Join(shown, c.fleet.Certificates.Shown(a.Node))
	}
	logs, err := c.fleet.ReadLogs()
	if err != nil {
		return err
	}
	queries, err := os.Create(filepath.Join(c.dir, "queries.csv"))
	if err != nil {
		return err
	}
	if err := errors.Join(c.driver.WriteCSV(queries, c.begun), queries.Close()); err != nil {
		return err
	}

	var happened []string
	for _, name := range slices.Sorted(maps.Keys(c.counts)) {
		happened = append(happened, fmt.Sprintf("%s %d", name, c.counts[name]))
	}
	c.printLine("\n%s; elections %d\n", strings.Join(happened, ", "), logs.Elections)
	if err := c.driver.Write(c.out, c.begun, ended); err != nil {
		return err
	}
	c.printLine("\nWarnings in the agents' logs:")
	for _, what := range slices.SortedFunc(maps.Keys(logs.Warnings),
		func(x, y string) int { return logs.Warnings[y] - logs.Warnings[x] }) {
		c.printLine("  %5d  %s", logs.Warnings[what], what)
	}
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nat most\tgoroutines\tdescriptors\tmemory, MB")
	fmt.Fprintf(t, "before\t%d\t%d\t%d\nafter\t%d\t%d\t%d\n", was.Goroutines, was.Descriptors,
		was.Memory, is.Goroutines, is.Descriptors, is.Memory)
	if err := t.Flush(); err != nil {
		return err
	}
	c.printLine("")
	all, after := c.driver.Between(c.begun, calm), c.driver.Between(calm, time.Now())
	accounted, failed := c.driver.Between(time.Time{}, time.Now()).Queries, all.Failed+all.Robbed
	c.checkWanted(accounted == c.driver.Sent(), "%d of %d queries have an outcome, want all",
		accounted,
		c.driver.Sent())
	c.checkWanted(failed == 0, "%d of %d queries failed, want none", failed, all.Queries)
	c.checkWanted(all.Wrong+after.Wrong == 0, "%d answers were wrong, want none",
		all.Wrong+after.Wrong)
	c.checkWanted(c.driver.Twice() == 0, "%d queries were answered twice, want none",
		c.driver.Twice())
	c.checkWanted(after.OnTime+after.Late == after.Queries,
		"%d of %d queries answered afterwards, want all", after.OnTime+after.Late, after.Queries)
	c.checkWanted(len(logs.Errors) == 0, "%d errors in logs, want none %v", len(logs.Errors),
		logs.Errors)
	c.wantNil(whole, "afterwards the fleet is whole, with one leader")
	c.wantNil(key, "the gossip key is changed once more, and all agents have only the new one")
	c.wantNil(shown, "agents show the certificates in the files")
	most := allowed(was)
	c.checkWanted(is.Goroutines <= most.Goroutines, "%d goroutines of an agent, want at most %d",
		is.Goroutines, most.Goroutines)
	c.checkWanted(is.Descriptors <= most.Descriptors, "%d descriptors of an agent, want at most %d",
		is.Descriptors, most.Descriptors)
	c.checkWanted(is.Memory <= most.Memory, "%d MB of an agent, want at most %d", is.Memory,
		most.Memory)
	c.checkWanted(clients <= c.allowedClients(before),
		"%d goroutines of the clients, want at most %d",
		clients, c.allowedClients(before))
	return nil
}

// changeKeyInCalm changes the gossip key. If the leader of an earlier rotation died, its agents
// wait for it for a while and refuse another; so this tries for 90 s.
func (c *chaos) changeKeyInCalm() error {
	for end := time.Now().Add(90 * time.Second); ; {
		err := c.rotateKey(c.agents[0])
		if err == nil {
			return c.oneKey()
		}
		if time.Now().After(end) {
			return fmt.Errorf("not changed within 90 s: %w", err)
		}
		if err := harness.Settle(c.ctx, time.Second); err != nil {
			return err
		}
	}
}

// oneKey is nil if all agents have the same gossip key and no other, in memory and in their files.
func (c *chaos) oneKey() error {
	conn, err := c.fleet.Dial(c.ctx, c.agents[0].Node)
	if err != nil {
		return err
	}
	list, err := control.NewControlClient(conn).ListKeys(c.ctx, &control.ListKeysRequest{})
	if err != nil {
		return err
	}
	var faults []error
	if n := len(list.GetAgents()); n != c.size {
		faults = append(faults, fmt.Errorf("%d agents answer, want %d", n, c.size))
	}
	for _, keys := range list.GetAgents() {
		if prints := keys.GetFingerprints(); keys.GetFault() != "" || len(prints) != 1 ||
			prints[0] != list.GetAgents()[0].GetFingerprints()[0] {
			faults = append(faults,
				fmt.Errorf("%s holds %v %s", keys.GetAgent(), prints, keys.GetFault()))
		}
	}
	files := map[string]bool{}
	for i := range c.agents {
		text, err := os.ReadFile(c.fleet.Certificates.GossipKey(i))
		if err != nil {
			return err
		}
		files[string(text)] = true
	}
	if len(files) != 1 {
		faults = append(faults, fmt.Errorf("the key files have %d different contents", len(files)))
	}
	return errors.Join(faults...)
}

// allowed is what an agent may use in the end, if u is the most that one used in the beginning.
func allowed(u harness.Usage) harness.Usage {
	return harness.Usage{
		Goroutines: u.Goroutines*5/4 + 20, Descriptors: u.Descriptors*5/4 + 10,
		Memory: 2*u.Memory + 64,
	}
}

// allowedClients is how many goroutines the clients may have in the end. It is more than before,
// because without a leader the SDK opens streams to agents, and keeps them.
func (c *chaos) allowedClients(before []harness.Usage) int {
	return before[c.size].Goroutines + 20 + 5*c.size
}

// awaitFlat returns the most that an agent used before and uses now, and the clients' goroutines.
// It waits until these are within what is allowed, for a minute at most: what a former leader or a
// connection needed is freed only after a while.
func (c *chaos) awaitFlat(before []harness.Usage) (was, is harness.Usage, clients int, err error) {
	for end := time.Now().Add(time.Minute); ; {
		after, err := c.measureUsages()
		if err != nil {
			return was, is, 0, err
		}
		was, is, clients = harness.Usage{}, harness.Usage{}, after[c.size].Goroutines
		for i := range c.size {
			was, is = was.Most(before[i]), is.Most(after[i])
		}
		most := allowed(was)
		flat := is.Goroutines <= most.Goroutines && is.Descriptors <= most.Descriptors &&
			clients <= c.allowedClients(before)
		if flat || time.Now().After(end) {
			return was, is, clients, nil
		}
		if err := harness.Settle(c.ctx, time.Second); err != nil {
			return was, is, clients, err
		}
	}
}
