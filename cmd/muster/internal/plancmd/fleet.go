package plancmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/workload"
	"github.com/muster-serve/muster/sim"
)

// A FleetComparison compares a running fleet with the plan for it. It is part of a Report; numbers
// are rounded as there.
type FleetComparison struct {
	Leader   string         `json:"leader"`
	Epoch    uint64         `json:"epoch"`
	Demand   []liveDemand   `json:"demand"`
	Evidence []liveEvidence `json:"evidence"`
	Current  liveCost       `json:"current"`
	Proposed liveCost       `json:"proposed"`
	Rent     map[string]int `json:"rent,omitempty"`
	Release  map[string]int `json:"release,omitempty"`
	Notes    []string       `json:"notes,omitempty"`

	Counts map[string]int `json:"-"` // of the agents that run, by instance type
}

type liveDemand struct {
	Model   string  `json:"model"`
	Version int64   `json:"version"`
	Rate    float64 `json:"rate_qps"`
	Queries uint64  `json:"queries"` // how many queries the batch sizes are known from
	QoS     float64 `json:"qos_target_ms"`
}

// A liveEvidence says where the latencies of a model on an instance type come from: learned by the
// fleet, or shipped.
type liveEvidence struct {
	Model   string  `json:"model"`
	Type    string  `json:"instance_type"`
	Learned bool    `json:"learned"`
	Queries uint64  `json:"queries,omitempty"`
	Age     float64 `json:"age_s,omitempty"`
	Error   float64 `json:"relative_error"` // of the mean latency, at the mean batch size
}

type liveCost struct {
	Configuration map[string]int `json:"configuration"`
	Price         float64        `json:"price_usd_per_hour"`
	Throughput    float64        `json:"allowable_throughput_qps"`
	StdErr        float64        `json:"standard_error"`

	name string
}

// FleetOptions limit what a fleet is planned for.
type FleetOptions struct {
	Models []string // to plan for; empty: all with enough queries
	Types  []string // instance types to choose from; empty: all on which every model has a profile
	// Catalogue has the prices of types that the fleet does not report. If Override is set, its
	// prices override those that the agents report.
	Catalogue  *profiles.Catalogue
	Override   bool
	RejectLate bool // of the simulated models
}

// ReadFleet reads the running fleet from what its leader reports: the models to plan for, with
// their demand and the latencies known, and the instance types to choose from. live has the fields
// that do not depend on a plan.
func ReadFleet(reported *control.FleetDemand, o FleetOptions) (live *FleetComparison,
	models []sim.Model,
	prices []sim.Price, err error) {
	live = &FleetComparison{
		Leader: reported.GetLeadership().GetLeader(), Epoch: reported.GetLeadership().GetEpoch(),
		Counts: map[string]int{},
	}
	demand, err := live.demandedModels(reported, o.Models)
	if err != nil {
		return nil, nil, nil, err
	}
	allPrices, err := lead.PricesOf(reported, o.Catalogue, !o.Override)
	if err != nil {
		return nil, nil, nil, err
	}
	live.countAgents(reported)
	known := lead.TablesOf(reported)
	if prices, err = live.chooseTypes(o.Types, allPrices, demand, known); err != nil {
		return nil, nil, nil, err
	}
	for _, d := range demand {
		m, err := live.modelOf(d, prices, known, o.RejectLate)
		if err != nil {
			return nil, nil, nil, err
		}
		models = append(models, m)
	}
	if err := live.noteHeld(reported, demand, models); err != nil {
		return nil, nil, nil, err
	}
	return live, models, prices, nil
}

// noteHeld notes what the fleet can do at most if its agents hold different models, because a plan
// is for instances that hold all.
func (live *FleetComparison) noteHeld(fleet *control.FleetDemand, demand []*control.ModelDemand,
	models []sim.Model) error {
	cfg, apart := &sim.Config{Models: models}, false
	for _, typ := range slices.Sorted(maps.Keys(live.Counts)) {
		cfg.Pool = append(cfg.Pool, sim.Instances{Type: typ, Count: live.Counts[typ]})
	}
	for _, m := range fleet.GetMembers() {
		if m.GetDraining() {
			continue
		}
		hold := sim.HeldModels{Type: m.GetInstanceType(), Count: 1, Models: []string{}}
		for i, d := range demand {
			if slices.ContainsFunc(m.GetModels(), func(held *control.Model) bool {
				return held.GetName() == d.GetModel() && held.GetVersion() == d.GetVersion()
			}) {
				hold.Models = append(hold.Models, models[i].Name)
			}
		}
		apart = apart || len(hold.Models) < len(models)
		i := slices.IndexFunc(cfg.Holds, func(h sim.HeldModels) bool {
			return h.Type == hold.Type && slices.Equal(h.Models, hold.Models)
		})
		if i < 0 {
			cfg.Holds = append(cfg.Holds, hold)
		} else {
			cfg.Holds[i].Count++
		}
	}
	if !apart {
		return nil
	}
	limit, err := cfg.FluidLimit(false, true)
	if err != nil {
		return fmt.Errorf("what the fleet can do with the models that its agents hold: %w", err)
	}
	live.Notes = append(live.Notes, fmt.Sprintf("agents hold different models: with what they "+
		"hold the fleet can do at most %.4g queries/s of this mix (its fluid limit); all other "+
		"figures are of instances that hold every model planned for", limit.Rate))
	return nil
}

// Cost returns the price of the running fleet in $/hr.
func (live *FleetComparison) Cost(prices []sim.Price) (sum float64) {
	for _, p := range prices {
		sum += p.PriceUSDPerHour * float64(live.Counts[p.Type])
	}
	return roundTo6(sum)
}

// demandedModels returns the models to plan for: those of names, or all if names is empty. It
// leaves out models with too few queries, and notes them. It is an error if none is left.
func (live *FleetComparison) demandedModels(fleet *control.FleetDemand,
	names []string) (demand []*control.ModelDemand, err error) {
	there := map[string]bool{}
	for _, m := range fleet.GetModels() {
		there[m.GetModel()] = true
	}
	for _, name := range names {
		if !there[name] {
			return nil, fmt.Errorf("model: the fleet has no model %q; it has: %s", name,
				strings.Join(slices.Sorted(maps.Keys(there)), ", "))
		}
	}
	var idle []string
	for _, m := range fleet.GetModels() {
		if len(names) > 0 && !slices.Contains(names, m.GetModel()) {
			continue
		}
		if m.GetQueries() < lead.LeastDemand || m.GetRate() <= 0 {
			idle = append(idle,
				fmt.Sprintf("%s (%d so far, now %.1f a second)",
					m.Key(), m.GetQueries(), m.GetRate()))
			continue
		}
		demand = append(demand, m)
		live.Demand = append(live.Demand, liveDemand{
			Model: m.GetModel(), Version: m.GetVersion(), Rate: roundTo6(m.GetRate()),
			Queries: m.GetQueries(), QoS: float64(m.GetQosTargetNs()) / 1e6,
		})
	}
	slices.Sort(idle)
	switch {
	case len(demand) == 0 && len(idle) == 0:
		return nil, errors.New("the fleet has no models, so there is no demand to plan for")
	case len(demand) == 0:
		return nil, fmt.Errorf(
			"no demand yet: a model needs at least %d queries, and some in the last minute; the "+
				"fleet has had: %s", lead.LeastDemand, strings.Join(idle, ", "))
	case len(idle) > 0:
		live.Notes = append(live.Notes,
			"left out of the plan, as they get too few queries: "+strings.Join(idle, ", "))
	}
	return demand, nil
}

// countAgents sets the Counts of the running fleet, and notes agents that the plan takes for
// something simpler.
func (live *FleetComparison) countAgents(fleet *control.FleetDemand) {
	for _, m := range fleet.GetMembers() {
		if m.GetDraining() {
			continue
		}
		live.Counts[m.GetInstanceType()]++
		if m.GetLanes() > 1 {
			live.Notes = append(live.Notes,
				fmt.Sprintf("agent %s has %d lanes; the plan takes it for an instance with one",
					m.GetName(), m.GetLanes()))
		}
	}
}

// chooseTypes returns the instance types to choose from: those asked for, or all on which every
// model has a profile. The types of the running fleet must be among them.
func (live *FleetComparison) chooseTypes(asked []string, prices map[string]float64,
	demand []*control.ModelDemand, known lead.Tables) (types []sim.Price, err error) {
	names := asked
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(prices))
	}
	for t := range live.Counts {
		if !slices.Contains(names, t) {
			return nil, fmt.Errorf(
				"types: the fleet has %s, which --types must include", t)
		}
	}
	for _, t := range names {
		if prices[t] <= 0 {
			return nil, fmt.Errorf("types: no price of %q is known: give it with --catalogue", t)
		}
		lacking := ""
		for _, m := range demand {
			if table, _ := known.Table(m, t, profiles.ShippedLibrary()); table == nil {
				lacking = m.GetModel()
			}
		}
		switch {
		case lacking == "":
			types = append(types, sim.Price{Type: t, PriceUSDPerHour: prices[t]})
		case live.Counts[t] > 0:
			return nil, fmt.Errorf(
				"model %s has no profile on %s, which the fleet has: no query of it has run there",
				lacking, t)
		case len(asked) > 0:
			return nil, fmt.Errorf("types: model %s has no profile on %s", lacking, t)
		}
	}
	return types, nil
}

// modelOf makes the simulated model of a demand, with the latencies known for the types of prices,
// and adds where these come from to live.Evidence.
func (live *FleetComparison) modelOf(d *control.ModelDemand, prices []sim.Price, known lead.Tables,
	rejectLate bool) (sim.Model, error) {
	m := sim.Model{
		Name: d.GetModel(), QoSTarget: time.Duration(d.GetQosTargetNs()), Weight: d.GetRate(),
		Latencies: map[string]match.Latencies{}, RejectLate: rejectLate,
	}
	if slices.ContainsFunc(live.Demand,
		func(x liveDemand) bool { return x.Model == d.GetModel() && x.Version != d.GetVersion() }) {
		m.Name = string(d.Key())
	}
	var pmf []workload.Probability
	for i, b := range d.GetBatchSizes() {
		pmf = append(pmf, workload.Probability{BatchSize: int(b), P: d.GetShares()[i]})
	}
	var err error
	if m.BatchSizes, err = workload.Weighted("of "+m.Name, pmf); err != nil {
		return m, err
	}
	for _, price := range prices {
		table, learned := known.Table(d, price.Type, profiles.ShippedLibrary())
		m.Latencies[price.Type] = table
		live.Evidence = append(live.Evidence, liveEvidence{
			Model: m.Name, Type: price.Type, Learned: learned.Table != nil,
			Queries: learned.Queries,
			Age:     roundTo6(learned.Age.Seconds()),
			Error:   roundTo6(table.Error(int(m.BatchSizes.Mean()))),
		})
	}
	return m, nil
}

// Compare sets the fields of live that compare the running fleet with the best plan of r: what each
// of them serves and costs, and which instances to rent and to release. It evaluates up to two
// configurations.
func (live *FleetComparison) Compare(ctx context.Context, p *Problem, r *plan.Result) error {
	throughput := live.throughputEvaluator(p, r)
	of := func(c plan.Configuration) (liveCost, error) {
		cost := liveCost{
			Configuration: map[string]int{}, Price: roundTo6(p.Price(c)), name: p.Name(c),
		}
		for i, n := range c {
			if n > 0 {
				cost.Configuration[string(p.Types[i].Name)] = n
			}
		}
		e, err := throughput(ctx, c)
		cost.Throughput, cost.StdErr = roundTo6(e.Value), roundTo6(e.StdErr)
		return cost, err
	}
	now := live.Running(p)
	best := &r.Plans[0]
	proposed := best.Configuration
	var err error
	if live.Current, err = of(now); err != nil {
		return err
	}
	if live.Proposed = live.Current; !slices.Equal(proposed, now) {
		if live.Proposed, err = of(proposed); err != nil {
			return err
		}
	}
	if keep, err := live.keepsRunning(p, now, best); err != nil {
		return err
	} else if keep {
		proposed, live.Proposed = now, live.Current
	}
	live.noteDemand(ctx, p, best)
	if slices.Equal(proposed, now) {
		return nil
	}
	live.Rent, live.Release = map[string]int{}, map[string]int{}
	for i, t := range p.Types {
		switch n := proposed[i] - now[i]; {
		case n > 0:
			live.Rent[string(t.Name)] = n
		case n < 0:
			live.Release[string(t.Name)] = -n
		}
	}
	return nil
}

// Running returns the running fleet as a configuration of the types of p.
func (live *FleetComparison) Running(p *Problem) plan.Configuration {
	c := make(plan.Configuration, len(p.Types))
	for i, t := range p.Types {
		c[i] = live.Counts[string(t.Name)]
	}
	return c
}

// throughputEvaluator returns an evaluator of a configuration's allowable throughput. It takes the
// value that the planner has found, or else evaluates in the planner's way.
func (live *FleetComparison) throughputEvaluator(p *Problem, r *plan.Result) plan.EvaluatorFunc {
	simulation := *p.Simulation
	simulation.Objective = plan.MostThroughput
	bound, byBound := p.Evaluator.(plan.BoundEvaluator)
	return func(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
		for _, known := range r.Evaluations {
			if p.Objective == plan.MostThroughput && slices.Equal(known.Configuration, c) {
				return known.Estimate, nil
			}
		}
		if byBound {
			described, err := bound.Analysis.DescribeConfiguration(c, "")
			return plan.Estimate{Value: described.Predicted}, err
		}
		return simulation.Evaluate(ctx, c)
	}
}

// keepsRunning reports whether the running fleet is better than the best plan. It is, if the plan
// does not serve the demand, the fleet is within the budget, and the plan serves no more by
// evaluation and by fluid limit.
func (live *FleetComparison) keepsRunning(p *Problem, now plan.Configuration,
	best *plan.Plan) (bool, error) {
	serves := live.Proposed.Throughput > 0
	if p.Objective == plan.LeastCost && best.Evaluated {
		serves = meetsTarget(p, best)
	}
	if serves || !p.Affordable(now) {
		return false, nil
	}
	a, err := plan.Analyse(p.Problem)
	if err != nil {
		return false, err
	}
	limit, err := a.Fluid(now)
	if err != nil {
		return false, err
	}
	return live.Current.Throughput > live.Proposed.Throughput ||
		live.Current.Throughput == live.Proposed.Throughput && limit.Rate >= best.FluidLimit, nil
}

// meetsTarget reports whether the evaluator found that the plan meets the QoS target at the planned
// rate.
func meetsTarget(p *Problem, best *plan.Plan) bool {
	return p.Objective == plan.LeastCost && best.Evaluated && best.Satisfaction >= p.Target
}

// noteDemand adds a note if the proposed configuration does not serve the demand. The note names
// the cheapest configuration that would, by its fluid limit.
func (live *FleetComparison) noteDemand(ctx context.Context, p *Problem, best *plan.Plan) {
	demand := p.Rate
	if p.Objective == plan.MostThroughput {
		for _, d := range live.Demand {
			demand += d.Rate
		}
	}
	if live.Proposed.Throughput >= demand || meetsTarget(p, best) {
		return
	}
	note := fmt.Sprintf(
		"the demand of %.6g queries/s is above the fleet's allowable throughput of %.6g queries/s",
		demand, live.Current.Throughput)
	if p.Budget > 0 {
		note += fmt.Sprintf(
			"; no configuration found within the budget of %v $/hr serves more than %.6g queries/s",
			p.Budget, live.Proposed.Throughput)
	}
	without := *p.Problem
	without.Objective, without.Rate, without.Budget = plan.LeastCost, demand, 0
	if r, err := (plan.Fluid{Top: 1}).Plan(ctx, &without, nil); err == nil {
		note += fmt.Sprintf(". By its fluid limit %s at %.4g $/hr would serve it",
			p.Name(r.Plans[0].Configuration), r.Plans[0].Price)
	}
	if live.Proposed.Throughput == 0 {
		note += ". With the latencies known, the proposed configuration meets the QoS target at " +
			"no rate; --evaluator bound would estimate it by mean latencies alone"
	}
	live.Notes = append(live.Notes, note)
}

// writeText writes the running fleet beside the proposed one, the demand, and where the latencies
// come from.
func (live *FleetComparison) writeText(b *strings.Builder) {
	fmt.Fprintf(b, "\nThe fleet led by %s, epoch %d:\n", live.Leader, live.Epoch)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range []struct {
		what string
		cost liveCost
	}{{"now", live.Current}, {"proposed", live.Proposed}} {
		fmt.Fprintf(t, "  %s\t%.3f $/hr\t%.1f%s queries/s\t%s\n", row.what, row.cost.Price,
			row.cost.Throughput, plusMinus(row.cost.StdErr, 1), row.cost.name)
	}
	t.Flush()
	change := func(what string, counts map[string]int) (s []string) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			s = append(s, fmt.Sprintf("%s %d %s", what, counts[name], name))
		}
		return s
	}
	if changes := append(change("rent", live.Rent), change("release", live.Release)...); len(
		changes) > 0 {
		fmt.Fprintf(b, "  %s\n", strings.Join(changes, ", "))
	} else {
		fmt.Fprintln(b, "  nothing to change")
	}
	fmt.Fprintln(b, "\nIts demand, and where the latencies come from:")
	for _, d := range live.Demand {
		fmt.Fprintf(
			t, "  %s\t%.1f queries/s in the last minute, batch sizes of %d queries, within %v ms\n",
			names.NewModelKey(d.Model, d.Version), d.Rate, d.Queries, d.QoS)
	}
	for _, e := range live.Evidence {
		from := "shipped profile; the fleet has learned none"
		if e.Learned {
			from = fmt.Sprintf("learned from %d queries, the last %v ago", e.Queries,
				time.Duration(e.Age*float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintf(t, "  %s on %s\t%s, ± %.1f %%\n", e.Model, e.Type, from, 100*e.Error)
	}
	t.Flush()
	for _, note := range live.Notes {
		fmt.Fprintf(b, "\nNote: %s.\n", note)
	}
}
