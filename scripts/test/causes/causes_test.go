//go:build fleet

package causes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
	"github.com/muster-serve/muster/scripts/test/harness"
)

var (
	musterFile = flag.String("muster", "bin/muster", "the binary to test")
	workFolder = flag.String("dir", "build/causes", "directory for models, state and logs")
	causeList  = flag.String("causes", "", "causes to seed, by name, with commas; all by default")
	roundCount = flag.Int("rounds", 1, "how many rounds of each cause")
)

// nameWithin is how soon after its seed a cause must be named first.
const nameWithin = 30 * time.Second

// A seed is a cause that can be brought about.
type seed struct {
	name  string
	want  []string // causes, one of which must be the first
	also  []string // for two at once: causes, one of which must be among the first two
	agent int      // whose name must stand beside it; less than 0: none's
	short bool     // it needs no quiet machine
	// harmless: it makes few queries late or none, and then none has to be named.
	harmless bool
	// minLate is how many late queries an answer must rest on; 0: 5.
	minLate uint64
	fleet   fleet
	// begin brings the cause about, until the function that it returns is called.
	begin func(r *round) (end func(), err error)
}

// A fleet says what runs, and what it is asked.
type fleet struct {
	agents int
	real   bool // the agents run the model; otherwise they wait as long as its profile says
	// scale is the scale of a model that runs, zoo.Small if empty.
	scale    zoo.Scale
	targetMs int
	batch    int
	rate     float64 // queries/s
	args     func(i int, r *round) []string
	plain    bool // clients ask the first agent alone
	process  bool // the client is `muster bench`
	// clientKey is the API key of the clients; empty: they have none.
	clientKey string
}

// A round is one round of one cause.
type round struct {
	*testing.T
	ctx     context.Context
	dir     string
	fleet   *harness.Fleet
	group   *group
	relays  []*relay
	client  *exec.Cmd
	driver  *fakenvidia.Driver
	restore []func()     // undo setenv
	rate    atomic.Int64 // in thousandths of queries/s

	mu      sync.Mutex
	several []string // where the time of some queries went whose cause is "several"
	stopped chan struct{}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := harness.EnterRepository(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A tally counts the rounds of a cause.
type tally struct {
	rounds, named, undisturbed, clean int
	took                              []string
}

// disturbedAbove is the share of the CPUs that others may take of a round: agents lack CPU in truth
// when they take more.
const disturbedAbove = 0.1

// TestCauses seeds each cause for some rounds. Nine of ten rounds must name it first in time. Of those
// in which no other program disturbed the agents, the healthy fleet must have named none before in
// nine of ten, and no alert of another cause may have fired.
func TestCauses(t *testing.T) {
	runtime.LockOSThread() // the kernel stops agents when the thread that started them ends
	var wanted []string
	if *causeList != "" {
		wanted = strings.Split(*causeList, ",")
	}
	for _, s := range seeds() {
		if wanted != nil && !slices.Contains(wanted, s.name) ||
			wanted == nil && testing.Short() && !s.short {
			continue
		}
		sum, skipped := tally{}, ""
		for i := range *roundCount {
			neighbours := harness.WatchNeighbours()
			o := s.run(t, i)
			if skipped = o.skipped; skipped != "" {
				break
			}
			others, stolen := neighbours.TakenShares()
			t.Logf("%-8s round %d: %s (others took %.0f %% of the CPUs)", s.name, i+1, o.said,
				100*(others+stolen))
			sum.add(&o, others+stolen > disturbedAbove)
		}
		if skipped != "" {
			t.Logf("%-8s skipped: %s", s.name, skipped)
			continue
		}
		sum.judge(t, s.name)
	}
}

// add counts a round.
func (y *tally) add(o *outcome, disturbed bool) {
	y.rounds++
	if o.named {
		y.named++
		y.took = append(y.took, fmt.Sprint(int(o.after.Seconds())))
	}
	if !disturbed {
		y.undisturbed++
		if o.quiet && len(o.alerts) == 0 {
			y.clean++
		}
	}
}

// judge fails the test if the cause was named too rarely, or others were.
func (y *tally) judge(t *testing.T, name string) {
	t.Logf("%-8s named first in %d of %d rounds, after %s s; %d of %d undisturbed rounds were healthy "+
		"before and without an alert of another cause", name, y.named, y.rounds,
		strings.Join(y.took, " "), y.clean, y.undisturbed)
	if y.named*10 < y.rounds*9 {
		t.Errorf("%s: named first in %d of %d rounds, want nine of ten", name, y.named, y.rounds)
	}
	// A few rounds do not say how many of ten are clean: an alert fires on a fifth of ten late queries.
	if y.undisturbed >= 10 && y.clean*10 < y.undisturbed*9 {
		t.Errorf("%s: %d of %d undisturbed rounds were healthy before and without an alert of another "+
			"cause, want nine of ten", name, y.clean, y.undisturbed)
	}
}

// An outcome is how a round went.
type outcome struct {
	named, quiet  bool
	alerts        []string // those of other causes
	after         time.Duration
	said, skipped string
}

// alertsAfter is how soon after the seed alerts are looked at. Chosen: some tens of late queries.
const alertsAfter = 10 * time.Second

// run runs a round: the fleet is healthy for a while, and then has the cause.
func (s *seed) run(t *testing.T, number int) (o outcome) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir, err := filepath.Abs(filepath.Join(*workFolder, fmt.Sprintf("%s-%d", s.name, number)))
	if err != nil {
		t.Fatal(err)
	}
	r := &round{T: t, ctx: ctx, dir: dir, stopped: make(chan struct{})}
	defer r.stop()
	if err := r.start(&s.fleet); err != nil {
		return failedRound("did not start", err)
	}
	if err := harness.Settle(ctx, 8*time.Second); err != nil {
		return failedRound("did not settle", err)
	}
	before, err := r.why(5 * time.Second)
	o.quiet = err == nil && before.Queries > 0 && len(before.alerts()) == 0
	end, err := s.begin(r)
	if err != nil {
		return failedRound("could not be seeded", err)
	}
	defer end()
	began := time.Now()
	last := &whyReport{}
	within := nameWithin
	if s.harmless {
		within = alertsAfter
	}
	for time.Since(began) < within && !(o.named && time.Since(began) > alertsAfter) {
		if harness.Settle(ctx, time.Second) != nil {
			break
		}
		said, err := r.why(max(5*time.Second, time.Since(began).Truncate(time.Second)))
		if err != nil {
			continue // a leader that was killed says nothing
		}
		last = said
		// An answer stands once it rests on some queries.
		if !o.named && said.Late >= cmp.Or(s.minLate, 5) && s.isNamed(r, said) {
			o.named, o.after = true, time.Since(began)
		}
	}
	if s.harmless && !o.named && last.Queries > 0 && len(last.alerts()) == 0 {
		o.named, o.after = true, time.Since(began)
	}
	for _, cause := range last.alerts() {
		if !slices.Contains(s.want, cause) && !slices.Contains(s.also, cause) {
			o.alerts = append(o.alerts, cause)
		}
	}
	o.said = fmt.Sprintf("before %s; then %s", before.short(), last.short())
	if len(o.alerts) > 0 {
		o.said += fmt.Sprintf("; alerts of %s", strings.Join(o.alerts, ", "))
	}
	for _, parts := range r.readSeverals() {
		o.said += "\n    several: " + parts
	}
	if !o.named {
		o.said = "WRONG: " + o.said
	}
	return o
}

// failedRound is the outcome of a round that could not be made.
func failedRound(what string, err error) outcome {
	var why skip
	if errors.As(err, &why) {
		return outcome{skipped: why.Error()}
	}
	return outcome{said: "WRONG: " + what + ": " + err.Error()}
}

// isNamed reports whether the first cause is the wanted one.
func (s *seed) isNamed(r *round, w *whyReport) bool {
	if len(w.Causes) == 0 || !slices.Contains(s.want, w.Causes[0].Cause) {
		return false
	}
	if s.also != nil && !slices.ContainsFunc(w.Causes[:min(3, len(w.Causes))],
		func(c whyCause) bool { return slices.Contains(s.also, c.Cause) }) {
		return false
	}
	return s.agent < 0 || w.Causes[0].Agent == r.fleet.Nodes[s.agent].Name
}

// A whyReport is what `muster why --json` prints.
type whyReport struct {
	Queries  uint64     `json:"queries"`
	Late     uint64     `json:"late"`
	Sentence string     `json:"sentence"`
	Causes   []whyCause `json:"causes"`
}

type whyCause struct {
	Cause   string `json:"cause"`
	Agent   string `json:"agent"`
	Queries uint64 `json:"queries"`
}

// alerts are the causes of which the alert MusterMissesByCause of deploy/prometheus would fire if it
// went on so: that are no client's doing, by which more queries are missed than the percentile
// allows, 1 in 100, and more than a fifth of those that are missed.
func (w *whyReport) alerts() (firing []string) {
	counts := map[string]uint64{}
	for _, c := range w.Causes {
		counts[c.Cause] += c.Queries
	}
	for cause, n := range counts {
		switch cause {
		case "invalid", "cancelled", "limit", "rights":
			continue
		}
		if n*100 > w.Queries && n*5 > w.Late {
			firing = append(firing, cause)
		}
	}
	slices.Sort(firing)
	return firing
}

func (w *whyReport) short() string {
	if w == nil {
		return "unknown"
	}
	var all []string
	for _, c := range w.Causes {
		all = append(all, fmt.Sprintf("%s %s %d", c.Cause, c.Agent, c.Queries))
	}
	return fmt.Sprintf("%d of %d late [%s]", w.Late, w.Queries, strings.Join(all, ", "))
}

// why asks the first agent that answers.
func (r *round) why(last time.Duration) (w *whyReport, err error) {
	for _, n := range r.fleet.Nodes {
		if n.HasExited() {
			continue
		}
		if w, err = r.whyOf(n, last); err == nil {
			return w, nil
		}
	}
	return nil, cmp.Or(err, errors.New("no agent is left"))
}

// whyOf asks an agent.
func (r *round) whyOf(n *harness.Node, last time.Duration) (*whyReport, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second) // one that stands still does not answer
	defer cancel()
	cmd := exec.CommandContext(ctx, *musterFile, "why", "--json", "--last", last.String(), "--server",
		n.GRPC)
	if key := r.fleet.APIKey; key != "" {
		cmd.Env = append(os.Environ(), "MUSTER_API_KEY="+key)
	}
	text, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	w := &whyReport{}
	return w, json.Unmarshal(text, w)
}

// start starts the fleet and the load.
func (r *round) start(f *fleet) error {
	if err := errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755)); err != nil {
		return err
	}
	muster, err := filepath.Abs(*musterFile)
	if err != nil {
		return err
	}
	model := "dien" // one row takes long where it is emulated, so that few queries are a load
	if f.real {
		model = "wnd"
	}
	r.fleet = &harness.Fleet{Muster: muster, Dir: r.dir, Models: []string{model}}
	if f.real {
		_, err = zoo.Generate(r.ctx, filepath.Join(r.dir, "models"), model, zoo.Options{
			Scale: cmp.Or(f.scale, zoo.Small),
		})
	} else {
		r.fleet.Args = harness.Emulated()
		err = r.fleet.GenerateSmall(r.ctx)
	}
	if err == nil {
		err = setTarget(filepath.Join(r.dir, "models", model, "model.yaml"), f.targetMs)
	}
	if err != nil {
		return err
	}
	if r.group, err = newGroup(); err != nil {
		return err
	}
	if err := r.group.add(os.Getpid()); err != nil { // the clients
		return err
	}
	for i := range f.agents {
		var args []string
		if args = []string{"--lanes", "1", "--slow-log", r.slowLog(i)}; f.real {
			args = append(args, "--cores", "1")
		}
		if f.args != nil {
			args = append(args, f.args(i, r)...)
		}
		typ := ""
		if !f.real {
			typ = "r5n.large"
		}
		unpin, err := pin(i)
		if err != nil {
			return err
		}
		n, err := r.fleet.Add(r.ctx, typ, args...)
		unpin()
		if err != nil {
			return err
		}
		if err := errors.Join(r.group.add(n.PID()), r.relay(n, args)); err != nil {
			return err
		}
	}
	if err := r.fleet.WaitComplete(r.ctx); err != nil {
		return err
	}
	return r.load(f, model)
}

// setTarget rewrites a model.yaml so that it has the target, for 99 % of the queries, and a
// deadline that no query of a test passes.
func setTarget(path string, ms int) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "qos_") && !strings.HasPrefix(line, "deadline_ms") {
			lines = append(lines, line)
		}
	}
	lines = append(lines, fmt.Sprintf("\nqos_target_ms: %d\ndeadline_ms: 20000\n", ms))
	return os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644)
}

// load sends queries at the rate of r.rate until the round ends.
func (r *round) load(f *fleet, model string) error {
	r.rate.Store(int64(f.rate * 1000))
	if f.process {
		r.client = exec.CommandContext(r.ctx, *musterFile, "bench", "--server", r.fleet.Nodes[0].GRPC,
			"--model", model, "--rate", fmt.Sprint(f.rate), "--batch", fmt.Sprintf("fixed:%d", f.batch),
			"--duration", "5m", "--timeout", "20s")
		r.client.SysProcAttr = harness.ChildAttributes()
		r.client.Stdout, r.client.Stderr = nil, nil
		if err := r.client.Start(); err != nil {
			return err
		}
		return r.group.add(r.client.Process.Pid)
	}
	var options []client.Option
	addresses := r.fleet.Addresses()
	if f.plain {
		options, addresses = append(options, client.WithoutFleet()), addresses[:1]
	}
	if f.clientKey != "" {
		dial, err := secure.ClientConfig{APIKey: f.clientKey}.DialOptions(slog.Default())
		if err != nil {
			return err
		}
		options = append(options, client.WithDialOptions(dial...))
	}
	c, err := client.New(addresses, options...)
	if err != nil {
		return err
	}
	metadata, err := c.ModelMetadata(r.ctx, model, "")
	if err != nil {
		return err
	}
	query, _, err := bench.RandomQuery(metadata, f.batch, 1, nil)
	if err != nil {
		return err
	}
	go func() {
		defer c.Close()
		for next := time.Now(); ; {
			next = next.Add(time.Duration(1e12 / float64(r.rate.Load())))
			select {
			case <-time.After(time.Until(next)):
			case <-r.stopped:
				return
			}
			go func() {
				ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
				defer cancel()
				req := &oip.Request{Model: model, Inputs: query.Inputs}
				if resp, err := c.Infer(ctx, req); err == nil {
					resp.Release()
				}
				r.noteSeveral(req.Late)
			}()
		}
	}()
	return nil
}

// noteSeveral keeps where the time of a late query of an SDK went that has no cause of its own.
func (r *round) noteSeveral(late *lateness.Record) {
	const most = 3
	if late == nil || late.Cause() != lateness.Several {
		return
	}
	var parts []string
	for c, d := range late.Parts {
		if d >= time.Millisecond {
			parts = append(parts, fmt.Sprintf("%v %d ms", lateness.Component(c), d.Milliseconds()))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.several) < most {
		r.several = append(r.several, fmt.Sprintf("%s, target %v", strings.Join(parts, ", "),
			late.Target))
	}
}

// readSeverals adds those that the agents' logs of slow queries have.
func (r *round) readSeverals() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.several)
	for i := range r.fleet.Nodes {
		text, err := os.ReadFile(r.slowLog(i))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `"cause":"several"`) && len(all) < 6 {
				all = append(all, strings.TrimSpace(line))
			}
		}
	}
	return all
}

// slowLog is the log of slow queries of an agent.
func (r *round) slowLog(agent int) string {
	return filepath.Join(r.dir, fmt.Sprintf("slow-%d.json", agent))
}

// setenv sets a variable of the environment for this round.
func (r *round) setenv(name, value string) {
	before, had := os.LookupEnv(name)
	if err := os.Setenv(name, value); err != nil {
		r.Fatal(err)
	}
	r.restore = append(r.restore, func() {
		if _ = os.Unsetenv(name); had {
			_ = os.Setenv(name, before)
		}
	})
}

// stop ends all that the round has started.
func (r *round) stop() {
	for _, f := range r.restore {
		f()
	}
	close(r.stopped)
	if r.client != nil && r.client.Process != nil {
		_ = r.client.Process.Kill()
		_ = r.client.Wait()
	}
	if r.fleet != nil {
		for _, n := range r.fleet.Nodes {
			if !n.HasExited() {
				n.Kill()
			}
		}
	}
	for _, relay := range r.relays {
		relay.close()
	}
	if r.group != nil {
		r.group.remove()
	}
}
