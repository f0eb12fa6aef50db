package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent/lead"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/workload"
)

// A liveFleet compares a running fleet with the plan for it. It is part of a planReport; numbers
// are rounded as there.
type liveFleet struct {
	Leader   string         `json:"leader"`
	Epoch    uint64         `json:"epoch"`
	Demand   []liveDemand   `json:"demand"`
	Evidence []liveEvidence `json:"evidence"`
	Current  liveCost       `json:"current"`
	Proposed liveCost       `json:"proposed"`
	Rent     map[string]int `json:"rent,omitempty"`
	Release  map[string]int `json:"release,omitempty"`
	Notes    []string       `json:"notes,omitempty"`

	counts map[string]int // of the agents that run, by instance type
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

// openLive makes the problem of a running fleet from the demand, profiles and prices that its
// leader reports. Without --budget and --rate the budget is what the fleet costs now.
func (o *planOptions) openLive(cmd *cobra.Command) (*planning, error) {
	for _, flag := range []string{"samples", "batch", "qos-ms", "plot"} {
		if cmd.Flags().Changed(flag) {
			return nil, fmt.Errorf("%s: the running fleet has its own; omit --%s", flag, flag)
		}
	}
	if isFile(o.sim.arrivals) {
		return nil, errors.New("arrivals: the running fleet has its own demand; give poisson, " +
			"constant, gamma:SHAPE or artifact")
	}
	c, err := o.client.open(cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
	defer cancel()
	fleet, err := c.Demand(ctx)
	if err != nil {
		return nil, err
	}
	terminal.PlainMessage(fleet)
	live := &liveFleet{
		Leader: fleet.GetLeadership().GetLeader(), Epoch: fleet.GetLeadership().GetEpoch(),
		counts: map[string]int{},
	}
	demand, err := live.demanded(fleet, o.sim.models)
	if err != nil {
		return nil, err
	}
	allPrices, err := o.livePrices(fleet, live)
	if err != nil {
		return nil, err
	}
	known := lead.TablesOf(fleet)
	prices, err := o.liveTypes(allPrices, live, demand, known)
	if err != nil {
		return nil, err
	}
	cfg, _, err := o.sim.base()
	if err != nil {
		return nil, err
	}
	o.sim.models = nil
	for _, d := range demand {
		m, err := live.model(d, prices, known, o.sim.rejectLate)
		if err != nil {
			return nil, err
		}
		cfg.Models = append(cfg.Models, m)
		o.sim.models = append(o.sim.models, m.Name)
	}
	if !cmd.Flags().Changed("budget") && !cmd.Flags().Changed("rate") {
		o.budget = live.cost(prices, live.counts)
	}
	p, err := o.simulated(cmd, cfg, prices, "the fleet's own profiles where it has learned some")
	if err != nil {
		return nil, err
	}
	p.live = live
	return p, nil
}

// demanded returns the models to plan for: those of names, or all if names is empty. It leaves out
// models with too few queries, and notes them. It is an error if none is left.
func (live *liveFleet) demanded(fleet *control.FleetDemand,
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
			Model: m.GetModel(), Version: m.GetVersion(), Rate: rounded(m.GetRate()),
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

// livePrices returns the prices of instance types. The agents' own prices override the built-in
// catalogue, and a file of --catalogue overrides both. It also sets live.counts.
func (o *planOptions) livePrices(fleet *control.FleetDemand, live *liveFleet) (map[string]float64,
	error) {
	catalogue, err := readCatalogue(o.catalogue)
	if err != nil {
		return nil, err
	}
	prices, err := lead.PricesOf(fleet, catalogue, o.catalogue == "")
	if err != nil {
		return nil, err
	}
	for _, m := range fleet.GetMembers() {
		if m.GetDraining() {
			continue
		}
		live.counts[m.GetInstanceType()]++
		if m.GetLanes() > 1 {
			live.Notes = append(live.Notes,
				fmt.Sprintf("agent %s has %d lanes; the plan takes it for an instance with one",
					m.GetName(), m.GetLanes()))
		}
	}
	return prices, nil
}

// liveTypes returns the instance types to choose from: those of --types, or all on which every
// model has a profile. The types of the running fleet must be among them.
func (o *planOptions) liveTypes(prices map[string]float64, live *liveFleet,
	demand []*control.ModelDemand, known lead.Tables) (types []sim.Price, err error) {
	names := o.types
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(prices))
	}
	for t := range live.counts {
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
		case live.counts[t] > 0:
			return nil, fmt.Errorf(
				"model %s has no profile on %s, which the fleet has: no query of it has run there",
				lacking, t)
		case len(o.types) > 0:
			return nil, fmt.Errorf("types: model %s has no profile on %s", lacking, t)
		}
	}
	return types, nil
}

// model makes the simulated model of a demand, with the latencies known for the types of prices,
// and adds where these come from to live.Evidence.
func (live *liveFleet) model(d *control.ModelDemand, prices []sim.Price, known lead.Tables,
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
			Age:     rounded(learned.Age.Seconds()),
			Error:   rounded(table.Error(int(m.BatchSizes.Mean()))),
		})
	}
	return m, nil
}

// cost returns the price, in $/hr, of the counts of instances by type.
func (live *liveFleet) cost(prices []sim.Price, counts map[string]int) (sum float64) {
	for _, p := range prices {
		sum += p.PriceUSDPerHour * float64(counts[p.Type])
	}
	return rounded(sum)
}

// compare sets the fields of live that compare the running fleet with the best plan of r: what each
// of them serves and costs, and which instances to rent and to release. It evaluates up to two
// configurations.
func (live *liveFleet) compare(ctx context.Context, p *planning, r *plan.Result) error {
	throughput := live.throughput(p, r)
	of := func(c plan.Configuration) (liveCost, error) {
		cost := liveCost{
			Configuration: map[string]int{}, Price: rounded(p.Price(c)), name: p.Name(c),
		}
		for i, n := range c {
			if n > 0 {
				cost.Configuration[string(p.Types[i].Name)] = n
			}
		}
		e, err := throughput(ctx, c)
		cost.Throughput, cost.StdErr = rounded(e.Value), rounded(e.StdErr)
		return cost, err
	}
	now := live.running(p)
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
	if keep, err := live.keep(p, now, best); err != nil {
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

// running returns the running fleet as a configuration of p's types.
func (live *liveFleet) running(p *planning) plan.Configuration {
	c := make(plan.Configuration, len(p.Types))
	for i, t := range p.Types {
		c[i] = live.counts[string(t.Name)]
	}
	return c
}

// throughput returns an evaluator of a configuration's allowable throughput. It takes the value
// that the planner has found, or else evaluates in the planner's way.
func (live *liveFleet) throughput(p *planning, r *plan.Result) plan.EvaluatorFunc {
	simulation := *p.simulation
	simulation.Objective = plan.MostThroughput
	bound, byBound := p.evaluator.(plan.BoundEvaluator)
	return func(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
		for _, known := range r.Evaluations {
			if p.Objective == plan.MostThroughput && slices.Equal(known.Configuration, c) {
				return known.Estimate, nil
			}
		}
		if byBound {
			described, err := bound.Analysis.Plan(c, "")
			return plan.Estimate{Value: described.Predicted}, err
		}
		return simulation.Evaluate(ctx, c)
	}
}

// keep reports whether the running fleet is better than the best plan. It is, if the plan does
// not serve the demand, the fleet is within the budget, and the plan serves no more by evaluation
// and by fluid limit.
func (live *liveFleet) keep(p *planning, now plan.Configuration, best *plan.Plan) (bool, error) {
	serves := live.Proposed.Throughput > 0
	if p.Objective == plan.LeastCost && best.Evaluated {
		serves = meets(p, best)
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

// meets reports whether the evaluator found that the plan meets the QoS target at the planned rate.
func meets(p *planning, best *plan.Plan) bool {
	return p.Objective == plan.LeastCost && best.Evaluated && best.Satisfaction >= p.Target
}

// noteDemand adds a note if the proposed configuration does not serve the demand. The note names
// the cheapest configuration that would, by its fluid limit.
func (live *liveFleet) noteDemand(ctx context.Context, p *planning, best *plan.Plan) {
	demand := p.Rate
	if p.Objective == plan.MostThroughput {
		for _, d := range live.Demand {
			demand += d.Rate
		}
	}
	if live.Proposed.Throughput >= demand || meets(p, best) {
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
func (live *liveFleet) writeText(b *strings.Builder) {
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
