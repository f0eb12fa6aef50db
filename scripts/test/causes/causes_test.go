//go:build fleet

package causes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/client/bench"
	"github.com/muster-serve/muster/models/zoo"
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
	// minLate is how many late queries an answer must rest on; 0: 5.
	minLate uint64
	fleet   fleet
	// begin brings the cause about, until the function that it returns is called.
	begin func(r *round) (end func(), err error)
}

// A fleet says what runs, and what it is asked.
type fleet struct {
	agents   int
	real     bool // the agents run the model; otherwise they wait as long as its profile says
	targetMs int
	batch    int
	rate     float64 // queries/s
	args     func(i int, r *round) []string
	plain    bool // clients ask the first agent alone
	process  bool // the client is `muster bench`
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
	rate    atomic.Int64 // in thousandths of queries/s
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

// TestCauses seeds each cause for some rounds. Nine of ten rounds must name it first in time.
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
		named, quiet, skipped := 0, 0, ""
		var took []string
		for i := range *roundCount {
			neighbours := harness.WatchNeighbours()
			outcome := s.run(t, i)
			note := ""
			if others, stolen := neighbours.TakenShares(); others+stolen > 0.1 {
				note = fmt.Sprintf(" (others took %.0f %% of the CPUs)", 100*(others+stolen))
			}
			switch {
			case outcome.skipped != "":
				skipped = outcome.skipped
			case outcome.named:
				named++
				took = append(took, fmt.Sprint(int(outcome.after.Seconds())))
			}
			if outcome.quiet {
				quiet++
			}
			t.Logf("%-8s round %d: %s%s", s.name, i+1, outcome.said, note)
			if skipped != "" {
				break
			}
		}
		if skipped != "" {
			t.Logf("%-8s skipped: %s", s.name, skipped)
			continue
		}
		t.Logf("%-8s named first in %d of %d rounds, after %s s; healthy before in %d", s.name, named,
			*roundCount, strings.Join(took, " "), quiet)
		if named*10 < *roundCount*9 {
			t.Errorf("%s: named first in %d of %d rounds, want nine of ten", s.name, named, *roundCount)
		}
	}
}

// An outcome is how a round went.
type outcome struct {
	named, quiet  bool
	after         time.Duration
	said, skipped string
}

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
		var why skip
		if errors.As(err, &why) {
			return outcome{skipped: why.Error()}
		}
		return outcome{said: "did not start: " + err.Error()}
	}
	if err := harness.Settle(ctx, 8*time.Second); err != nil {
		return outcome{said: err.Error()}
	}
	before, err := r.why(5 * time.Second)
	o.quiet = err == nil && before.Queries > 0 && before.Late*50 <= before.Queries
	end, err := s.begin(r)
	if err != nil {
		var why skip
		if errors.As(err, &why) {
			return outcome{skipped: why.Error()}
		}
		o.said = "could not be seeded: " + err.Error()
		return o
	}
	defer end()
	began := time.Now()
	last := &whyReport{}
	for time.Since(began) < nameWithin {
		if harness.Settle(ctx, time.Second) != nil {
			break
		}
		said, err := r.why(max(5*time.Second, time.Since(began).Truncate(time.Second)))
		if err != nil {
			continue // a leader that was killed says nothing
		}
		last = said
		// An answer stands once it rests on some queries.
		if said.Late >= cmp.Or(s.minLate, 5) && s.isNamed(r, said) {
			o.named, o.after = true, time.Since(began)
			break
		}
	}
	o.said = fmt.Sprintf("before %s; then %s", before.short(), last.short())
	if !o.named {
		o.said = "WRONG: " + o.said
	}
	return o
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
func (r *round) why(last time.Duration) (*whyReport, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	var err error
	for _, n := range r.fleet.Nodes {
		if n.HasExited() {
			continue
		}
		var text []byte
		cmd := exec.CommandContext(ctx, *musterFile, "why", "--json", "--last", last.String(), "--server",
			n.GRPC)
		if text, err = cmd.Output(); err != nil {
			continue
		}
		w := &whyReport{}
		if err = json.Unmarshal(text, w); err == nil {
			return w, nil
		}
	}
	return nil, err
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
		_, err = zoo.Generate(r.ctx, filepath.Join(r.dir, "models"), model, zoo.Options{Scale: zoo.Small})
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
		if args = []string{"--lanes", "1"}; f.real {
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
				if resp, err := c.Infer(ctx, &oip.Request{Model: model, Inputs: query.Inputs}); err == nil {
					resp.Release()
				}
			}()
		}
	}()
	return nil
}

// stop ends all that the round has started.
func (r *round) stop() {
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
