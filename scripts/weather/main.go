// Command weather runs a fleet of emulated agents, each a process, while
// agents are killed, frozen, slowed, cut off, drained and started anew and keys and
// certificates change, at random, and clients of three kinds send queries. It
// accounts for every query and prints what it found beside what was wanted. It
// exits with 1 if something was missed, and keeps the logs then.
//
//	go run ./scripts/weather                        ten minutes
//	go run ./scripts/weather --for 1m --seed 7      the same again, as far as processes take turns again
//
// `make build` first. As root the agents are in network namespaces of their own;
// otherwise nobody is cut off. Nothing leaves the namespaces, or loopback.
package main

import (
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/scripts/process"
	"github.com/muster-serve/muster/sim/workload"
)

// A weather is a run. Its loop (storm) owns what events change.
type weather struct {
	binary   string
	duration time.Duration
	seed     uint64
	size     int           // agents
	load     float64       // of the fluid limit
	every    time.Duration // something happens, about
	level    string        // of the agents' logs
	keep     bool

	ctx     context.Context
	dir     string // of this run
	log     *slog.Logger
	queries *csv.Writer // of all ledgers, one at a time
	order   *rand.Rand
	network *process.Network // nil: nobody can be cut off
	fleet   *process.Fleet
	agents  []*agent
	limit   float64 // the fluid limit, queries/s
	clients
	http       *http.Client
	disconnect func()
	targets    map[string]time.Duration
	start      time.Time // of the storm

	todo       chan func() // for the loop
	pending    int         // things that have begun and not ended
	happened   uint64
	counts     map[string]int // events, by name
	leader     string
	rotating   bool // the gossip key is being changed
	draining   int  // agents that drain, or have drained
	certifying bool // certificates are being changed
	broken     []string
	looked     time.Time // when the loop last did

	screen screen
}

func main() {
	runtime.LockOSThread() // agents are stopped when the thread that started them ends
	w := weather{todo: make(chan func()), counts: map[string]int{}}
	flag.StringVar(&w.binary, "muster", "bin/muster", "the binary to try")
	flag.DurationVar(&w.duration, "for", 10*time.Minute, "how long things happen")
	flag.Uint64Var(&w.seed, "seed", 0, "what happens; 0: something new")
	flag.IntVar(&w.size, "agents", 12, "how many agents there are")
	flag.Float64Var(&w.load, "load", 0.5, "queries, as a share of the fluid limit")
	flag.StringVar(&w.level, "log-level", "info", "of the agents")
	flag.BoolVar(&w.keep, "keep", false, "keep the logs, whatever is found")
	flag.DurationVar(&w.every, "every", 2*time.Second, "how often something happens, about")
	flag.Parse()
	if flag.NArg() > 0 || w.size < 4 || w.size > 200 || w.duration < time.Second || !(w.load > 0 && w.load <= 2) {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/weather [flags], with at least 4 agents")
		flag.PrintDefaults()
		os.Exit(2)
	}
	apart := process.Unshare() // this process anew, where it returns nil
	if w.seed == 0 {
		w.seed = uint64(rand.Uint32())
	}
	fmt.Printf("seed %d\n", w.seed)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	w.ctx = ctx
	err := w.run(apart)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "weather: %v\n", err)
	}
	if err != nil || len(w.broken) > 0 {
		fmt.Printf("logs of the agents are in %s; again: go run ./scripts/weather --for %v --agents %d --load %g --seed %d\n", w.dir, w.duration, w.size, w.load, w.seed)
		os.Exit(1)
	}
}

func (w *weather) run(apart error) (err error) {
	if w.binary, err = filepath.Abs(w.binary); err != nil {
		return err
	}
	if w.dir, err = os.MkdirTemp("", "muster-weather-"); err != nil {
		return err
	}
	logs, err := os.Create(filepath.Join(w.dir, "clients.log"))
	if err != nil {
		return err
	}
	defer logs.Close()
	queries, err := os.Create(filepath.Join(w.dir, "queries.csv"))
	if err != nil {
		return err
	}
	defer queries.Close()
	w.queries = csv.NewWriter(queries)
	defer w.queries.Flush()
	_ = w.queries.Write([]string{"id", "client", "model", "batch_size", "sent_s", "latency_ms", "outcome", "error"})
	w.log = slog.New(slog.NewTextHandler(logs, nil))
	w.order = rand.New(rand.NewPCG(w.seed, 0))
	w.screen.terminal = term.IsTerminal(int(os.Stdout.Fd()))
	if apart != nil {
		fmt.Printf("nobody is cut off: %v\n", apart)
	} else {
		if w.network, err = process.NewNetwork(w.size); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.network.Remove()) }()
	}
	defer func() {
		if w.fleet != nil {
			w.fleet.Stop()
		}
	}()
	if err := w.begin(w.ctx); err != nil {
		return err
	}
	defer w.disconnect()
	fmt.Printf("%d agents; %.0f queries/s, %.2f of their fluid limit; logs in %s\n", w.size, w.load*w.limit, w.load, w.dir)
	models, before, err := w.warmUp()
	if err != nil {
		return err
	}
	ledger, ended, err := w.storm(models)
	if err != nil {
		return err
	}
	return w.report(models, before, ledger, ended)
}

// aside is how long the loads before and after the storm last.
const aside = 5 * time.Second

// warmUp has all clients send queries, and returns what agents take after that.
func (w *weather) warmUp() (models []*bench.Model, before []usage, err error) {
	w.targets = map[string]time.Duration{}
	l := w.newLedger("before")
	for _, name := range w.fleet.Models {
		m, err := bench.NewModel(w.ctx, l, name, bench.ModelOptions{LargestBatchSize: workload.Trace().Largest(), Timeout: patience, Seed: w.seed})
		if err != nil {
			return nil, nil, err
		}
		models, w.targets[name] = append(models, m), m.QoSTarget
	}
	if err := w.drive(l, models, aside, nil); err != nil {
		return nil, nil, err
	}
	before, err = w.usages(w.ctx)
	return models, before, err
}

// drive sends queries for a while and waits for all answers.
func (w *weather) drive(l *ledger, models []*bench.Model, long time.Duration, progress func(bench.Progress)) error {
	arrivals, err := workload.ParseArrivals("poisson", w.load*w.limit)
	if err != nil {
		return err
	}
	var loads []workload.Load
	for _, m := range models {
		loads = append(loads, workload.Load{Model: m.Name, Share: float64(share[m.Name]), BatchSizes: workload.Trace()})
	}
	queries, err := workload.Queries(w.seed, arrivals, loads...)
	if err != nil {
		return err
	}
	_, err = bench.Run(w.ctx, l, models, bench.Config{Queries: queries, Duration: long, Progress: progress})
	return err
}

// storm has things happen under load. It returns when they have all ended.
func (w *weather) storm(models []*bench.Model) (l *ledger, ended time.Time, err error) {
	l = w.newLedger("storm")
	w.start, w.looked = l.start, l.start
	driven := make(chan error, 1)
	w.pending++
	go func() {
		driven <- w.drive(l, models, w.duration, w.screen.progress)
		w.todo <- func() { w.pending-- }
	}()
	next := time.NewTimer(w.every)
	look := time.NewTicker(50 * time.Millisecond)
	defer next.Stop()
	defer look.Stop()
	for w.pending > 0 {
		select {
		case <-w.ctx.Done():
			return nil, ended, w.ctx.Err()
		case f := <-w.todo:
			f()
		case <-look.C:
			w.look()
		case <-next.C:
			if time.Since(w.start) < w.duration-2*time.Second {
				w.happen()
				next.Reset(seconds(w.order, 0.1, 1.9) * w.every / time.Second)
			}
		}
	}
	w.screen.clear()
	return l, w.start.Add(w.duration), <-driven
}

// say prints what happens.
func (w *weather) say(format string, args ...any) {
	w.screen.line(fmt.Sprintf("%7.1f s  %s", time.Since(w.start).Seconds(), fmt.Sprintf(format, args...)))
}

// fail notes something that must not be.
func (w *weather) fail(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	w.say("MISSED: %s", what)
	w.broken = append(w.broken, what)
}

// report finds out how the fleet is in calm weather, and prints everything.
func (w *weather) report(models []*bench.Model, before []usage, storm *ledger, ended time.Time) error {
	fmt.Println("\nCalm again")
	whole := w.agreed(w.ctx)
	key := w.changeKeyInCalm()
	calm := w.newLedger("calm")
	if err := w.drive(calm, models, aside, nil); err != nil {
		return err
	}
	after, err := w.awaitFlat(w.ctx, before)
	if err != nil {
		return err
	}
	var shown error // agents look at their files every second: by now they have
	for _, a := range w.agents {
		shown = errors.Join(shown, w.shown(a))
	}
	logs, err := w.readLogs()
	if err != nil {
		return err
	}

	var happened []string
	for _, name := range slices.Sorted(maps.Keys(w.counts)) {
		happened = append(happened, fmt.Sprintf("%s %d", name, w.counts[name]))
	}
	fmt.Printf("\n%s; elections %d\n\n", strings.Join(happened, ", "), logs.elections)
	if err := storm.write(os.Stdout, ended); err != nil {
		return err
	}
	fmt.Println("\nbefore, and after:")
	if err := w.writeUsages(os.Stdout, before, after); err != nil {
		return err
	}
	fmt.Println()
	logs.write(os.Stdout)

	was, is := most(before[:w.size]), most(after[:w.size])
	mayBe := allowed(was)
	accounted := storm.count(onTime, late, refused)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nwhat\twanted\tfound\t")
	row := func(ok bool, what, wanted, found string) {
		mark := "ok"
		if !ok {
			mark = "MISSED"
			w.broken = append(w.broken, what)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", what, wanted, found, mark)
	}
	faults := func(what string, found []string) {
		row(len(found) == 0, what, "none", fmt.Sprintf("%d", len(found)))
		w.broken = append(w.broken, found...)
	}
	said := func(what, wanted string, err error) {
		found := wanted
		if err != nil {
			found = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		row(err == nil, what, wanted, found)
	}
	broken := w.broken
	w.broken = nil
	row(accounted == storm.sent, "queries answered, or refused with a reason", fmt.Sprint(storm.sent), fmt.Sprint(accounted))
	row(storm.count(lost) == 0, "queries lost", "0", fmt.Sprint(storm.count(lost)))
	row(storm.count(wrong)+calm.count(wrong) == 0, "wrong answers", "0", fmt.Sprint(storm.count(wrong)+calm.count(wrong)))
	row(storm.twice()+calm.twice() == 0, "queries answered twice", "0", fmt.Sprint(storm.twice()+calm.twice()))
	answered := calm.count(onTime, late)
	row(answered == calm.sent, "queries answered afterwards", fmt.Sprint(calm.sent), fmt.Sprint(answered))
	faults("agents that ended, or did not come back", broken)
	faults("errors in logs", logs.errors)
	said("the fleet afterwards", "whole, one leader", whole)
	said("the gossip key afterwards", "changed once more, the only one", key)
	said("certificates", "those in the files", shown)
	bounded := func(what string, is, most int) {
		row(is <= most, what, fmt.Sprintf("at most %d", most), fmt.Sprint(is))
	}
	bounded("goroutines of an agent", is.goroutines, mayBe.goroutines)
	bounded("descriptors of an agent", is.descriptors, mayBe.descriptors)
	bounded("memory of an agent, MB", is.memory, mayBe.memory)
	bounded("goroutines of the clients", after[w.size].goroutines, w.allowedClients(before))
	if err := t.Flush(); err != nil {
		return err
	}
	if len(w.broken) > 0 {
		fmt.Printf("\nmissed:\n  %s\n", strings.Join(w.broken, "\n  "))
		return nil
	}
	fmt.Println("\nall as wanted")
	if w.keep {
		return nil
	}
	return os.RemoveAll(w.dir)
}

// changeKeyInCalm changes the gossip key, which must work as soon as those who
// took part in a rotation that has died do not wait for it any more.
func (w *weather) changeKeyInCalm() error {
	const bound = 90 * time.Second
	for end := time.Now().Add(bound); ; {
		err := w.rotate(w.agents[0])
		if err == nil {
			return w.oneKey(w.ctx)
		}
		if time.Now().After(end) {
			return fmt.Errorf("not changed within %v: %w", bound, err)
		}
		select {
		case <-time.After(time.Second):
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
}

// A screen has lines that stay and, below them, how far things are: on a terminal
// in place, else a line every ten seconds.
type screen struct {
	terminal bool

	mu    sync.Mutex
	shown time.Time
}

const clearLine = "\r\x1b[K"

func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		fmt.Print(clearLine)
	}
	fmt.Println(text)
}

func (s *screen) progress(p bench.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.terminal:
		fmt.Printf("%s  (%v)", clearLine, p)
	case time.Since(s.shown) > 10*time.Second-100*time.Millisecond:
		s.shown = time.Now()
		fmt.Printf("           (%v)\n", p)
	}
}

func (s *screen) clear() {
	if s.terminal {
		fmt.Print(clearLine)
	}
}
