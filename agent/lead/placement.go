package lead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/members"
	"github.com/muster-serve/muster/api/accuracy"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/place"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/profiles"
)

const (
	// placingRest is the least time between two steps of the replanner. Chosen: loads take seconds,
	// so nothing is gained by steps more often, and a burst of news makes one step.
	placingRest = 100 * time.Millisecond
	// tablesEvery is how often the replanner gets new latencies and batch sizes. Chosen: half of
	// the replanner's period.
	tablesEvery = 5 * time.Second
	// maxMemory is how many bytes of a replanner's memory go to the successor; the oldest
	// placements are left out beyond it.
	maxMemory = 256 << 10
)

// A Replanner decides what agents hold, as [replan.Replanner].
type Replanner interface {
	Step(now time.Time, s *replan.Snapshot) *replan.Answer
	Solved(*replan.Plan)
	Command(replan.Command) error
	Memory() replan.Memory
	Explain(agent names.AgentName) ([]string, error)
}

// newReplanner is Config.Replanner where that is nil.
func newReplanner(c replan.Config, m replan.Memory) (Replanner, error) { return replan.New(c, m) }

// placementPump runs a [Replanner] beside the term's loop: it tells it what the fleet is like,
// solves what it asks to be solved on a goroutine of its own, and sends agents the layouts that it
// decides on. The goroutine of run owns all fields but wake and asks, and what mu guards.
type placementPump struct {
	term *term
	wake wakeup.Signal // an agent has come further
	asks chan func()   // functions for run's goroutine to call

	replanner Replanner        // nil until an agent lets the leader say what it holds
	snapshot  *replan.Snapshot // of the last step; nil: no agent lets the leader say what it holds
	tables    placingTables
	solved    chan *replan.Plan // of size 1
	problem   string            // the last error logged, so that it is logged once

	mu     sync.Mutex
	memory *control.Placement // what the successor is to know; nil: nothing yet
	brief  *control.Placement // what the others are
	status *control.PlacementStatus
	// forecasts are the placement's, by family.
	forecasts map[string]place.FamilyForecast
}

// placingTables are what the learning loop knows, as of at.
type placingTables struct {
	at        time.Time
	of        map[names.TableKey]bool // those that were looked for
	latencies map[names.TableKey]replan.Latencies
	sizes     map[string]profiles.Distribution // by family
}

func newPlacing(t *term) *placementPump {
	return &placementPump{
		term: t, wake: wakeup.New(), asks: make(chan func()),
		solved: make(chan *replan.Plan, 1),
	}
}

// run steps the replanner until ctx ends.
func (s *placementPump) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case plan := <-s.solved:
			s.replanner.Solved(plan)
		case ask := <-s.asks:
			ask()
			continue
		case <-ctx.Done():
			return
		}
		next := s.step(ctx, time.Now())
		timer.Reset(next)
		select {
		case <-time.After(placingRest):
		case <-ctx.Done():
			return
		}
	}
}

// askLoop is [term.askGoroutine] on run's goroutine.
func (s *placementPump) askLoop(do func()) bool { return s.term.askGoroutine(s.asks, do) }

// step looks at the fleet, has the replanner decide, and carries out what it decides. It returns
// how long until the next step is due.
func (s *placementPump) step(ctx context.Context, now time.Time) time.Duration {
	snapshot := s.lookAtFleet(now)
	if ctx.Err() != nil {
		return time.Second
	}
	s.snapshot = snapshot
	if snapshot == nil { // no agent has a placement any more, and people must see that
		s.mu.Lock()
		s.status, s.forecasts = nil, nil
		s.mu.Unlock()
		return time.Second
	}
	if s.replanner == nil {
		if !s.beginReplanner() {
			return time.Minute
		}
	}
	a := s.replanner.Step(now, snapshot)
	s.carryOut(ctx, a)
	return min(max(a.Next.Sub(now), placingRest), time.Second)
}

// beginReplanner makes the replanner, from the newest memory that is known.
func (s *placementPump) beginReplanner() bool {
	l := s.term.leader
	memory := s.newestMemory()
	replanner := l.config.Replanner
	if replanner == nil {
		replanner = newReplanner
	}
	var err error
	s.replanner, err = replanner(replan.Config{Epoch: s.term.claim.Epoch, Seed: 1}, memory)
	if err != nil {
		s.replanner = nil
		l.log.Error("agents keep what they hold", "error", err)
		return false
	}
	return true
}

// newestMemory is the memory of the newest placement, of this agent's disk or of the leader before.
func (s *placementPump) newestMemory() (newest replan.Memory) {
	l := s.term.leader
	kept := &control.Placement{}
	text, err := os.ReadFile(l.placementPath())
	if err == nil {
		err = json.Unmarshal(text, &newest)
		kept.Version = versionOf(newest)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("the last placement cannot be read", "file", l.placementPath(), "error", err)
	}
	if told := l.fleet.Placement(); told.GetVersion() >= kept.Version && len(told.GetMemory()) > 0 {
		var m replan.Memory
		if err := json.Unmarshal(told.GetMemory(), &m); err != nil {
			l.log.Warn("the former leader's placement cannot be read", "error", err)
		} else {
			newest = m
		}
	}
	return newest
}

func versionOf(m replan.Memory) uint64 {
	if n := len(m.Placements); n > 0 {
		return m.Placements[n-1].Version
	}
	return 0
}

func (l *Leader) placementPath() string {
	return filepath.Join(l.config.StateDir, "placement.json")
}

// lookAtFleet returns what the replanner is to know; nil if no agent lets the leader say what it
// holds.
func (s *placementPump) lookAtFleet(now time.Time) *replan.Snapshot {
	t := s.term
	var out *replan.Snapshot
	needs, wanted := tableNeeds{}, s.wantedLayouts()
	gathered := make(chan struct{})
	t.postToLoop(func() { out = s.gather(needs, wanted); close(gathered) })
	select {
	case <-gathered:
	case <-t.ctx.Done(): // the loop may have ended, and waits for run
		return nil
	}
	if out == nil {
		return nil
	}
	s.refreshLatencies(now, needs)
	out.Latencies = s.tables.latencies
	for i := range out.Families {
		out.Families[i].Sizes = s.tables.sizes[out.Families[i].Name]
	}
	return out
}

// gather makes a snapshot without latencies and batch sizes, which needs lists: also those of the
// wanted layouts, by agent. The term's loop calls it.
func (s *placementPump) gather(needs tableNeeds,
	wanted map[names.AgentName][]place.Layout) *replan.Snapshot {
	t, catalogue := s.term, s.term.leader.config.Catalogue
	if !slices.ContainsFunc(slices.Collect(maps.Values(t.layouts)),
		(*control.LayoutState).GetAutomatic) {
		return nil
	}
	out := &replan.Snapshot{}
	types, factors := t.state.LaneTypes(), t.state.Factors()
	best := t.bestVariants()
	variants := map[names.ModelKey]replan.Variant{}
	targets := map[string]time.Duration{}
	for _, name := range slices.Sorted(maps.Keys(t.described)) {
		m, state := t.described[name], t.layouts[name]
		if t.state.Gone(name) { // before gossip says so
			continue
		}
		a := replan.Agent{
			Name: name, Type: types[name], Lanes: int(m.GetLanes()),
			Cores: int(m.GetLanes() * m.GetCores()),
			Fixed: !state.GetAutomatic(), Draining: m.GetDraining(),
		}
		if a.Type == "" {
			a.Type = m.LaneType()
		}
		own := describeLanes(m, place.Layout{})
		if n := state.GetOwnLanes(); n > 0 { // the lanes of a layout come and go
			own.Lanes, a.Lanes, a.Cores = n, int(n), int(state.GetOwnCores())
		}
		factor := 1.
		if f := factors[name]; a.Type.IsOwn() && f > 0 {
			factor = f
		}
		could := m.GetModels()
		if a.Fixed {
			a.Held = layoutOf(m)
		} else {
			could = state.GetAvailable()
			a.Memory = int64(state.GetMemoryBytes())
			a.Taken = place.Stamp{Epoch: state.GetEpoch(), Version: state.GetVersion()}
			a.State, a.Why = layoutStates[state.GetState()], state.GetWhy()
			a.Held, _ = place.ParseLayout(state.GetHolds()) // of a later version: it holds nothing
			for _, failed := range state.GetFailed() {
				a.Failed = append(a.Failed, names.ModelKey(failed))
			}
		}
		a.Available = keysOf(could)
		out.Agents = append(out.Agents, a)
		for _, c := range could {
			v := replan.Variant{
				Model: c.Key(), Family: c.GetFamily(), Accuracy: c.GetAccuracy(),
				Bytes: int64(c.GetBytes()), Load: control.Duration(c.GetLoadNs()),
				Merges: match.ParseMerge(c.GetMerge()) != "", Largest: int(c.GetLargestBatchSize()),
			}
			if v.Family == "" || best.Excludes(v.Family, v.Accuracy) {
				v.Family = c.GetName()
			}
			known := variants[v.Model]
			v.Bytes, v.Load = max(v.Bytes, known.Bytes), max(v.Load, known.Load)
			variants[v.Model] = v
			targets[v.Family] = max(targets[v.Family], control.Duration(c.GetQosTargetNs()))
			need := tableNeed{
				key:    members.KeyOf(catalogue, own, c),
				target: control.Duration(c.GetQosTargetNs()), largest: int(c.GetLargestBatchSize()),
				factor: factor, family: v.Family,
			}
			needs[names.TableKey{Model: v.Model, Type: a.Type}] = need
		}
		needs.addPartitions(catalogue, m, a.Type, a.Held, could)
		for _, l := range wanted[name] {
			needs.addPartitions(catalogue, m, a.Type, l, could)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(variants)) {
		out.Variants = append(out.Variants, variants[key])
	}
	counts := map[string]leader.FamilyCount{}
	for _, c := range t.state.FamilyCounts() {
		counts[c.Name] = c
	}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		c := counts[name]
		var classes []replan.Class
		for _, of := range c.Classes {
			class := replan.Class{Share: of.Share, Arrived: of.Arrived}
			for _, id := range of.Models {
				class.Models = append(class.Models, id.Key())
			}
			classes = append(classes, class)
		}
		out.Families = append(out.Families, replan.Family{
			Name: name, QoSTarget: targets[name],
			Arrived: c.Arrived, Ended: c.Ended, Late: c.Late, WaitingLate: c.WaitingLate,
			Classes: classes,
		})
	}
	return out
}

// bestVariants are the accuracies of the best variants of the families that members hold or have on
// disk.
func (t *term) bestVariants() accuracy.Best {
	best := control.BestVariants(slices.Collect(maps.Values(t.described)))
	for _, state := range t.layouts {
		for _, m := range state.GetAvailable() {
			best.Add(m.GetFamily(), m.GetAccuracy())
			best.Require(m.GetStatesFor(), m.GetMinAccuracy())
		}
	}
	return best
}

// layoutStates are the states of a LayoutState.
var layoutStates = map[string]replan.ChangeState{
	"reached": replan.Settled, "loading": replan.Changing, "draining": replan.Changing,
	"failed": replan.Failed,
}

func keysOf(all []*control.Model) []names.ModelKey {
	keys := make([]names.ModelKey, len(all))
	for i, m := range all {
		keys[i] = m.Key()
	}
	return keys
}

// refreshLatencies asks the learning loop for latencies and batch sizes, if those known are old or
// do not cover what is needed.
func (s *placementPump) refreshLatencies(now time.Time, needs tableNeeds) {
	covered := true
	for key := range needs {
		covered = covered && s.tables.of[key]
	}
	if covered && now.Sub(s.tables.at) < tablesEvery {
		return
	}
	fresh := placingTables{
		at: now, of: map[names.TableKey]bool{}, latencies: map[names.TableKey]replan.Latencies{},
		sizes: map[string]profiles.Distribution{},
	}
	families := map[names.ModelKey]string{}
	s.term.learning.askLoop(func() {
		shown := s.term.learning.state.ProfileErrors()
		for key, n := range needs {
			book := s.term.learning.book
			table := book.Expected(n.key, shown, n.family)
			if table == nil && n.coresRatio > 0 {
				// A lane of fewer cores takes as many times as long at most. A plan is not to
				// move other agents to partitions because of a mere guess.
				if whole := book.Expected(n.whole, shown, n.family); whole != nil {
					table = whole.Scale(n.coresRatio)
				}
			}
			if table == nil {
				table = learn.Guess(n.key, n.target, n.largest)
			}
			table = s.term.learning.state.ByWork(n.key, table)
			if n.factor != 1 {
				table = table.Scale(n.factor)
			}
			fresh.of[key], fresh.latencies[key] = true, table.ByLoad()
			families[key.Model] = n.family
		}
		sums, totals := map[string]map[int]float64{}, map[string]float64{}
		for _, d := range s.term.learning.state.Demand(now) {
			family, ok := families[d.Key()]
			if !ok || d.Queries == 0 {
				continue
			}
			if sums[family] == nil {
				sums[family] = map[int]float64{}
			}
			weight := float64(d.Queries)
			totals[family] += weight
			for _, share := range d.BatchSizes {
				sums[family][share.BatchSize] += weight * share.Share
			}
		}
		for family, sizes := range sums {
			for _, batch := range slices.Sorted(maps.Keys(sizes)) {
				fresh.sizes[family] = append(fresh.sizes[family], profiles.Share{
					BatchSize: batch, Share: sizes[batch] / totals[family],
				})
			}
		}
	})
	s.tables = fresh
}

// carryOut does what an answer asks for.
func (s *placementPump) carryOut(ctx context.Context, a *replan.Answer) {
	l := s.term.leader
	for _, e := range a.Events {
		level := slog.LevelWarn
		if e.Kind == replan.Planned || e.Kind == replan.Commanded {
			level = slog.LevelInfo
		}
		attrs := []any{"kind", string(e.Kind), "what", e.Text}
		for _, x := range []struct{ key, value string }{
			{"agent", string(e.Agent)}, {"family", e.Family}, {"model", string(e.Model)},
		} {
			if x.value != "" {
				attrs = append(attrs, x.key, x.value)
			}
		}
		if e.Version > 0 {
			attrs = append(attrs, "version", e.Version)
		}
		l.log.Log(ctx, level, "placement", append(attrs, eventKey, "placement")...)
	}
	if a.Changed && a.Placement != nil {
		l.metrics.placements.Inc()
		l.metrics.placementVersion.Set(float64(a.Placement.Version))
	}
	if a.Remember {
		s.storeMemory(s.replanner.Memory())
	}
	s.showStatus(a)
	for _, m := range a.Moves {
		order := &control.LayoutOrder{
			Epoch: m.Stamp.Epoch, Version: m.Stamp.Version, Layout: m.Layout.String(),
			DrainFirst: m.DrainFirst,
		}
		l.links.tellOne(s.term, m.Agent, func(out *control.LeaderMessage) { out.Layout = order })
	}
	if a.Solve != nil {
		// The next term waits for this one, but not for this: on a busy machine it may take long.
		l.running.Go(func() {
			inBackground()
			start := time.Now()
			plan := a.Solve.Solve()
			l.metrics.placementSolve.Observe(time.Since(start).Seconds())
			l.metrics.placementGap.Set(max(0, plan.Bound-plan.Accuracy))
			select {
			case s.solved <- plan:
			case <-ctx.Done():
			}
		})
	}
}

// storeMemory keeps the replanner's memory on disk, and sends it to the members.
func (s *placementPump) storeMemory(m replan.Memory) {
	l := s.term.leader
	text, err := json.Marshal(m)
	if err == nil {
		if err = os.MkdirAll(l.config.StateDir, 0o755); err == nil {
			err = files.Replace(l.placementPath(), text, 0o600)
		}
	}
	if problem := fmt.Sprint(err); err != nil && problem != s.problem {
		s.problem = problem
		l.log.Warn("the placement is not kept", "error", err)
	}
	memory := &control.Placement{Version: versionOf(m), Memory: text}
	for len(memory.Memory) > maxMemory && len(m.Placements) > 1 {
		m.Placements = m.Placements[1:]
		memory.Memory, _ = json.Marshal(m) // as before
	}
	m.Placements = nil
	short, _ := json.Marshal(m)
	if len(memory.Memory) > maxMemory { // the successor begins anew, and the link stays
		memory.Memory = nil
	}
	if len(short) > maxMemory {
		short = nil
	}
	brief := &control.Placement{Version: memory.Version, Memory: short}
	s.mu.Lock()
	s.memory, s.brief = memory, brief
	s.mu.Unlock()
	l.links.addToAll(s.term, func(out *control.LeaderMessage) { out.Placement = brief })
	s.tellSuccessor()
}

// tellSuccessor sends the whole memory to who is to lead next.
func (s *placementPump) tellSuccessor() {
	s.mu.Lock()
	memory := s.memory
	s.mu.Unlock()
	if memory == nil {
		return
	}
	l := s.term.leader
	l.links.tellOne(s.term, names.AgentName(l.Leadership().GetSuccessor()),
		func(out *control.LeaderMessage) { out.Placement = memory })
}

// introductionTo is what a member is told of the placement when a link to it opens.
func (s *placementPump) introductionTo(to names.AgentName) *control.Placement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(to) == s.term.leader.Leadership().GetSuccessor() {
		return s.memory
	}
	return s.brief
}

// showStatus makes the status for people.
func (s *placementPump) showStatus(a *replan.Answer) {
	out, forecasts := &control.PlacementStatus{}, map[string]place.FamilyForecast{}
	memory := s.replanner.Memory()
	out.Paused = memory.Paused
	waits := map[names.AgentName]string{}
	for _, w := range a.Waits {
		waits[w.Agent] = w.Why
	}
	if a.Placement != nil {
		out.Version, out.Reason = a.Placement.Version, a.Placement.Reason
		for _, f := range a.Placement.Families {
			forecasts[f.Family] = f
		}
	}
	for i := range s.snapshot.Agents {
		known := &s.snapshot.Agents[i]
		if known.Fixed {
			continue
		}
		p := &control.PlacementStatus_AgentPlaced{
			Agent: string(known.Name), Holds: known.Held.String(), Waits: waits[known.Name],
		}
		if a.Placement != nil {
			if wanted, ok := a.Placement.Layout(known.Name); ok && !wanted.Equal(known.Held) {
				p.Wanted = wanted.String()
			}
		}
		switch {
		case p.Waits != "":
		case known.State == replan.Failed:
			p.Waits = "failed: " + known.Why
		case known.State == replan.Changing:
			p.Waits = "it is changing"
		}
		p.Pinned = slices.ContainsFunc(memory.Pins, func(pin place.AgentLayout) bool {
			return pin.Agent == known.Name
		})
		out.Agents = append(out.Agents, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.forecasts = out, forecasts
}

// isPinned reports whether a person has pinned an agent's layout.
func (s *placementPump) isPinned(agent names.AgentName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.status.GetAgents(),
		func(p *control.PlacementStatus_AgentPlaced) bool {
			return p.GetAgent() == string(agent) && p.GetPinned()
		})
}

// fillStatus adds the placement to out; nothing if there is none.
func (s *placementPump) fillStatus(out *control.FleetStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Placement = s.status
	for _, f := range out.Families {
		if known, ok := s.forecasts[f.Family]; ok {
			f.Forecast, f.Demand, f.Served = &known.Accuracy, known.Demand, known.Served
		}
	}
}

// Place does what a person asks of the placement, in by's name. Only a leader can.
func (l *Leader) Place(ctx context.Context, req *control.PlaceRequest, by string) (
	*control.PlaceResponse, error) {
	t := l.currentTerm()
	if t == nil {
		return nil, status.Error(codes.Unavailable,
			"the fleet has no leader now, and only a leader places models")
	}
	out := &control.PlaceResponse{}
	var err error
	if !t.placing.askLoop(func() { err = t.placing.carryOutCommand(req, by, out) }) {
		return nil, status.Error(codes.Unavailable, "the leader has stopped leading")
	}
	return out, err
}

// verbs are those of a PlaceRequest that change something.
var verbs = map[string]replan.Verb{
	"pause": replan.Pause, "resume": replan.Resume, "pin": replan.Pin, "unpin": replan.Unpin,
	"rollback": replan.Rollback,
}

func (s *placementPump) carryOutCommand(req *control.PlaceRequest, by string,
	out *control.PlaceResponse) error {
	if s.replanner == nil || s.snapshot == nil {
		return status.Error(codes.FailedPrecondition,
			"no agent lets the leader say what it holds: "+
				"start agents with --model-control leader")
	}
	verb, changes := verbs[req.GetVerb()]
	c := replan.Command{
		Verb: verb, Agent: names.AgentName(req.GetAgent()), Version: req.GetVersion(), By: by,
	}
	switch {
	case req.GetVerb() == "explain":
		if err := s.checkAgent(c.Agent); err != nil {
			return err
		}
		var err error
		if out.Lines, err = s.replanner.Explain(c.Agent); err != nil {
			return status.Error(codes.NotFound, err.Error())
		}
		if plan := s.term.leader.fleet.Plan(); plan.GetState() != "" {
			out.Lines = append(out.Lines, plan.Lines()...)
		}
	case !changes:
		return status.Errorf(codes.InvalidArgument, "verb %.40q, want pause, resume, pin, unpin, "+
			"rollback or explain", req.GetVerb())
	default:
		if verb == replan.Pin || verb == replan.Unpin {
			if err := s.checkAgent(c.Agent); err != nil {
				return err
			}
		}
		if verb == replan.Pin {
			var err error
			if c.Layout, err = place.ParseLayout(req.GetLayout()); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
		}
		if err := s.replanner.Command(c); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		s.wake.Send()
	}
	out.Version = versionOf(s.replanner.Memory())
	return nil
}

// checkAgent returns an error if an agent is none whose layout the leader says.
func (s *placementPump) checkAgent(agent names.AgentName) error {
	var there []string
	for i := range s.snapshot.Agents {
		switch a := &s.snapshot.Agents[i]; {
		case a.Name == agent && a.Fixed:
			return status.Errorf(codes.FailedPrecondition, "agent %s holds what its own settings "+
				"say: it runs without --model-control leader", agent)
		case a.Name == agent:
			return nil
		case !a.Fixed:
			there = append(there, string(a.Name))
		}
	}
	return status.Errorf(codes.NotFound, "no agent %.80q; there are %q", agent, there)
}
