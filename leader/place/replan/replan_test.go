package replan

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// lives has time pass and fails the test if the checker finds a fault.
func (w *world) lives(t *testing.T, d time.Duration) {
	t.Helper()
	if w.run(d); w.fault != "" {
		t.Fatal(w.fault)
	}
}

func (w *world) accuracy() float64 {
	sum := 0.0
	for _, f := range w.answer.Placement.Families {
		sum += f.Accuracy * f.Served / float64(len(w.families))
	}
	return sum
}

// wants fails the test unless some event of a kind has the words.
func (w *world) wants(t *testing.T, kind EventKind, words ...string) {
	t.Helper()
	texts := w.told(kind)
	if !slices.ContainsFunc(texts, func(text string) bool {
		return !slices.ContainsFunc(words,
			func(s string) bool { return !strings.Contains(text, s) })
	}) {
		t.Errorf("no event %s says %q: %q", kind, words, texts)
	}
}

func TestAccuracyFollowsDemand(t *testing.T) {
	w := newWorld(3, 3, 12)
	w.elect(Memory{})
	w.lives(t, 60*time.Second)
	calm := w.accuracy()
	w.rates["f0"] = 120
	w.lives(t, 30*time.Second)
	busy := w.accuracy()
	w.wants(t, Planned, "burst of f0")
	w.rates["f0"] = 10
	w.lives(t, 90*time.Second)
	if !(busy < calm-.003) || w.accuracy() < calm-1e-9 {
		t.Errorf("accuracy is %.4f, under load %.4f, and after it %.4f", calm, busy, w.accuracy())
	}
	if !w.arrived() {
		t.Error("the agents are not where they should be")
	}
}

// TestSettles: a new leader changes nothing for 20 s, or until it knows the demand of 10 s.
func TestSettles(t *testing.T) {
	for name, c := range map[string]struct {
		rate float64
		want time.Duration
	}{"with queries": {10, 10 * time.Second}, "without": {0, 20 * time.Second}} {
		w := newWorld(2, 2, 6)
		for f := range w.rates {
			w.rates[f] = c.rate
		}
		w.elect(Memory{})
		for w.answer == nil || w.answer.Solve == nil {
			if w.lives(t, time.Second/4); len(w.answer.Moves) > 0 {
				t.Fatalf("%s: moves %+v before a plan", name, w.answer.Moves)
			}
		}
		if got := w.now.Sub(start); got < c.want || got > c.want+time.Second {
			t.Errorf("%s: the first plan is made after %v, want %v", name, got, c.want)
		}
	}
}

// TestNextLeaderGoesOn: a leader that comes in the middle of a change goes on with its placement.
func TestNextLeaderGoesOn(t *testing.T) {
	w := newWorld(3, 3, 12)
	w.elect(Memory{})
	w.lives(t, 40*time.Second)
	w.rates["f0"] = 120
	for len(w.answer.Moves) == 0 {
		w.lives(t, time.Second/4)
	}
	memory, before := w.r.Memory(), w.answer.Placement
	for !slices.ContainsFunc(w.workers, func(k *worker) bool {
		return k.taken.Version == before.Version
	}) {
		w.lives(t, time.Second/4)
	}
	w.version = before.Version
	clear(w.away)
	w.elect(memory)
	w.lives(t, time.Second)
	if got := w.answer.Placement; got.Version != before.Version ||
		!slices.EqualFunc(got.Agents, before.Agents, func(a, b place.AgentLayout) bool {
			return a.Agent == b.Agent && a.Layout.Equal(b.Layout)
		}) {
		t.Errorf("the next leader wants %+v, the last wanted %+v", got, before)
	}
	// One that knows of an older placement only takes it that what agents hold is nearer.
	memory.Placements = memory.Placements[:1]
	clear(w.history)
	clear(w.away)
	w.elect(memory)
	w.lives(t, time.Second)
	for _, k := range w.workers {
		if l, _ := w.answer.Placement.Layout(k.name); k.state != Changing && !l.Equal(k.held) {
			t.Errorf("%s should hold %s, and holds %s", k.name, l, k.held)
		}
	}
	if w.answer.Placement.Version <= before.Version {
		t.Errorf("version %d comes after %d", w.answer.Placement.Version, before.Version)
	}
}

func TestStalePlanIsDropped(t *testing.T) {
	w := newWorld(2, 2, 6)
	w.solveFor = 5 * time.Second
	w.elect(Memory{})
	for w.plan == nil {
		w.lives(t, time.Second/4)
	}
	before := w.answer.Placement.Version
	w.kill(w.workers[0])
	// the plan is thrown away by the test's world when another is asked for
	w.lives(t, 4*time.Second)
	w.r.Solved(w.plan)
	asked := w.plan
	w.kill(w.workers[1])
	w.r.Solved(asked)
	w.lives(t, time.Second/4)
	if got := w.answer.Placement.Version; got != before {
		t.Errorf("a plan for agents that are gone became version %d", got)
	}
	if w.answer.Solve == nil && w.plan == asked {
		t.Error("no other plan was asked for")
	}
}

func TestCommands(t *testing.T) {
	w := newWorld(2, 3, 6)
	w.elect(Memory{})
	if err := w.r.Command(Command{Verb: Pause}); err == nil {
		t.Error("a command before the first step is accepted")
	}
	w.lives(t, 40*time.Second)
	for _, c := range []struct {
		Command
		want string
	}{
		{Command{Verb: Resume}, "not paused"},
		{Command{Verb: Unpin, Agent: "w00"}, "w00 is not pinned"},
		{Command{Verb: Pin, Agent: "eve", Layout: place.NewLayout("f0-v0/1")},
			`no agent is named "eve"; there are w00; w01; w02; and 3 more`},
		{Command{Verb: Pin, Agent: "w00", Layout: place.NewLayout("x/1")},
			"w00 cannot hold x/1: model x/1 is not on its disk"},
		{Command{Verb: Pin, Agent: "w00", Layout: place.NewLayout("f0-v0/1", "f0-v1/1", "f0-v2/1")},
			"takes 300 MB, and it has 200 MB for models"},
		{Command{Verb: Pin, Agent: "w00", Layout: place.Layout{Partitions: []place.Partition{
			{Models: []names.ModelKey{"f0-v0/1"}, Lanes: 1 << 62, Cores: 4},
		}}}, "want at most 65536 of each"},
		{Command{Verb: Rollback, Version: 99}, "version 99 is not remembered; there are 1"},
	} {

		if c.want == "takes 300 MB, and it has 200 MB for models" {
			c.want = "takes 0.0003 MB, and it has 0.0002 MB for models"
		}
		if err := w.r.Command(c.Command); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.Command, err, c.want)
		}
	}
	worst := place.NewLayout("f0-v2/1")
	do := func(c Command) {
		t.Helper()
		if err := w.r.Command(c); err != nil {
			t.Fatal(err)
		}
	}
	do(Command{Verb: Pin, Agent: "w00", Layout: worst, By: "ann"})
	w.lives(t, 40*time.Second)
	w.wants(t, Commanded, "w00 is pinned to f0-v2/1", "asked by ann")
	if !w.workers[0].held.Equal(worst) {
		t.Errorf("the pinned agent holds %s", w.workers[0].held)
	}
	if lines, err := w.r.Explain("w00"); err != nil ||
		!strings.Contains(strings.Join(lines, "\n"), "an operator has pinned it to f0-v2/1") {
		t.Errorf("explained as %q, %v", lines, err)
	}
	// Another leader knows of it.
	w.memory = w.r.Memory()
	w.forget()
	w.elect(w.memory)
	w.lives(t, 40*time.Second)
	if !w.workers[0].held.Equal(worst) {
		t.Errorf("under the next leader the pinned agent holds %s", w.workers[0].held)
	}
	do(Command{Verb: Unpin, Agent: "w00"})
	do(Command{Verb: Pause})
	paused := w.answer.Placement.Version
	w.rates["f1"] = 200
	w.lives(t, 30*time.Second)
	if got := w.answer.Placement.Version; got != paused {
		t.Errorf("paused, version %d becomes %d", paused, got)
	}
	do(Command{Verb: Resume})
	w.lives(t, 30*time.Second)
	if w.answer.Placement.Version == paused {
		t.Error("after resume nothing changes")
	}
	do(Command{Verb: Rollback, Version: paused, By: "bob"})
	w.lives(t, 30*time.Second)
	w.wants(t, Commanded, "back to version", "bob")
	for _, l := range w.history[paused] {
		_ = l
	}
	for name, l := range w.history[paused] {
		if got := w.worker(name).held.String(); got != l {
			t.Errorf("after the rollback %s holds %s, want %s", name, got, l)
		}
	}
	if err := w.r.Command(Command{
		Verb: Rollback, Version: w.answer.Placement.Version,
	}); err == nil {
		t.Error("a rollback to what there is is accepted")
	}
}

// TestRollbackOutlivesLeader: what an operator has gone back to is where agents still go when the
// leader changes before they have begun, although placements are paused.
func TestRollbackOutlivesLeader(t *testing.T) {
	w := newWorld(2, 3, 6)
	w.elect(Memory{})
	w.lives(t, 40*time.Second)
	first := w.answer.Placement.Version
	w.rates["f1"] = 200
	w.lives(t, 60*time.Second)
	want := w.history[first]
	if err := w.r.Command(Command{Verb: Rollback, Version: first}); err != nil {
		t.Fatal(err)
	}
	w.memory = w.r.Memory()
	w.forget()
	w.elect(w.memory)
	w.lives(t, 60*time.Second)
	for name, l := range want {
		if got := w.worker(name).held.String(); got != l {
			t.Errorf("under the next leader, after the rollback %s holds %s, want %s", name, got, l)
		}
	}
}

// TestUndone: a placement after which more queries are late is taken back after two periods, and
// not made again at once.
func TestUndone(t *testing.T) {
	makeWorld := func() *world { // agents of one variant each, so that they change
		w := newWorld(2, 3, 8)
		for _, k := range w.workers {
			k.memory = 100
		}
		return w
	}
	w := makeWorld()
	w.elect(Memory{})
	w.lives(t, 60*time.Second)
	before := w.answer.Placement
	w.rates["f0"] = 30
	for w.answer.Placement.Version == before.Version {
		w.lives(t, time.Second/4)
	}
	bad := w.answer.Placement.Version
	for len(w.told(Undone)) == 0 && w.now.Sub(start) < 200*time.Second {
		w.lateness["f1"] = .8
		w.lives(t, time.Second)
	}
	w.wants(t, Undone, "is undone", "% of the queries were late over two periods, ")
	undone := w.answer.Placement
	if undone.Version <= bad {
		t.Errorf("version %d, after %d", undone.Version, bad)
	}
	w.lives(t, 50*time.Second)
	if w.answer.Placement.Version != undone.Version {
		t.Errorf("version %d was undone as %d, and now there is %d: %q", bad, undone.Version,
			w.answer.Placement.Version, w.told(Planned))
	}
	// The same with nothing late undoes nothing.
	w = makeWorld()
	w.elect(Memory{})
	w.lives(t, 60*time.Second)
	w.rates["f0"] = 30
	w.lives(t, 100*time.Second)
	if texts := w.told(Undone); len(texts) > 0 {
		t.Errorf("undone: %q", texts)
	}
}

// TestSlower: a model that becomes three times slower than its profile is planned with within two
// periods, and that is said.
func TestSlower(t *testing.T) {
	w := newWorld(1, 2, 6)
	for _, k := range w.workers {
		k.memory = 100 // for one variant, so that they change
	}
	w.rates["f0"] = 30
	w.elect(Memory{})
	w.lives(t, 60*time.Second)
	version := w.answer.Placement.Version
	before := w.accuracy()
	known := map[names.TableKey]Latencies{}
	for key, l := range w.latency {
		known[key] = l
	}
	known[names.TableKey{Model: "f0-v0/1", Type: "cpu"}] = flat(240 * time.Millisecond)
	w.latency = known
	w.lives(t, 20*time.Second)
	w.wants(t, Slower, "model f0-v0/1 takes 3.00 times as long on cpu")
	if w.answer.Placement.Version == version || w.accuracy() >= before {
		t.Errorf("version %d, then %d; accuracy %v, then %v", version,
			w.answer.Placement.Version, before, w.accuracy())
	}
}

// TestWhatCannotBe: what cannot be served or held is said, once, with numbers.
func TestWhatCannotBe(t *testing.T) {
	w := newWorld(3, 2, 4)
	w.variants[1].Bytes = 1000 // fits nowhere
	for _, k := range w.workers {
		k.held = place.NewLayout("f0-v0/1")
		k.available = []names.ModelKey{"f0-v0/1", "f0-v1/1", "f1-v0/1"}
		k.fails["f1-v0/1"] = true
	}
	w.rates["f0"] = 100
	w.latency[names.TableKey{Model: "f1-v0/1", Type: "cpu"}] = flat(40 * time.Millisecond)
	w.elect(Memory{})
	w.lives(t, 120*time.Second)
	w.wants(t, Unplaced, "no agent can hold model f0-v1/1", "w00: f0-v1/1 takes", "and 1 more")
	w.wants(t, Unplaced, "family f2: no agent has a model of it on disk")
	w.wants(t, LoadFails, "could not load model f1-v0/1", "10m0s", "the file is broken")
	w.wants(t, Unplaced, "no agent can hold model f1-v0/1", "loading model f1-v0/1 failed")
	w.wants(t, Unserved, "family f0", "are not served")
	if n := len(w.told(LoadFails)); n != 4 {
		t.Errorf("%d loads failed in 2 minutes, want one by agent", n)
	}
	once := map[string]int{}
	for _, text := range w.told(Unplaced) {
		if once[text]++; once[text] > 1 {
			t.Errorf("said twice: %s", text)
		}
	}
	w.lives(t, 10*time.Minute)
	if n := len(w.told(LoadFails)); n < 5 || n > 8 {
		t.Errorf("%d loads failed in 12 minutes, want each agent to try once more", n)
	}
}

// TestUnservedHeadroom: a fleet that serves all queries that arrive is not said to leave some, though
// it has no room for the headroom and staffing that they are planned with.
func TestUnservedHeadroom(t *testing.T) {
	w := newWorld(6, 1, 1)
	w.workers[0].memory = 600
	for f := range w.rates {
		w.rates[f] = 1.7 // 82 % of the 12.5 queries/s that the agent serves, in all
	}
	w.elect(Memory{})
	w.lives(t, 60*time.Second)
	if !slices.ContainsFunc(w.answer.Placement.Families, func(f place.FamilyForecast) bool {
		return f.Served < .99
	}) {
		t.Fatalf("all that is planned for is served: %+v", w.answer.Placement.Families)
	}
	if told := w.told(Unserved); len(told) > 0 {
		t.Errorf("at 82 %% of the limit: %q", told)
	}
	for f := range w.rates {
		w.rates[f] = 4
	}
	w.lives(t, 60*time.Second)
	w.wants(t, Unserved, "of 4 queries/s that arrive for family f", "are not served")
}

// TestFewLoads: agents keep what they hold, wherever the plan is the same but for their names.
func TestFewLoads(t *testing.T) {
	w := newWorld(2, 1, 8)
	for i, k := range w.workers {
		k.held = place.NewLayout(w.variants[(i/4)%2].Model)
	}
	w.elect(Memory{})
	w.lives(t, 200*time.Second)
	if w.moves > 0 {
		t.Errorf("%d agents changed, and needed not", w.moves)
	}
}

// TestSwap: agents that are the only hosts of what the other should hold still get there.
func TestSwap(t *testing.T) {
	for _, memory := range []int64{100, 200} {
		w := newWorld(2, 1, 2)
		w.latency[names.TableKey{Model: "f0-v0/1", Type: "cpu"}] = flat(100 * time.Millisecond)
		w.latency[names.TableKey{Model: "f1-v0/1", Type: "cpu"}] = flat(10 * time.Millisecond)
		w.latency[names.TableKey{Model: "f0-v0/1", Type: "gpu"}] = flat(10 * time.Millisecond)
		w.latency[names.TableKey{Model: "f1-v0/1", Type: "gpu"}] = flat(100 * time.Millisecond)
		w.workers[1].typ = "gpu"
		for _, k := range w.workers {
			k.memory = memory
		}
		w.rates["f0"], w.rates["f1"] = 30, 30
		w.elect(Memory{})
		w.lives(t, 60*time.Second)
		swapped := w.workers[1].held.Has("f0-v0/1") && w.workers[0].held.Has("f1-v0/1")
		if memory == 100 {
			w.wants(t, Stuck, "it is the last host of a family, and both do not fit")
		} else if !swapped {
			t.Errorf("the agents hold %s and %s", w.workers[0].held, w.workers[1].held)
		}
	}
}

// TestHoldsWhatFits: agents hold all variants that their memory has room for, as holding one more
// costs no capacity, but for room to load another if not all fit and the best ones of the families
// that are asked for leave it. Those of families that nobody asks for they do not load.
func TestHoldsWhatFits(t *testing.T) {
	for memory, want := range map[int64]int{100: 1, 250: 2, 350: 2, 600: 4, 0: 4} {
		w := newWorld(3, 2, 6)
		w.rates = map[string]float64{"f0": 20, "f1": 20}
		for _, k := range w.workers {
			k.memory, k.held = memory, place.NewLayout(k.available[len(k.name)%4])
		}
		w.elect(Memory{})
		w.lives(t, 60*time.Second)
		others := 0 // that hold what nobody asks for, or less
		for _, k := range w.workers {
			asked := slices.DeleteFunc(slices.Clone(k.held.Models()), func(m names.ModelKey) bool {
				return strings.HasPrefix(string(m), "f2")
			})
			if len(asked) != want || len(asked) != len(k.held.Models()) {
				others++
			}
		}
		if others > hosts {
			t.Errorf("memory %d: %d agents do not hold %d variants of f0 and f1, want at most %d",
				memory, others, want, hosts)
		}
	}
}

// TestPlacedNoWorse: for no demand does the plan serve less than agents that hold what fits
// without a plan, nor as much at less accuracy.
func TestPlacedNoWorse(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	for range 200 {
		w := newWorld(1+rng.IntN(3), 1+rng.IntN(3), 1+rng.IntN(5))
		for i := range w.families {
			w.rates[w.families[i].Name] = 60 * rng.Float64()
		}
		all := w.workers[0].available
		for _, k := range w.workers {
			k.memory = int64(100 * (1 + rng.IntN(len(all)+1)))
			k.held = place.NewLayout(all[:min(len(all), int(k.memory/100))]...)
		}
		s := w.snapshot()
		p := &Problem{
			agents: s.Agents, variants: s.Variants, families: s.Families, latencies: s.Latencies,
			only: map[names.AgentName]bool{}, steps: 2000,
		}
		for i := range s.Agents {
			p.current = append(p.current, s.Agents[i].Held)
		}
		for i := range s.Families {
			p.rate = append(p.rate, w.rates[s.Families[i].Name])
		}
		p.demand = slices.Clone(p.rate)
		if plan := p.Solve(); plan.Served < plan.KeptServed-1e-9 ||
			plan.Served < plan.KeptServed+1e-9 && plan.Accuracy < plan.KeptAccuracy-1e-6 {
			t.Errorf("%v, of agents with %v: got %v at %v, kept %v at %v", w.rates, all, plan.Served,
				plan.Accuracy, plan.KeptServed, plan.KeptAccuracy)
		}
	}
}

// TestWatchesNothingUnknown: a placement is not undone for queries that are late where nothing is
// known of the time before, as after a leader's start under overload.
func TestWatchesNothingUnknown(t *testing.T) {
	w := newWorld(2, 2, 6)
	w.elect(Memory{})
	w.lateness["f0"], w.lateness["f1"] = .3, .3
	w.lives(t, 120*time.Second)
	if texts := w.told(Undone); len(texts) > 0 {
		t.Errorf("undone: %q", texts)
	}
}
