package lead

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/leader/propose"
	"github.com/muster-serve/muster/profiles"
)

// LeastDemand is how many queries for a model must have arrived before its batch sizes count as
// known.
const LeastDemand = 100

// fleetPlanner runs a [propose.Proposer] beside the term's loop: it plans for the fleet as it is
// when the demand has changed, the instances or the rate, and sends the plan to all members and
// dashboards. It changes nothing in the fleet. The goroutine of run owns all fields except changes,
// which mu guards.
type fleetPlanner struct {
	term *term
	wake wakeup.Signal // there are changes

	proposer propose.Proposer
	number   uint64
	plan     *control.Plan // the last one sent; nil: none was

	mu      sync.Mutex
	changes map[leader.ModelID]learn.DemandChange // the changes not planned for yet
}

func newPlanning(t *term) *fleetPlanner {
	return &fleetPlanner{
		term:    t,
		wake:    wakeup.New(),
		changes: map[leader.ModelID]learn.DemandChange{},
	}
}

// addChanges passes changes of demand to the loop. It does not block.
func (s *fleetPlanner) addChanges(changes []learn.DemandChange) {
	if len(changes) == 0 {
		return
	}
	s.mu.Lock()
	for _, c := range changes {
		if before, ok := s.changes[c.Model]; ok { // it has not been reported: keep its beginning
			c.Seen, c.Before = before.Seen, before.Before
			if before.Kind != c.Kind {
				c.Kind = profiles.BothChanged
			}
		}
		s.changes[c.Model] = c
	}
	s.mu.Unlock()
	s.wake.Send()
}

// takeChanges removes and returns the changes not planned for yet, in the order of time.
func (s *fleetPlanner) takeChanges() []learn.DemandChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := slices.SortedFunc(maps.Values(s.changes),
		func(a, b learn.DemandChange) int { return a.At.Compare(b.At) })
	clear(s.changes)
	return changes
}

// run plans whenever that is due, until ctx ends.
func (s *fleetPlanner) run(ctx context.Context) {
	inBackground()
	timer := time.NewTimer(propose.Every)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		timer.Reset(s.poll(ctx))
	}
}

// poll plans if that is due, and sends the plan if it or its state has changed. It returns after
// what time to poll again at the latest.
func (s *fleetPlanner) poll(ctx context.Context) time.Duration {
	now := time.Now()
	s.mu.Lock()
	changed := len(s.changes) > 0
	s.mu.Unlock()
	trigger, next := s.proposer.Poll(now, s.load(), changed)
	if trigger == "" {
		plan, _ := s.proposer.Revise()
		s.sendPlan(plan)
		return next
	}
	plan, err := s.planFor(ctx, now, trigger)
	if ctx.Err() != nil {
		return next
	}
	if err != nil {
		plan = s.proposer.Failed(now, trigger, err)
	}
	s.sendPlan(plan)
	if trigger == "demand" {
		for _, c := range s.takeChanges() {
			s.reportChange(c)
		}
	}
	return next
}

// demand is what is asked of the fleet, and what is known of it; nil once the term has ended.
func (t *term) demand() *control.FleetDemand {
	d := &control.FleetDemand{Members: t.leader.fleet.View().GetMembers()}
	if !t.learning.askLoop(func() { t.learning.fillDemand(d, time.Now()) }) {
		return nil
	}
	return d
}

// load is the fleet's present one.
func (s *fleetPlanner) load() propose.Load {
	load := propose.Load{Instances: map[profiles.InstanceType]int{}}
	members := s.term.leader.fleet.View().GetMembers()
	for t, n := range instancesOf(members) {
		load.Instances[profiles.InstanceType(t)] = n
	}
	targets := map[names.ModelKey]float64{}
	for _, member := range members {
		for _, m := range member.GetModels() {
			targets[m.Key()] = m.GetQosPercentile()
		}
	}
	for _, m := range s.term.beating.glance().Models {
		of := propose.ModelLoad{Model: string(m.Key()), Rate: m.Rate}
		if target := targets[m.Key()]; m.Any && target > 0 {
			of.InTime, of.Target = m.Within, target
			of.Queries = min(m.Rate*leader.StatusSeconds, float64(m.Answered+m.Failed))
		}
		load.Models = append(load.Models, of)
	}
	return load
}

// planFor plans for what is asked of the fleet.
func (s *fleetPlanner) planFor(ctx context.Context, now time.Time, trigger string) (*propose.Plan,
	error) {
	l := s.term.leader
	d := s.term.demand()
	if d == nil {
		return nil, context.Canceled // the term has ended
	}
	prices, err := PricesOf(d, l.config.Catalogue, true)
	unpriced := err
	if err != nil {
		prices = map[string]float64{}
		for t := range instancesOf(d.GetMembers()) {
			prices[t] = 1
		}
	}
	problem, running, err := problemAt(d, prices, l.config.Library)
	if err != nil {
		return nil, err
	}
	plan, err := s.proposer.Plan(ctx, now, trigger, problem, running, unpriced == nil)
	if err == nil && unpriced != nil {
		plan.Notes = append(plan.Notes, unpriced.Error())
	}
	return plan, err
}

// sendPlan sends a plan to dashboards and all members, unless it is as it was sent last.
func (s *fleetPlanner) sendPlan(plan *propose.Plan) {
	if plan == nil {
		return
	}
	l := s.term.leader
	p := messageOf(plan)
	if r := l.config.Rent; r != nil {
		if state, err := r.State(); err == nil {
			p.SetRented(state)
		}
	}
	if s.plan != nil {
		if p.Number = s.plan.Number; proto.Equal(p, s.plan) {
			return
		}
	}
	s.number++
	p.Number = s.term.claim.Epoch<<20 | s.number // beyond those of earlier leaders
	s.plan = p
	l.metrics.setPlan(p)
	l.config.Beat(&control.PulseMessage{Plan: p})
	s.term.postToLoop(func() {
		s.term.plan = p
		l.links.addToAll(s.term, func(m *control.LeaderMessage) { m.Plan = p })
	})
}

// supersededPlan returns the plan of a leader before as this one tells it until it has planned:
// what is in force or waits for somebody, only a leader knows that has planned itself. nil for no
// plan.
func supersededPlan(before *control.Plan) *control.Plan {
	if before.GetState() == "" || before.GetState() == string(propose.Superseded) {
		return before
	}
	p := proto.CloneOf(before)
	p.State, p.Change, p.Approve, p.Waits = string(propose.Superseded), false, 0, ""
	p.Reason = "another agent leads, and has not planned yet; before: " + p.Reason
	return p
}

// reportChange reports a change of demand, with the last plan, in the log, the metrics and to all
// members: older ones know no other plans.
func (s *fleetPlanner) reportChange(c learn.DemandChange) {
	l := s.term.leader
	p := &control.Proposal{
		TimeUnixNs: c.Seen.UnixNano(), Model: c.Model.Name, Version: c.Model.Version,
		Kind:   string(c.Kind),
		Before: loadOf(c.Before), Now: loadOf(c.Now),
		Change: s.plan.GetChange(), Gain: s.plan.GetGain(), Reason: s.plan.GetReason(),
		Current: countsOf(s.plan.GetNow()), Proposed: countsOf(s.plan.GetProposed()),
	}
	if !p.Change {
		p.Proposed = p.Current
	}
	l.metrics.demandChanged(p)
	l.log.Info("demand has changed", "model", p.Model, "version", p.Version, "kind", p.Kind,
		"before", c.Before.String(), "now", c.Now.String(), "plan", p.Reason, eventKey, "demand")
	s.term.postToLoop(func() { s.term.sendProposal(p) })
}

func loadOf(d profiles.QueryMix) *control.Proposal_Load {
	return &control.Proposal_Load{
		Rate:      d.Rate,
		MeanSize:  d.MeanSize,
		LargeSize: uint32(d.LargeSize),
	}
}

func countsOf(c *control.Plan_Choice) (all []*control.Proposal_Instances) {
	for _, i := range c.GetInstances() {
		all = append(all, &control.Proposal_Instances{Type: i.GetType(), Count: i.GetCount()})
	}
	return all
}

// messageOf is a plan as agents and dashboards get it.
func messageOf(plan *propose.Plan) *control.Plan {
	p := &control.Plan{
		Trigger: plan.Trigger, Approximate: true, Priced: plan.Priced, Rate: plan.Rate(),
		Change: plan.Change, Gain: plan.Gain, Reason: plan.Reason, Notes: plan.Notes,
		State: string(plan.State),
	}
	if plan.Now == nil {
		return p
	}
	p.Now = choiceOf(plan.Problem, plan.Now, plan.Priced)
	if plan.Best != nil {
		p.Proposed = choiceOf(plan.Problem, plan.Best, plan.Priced)
		p.Changes = control.ChangesOf(p.Now.Counts(), p.Proposed.Counts())
	}
	for _, g := range plan.Now.Gains {
		more := &control.Plan_Gain{Type: g.Type, Rate: g.Rate}
		if p.Priced {
			more.Price = g.Price
		}
		p.More = append(p.More, more)
	}
	slices.SortStableFunc(p.More, func(a, b *control.Plan_Gain) int {
		worth := func(g *control.Plan_Gain) float64 { return g.Rate / max(g.Price, 1e-9) }
		return cmp.Compare(worth(b), worth(a))
	})
	return p
}

func choiceOf(problem *plan.Problem, p *plan.Plan, priced bool) *control.Plan_Choice {
	c := &control.Plan_Choice{
		Limit: p.FluidLimit, Allowable: p.Predicted, Binding: p.Binding,
	}
	if priced {
		c.Price = p.Price
	}
	for i, n := range p.Configuration {
		if n > 0 {
			of := &control.Plan_FleetCount{Type: string(problem.Types[i].Name), Count: uint32(n)}
			if priced {
				of.Price = problem.Types[i].Price
			}
			c.Instances = append(c.Instances, of)
		}
	}
	return c
}

// instancesOf counts the instances that serve, by type.
func instancesOf(members []*control.Member) map[string]int {
	counts := map[string]int{}
	for _, m := range members {
		if !m.GetDraining() && hasDescription(m) {
			counts[m.GetInstanceType()]++
		}
	}
	return counts
}

// problemOf is problemAt the prices of the catalogue and those that agents announce.
func problemOf(d *control.FleetDemand, catalogue *profiles.Catalogue,
	library *profiles.Library) (*plan.Problem, plan.Configuration, error) {
	prices, err := PricesOf(d, catalogue, true)
	if err != nil {
		return nil, nil, err
	}
	return problemAt(d, prices, library)
}

// problemAt returns the planning problem for a running fleet, and its current configuration. The
// instance types to choose from are those with a price on which every model with demand has a
// profile; the types of the running instances must be among them.
func problemAt(d *control.FleetDemand, prices map[string]float64, library *profiles.Library) (
	*plan.Problem, plan.Configuration, error) {
	known := TablesOf(d)
	p := &plan.Problem{}
	asked := slices.DeleteFunc(slices.Clone(d.GetModels()), func(m *control.ModelDemand) bool {
		return m.GetQueries() < LeastDemand || m.GetRate() <= 0
	})
	if len(asked) == 0 {
		return nil, nil, fmt.Errorf(
			"of no model at least %d queries have come, and some in the last minute", LeastDemand)
	}
	counts := instancesOf(d.GetMembers())
	if len(counts) == 0 {
		return nil, nil, errors.New("all agents drain")
	}
	var running plan.Configuration
	tables := make([][]plan.Latencies, len(asked)) // by model and type
	for _, t := range slices.Sorted(maps.Keys(prices)) {
		row := make([]plan.Latencies, 0, len(asked))
		for _, m := range asked {
			table, _ := known.Table(m, t, library)
			if table == nil {
				if counts[t] > 0 {
					return nil, nil, fmt.Errorf(
						"%s has no profile on %s yet, which the fleet has: nothing of it has run "+
							"there", m.Key(), t)
				}
				break
			}
			row = append(row, table)
		}
		if len(row) < len(asked) {
			continue
		}
		for i := range row {
			tables[i] = append(tables[i], row[i])
		}
		p.Types = append(p.Types, plan.Type{Name: profiles.InstanceType(t), Price: prices[t]})
		running = append(running, counts[t])
	}
	target, queries := 0.0, uint64(profiles.MaxBatchSize)
	for i, m := range asked {
		model := plan.ModelDemand{
			Name:      string(m.Key()),
			QoSTarget: control.Duration(m.GetQosTargetNs()),
			Weight:    m.GetRate(), Latencies: tables[i],
		}
		for j, b := range m.GetBatchSizes() {
			model.BatchSizes = append(model.BatchSizes, profiles.Share{
				BatchSize: int(b), Share: m.GetShares()[j],
			})
		}
		p.Models = append(p.Models, model)
		target, queries = max(target, m.GetQosPercentile()), min(queries, m.GetQueries())
	}
	p.Target = plan.SureTarget(min(target, 0.9999), int(queries))
	return p, running, nil
}

// PricesOf returns the prices of the catalogue's instance types, in $/hr. If agents is set, the
// prices that the fleet's agents announce take precedence for their types.
func PricesOf(d *control.FleetDemand, catalogue *profiles.Catalogue,
	agents bool) (map[string]float64, error) {
	prices := map[string]float64{}
	for _, t := range catalogue.Types() {
		in, err := catalogue.Lookup(t)
		if err != nil {
			return nil, err
		}
		prices[string(t)] = in.PriceUSDPerHour
	}
	for _, m := range d.GetMembers() {
		if m.GetDraining() || !hasDescription(m) {
			continue
		}
		t := m.GetInstanceType()
		if m.GetPriceUsdPerHour() > 0 && agents {
			prices[t] = m.GetPriceUsdPerHour()
		}
		if prices[t] <= 0 {
			return nil, fmt.Errorf(
				"agent %s is of the type %q, of which no price is known: say it with --catalogue",
				m.GetName(), t)
		}
	}
	return prices, nil
}

// A LearnedProfile is a latency profile that a fleet has learned.
type LearnedProfile struct {
	*profiles.Table
	Queries uint64        // how many queries it was learned from
	Age     time.Duration // the time since the last of them
}

// Tables are a fleet's.
type Tables map[tableKey]LearnedProfile

type tableKey struct {
	model names.ModelKey
	on    profiles.InstanceType
}

// TablesOf returns the learned profiles in a leader's answer. Where there are several for a type,
// it takes those of whole machines.
func TablesOf(d *control.FleetDemand) Tables {
	known := Tables{}
	for _, p := range d.GetProfiles() {
		t := new(profiles.Table)
		if json.Unmarshal(p.GetTable(), t) != nil {
			continue // of another version of Muster
		}
		key := tableKey{
			names.NewModelKey(t.Key().Model, t.Key().Version), t.Key().InstanceType,
		}
		if before, ok := known[key]; !ok || t.Key().Cores == 0 ||
			before.Key().Cores != 0 && t.Key().Cores > before.Key().Cores {
			known[key] = LearnedProfile{t, p.GetQueries(), time.Duration(p.GetAgeNs())}
		}
	}
	return known
}

// Table returns a model's profile on the instance type t: the learned one, else the library's; nil
// if there is neither.
func (k Tables) Table(m *control.ModelDemand, t string,
	library *profiles.Library) (table *profiles.Table, learned LearnedProfile) {
	if l, ok := k[tableKey{m.Key(), profiles.InstanceType(t)}]; ok {
		return l.Table, l
	}
	table, err := library.Table(m.GetModel(), profiles.InstanceType(t))
	if err != nil {
		return nil, learned
	}
	return table, learned
}
