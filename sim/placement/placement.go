// Package placement lets a simulated fleet's placement be decided in virtual time, by the code that
// decides it in production: package leader/place/replan. It drains and loads for the lanes, runs
// the learning loop, and keeps the account of what changed.
package placement

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim/fleet"
)

// A Config says how the placement is decided. The zero value of a field means its default.
type Config struct {
	// Replan is how the replanner decides; Epoch is not read.
	Replan replan.Config
	// SolveTime is the virtual time that a plan takes, 0.5 s.
	SolveTime time.Duration
	// LoadTime is how long an instance takes to load a variant, 2 s; Loads has it for variants
	// that take longer or shorter.
	LoadTime time.Duration
	Loads    map[string]time.Duration
	// Fits is how many variants fit into an instance's memory at once, 2. With 1 an instance drains
	// before it loads.
	Fits int
	// Blind says that nothing is learned of latencies while queries run.
	Blind bool
	// Speed is how many seconds of the time in which placements are decided pass in a second of
	// the run, above 0; 0: one. It is one unless a day is simulated.
	Speed float64
	// Decider, if not nil, makes what decides in place of the replanner.
	Decider func() Decider
	// Timeline, if not nil, receives a CSV line for each family and window.
	Timeline io.Writer
}

// A Decider decides what the instances hold, as a [replan.Replanner] does.
type Decider interface {
	Step(now time.Time, s *replan.Snapshot) *replan.Answer
	Solved(p *replan.Plan)
}

// WarmUp is how long queries arrive before those that count: the leader learns the demand and
// places the models for the first time.
const WarmUp = 40 * time.Second

// Window is the length of the windows of which a result tells.
const Window = 10 * time.Second

// Validate reports all that is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	for name, d := range map[string]time.Duration{
		"period": c.Replan.Period, "solve time": c.SolveTime, "load time": c.LoadTime,
	} {
		if d < 0 || d > time.Hour {
			errs = append(errs, fmt.Errorf("placement: %s is %v, want 0 to an hour", name, d))
		}
	}
	if c.Fits < 0 {
		errs = append(errs, fmt.Errorf("placement: %d variants fit, want 1 or more", c.Fits))
	}
	if _, err := replan.New(c.Replan, replan.Memory{}); err != nil {
		errs = append(errs, fmt.Errorf("placement: %w", err))
	}
	return errors.Join(errs...)
}

// A Variant is a model that may be placed.
type Variant struct {
	Name     string
	Family   int
	Accuracy float64 // in (0, 1]
	Merges   bool    // lanes run several of its queries as one
	Largest  int     // batch size of a run
}

// A Family is what queries ask for.
type Family struct {
	Name      string
	QoSTarget time.Duration
	Sizes     profiles.Distribution
}

// A AgentLane is an instance.
type AgentLane struct {
	Agent names.AgentName
	Type  names.LaneType
	Holds []int // variants, at the start
}

// A PlacementControl is the simulated fleet. All that it is told happens at once.
type PlacementControl interface {
	// Hold says that a lane holds these variants from now. What it has been given it runs still.
	Hold(lane int, variants []int)
	// Busy reports whether a lane runs or queues a query.
	Busy(lane int) bool
	// WaitingLate is how many queries wait for a lane and are late.
	WaitingLate() int
	// Advise hands the learning loop's results to the leader.
	Advise(a *leader.Advice)
	// Forecast tells of the shares of a family that the variants are expected to answer.
	Forecast(family int, byVariant []float64)
	// Leader is the number of the leader's term, 0 if nobody leads. Later ones are higher.
	Leader() uint64
	// Agent says how a lane's agent is.
	Agent(lane int) fleet.AgentState
}

// A Planner decides the placement of one run.
type Planner struct {
	cfg      *Config
	fleet    PlacementControl
	decider  Decider
	term     uint64 // of the leader whose decider it is
	memory   replan.Memory
	variants []Variant
	families []Family
	lanes    []lane
	snapshot replan.Snapshot
	model    map[names.ModelKey]int

	plan    *replan.Plan
	planAt  time.Duration
	version uint64

	learner *learn.State
	book    *profiles.Book   // the learner's
	untried []names.TableKey // at the start
	// expected are those whose latencies are known from runs of others.
	expected map[names.TableKey]bool
	seen     learn.Seen
	slow     map[names.AgentName]names.LaneType

	result  Result
	windows []window
	minute  []time.Duration // when instances changed
	err     error
}

// A lane is an instance on its way.
type lane struct {
	AgentLane
	held  []int
	state replan.ChangeState
	taken place.Stamp
	move  replan.Move
	loads bool
	until time.Duration
	// as of the last look
	is fleet.AgentState
}

// epoch is the time at which a run starts.
var epoch = time.Unix(0, 0).UTC()

// step is the time between two steps of the decider.
const step = 250 * time.Millisecond

// dayStep is that between two steps, in the time of a day that is simulated. Chosen: it is short
// beside what a machine takes to load, and half of a day's simulation is such steps.
const dayStep = 2 * time.Second

// Key is how a variant is named.
func (v *Variant) Key() names.ModelKey { return leader.ModelID{Name: v.Name, Version: 1}.Key() }

// Profile is the key under which a variant's latencies on a type are learned.
func (v *Variant) Profile(t names.LaneType) profiles.Key {
	return profiles.Key{
		Model: v.Name, Version: 1, InstanceType: profiles.InstanceType(t), Provider: "cpu",
	}
}

// New returns the planner of a run. known are the latencies that are known at the start.
func New(cfg *Config, variants []Variant, families []Family, lanes []AgentLane,
	known map[names.TableKey]match.Latencies, its PlacementControl) (*Planner, error) {
	p := &Planner{
		cfg: cfg, fleet: its, variants: variants, families: families,
		model: map[names.ModelKey]int{}, expected: map[names.TableKey]bool{},
	}
	book := profiles.NewBook(profiles.ShippedLibrary())
	p.snapshot.Latencies = map[names.TableKey]replan.Latencies{}
	for key, l := range known {
		p.snapshot.Latencies[key] = l
		i := slices.IndexFunc(variants, func(v Variant) bool { return v.Key() == key.Model })
		t, err := NewTable(variants[i].Profile(key.Type), l, variants[i].Largest)
		if err != nil {
			return nil, fmt.Errorf("model %s on %s: %w", variants[i].Name, key.Type, err)
		}
		book.Begin(t.Key(), t)
		p.untried = append(p.untried, key)
	}
	p.book = book
	var all []names.ModelKey
	for i := range variants {
		v := &variants[i]
		p.model[v.Key()] = i
		all = append(all, v.Key())
		p.snapshot.Variants = append(p.snapshot.Variants, replan.Variant{
			Model: v.Key(), Family: families[v.Family].Name, Accuracy: v.Accuracy, Bytes: 1,
			Load: p.loadTime(i), Merges: v.Merges, Largest: v.Largest,
		})
	}
	slices.SortFunc(p.snapshot.Variants, func(a, b replan.Variant) int {
		return cmp.Compare(a.Model, b.Model)
	})
	for _, f := range families {
		p.snapshot.Families = append(p.snapshot.Families, replan.Family{
			Name: f.Name, QoSTarget: f.QoSTarget, Sizes: f.Sizes,
		})
	}
	for _, l := range lanes {
		p.lanes = append(p.lanes, lane{AgentLane: l, held: l.Holds})
		p.snapshot.Agents = append(p.snapshot.Agents, replan.Agent{
			Name: l.Agent, Type: l.Type, Lanes: 1, Memory: int64(cmp.Or(cfg.Fits, 2)),
			Available: all,
		})
	}
	return p, nil
}

// beginTerm lets the leader of a term decide. It knows what its predecessor has learned, and its
// placements, as leaders in production do from their disks and from the members.
func (p *Planner) beginTerm(term uint64) error {
	p.term, p.plan, p.version = term, nil, 0
	p.learner = learn.New(p.book)
	if p.cfg.Decider != nil {
		p.decider = p.cfg.Decider()
		return nil
	}
	c := p.cfg.Replan
	c.Epoch = term
	r, err := replan.New(c, p.memory)
	p.decider = r
	return err
}

// NewTable is a profile of latencies.
func NewTable(key profiles.Key, l match.Latencies, largest int) (*profiles.Table, error) {
	if t, ok := l.(*profiles.Table); ok {
		return t.As(key), nil
	}
	var knots []profiles.Knot
	for b := 1; ; b = min(largest, max(b+1, b*5/4)) {
		knot := profiles.Knot{
			BatchSize: b, Mean: l.Mean(b), P50: l.Quantile(.5, b), P90: l.Quantile(.9, b),
		}
		knot.P99 = max(knot.P90, l.Quantile(.99, b))
		knots = append(knots, knot)
		if b >= largest {
			break
		}
	}
	return profiles.NewTable(key, profiles.Measured, "simulated", knots)
}

func (p *Planner) loadTime(variant int) time.Duration {
	if d, ok := p.cfg.Loads[p.variants[variant].Name]; ok {
		return d
	}
	return cmp.Or(p.cfg.LoadTime, 2*time.Second)
}

// Count sets how many queries of a family have arrived in all.
func (p *Planner) Count(family int, arrived uint64) {
	p.snapshot.Families[family].Arrived = arrived
}

// Begin says that a lane's agent has begun again, and holds nothing.
func (p *Planner) Begin(lane int) { p.lanes[lane].held = nil }

// Arrived counts a query.
func (p *Planner) Arrived(family int) { p.snapshot.Families[family].Arrived++ }

// Ended counts the end of a query: which variant answered it, -1 if none did, and whether it was
// late. Windows are by when queries arrived.
func (p *Planner) Ended(family, variant int, late bool, arrival time.Duration) {
	f := &p.snapshot.Families[family]
	f.Ended++
	if late {
		f.Late++
	}
	if arrival < WarmUp || p.cfg.Speed > 0 {
		return
	}
	i := int((arrival - WarmUp) / Window)
	for len(p.windows) <= i {
		p.windows = append(p.windows, window{counts: make([]count, len(p.families))})
	}
	w := &p.windows[i].counts[family]
	w.ended++
	if late {
		w.late++
	}
	if variant >= 0 {
		w.answered++
		w.accuracy += p.variants[variant].Accuracy
	}
}

// Acts takes the leader's actions that are for the learning loop.
func (p *Planner) Acts(now time.Duration, a *leader.Action) {
	at := epoch.Add(now)
	switch a.Kind {
	case leader.Arrived:
		p.seen.Arrivals = append(p.seen.Arrivals,
			learn.Arrival{Model: a.Model, BatchSize: a.BatchSize,
				At: at})
	case leader.Observed, leader.ObservedCut:
		if !p.cfg.Blind && a.Duration > 0 {
			p.seen.Observations = append(p.seen.Observations, learn.Observation{Member: a.Member,
				Model: a.Model, BatchSize: a.BatchSize, Execution: a.Duration,
				Cut: a.Kind == leader.ObservedCut, At: at})
		}
	case leader.PoolChanged:
		p.seen.Pool = a.Pool
	}
}

// Wake lets the planner decide, and returns when to call it next.
func (p *Planner) Wake(at time.Duration) (next time.Duration, err error) {
	speed, step := 1.0, step
	if p.cfg.Speed > 0 {
		speed, step = p.cfg.Speed, time.Duration(float64(dayStep)/p.cfg.Speed)
	}
	now := time.Duration(float64(at) * speed)
	p.lookAtAgents()
	term := p.fleet.Leader()
	if term != 0 && term != p.term {
		if err := p.beginTerm(term); err != nil {
			return 0, err
		}
	}
	if term != 0 {
		p.learnFromRuns(at)
	}
	for i := range p.lanes {
		p.continueChange(i, now)
	}
	if term == 0 {
		return at + step, p.err
	}
	if p.plan != nil && now >= p.planAt {
		p.decider.Solved(p.plan)
		p.plan = nil
	}
	a := p.decider.Step(epoch.Add(now), p.takeSnapshot())
	p.carryOut(now, a)
	return at + step, p.err
}

// lookAtAgents notes what has become of the agents. One that begins again has taken no layout yet.
func (p *Planner) lookAtAgents() {
	for i := range p.lanes {
		l := &p.lanes[i]
		was := l.is
		if l.is = p.fleet.Agent(i); l.is.Lives != was.Lives || !l.is.Present && was.Present {
			l.state, l.taken, l.move = replan.Settled, place.Stamp{}, replan.Move{}
		}
	}
}

// takeSnapshot is what the leader knows now, in the replanner's order.
func (p *Planner) takeSnapshot() *replan.Snapshot {
	s := &p.snapshot
	byName := *s
	byName.Agents = nil
	for i := range p.lanes {
		l, a := &p.lanes[i], &s.Agents[i]
		if !l.is.Present {
			continue
		}
		a.Held, a.Taken, a.State = p.layoutOf(l.held), l.taken, l.state
		a.Draining = l.is.Draining
		if a.Type = l.Type; p.slow[l.Agent] != "" {
			a.Type = p.slow[l.Agent]
		}
		byName.Agents = append(byName.Agents, *a)
	}
	for i := range s.Families {
		s.Families[i].WaitingLate = 0
	}
	s.Families[0].WaitingLate = p.fleet.WaitingLate()
	slices.SortFunc(byName.Agents,
		func(a, b replan.Agent) int { return cmp.Compare(a.Name, b.Name) })
	byName.Families = slices.Clone(s.Families)
	slices.SortFunc(byName.Families,
		func(a, b replan.Family) int { return cmp.Compare(a.Name, b.Name) })
	return &byName
}

// learnFromRuns lets the learning loop look at what ran.
func (p *Planner) learnFromRuns(now time.Duration) {
	a, _, err := p.learner.Look(epoch.Add(now), p.seen)
	p.seen = learn.Seen{Arrivals: p.seen.Arrivals[:0], Observations: p.seen.Observations[:0]}
	if err != nil && p.err == nil {
		// Prices of a pool that serves some batch sizes nowhere: as before.
		err = nil
	}
	if a == nil {
		return
	}
	if a.Slow != nil {
		p.slow = a.Slow
	}
	if len(a.Latencies) > 0 {
		known := maps.Clone(p.snapshot.Latencies)
		for _, l := range a.Latencies {
			known[l.TableKey] = l.Table
		}
		p.replaceExpected(known)
		p.snapshot.Latencies = known
	}
	p.fleet.Advise(a)
}

// replaceExpected replaces the latencies of what has not run by what runs of others have shown of
// them.
func (p *Planner) replaceExpected(known map[names.TableKey]replan.Latencies) {
	shown := p.learner.ProfileErrors()
	for _, key := range p.untried {
		v := &p.variants[p.model[key.Model]]
		as := v.Profile(key.Type)
		said := p.book.Table(as)
		if said.HasRun() {
			continue
		}
		table := p.book.Expected(as, shown, p.families[v.Family].Name)
		if _, before := p.expected[key]; before || table != said {
			known[key], p.expected[key] = table, true
		}
	}
}

func (p *Planner) layoutOf(variants []int) place.Layout {
	var models []names.ModelKey
	for _, v := range variants {
		models = append(models, p.variants[v].Key())
	}
	return place.NewLayout(models...)
}

// carryOut does what the decider says.
func (p *Planner) carryOut(now time.Duration, a *replan.Answer) {
	if a.Solve != nil {
		p.plan, p.planAt = a.Solve.Solve(), now+cmp.Or(p.cfg.SolveTime, time.Second/2)
		p.result.Solves++
		p.result.Steps += p.plan.Steps
	}
	if r, ok := p.decider.(*replan.Replanner); ok && a.Remember {
		p.memory = r.Memory()
	}
	for _, e := range a.Events {
		if len(p.result.Events) < maxEvents {
			p.result.Events = append(p.result.Events, Told{now.Seconds(), string(e.Kind), e.Text})
		}
	}
	for _, m := range a.Moves {
		i := slices.IndexFunc(p.lanes, func(l lane) bool { return l.Agent == m.Agent })
		if l := &p.lanes[i]; m.Stamp.Compare(l.taken) > 0 && l.state != replan.Changing {
			l.taken, l.move, l.state, l.loads = m.Stamp, m, replan.Changing, false
			p.beginChange(i, now)
		}
	}
	if a.Placement == nil || a.Placement.Version == p.version {
		return
	}
	p.version = a.Placement.Version
	p.result.Versions++
	for _, f := range a.Placement.Families {
		i := slices.IndexFunc(p.families, func(o Family) bool { return o.Name == f.Family })
		shares := make([]float64, len(p.variants))
		for _, s := range f.Shares {
			shares[p.model[s.Model]] = s.Share
		}
		p.fleet.Forecast(i, shares)
	}
}

// beginChange lets a lane begin to change.
func (p *Planner) beginChange(i int, now time.Duration) {
	l := &p.lanes[i]
	if l.move.DrainFirst {
		l.held = slices.DeleteFunc(slices.Clone(l.held), func(v int) bool {
			return !l.move.Layout.Has(p.variants[v].Key())
		})
		p.fleet.Hold(i, l.held)
	}
	p.continueChange(i, now)
}

// continueChange lets a lane that changes go on.
func (p *Planner) continueChange(i int, now time.Duration) {
	l := &p.lanes[i]
	if l.state != replan.Changing || l.is.Ended {
		return
	}
	if !l.loads {
		if l.move.DrainFirst && p.fleet.Busy(i) {
			return
		}
		l.loads, l.until = true, now
		for _, m := range l.move.Layout.Models() {
			if v := p.model[m]; !slices.Contains(l.held, v) {
				l.until += p.loadTime(v)
			}
		}
	}
	if now < l.until {
		return
	}
	l.state, l.held = replan.Settled, nil
	for _, m := range l.move.Layout.Models() {
		l.held = append(l.held, p.model[m])
	}
	p.fleet.Hold(i, l.held)
	p.countChange(now)
}
