package lead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/wakeup"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/learn"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
)

const (
	// planRest is the least time between two plans. Changes wait meanwhile, the last of each model:
	// a demand that changes all the time must not keep the leader planning, nor fill its log.
	planRest = time.Minute
	// LeastDemand is how many queries for a model must have arrived before its batch sizes count as
	// known.
	LeastDemand = 100
)

// planning is the planning loop of a term: when a model's demand has changed, it plans for the
// fleet as it is, and reports the plan. It changes nothing in the fleet. The goroutine of run owns
// all fields except changes, which mu guards.
type planning struct {
	term *term
	wake wakeup.Signal // there are changes

	outlook outlook
	reason  string // of the last plan shown

	mu      sync.Mutex
	changes map[leader.ModelID]learn.DemandChange // the changes not planned for yet
}

func newPlanning(t *term) *planning {
	return &planning{
		term:    t,
		wake:    wakeup.New(),
		changes: map[leader.ModelID]learn.DemandChange{},
	}
}

// changed passes changes of demand to the loop. It does not block.
func (s *planning) changed(changes []learn.DemandChange) {
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

// run plans for the changes, and for what the dashboard shows, until ctx ends.
func (s *planning) run(ctx context.Context) {
	inBackground()
	look := time.NewTicker(outlookEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			s.look(ctx)
			continue
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		changes := slices.SortedFunc(maps.Values(s.changes),
			func(a, b learn.DemandChange) int { return a.At.Compare(b.At) })
		clear(s.changes)
		s.mu.Unlock()
		for _, c := range changes {
			s.propose(ctx, c)
		}
		if len(changes) > 0 {
			s.show(ctx, "demand", instancesOf(s.term.leader.fleet.View().GetMembers()),
				s.term.beating.arrivalRate())
		}
		select {
		case <-time.After(planRest):
		case <-ctx.Done():
			return
		}
	}
}

// propose plans for a change, and reports the plan in the log, the metrics and to all members.
func (s *planning) propose(ctx context.Context, c learn.DemandChange) {
	l := s.term.leader
	p := &control.Proposal{
		TimeUnixNs: c.Seen.UnixNano(), Model: c.Model.Name, Version: c.Model.Version,
		Kind:   string(c.Kind),
		Before: loadOf(c.Before), Now: loadOf(c.Now),
	}
	if err := s.plan(ctx, c, p); err != nil {
		p.Reason = fmt.Sprintf("no plan: %v", err)
	}
	if ctx.Err() != nil {
		return
	}
	l.metrics.demandChanged(p)
	l.metrics.setProposal(p)
	l.log.Info("demand has changed", "model", p.Model, "version", p.Version, "kind", p.Kind,
		"before", c.Before.String(), "now", c.Now.String(), "plan", p.Reason, eventKey, "demand")
	s.term.postToLoop(func() { s.term.sendProposal(p) })
}

func loadOf(d profiles.Demand) *control.Proposal_Load {
	return &control.Proposal_Load{
		Rate:      d.Rate,
		MeanSize:  d.MeanSize,
		LargeSize: uint32(d.LargeSize),
	}
}

// plan adds the proposed configuration to p.
func (s *planning) plan(ctx context.Context, c learn.DemandChange, p *control.Proposal) error {
	l := s.term.leader
	d := &control.FleetDemand{Members: l.fleet.View().GetMembers()}
	if !s.term.learning.askLoop(func() { s.term.learning.fillDemand(d, time.Now()) }) {
		return context.Canceled // the term has ended
	}
	problem, running, err := problemOf(d, l.config.Catalogue, l.config.Library)
	if err != nil {
		return err
	}
	decision, err := plan.React(ctx, c.Kind, problem, running)
	if err != nil {
		return err
	}
	instances := func(c plan.Configuration) (all []*control.Proposal_Instances) {
		for i, n := range c {
			if n > 0 {
				all = append(
					all,
					&control.Proposal_Instances{
						Type:  string(problem.Types[i].Name),
						Count: uint32(n),
					},
				)
			}
		}
		return all
	}
	p.Change, p.Gain, p.Reason = decision.Change, decision.Gain, decision.Reason
	p.Current, p.Proposed = instances(running), instances(decision.Plan.Configuration)
	if !p.Change {
		p.Proposed = p.Current
	}
	return nil
}

// problemOf returns the planning problem for a running fleet, and its current configuration. The
// instance types to choose from are those of the catalogue on which every model with demand has a
// profile; the types of the running instances must be among them.
func problemOf(d *control.FleetDemand, catalogue *profiles.Catalogue,
	library *profiles.Library) (*plan.Problem, plan.Configuration, error) {
	return problemAt(d, func() (map[string]float64, error) {
		return PricesOf(d, catalogue, true)
	}, library)
}

// problemAt is problemOf where the types to choose from are those with a price.
func problemAt(d *control.FleetDemand, pricesOf func() (map[string]float64, error),
	library *profiles.Library) (*plan.Problem, plan.Configuration, error) {
	known := TablesOf(d)
	p := &plan.Problem{}
	asked := slices.DeleteFunc(slices.Clone(d.GetModels()), func(m *control.ModelDemand) bool {
		return m.GetQueries() < LeastDemand || m.GetRate() <= 0
	})
	if len(asked) == 0 {
		return nil, nil, fmt.Errorf(
			"of no model at least %d queries have come, and some in the last minute", LeastDemand)
	}
	prices, err := pricesOf()
	if err != nil {
		return nil, nil, err
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

// A Table is a latency profile that a fleet has learned.
type Table struct {
	*profiles.Table
	Queries uint64        // how many queries it was learned from
	Age     time.Duration // the time since the last of them
}

// Tables are a fleet's.
type Tables map[tableKey]Table

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
			known[key] = Table{t, p.GetQueries(), time.Duration(p.GetAgeNs())}
		}
	}
	return known
}

// Table returns a model's profile on the instance type t: the learned one, else the library's; nil
// if there is neither.
func (k Tables) Table(m *control.ModelDemand, t string,
	library *profiles.Library) (table *profiles.Table, learned Table) {
	if l, ok := k[tableKey{m.Key(), profiles.InstanceType(t)}]; ok {
		return l.Table, l
	}
	table, err := library.Table(m.GetModel(), profiles.InstanceType(t))
	if err != nil {
		return nil, learned
	}
	return table, learned
}
