package replan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/staffing"
)

// A Replanner decides on the placement in one leader's term. It is not safe for concurrent use.
type Replanner struct {
	cfg    Config
	memory Memory

	began   time.Time
	started bool
	settled bool
	last    *Snapshot // of the last step
	now     time.Time // then
	agents  map[names.AgentName]*agent
	// generation counts the changes after which an older plan is stale: of agents, models, bars,
	// pins and what operators want.
	generation int
	demand     map[string]*Demand // by family
	// lateSince is when more queries began to wait late than the lateThen of the last plan;
	// zero: no more do.
	lateSince time.Time
	lateThen  int
	barred    map[bar]time.Time // until when

	placement *place.Placement // nil before the first step
	plan      *Plan            // of it, or of the last plan that changed nothing
	wanted    map[names.AgentName]place.Layout
	solving   *Problem
	solved    *Plan
	solvedAt  time.Time // when the last problem was asked for
	planned   bool      // one has been
	trigger   string    // why to plan before the period is over
	// hostless is since when families have no host; rescued are the agents that are to be one, and
	// need not wait until the leader has settled.
	hostless  map[string]time.Time
	rescued   map[names.AgentName]bool
	slower    map[names.TableKey]bool
	told      map[string]bool
	moving    travel
	watch     watch
	announced uint64 // the version of the last answer
	events    []Event
	remember  bool
}

// An agent is what the replanner knows of an agent beside the snapshot.
type agent struct {
	Agent
	// failed is the stamp of the failure that was handled last.
	failed  place.Stamp
	sent    Move         // the last one that may begin; no stamp: none
	sentAt  time.Time    // zero: no plan is being made
	held    place.Layout // when that began
	stuckAt time.Time    // until when it keeps what it holds
}

// A bar keeps a model from an agent.
type bar struct {
	agent names.AgentName
	model names.ModelKey
}

// New returns the replanner of a term that begins now, or what is wrong with cfg. memory is the
// newest that is known, of this leader or another; its versions go on.
func New(cfg Config, memory Memory) (*Replanner, error) {
	cfg.Period = cmp.Or(cfg.Period, 10*time.Second)
	cfg.Burst = cmp.Or(cfg.Burst, 2*time.Second)
	cfg.Settle = cmp.Or(cfg.Settle, 20*time.Second)
	cfg.Headroom = cmp.Or(cfg.Headroom, staffing.PlacingHeadroom)
	cfg.Window = cmp.Or(cfg.Window, 20*time.Second)
	cfg.Bar = cmp.Or(cfg.Bar, 10*time.Minute)
	cfg.Steps = cmp.Or(cfg.Steps, place.DefaultSteps)
	var errs []error
	for name, d := range map[string]time.Duration{
		"period": cfg.Period, "burst": cfg.Burst, "settle": cfg.Settle, "window": cfg.Window,
		"bar": cfg.Bar,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, want above 0", name, d))
		}
	}
	if !(cfg.Headroom >= 1 && cfg.Headroom <= 100) {
		errs = append(errs, fmt.Errorf("headroom is %v, want 1..100", cfg.Headroom))
	}
	if cfg.Steps < 0 {
		errs = append(errs, fmt.Errorf("steps is %d, want above 0", cfg.Steps))
	}
	memory.Placements = slices.Clone(memory.Placements)
	memory.Pins = slices.Clone(memory.Pins)
	return &Replanner{
		cfg: cfg, memory: memory, agents: map[names.AgentName]*agent{},
		demand: map[string]*Demand{},
		barred: map[bar]time.Time{}, wanted: map[names.AgentName]place.Layout{},
		slower: map[names.TableKey]bool{}, told: map[string]bool{},
		hostless: map[string]time.Time{}, rescued: map[names.AgentName]bool{},
	}, errors.Join(errs...)
}

// Step takes what is known now. s may be changed afterwards but for what its comment says.
func (r *Replanner) Step(now time.Time, s *Snapshot) *Answer {
	kept := *s
	kept.Agents, kept.Families = slices.Clone(s.Agents), slices.Clone(s.Families)
	kept.Variants = slices.Clone(s.Variants)
	r.last, r.now = &kept, now
	if !r.started {
		r.started, r.began = true, now
	}
	count := func(name string, arrived uint64) {
		if r.demand[name] == nil {
			r.demand[name] = &Demand{}
		}
		r.demand[name].Count(now, arrived)
	}
	for i := range s.Families {
		f := &s.Families[i]
		count(f.Name, f.Arrived)
		for k := range f.Classes {
			count(f.Classes[k].key(f.Name), f.Classes[k].Arrived)
		}
	}
	r.noteAgentChanges()
	r.beginTerm()
	if !r.settled && (now.Sub(r.began) >= r.cfg.Settle || r.demandKnownFor() >= 10*time.Second) {
		r.settled = true
	}
	r.handleLoadFailures()
	r.applyPins()
	r.rescueFamilies()
	answer := &Answer{Next: now.Add(time.Second)}
	if r.settled {
		r.takePlan()
		r.undoRaise()
		r.checkAlarms()
		answer.Solve = r.problemToSolve()
	}
	r.beginChanges()
	r.repeatMoves(answer)
	answer.Placement, answer.Changed = r.placement, r.announced != r.placement.Version
	answer.Remember = r.remember || answer.Changed
	answer.Events = r.events
	r.announced, r.events, r.remember = r.placement.Version, nil, false
	return answer
}

// demandKnownFor is for how long the demand of some family is known.
func (r *Replanner) demandKnownFor() time.Duration {
	longest := time.Duration(0)
	for _, d := range r.demand {
		longest = max(longest, d.Known(r.now))
	}
	return longest
}

func (r *Replanner) addEvent(e Event) { r.events = append(r.events, e) }

// addEventOnce tells e unless it has been told since it was last forgotten.
func (r *Replanner) addEventOnce(key string, e Event) {
	if !r.told[key] {
		r.told[key] = true
		r.addEvent(e)
	}
}

// noteAgentChanges notes what has changed about the agents.
func (r *Replanner) noteAgentChanges() {
	present := map[names.AgentName]bool{}
	for i := range r.last.Agents {
		a := &r.last.Agents[i]
		present[a.Name] = true
		known := r.agents[a.Name]
		switch {
		case known == nil:
			known = &agent{}
			r.agents[a.Name] = known
			r.requestPlan(fmt.Sprintf("agent %s joined", a.Name))
		case a.Draining != known.Draining:
			r.requestPlan(fmt.Sprintf("agent %s leaves", a.Name))
		case a.Type != known.Type || a.Lanes != known.Lanes || a.Cores != known.Cores ||
			a.Fixed != known.Fixed || a.Memory != known.Memory ||
			!slices.Equal(a.Available, known.Available):
			r.generation++
		}
		known.Agent = *a
	}
	for _, name := range slices.Sorted(maps.Keys(r.agents)) {
		if !present[name] {
			delete(r.agents, name)
			r.requestPlan(fmt.Sprintf("agent %s was lost", name))
		}
	}
	for b, until := range r.barred {
		if !r.now.Before(until) {
			delete(r.barred, b)
			r.generation++
		}
	}
}

// requestPlan asks for a plan soon; older ones are stale.
func (r *Replanner) requestPlan(why string) {
	r.generation++
	if r.trigger == "" {
		r.trigger = why
	}
}

// beginTerm makes the first placement of the term: the last one that is known, if no agent has
// taken one that is newer, or else what agents hold.
func (r *Replanner) beginTerm() {
	newest := uint64(0)
	for _, a := range r.agents {
		newest = max(newest, a.Taken.Version)
	}
	if r.placement == nil {
		r.placement = &place.Placement{Reason: "what the agents held when the leader came"}
		if n := len(r.memory.Placements); n > 0 {
			last := r.memory.Placements[n-1]
			r.placement = &last
			if last.Version >= newest {
				for _, a := range last.Agents {
					r.wanted[a.Agent] = a.Layout
				}
			}
		}
	}
	if newest > r.placement.Version && !r.settled {
		// An agent has taken a placement that this leader does not know, so this leader's is not
		// the newest: the agents' layouts are nearer to the newest one.
		clear(r.wanted)
		r.adoptHeld()
		r.makePlacement(newest+1,
			"agents know of a newer placement than the leader: what they hold", nil)
	}
	listed := true
	for name, a := range r.agents {
		if _, ok := r.wanted[name]; !ok {
			r.wanted[name], listed = a.Held, false
		}
	}
	for name := range r.wanted {
		if r.agents[name] == nil && r.settled {
			delete(r.wanted, name)
			listed = false
		}
	}
	switch {
	case r.placement.Version == 0:
		r.makePlacement(1, r.placement.Reason, nil)
	case !listed: // an agent that has come keeps its layout until the next version
		r.reviseForecast(r.placement.Families)
	}
}

// reviseForecast changes what the placement expects and whom it lists, and no version.
func (r *Replanner) reviseForecast(families []place.FamilyForecast) {
	p := &place.Placement{
		Version: r.placement.Version, Reason: r.placement.Reason, Families: families,
		Agents: r.list(r.placement.Version),
	}
	r.placement = p
	if n := len(r.memory.Placements); n > 0 && r.memory.Placements[n-1].Version == p.Version {
		r.memory.Placements[n-1] = *p
	}
}

// list returns the wanted layouts. Since of each is the first version that has wanted it without a
// break: as in the present placement, or version if the layout is new.
func (r *Replanner) list(version uint64) (all []place.AgentLayout) {
	since := map[names.AgentName]place.AgentLayout{}
	for _, a := range r.placement.Agents {
		since[a.Agent] = a
	}
	for _, name := range slices.Sorted(maps.Keys(r.wanted)) {
		a := place.AgentLayout{Agent: name, Layout: r.wanted[name], Since: version}
		if was, ok := since[name]; ok && was.Layout.Equal(a.Layout) {
			a.Since = was.Since
		}
		all = append(all, a)
	}
	return all
}

// adoptHeld wants of each agent what it holds.
func (r *Replanner) adoptHeld() {
	for name, a := range r.agents {
		r.wanted[name] = a.Held
	}
}

// makePlacement makes the placement of what is wanted.
func (r *Replanner) makePlacement(version uint64, reason string, families []place.FamilyForecast) {
	if families == nil {
		families = r.placement.Families
	}
	p := &place.Placement{
		Version: version, Reason: reason, Families: families, Agents: r.list(version),
	}
	r.placement = p
	r.memory.Placements = append(r.memory.Placements, *p)
	if n := len(r.memory.Placements); n > MemorySize {
		r.memory.Placements = slices.Clone(r.memory.Placements[n-MemorySize:])
	}
}

// makeNextVersion makes the next version of what is wanted, and tells of it.
func (r *Replanner) makeNextVersion(kind EventKind, reason string,
	families []place.FamilyForecast) {
	before := r.placement
	r.makePlacement(r.placement.Version+1, reason, families)
	changed := 0
	for _, a := range r.placement.Agents {
		if a.Since == r.placement.Version {
			changed++
		}
	}
	r.addEvent(Event{Kind: kind, Version: r.placement.Version, Text: fmt.Sprintf(
		"placement %d: %s; %d of %d agents change", r.placement.Version, reason, changed,
		len(r.placement.Agents))})
	r.watch.watchPlacement(r, before)
}

// handleLoadFailures takes the failures of loads: the models are barred there, and a plan is made
// at once.
func (r *Replanner) handleLoadFailures() {
	for _, a := range r.last.Agents {
		known := r.agents[a.Name]
		if a.State != Failed || known.failed == a.Taken {
			continue
		}
		known.failed = a.Taken
		r.barModels(known, a.Why, a.Failed)
	}
}

// barModels bars the models, or all that the agent would have loaded, and wants what it holds.
func (r *Replanner) barModels(a *agent, why string, models []names.ModelKey) {
	if len(models) == 0 {
		for _, m := range r.wanted[a.Name].Models() {
			if !a.Held.Has(m) {
				models = append(models, m)
			}
		}
	}
	for _, m := range models {
		r.barred[bar{a.Name, m}] = r.now.Add(r.cfg.Bar)
		r.addEvent(Event{Kind: LoadFails, Agent: a.Name, Model: m, Version: a.Taken.Version,
			Text: fmt.Sprintf("agent %s could not load model %s, and does not try again for %v: %s",
				a.Name, m, r.cfg.Bar, why)})
	}
	reason := fmt.Sprintf("agent %s could not load %s", a.Name, strings.Join(names.Strings(models),
		", "))
	if !r.wanted[a.Name].Equal(a.Held) {
		r.wanted[a.Name] = a.Held
		r.makeNextVersion(Planned, reason, nil)
	}
	r.requestPlan(reason)
}

// takePlan decides on the plan that has been solved.
func (r *Replanner) takePlan() {
	plan := r.solved
	r.solved = nil
	if plan == nil || plan.problem != r.solving {
		return
	}
	r.solving = nil
	if plan.problem.generation != r.generation {
		return // the agents are others now: ask plans again
	}
	r.plan = plan
	clear(r.slower)
	r.reportShortfalls(plan)
	same := true
	for i, l := range plan.layouts {
		same = same && r.wanted[plan.problem.agents[i].Name].Equal(l)
	}
	if same || r.watch.isBarred(r, plan) {
		r.reviseForecast(plan.families)
		return
	}
	for i, l := range plan.layouts {
		r.wanted[plan.problem.agents[i].Name] = l
	}
	r.makeNextVersion(Planned, plan.problem.reason, plan.families)
}

// reportShortfalls tells of what the plan does not serve, once for as long as it is so.
func (r *Replanner) reportShortfalls(plan *Plan) {
	told := map[string]bool{}
	for _, e := range plan.missing {
		key := string(e.Kind) + e.Text
		r.addEventOnce(key, e)
		told[key] = true
	}
	missing := func(family string) bool {
		return slices.ContainsFunc(plan.missing, func(e Event) bool {
			return e.Family == family && e.Model == ""
		})
	}
	for i, f := range plan.families {
		key := string(Unserved) + f.Family
		arrive, unserved := plan.problem.usual[i], plan.unserved[i]
		if unserved <= 1e-6*arrive || missing(f.Family) {
			continue
		}
		told[key] = true
		r.addEventOnce(key, Event{Kind: Unserved, Family: f.Family, Version: r.placement.Version,
			Text: fmt.Sprintf("no placement serves all: of %.4g queries/s that arrive for family "+
				"%s, %.4g are not served (%.2f %%)", arrive, f.Family, unserved,
				100*unserved/arrive)})
	}
	for key := range r.told {
		if !told[key] && (strings.HasPrefix(key, string(Unserved)) ||
			strings.HasPrefix(key, string(Unplaced))) {
			delete(r.told, key)
		}
	}
}

// checkAlarms looks for reasons to plan before the period is over.
func (r *Replanner) checkAlarms() {
	late := r.waitingLate()
	switch {
	case late <= r.lateThen: // queries that are late already may wait for calmer times
		r.lateSince = time.Time{}
		r.lateThen = late
	case r.lateSince.IsZero():
		r.lateSince = r.now
	}
	if r.trigger != "" || r.plan == nil {
		return
	}
	for _, f := range r.plan.families {
		d := r.demand[f.Family]
		if d != nil && f.Demand > 0 &&
			staffing.Likely(d.Last(), DemandWindow.Seconds()) > 1.1*f.Demand {
			r.trigger = fmt.Sprintf("burst of %s: %.4g -> %.4g queries/s", f.Family, f.Rate,
				d.Last())
			return
		}
	}
	if !r.lateSince.IsZero() && r.now.Sub(r.lateSince) >= time.Second/2 {
		r.trigger = "queries wait late"
	}
	r.slowerThanPlanned()
}

func (r *Replanner) waitingLate() (n int) {
	for i := range r.last.Families {
		n += r.last.Families[i].WaitingLate
	}
	return n
}

// slow is the factor by which a model's latency must exceed that of the plan for the plan's rates
// to count as wrong. Chosen: far above the .22 by which latencies vary on the noisiest type.
const slow = 1.5

// slowerThanPlanned compares the latencies of what agents should hold with those of the plan.
func (r *Replanner) slowerThanPlanned() {
	p := r.plan.problem
	for i := range p.agents {
		planned := &p.agents[i]
		a := r.agents[planned.Name]
		if a == nil {
			continue
		}
		l := r.wanted[planned.Name]
		for j := range l.Partitions {
			for _, m := range l.Partitions[j].Models {
				now := names.TableKey{Model: m, Type: l.LaneType(j, a.Type)}
				then := names.TableKey{Model: m, Type: l.LaneType(j, planned.Type)}
				new, old := r.last.Latencies[now], p.latencies[then]
				if new == nil || old == nil || new == old || r.slower[now] {
					continue
				}
				batch := p.typicalBatch(m)
				if times := float64(new.Mean(batch)) / float64(old.Mean(batch)); times >= slow {
					r.slower[now] = true
					r.addEvent(Event{Kind: Slower, Agent: a.Name, Model: m,
						Version: r.placement.Version,
						Text: fmt.Sprintf(
							"model %s takes %.2f times as long on %s as placement %d "+
								"assumes: %v, not %v, at batch size %d", m, times, now.Type,
							r.placement.Version, new.Mean(batch).Round(time.Microsecond),
							old.Mean(batch).Round(time.Microsecond), batch)})
					r.trigger = fmt.Sprintf("model %s is slower on %s than was known", m, now.Type)
				}
			}
		}
	}
}

// typicalBatch is a usual batch size of a model's queries.
func (p *Problem) typicalBatch(m names.ModelKey) int {
	if v, ok := p.model[m]; ok {
		if f, ok := p.family[p.variants[v].Family]; ok {
			return p.sizes[f][len(p.sizes[f])/2].mean
		}
	}
	return 1
}

// problemToSolve returns the problem to solve now, or nil.
func (r *Replanner) problemToSolve() *Problem {
	if r.memory.Paused || r.solving != nil && r.solving.generation == r.generation ||
		len(r.agents) == 0 {
		return nil
	}
	since := r.now.Sub(r.solvedAt)
	reason := "periodic"
	switch {
	case !r.planned:
		reason = "the first plan of the leader"
	case since >= r.cfg.Period:
		if r.trigger != "" {
			reason = r.trigger
		}
	case r.trigger != "" && since >= r.cfg.Burst:
		reason = r.trigger
	default:
		return nil
	}
	r.trigger, r.planned, r.solvedAt = "", true, r.now
	r.lateThen, r.lateSince = r.waitingLate(), time.Time{}
	r.solving = r.makeProblem(reason)
	return r.solving
}

// makeProblem is the problem as of now.
func (r *Replanner) makeProblem(reason string) *Problem {
	p := &Problem{
		only: map[names.AgentName]bool{}, variants: r.last.Variants, families: r.last.Families,
		latencies: r.last.Latencies, layouts: r.last.Layouts, barred: maps.Clone(r.barred),
		calm: r.now.Before(r.watch.calm), generation: r.generation, reason: reason,
		steps: r.cfg.Steps, seed: r.cfg.Seed,
	}
	for _, a := range r.last.Agents {
		known := r.agents[a.Name]
		if a.Draining {
			continue
		}
		if a.Fixed || known.stuckAt.After(r.now) || r.pinOf(a.Name) != nil {
			p.only[a.Name] = true
		}
		p.agents = append(p.agents, a)
		current := a.Held
		if a.State == Changing || p.only[a.Name] && !a.Fixed {
			current = r.wanted[a.Name]
		}
		p.current = append(p.current, current)
	}
	for i := range p.families {
		d := r.demand[p.families[i].Name]
		rate := max(d.Mean(), d.Last())
		p.rate = append(p.rate, rate)
		p.usual = append(p.usual, d.Average(r.now, r.cfg.Window))
		p.demand = append(p.demand, r.cfg.Headroom*d.Likely(r.now, r.cfg.Window))
		var classes []float64
		for k := range p.families[i].Classes {
			d := r.demand[p.families[i].Classes[k].key(p.families[i].Name)]
			classes = append(classes, r.cfg.Headroom*d.Likely(r.now, r.cfg.Window))
		}
		p.ofClass = append(p.ofClass, classes)
	}
	return p
}

// pinOf is the layout to which an operator has pinned an agent, nil if none has.
func (r *Replanner) pinOf(name names.AgentName) *place.Layout {
	for i := range r.memory.Pins {
		if r.memory.Pins[i].Agent == name {
			return &r.memory.Pins[i].Layout
		}
	}
	return nil
}

// Solved takes the plan of a problem that a step asked for. The next step decides on it.
func (r *Replanner) Solved(p *Plan) { r.solved = p }

// Memory is what is to be kept for the next leader.
func (r *Replanner) Memory() Memory {
	return Memory{
		Placements: slices.Clone(r.memory.Placements), Paused: r.memory.Paused,
		RolledBack: r.memory.RolledBack,
		Pins:       slices.Clone(r.memory.Pins),
	}
}
