package replan

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
)

// flat is a latency that is the same for all batch sizes.
type flat time.Duration

func (f flat) Mean(int) time.Duration { return time.Duration(f) }

// A worker is a simulated agent: it takes layouts as an agent does.
type worker struct {
	name      names.AgentName
	typ       names.LaneType
	lanes     int
	memory    int64
	available []names.ModelKey
	fixed     bool
	dead      bool

	held   place.Layout // what its lanes hold
	taken  place.Stamp
	state  ChangeState
	failed []names.ModelKey
	target Move
	until  time.Time
	fails  map[names.ModelKey]bool // whose loads fail
	issued time.Time               // when it was first asked to change
}

// A world is a fleet without a network: moves reach workers after a while, or never.
type world struct {
	rng      *rand.Rand
	now      time.Time
	workers  []*worker
	variants []Variant
	families []Family
	latency  map[names.TableKey]Latencies
	rates    map[string]float64 // by family, queries/s that arrive
	lateness map[string]float64 // by family, the share that is late
	left     map[string]float64

	r        *Replanner
	cfg      Config
	memory   Memory
	solveFor time.Duration
	plan     *Plan
	planAt   time.Time
	onWay    []message
	lossy    bool
	lost     map[string]time.Time // by family: when a host of it was lost

	answer  *Answer
	events  []Event
	away    map[names.AgentName]awayFrom // as the checker has it
	version uint64
	history map[uint64]map[names.AgentName]string
	bars    map[bar]time.Time
	fault   string
	moves   int
	tamper  *mutant
}

type message struct {
	at   time.Time
	move Move
}

type awayFrom struct {
	lanes  map[string]int
	stamp  place.Stamp
	to     place.Layout
	drains bool
}

var start = time.Unix(1000, 0)

// newWorld has families of so many variants: f0-v0 is the best of family f0, and each further
// variant twice as fast and two points worse.
func newWorld(families, variants, workers int) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(1, 1)), now: start, rates: map[string]float64{},
		lateness: map[string]float64{}, left: map[string]float64{},
		latency: map[names.TableKey]Latencies{}, away: map[names.AgentName]awayFrom{},
		lost:    map[string]time.Time{},
		history: map[uint64]map[names.AgentName]string{}, bars: map[bar]time.Time{},
		cfg: Config{Epoch: 1, Steps: 2000}, solveFor: 500 * time.Millisecond,
	}
	var all []names.ModelKey
	for f := range families {
		name := fmt.Sprintf("f%d", f)
		w.families = append(w.families, Family{Name: name, QoSTarget: time.Second})
		w.rates[name] = 10
		for v := range variants {
			m := names.ModelKey(fmt.Sprintf("%s-v%d/1", name, v))
			all = append(all, m)
			w.variants = append(w.variants, Variant{
				Model: m, Family: name, Accuracy: 1 - .02*float64(v), Bytes: 100, Load: time.Second,
			})
			w.latency[names.TableKey{Model: m, Type: "cpu"}] = flat(80 * time.Millisecond >> v)
		}
	}
	for i := range workers {
		w.workers = append(w.workers, &worker{
			name: names.AgentName(fmt.Sprintf("w%02d", i)), typ: "cpu", lanes: 1, memory: 200,
			available: all, held: place.NewLayout(all[i%len(all)]),
			fails: map[names.ModelKey]bool{},
		})
	}
	return w
}

func (w *world) worker(name names.AgentName) *worker {
	for _, k := range w.workers {
		if k.name == name && !k.dead {
			return k
		}
	}
	return nil
}

// elect begins a leader's term.
func (w *world) elect(memory Memory) {
	w.cfg.Epoch++
	r, err := New(w.cfg, memory)
	if err != nil {
		panic(err)
	}
	w.r, w.plan = r, nil
	if len(w.onWay) > 0 && w.rng.IntN(2) == 0 {
		w.onWay = nil // lost with the leader's streams
	}
}

func (w *world) snapshot() *Snapshot {
	s := &Snapshot{Variants: w.variants, Latencies: w.latency, Families: slices.Clone(w.families)}
	for _, k := range w.workers {
		if k.dead {
			continue
		}
		a := Agent{
			Name: k.name, Type: k.typ, Lanes: k.lanes, Cores: k.lanes, Memory: k.memory,
			Available: k.available, Held: k.held, Taken: k.taken, State: k.state, Fixed: k.fixed,
			Failed: k.failed,
		}
		if k.state == Failed {
			a.Why = "the file is broken"
		}
		s.Agents = append(s.Agents, a)
	}
	return s
}

func (w *world) fail(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf("at %v: ", w.now.Sub(start)) + fmt.Sprintf(format, args...)
	}
}

// kill loses an agent.
func (w *world) kill(k *worker) {
	for f := range w.serving(k.held, k.lanes) {
		w.lost[f] = w.now
	}
	k.dead = true
}

// run lets time pass, a quarter of a second at a time.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end) && w.fault == ""; {
		w.now = w.now.Add(time.Second / 4)
		w.tick()
	}
}

func (w *world) tick() {
	for i := range w.families {
		f := &w.families[i]
		n := w.rates[f.Name]/4 + w.left[f.Name]
		f.Arrived += uint64(n)
		f.Ended += uint64(n)
		w.left[f.Name] = n - float64(uint64(n))
		late := w.lateness[f.Name]*float64(uint64(n)) + w.left[f.Name+" late"]
		f.Late += uint64(late)
		w.left[f.Name+" late"] = late - float64(uint64(late))
	}
	for _, m := range w.onWay {
		if !m.at.After(w.now) {
			w.take(m.move)
		}
	}
	w.onWay = slices.DeleteFunc(w.onWay, func(m message) bool { return !m.at.After(w.now) })
	for _, k := range w.workers {
		w.work(k)
	}
	if w.r == nil {
		return
	}
	if w.plan != nil && !w.planAt.After(w.now) {
		w.r.Solved(w.plan)
		w.plan = nil
	}
	s := w.snapshot()
	if w.tamper != nil && w.tamper.before != nil {
		w.tamper.before(w, s)
	}
	a := w.r.Step(w.now, s)
	if w.tamper != nil && w.tamper.after != nil {
		w.tamper.after(w, a)
	}
	w.check(a)
	w.answer, w.events = a, append(w.events, a.Events...)
	if a.Remember {
		w.memory = w.r.Memory()
	}
	if a.Solve != nil {
		w.plan, w.planAt = a.Solve.Solve(), w.now.Add(w.solveFor)
		w.checkProblem(a.Solve)
	}
	for _, m := range a.Moves {
		if w.lossy && w.rng.IntN(3) == 0 {
			continue
		}
		w.onWay = append(w.onWay, message{w.now.Add(time.Duration(w.rng.IntN(600)) *
			time.Millisecond), m})
	}
	// A stream keeps the order of what it carries.
	slices.SortStableFunc(w.onWay, func(a, b message) int {
		return cmp.Or(a.move.Stamp.Compare(b.move.Stamp), a.at.Compare(b.at))
	})
}

// take gives a move to its agent.
func (w *world) take(m Move) {
	k := w.worker(m.Agent)
	if k == nil || m.Stamp.Compare(k.taken) <= 0 || m.Stamp.Epoch < w.cfg.Epoch {
		return // of a leader that it does not follow any more
	}
	if k.state == Changing { // a new version supersedes only what has not begun
		w.onWay = append(w.onWay, message{w.now.Add(time.Second), m})
		return
	}
	k.taken, k.target, k.state, k.failed = m.Stamp, m, Changing, nil
	load := 200 * time.Millisecond
	sum := int64(0)
	for _, v := range w.variants {
		if m.Layout.Has(v.Model) && !k.held.Has(v.Model) {
			load += v.Load
		}
		if m.Layout.Has(v.Model) || k.held.Has(v.Model) && !m.DrainFirst {
			sum += v.Bytes
		}
	}
	if k.memory > 0 && sum > k.memory {
		w.fail("%s has %d bytes of models in %d: %s beside %s", k.name, sum, k.memory, m.Layout,
			k.held)
	}
	k.until = w.now.Add(load)
	if m.DrainFirst {
		kept := slices.DeleteFunc(k.held.Models(), func(v names.ModelKey) bool {
			return !m.Layout.Has(v)
		})
		w.serves(k, place.NewLayout(kept...), "drains")
	}
}

// work lets an agent go on.
func (w *world) work(k *worker) {
	if k.dead || k.state != Changing || k.until.After(w.now) {
		return
	}
	for _, m := range k.target.Layout.Models() {
		if k.fails[m] && !k.held.Has(m) {
			k.failed = append(k.failed, m)
			w.bars[bar{k.name, m}] = w.now.Add(10 * time.Minute)
		}
	}
	if len(k.failed) > 0 {
		k.state = Failed
		return
	}
	k.state = Settled
	w.serves(k, k.target.Layout, "changes")
}

// serves changes what an agent's lanes hold: no family that has a host may lose its last one.
func (w *world) serves(k *worker, to place.Layout, what string) {
	before := w.hosts()
	k.held = to
	after := w.hosts()
	for f, n := range before {
		if n > 0 && after[f] == 0 && w.lost[f].Before(k.issued) {
			w.fail("%s %s, and no agent serves family %s", k.name, what, f)
		}
	}
}

// hosts is how many agents serve each family.
func (w *world) hosts() map[string]int {
	all := map[string]int{}
	for _, k := range w.workers {
		if !k.dead {
			for f := range w.serving(k.held, k.lanes) {
				all[f]++
			}
		}
	}
	return all
}

// serving is, by family, how many lanes a layout has.
func (w *world) serving(l place.Layout, lanes int) map[string]int {
	by := map[string]int{}
	for _, v := range w.variants {
		if l.Has(v.Model) {
			by[v.Family] = lanes
		}
	}
	return by
}

// check looks whether what a leader decides is allowed, by a census of its own.
func (w *world) check(a *Answer) {
	p := a.Placement
	layouts := map[names.AgentName]string{}
	for _, l := range p.Agents {
		layouts[l.Agent] = l.Layout.String()
	}
	if known, ok := w.history[p.Version]; ok {
		for name, l := range layouts {
			if was, ok := known[name]; ok && was != l {
				w.fail("version %d wants %s on %s, and wanted %s", p.Version, l, name, was)
			}
		}
	}
	w.history[p.Version] = layouts
	if p.Version < w.version {
		w.fail("version %d comes after %d", p.Version, w.version)
	}
	w.version = p.Version
	// Who is back, failed, or lost, is away no more.
	for _, name := range slices.Sorted(maps.Keys(w.away)) {
		k := w.worker(name)
		if k == nil || k.taken.Compare(w.away[name].stamp) >= 0 && k.state != Changing {
			delete(w.away, name)
		}
	}
	for _, m := range a.Moves {
		w.checkMove(m, layouts)
	}
}

// checkProblem checks the invariants of Problem once its program is built.
func (w *world) checkProblem(p *Problem) {
	kindOf := make([]int, len(p.agents))
	for k, kind := range p.kinds {
		for _, a := range kind.agents {
			kindOf[a] += k + 1
			if p.agents[a].Type != kind.typ || p.agents[a].Lanes != kind.lanes {
				w.fail("agent %s is of kind %+v", p.agents[a].Name, kind)
			}
		}
		if len(kind.layouts) != len(kind.names) {
			w.fail("a kind has %d layouts and %d names", len(kind.layouts), len(kind.names))
		}
	}
	for a, k := range kindOf {
		if k == 0 || k > len(p.kinds) || !slices.Contains(p.kinds[k-1].agents, a) {
			w.fail("agent %s is not of exactly one kind", p.agents[a].Name)
		}
	}
	next := 0
	for f := range p.families {
		ends := p.classes[f]
		if p.first[f] != next || len(ends) < 1 || len(ends) > maxClasses ||
			!slices.IsSorted(ends) || len(slices.Compact(slices.Clone(ends))) != len(ends) {
			w.fail("family %d has classes %v from %d on, want from %d on", f, ends, p.first[f], next)
		}
		next += len(ends)
		share := 0.0
		for k := range ends {
			share += p.classShare(f, k)
			class := p.program.Classes[p.first[f]+k]
			if class.Family != p.families[f].Name {
				w.fail("class %d of family %s is of %s", k, p.families[f].Name, class.Family)
			}
		}
		if share < 1-1e-9 || share > 1+1e-9 {
			w.fail("family %d has classes of %v of its queries", f, share)
		}
	}
	if next != len(p.program.Classes) || len(p.choices) != len(p.program.Choices) ||
		len(p.current) != len(p.agents) {
		w.fail("%d classes of %d, %d choices of %d, %d layouts of %d agents", next,
			len(p.program.Classes), len(p.choices), len(p.program.Choices), len(p.current),
			len(p.agents))
	}
	for c, o := range p.choices {
		if choice := p.program.Choices[c]; choice.Type != o.kind ||
			choice.Layout != p.kinds[o.kind].names[o.layout] {
			w.fail("choice %d is %+v and %+v", c, o, choice)
		}
	}
}

func (w *world) checkMove(m Move, layouts map[names.AgentName]string) {
	k := w.worker(m.Agent)
	if k == nil {
		w.fail("a move for %s, which is not there", m.Agent)
		return
	}
	if k.fixed {
		w.fail("a move for %s, which is fixed", m.Agent)
	}
	if m.Stamp.Epoch != w.cfg.Epoch || m.Stamp.Version > w.version {
		w.fail("a move of %v in epoch %d, version %d", m.Stamp, w.cfg.Epoch, w.version)
	}
	if got := w.history[m.Stamp.Version][m.Agent]; got != m.Layout.String() {
		w.fail("%s is asked for %s as version %d, which wants %s", m.Agent, m.Layout,
			m.Stamp.Version, got)
	}
	was, already := w.away[m.Agent]
	// What is on its way is superseded only if no family can lose its last host by that.
	again := already && was.stamp == m.Stamp
	if m.Layout.String() != layouts[m.Agent] && m.Stamp.Compare(k.taken) > 0 && !again {
		w.fail("%s is asked for %s, of version %d, when version %d wants %s", m.Agent, m.Layout,
			m.Stamp.Version, w.version, layouts[m.Agent])
	}
	sum := int64(0)
	for _, v := range w.variants {
		if !m.Layout.Has(v.Model) {
			continue
		}
		sum += v.Bytes
		if !slices.Contains(k.available, v.Model) {
			w.fail("%s is asked for %s, which is not on its disk", k.name, v.Model)
		}
		if until, ok := w.bars[bar{k.name, v.Model}]; ok && w.now.Before(until) &&
			!k.held.Has(v.Model) &&
			k.state != Changing && m.Stamp.Compare(k.taken) > 0 {
			w.fail("%s is asked for %s, whose load has failed there", k.name, v.Model)
		}
	}
	if k.memory > 0 && sum > k.memory {
		w.fail("%s is asked for %s, which does not fit", k.name, m.Layout)
	}
	if already {
		to := w.serving(m.Layout, k.lanes)
		for f, n := range was.lanes {
			away, total := 0, 0
			for _, o := range w.workers {
				if x, ok := w.away[o.name]; ok && !o.dead {
					total += x.lanes[f]
					if o != k && (x.drains || w.serving(x.to, o.lanes)[f] < x.lanes[f]) {
						away += x.lanes[f]
					}
				} else if !o.dead && o.state != Changing {
					total += w.serving(o.held, o.lanes)[f]
				}
			}
			stayed := !was.drains && w.serving(was.to, k.lanes)[f] >= n
			if stayed && (m.DrainFirst || to[f] < n) && away > 0 && 4*(away+n) > total {
				w.fail(
					"%s goes away after all with %d lanes of family %s, of which %d of %d are away",
					k.name, n, f, away, total)
			}
		}
		was.stamp, was.to, was.drains = m.Stamp, m.Layout, m.DrainFirst
		w.away[m.Agent] = was
		return
	}
	w.moves++
	k.issued = w.now
	mine := w.serving(k.held, k.lanes)
	to := w.serving(m.Layout, k.lanes)
	for f, n := range mine {
		total, away, busy, others := 0, 0, 0, 0
		for _, o := range w.workers {
			if o.dead {
				continue
			}
			if x, ok := w.away[o.name]; ok {
				total += x.lanes[f]
				if x.drains || w.serving(x.to, o.lanes)[f] < x.lanes[f] {
					away += x.lanes[f]
				} else {
					busy += x.lanes[f]
				}
				continue
			}
			if o.state == Changing { // a former leader's doing
				continue
			}
			has := w.serving(o.held, o.lanes)[f]
			total += has
			if o != k && has > 0 {
				others++
			}
		}
		leaves := m.DrainFirst || to[f] < n
		if leaves && away > 0 && 4*(away+n) > total || away+busy > 0 && 2*(away+busy+n) > total {
			w.fail(
				"%s goes away with %d lanes of family %s, of which %d of %d are away and %d busy",
				k.name, n, f, away, total, busy)
		}
		if others == 0 && (m.DrainFirst || to[f] == 0) {
			w.fail("%s goes away, the last host of family %s", k.name, f)
		}
	}
	w.away[m.Agent] = awayFrom{mine, m.Stamp, m.Layout, m.DrainFirst}
}

// told reports whether an event of a kind was told, and its text.
func (w *world) told(kind EventKind) (texts []string) {
	for _, e := range w.events {
		if e.Kind == kind {
			texts = append(texts, e.Text)
		}
	}
	return texts
}
