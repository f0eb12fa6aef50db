package plancmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/fleetplan"
	"github.com/muster-serve/muster/leader/place/replan"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/sim"
)

// PlaceHelp says what `muster plan place` does.
const PlaceHelp = `Plan together how many instances to rent and which variant each of them holds, for
the --family and --model that are given. With --budget it is the fleet within it that
serves the largest share of the queries at --rate, and of those the one with the most
accurate answers. With --min-accuracy it is the cheapest that serves all of them at
this mean accuracy. Rates are planned for as a leader with
"--model-control leader" plans for them, --place-headroom times as high. The first
plan is simulated, unless --evaluator is bound.`

// A PlacementProblem is a problem of instances and what they hold.
type PlacementProblem struct {
	*plan.Problem
	// Config has the families, and how to simulate a plan. Their names differ, and their variants'.
	Config        *sim.Config
	Seeds         int
	Headroom      float64
	LeastAccuracy float64 // in (0, 1]; 0: the best within the budget
	Source        string

	fleet    *fleetplan.Problem
	unplaced []replan.Event
	names    map[names.ModelKey]string
	rates    []float64 // by family
}

// open makes the fleet's problem.
func (p *PlacementProblem) open() error {
	of := *p.Problem
	of.Objective, of.Models, of.Rate = plan.LeastCost, nil, 0
	if err := of.Validate(); err != nil {
		return err
	}
	p.rates = nil
	all := 0.0
	for i := range p.Config.Models {
		all += cmp.Or(p.Config.Models[i].Weight, 1)
	}
	for i := range p.Config.Models {
		p.rates = append(p.rates, p.Rate*cmp.Or(p.Config.Models[i].Weight, 1)/all)
	}
	p.fleet, p.unplaced = p.fleetWith(-1)
	return nil
}

// fleetWith is the fleet's problem, where the QoS target of one family, -1 is none, is longer by
// stretch.
func (p *PlacementProblem) fleetWith(longer int) (*fleetplan.Problem, []replan.Event) {
	s := &replan.Snapshot{Latencies: map[names.TableKey]replan.Latencies{}}
	p.names = map[names.ModelKey]string{}
	merges := p.Config.Merge.Merges()
	var available []names.ModelKey
	for i := range p.Config.Models {
		m := &p.Config.Models[i]
		target := m.QoSTarget
		if i == longer {
			target += time.Duration(stretch * float64(target))
		}
		s.Families = append(s.Families, replan.Family{
			Name: m.Name, QoSTarget: target, Sizes: sim.Distribution(m.BatchSizes),
		})
		variants := m.Variants
		if len(variants) == 0 {
			variants = []sim.Variant{{Name: m.Name, Accuracy: 1, Latencies: m.Latencies}}
		}
		for _, v := range variants {
			key := leader.ModelID{Name: v.Name, Version: 1}.Key()
			p.names[key], available = v.Name, append(available, key)
			s.Variants = append(s.Variants, replan.Variant{
				Model: key, Family: m.Name, Accuracy: v.Accuracy, Merges: merges,
				Largest: m.BatchSizes.Largest(),
			})
			for t, l := range v.Latencies {
				s.Latencies[names.TableKey{Model: key, Type: names.LaneType(t)}] = l
			}
		}
	}
	var demand []float64
	for _, rate := range p.rates {
		demand = append(demand, rate*p.Headroom)
	}
	for _, t := range p.Types {
		s.Agents = append(s.Agents, replan.Agent{
			Name: names.AgentName(t.Name), Type: names.LaneType(t.Name), Lanes: 1,
			Available: available,
		})
	}
	fleet, unplaced := replan.NewFleetProblem(s, demand)
	fleet.BudgetUSDPerHour, fleet.TargetAccuracy = p.Budget, p.LeastAccuracy
	if p.LeastAccuracy == 0 {
		fleet.AccuracyUSDPerHour = math.Inf(1)
	}
	for i, t := range p.Types {
		to := &fleet.Types[i]
		if to.PriceUSDPerHour, to.Max = t.Price, fleet.Enough(i); t.Max > 0 {
			to.Max = min(to.Max, t.Max)
		}
	}
	return fleet, unplaced
}

// setMargin says what a little more costs.
func (p *PlacementProblem) setMargin(r *PlacedReport, first *fleetplan.Plan) {
	m := first.Margin
	if m == nil {
		return
	}
	const hour = 3600
	r.Margin = &margin{
		Queries: map[string]float64{}, Rate: map[string]float64{},
		Millisecond: map[string]float64{}, Point: roundTo6(m.AccuracyUSDPerHour / 100),
	}
	for f, price := range m.QueriesUSDPerMillion {
		name := p.fleet.Families[f].Name
		r.Margin.Queries[name] = roundTo6(price)
		r.Margin.Rate[name] = roundTo6(price * hour / 1e6)
		longer, _ := p.fleetWith(f)
		if usd, ok := p.fleet.CostOfChange(longer, first); ok {
			ms := stretch * p.Config.Models[f].QoSTarget.Seconds() * 1e3
			r.Margin.Millisecond[name] = roundTo6(max(0, -usd/ms))
		}
	}
}

// stretch is by which share a QoS target is longer, of which is said what that saves. Chosen: run
// times change in steps of batch sizes, of which a tenth of the target passes some.
const stretch = 0.1

// Plan plans, and simulates the best plan if it is to.
func (p *PlacementProblem) Plan(ctx context.Context, top int, simulate bool,
	progress func(string)) (*PlacedReport, error) {
	if err := p.open(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	progress("searching for a fleet and what it holds")
	plans, err := new(fleetplan.Planner).PlanSafely(p.fleet, top)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	first := plans[0] // the empty fleet is within all limits
	r := &PlacedReport{
		Objective: "maximum share served, then maximum accuracy", Source: p.Source,
		Budget: p.Budget,
		Rate:   p.Rate, Headroom: p.Headroom, LeastAccuracy: p.LeastAccuracy,
		Met:   first.Served > 1-1e-6 && first.Accuracy >= p.LeastAccuracy-1e-6,
		Plans: []placedFleet{},
	}
	p.setBounds(r, first)
	p.setMargin(r, first)
	if p.LeastAccuracy > 0 {
		r.Objective = minCost
	}
	for _, m := range p.Config.Models {
		r.Families = append(r.Families, m.Name)
	}
	for _, e := range p.unplaced {
		r.Notes = append(r.Notes, strings.ReplaceAll(e.Text, "no agent", "no instance"))
	}
	for _, one := range plans {
		r.Plans = append(r.Plans, p.fleetOf(one))
	}
	if len(r.Plans) == 0 || r.Plans[0].Served == 0 {
		return nil, errors.New(strings.Join(append(
			[]string{"plan: no fleet within the limits serves any query in time"}, r.Notes...),
			"; "))
	}
	p.addNotes(r)
	if simulate {
		progress("simulating plan 1")
		if err := p.simulateFleet(ctx, &r.Plans[0]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// setBounds says what no fleet exceeds, and how sure the first plan is the best.
func (p *PlacementProblem) setBounds(r *PlacedReport, first *fleetplan.Plan) {
	if p.LeastAccuracy > 0 && r.Met {
		r.BoundPrice = roundTo6(first.MinCostUSDPerHour)
		if first.MinCostUSDPerHour < first.CostUSDPerHour*(1-tolerance) {
			r.Doubt = fmt.Sprintf("a fleet of %.4g $/hr or more may do, and not all were searched",
				first.MinCostUSDPerHour)
		}
		return
	}
	r.BoundServed = roundTo6(first.MaxServed)
	if p.LeastAccuracy == 0 {
		r.Bound = roundTo6(first.MaxAccuracy)
	}
	if first.MaxServed > first.Served+tolerance || r.Bound > first.Accuracy+tolerance {
		r.Doubt = "bounds do not exclude a better one, and not all were searched"
	}
}

// tolerance is by how much the best plan may exceed the first one without a doubt being told: in
// accuracy, share served or part of the price. Chosen: below what is
// printed.
const tolerance = 2e-4

// fleetOf is a plan for people.
func (p *PlacementProblem) fleetOf(from *fleetplan.Plan) placedFleet {
	f := placedFleet{
		Configuration: map[string]int{}, Price: roundTo6(from.CostUSDPerHour),
		Served: roundTo6(from.Served), Accuracy: roundTo6(from.Accuracy), Holds: []heldLayout{},
		name: p.Name(from.Counts),
	}
	for i, n := range from.Counts {
		f.Configuration[string(p.Types[i].Name)] = n
	}
	for _, held := range from.Holdings {
		h := heldLayout{Type: string(p.Types[held.Type].Name), Count: held.Count}
		for of, variants := range held.Variants {
			for i, v := range variants {
				h.Models = append(h.Models, p.names[p.fleet.Families[of].Variants[v].Model])
				h.Rate += held.Rate[of][i]
			}
		}
		h.Rate = roundTo6(h.Rate)
		f.Holds = append(f.Holds, h)
	}
	for i := range p.fleet.Families {
		of, served := &p.fleet.Families[i], &from.Families[i]
		family := placedFamily{
			Family: of.Name, Rate: roundTo6(p.rates[i]), Served: roundTo6(served.Answered),
			Accuracy: roundTo6(served.Accuracy), Shares: map[string]float64{},
		}
		all := 0.0
		for _, b := range of.Bins {
			family.Planned += b.Rate
		}
		for _, rate := range served.Rate {
			all += rate
		}
		family.Planned = roundTo6(family.Planned)
		for v, rate := range served.Rate {
			if rate > 0 {
				name := p.names[of.Variants[v].Model]
				family.Shares[name] = roundTo6(rate / all)
				family.order = append(family.order, name)
			}
		}
		f.Families = append(f.Families, family)
	}
	return f
}

// addNotes says what falls short.
func (p *PlacementProblem) addNotes(r *PlacedReport) {
	first := &r.Plans[0]
	if p.LeastAccuracy > 0 && !r.Met {
		r.Notes = append(r.Notes,
			fmt.Sprintf("no fleet within the limits is found that serves all "+
				"queries at an accuracy of %v: these come nearest", p.LeastAccuracy))
	}
	for _, f := range first.Families {
		if f.Served < 1-1e-6 {
			r.Notes = append(r.Notes,
				fmt.Sprintf("plan 1 leaves %.4g of the %.4g queries/s that are "+
					"planned for of %s unserved", (1-f.Served)*f.Planned, f.Planned, f.Family))
		}
	}
}

// simulateFleet simulates a fleet that holds what it is to hold, at the rate without headroom.
func (p *PlacementProblem) simulateFleet(ctx context.Context, f *placedFleet) error {
	cfg := *p.Config
	cfg.Rate, cfg.Pool, cfg.Holds = p.Rate, nil, nil
	for _, t := range p.Types {
		if n := f.Configuration[string(t.Name)]; n > 0 {
			cfg.Pool = append(cfg.Pool, sim.Instances{Type: string(t.Name), Count: n})
		}
	}
	for _, h := range f.Holds {
		cfg.Holds = append(cfg.Holds, sim.HeldModels{Type: h.Type, Count: h.Count,
			Models: h.Models})
	}
	report, err := sim.RunSeeds(ctx, &cfg, p.Seeds, func(int) {})
	if err != nil {
		return fmt.Errorf("simulate plan 1: %w", err)
	}
	f.Simulated = &simulatedFleet{
		WithinQoS: roundTo6(*report.QoSSatisfaction),
		Accuracy:  roundTo6(cmp.Or(report.EffectiveAccuracy, 1)),
	}
	return nil
}

// A PlacedReport is the output of `muster plan place`. Accuracies are in (0, 1].
type PlacedReport struct {
	Objective     string   `json:"objective"`
	Families      []string `json:"families"`
	Source        string   `json:"source"`
	Budget        float64  `json:"budget_usd_per_hour,omitempty"`
	Rate          float64  `json:"rate_qps"`
	Headroom      float64  `json:"headroom"`
	LeastAccuracy float64  `json:"least_accuracy,omitempty"`
	// Met: the first plan serves all of the rate, and at the least accuracy.
	Met bool `json:"met"`
	// Searched and SearchSpace are 0: no configurations are listed.
	Searched    int `json:"configurations_searched"`
	SearchSpace int `json:"search_space"`
	// No fleet within the limits serves more than BoundServed, nor as much as the first plan at a
	// higher accuracy than Bound; or does so at the least accuracy for less than BoundPrice.
	BoundServed float64       `json:"bound_served_share,omitempty"`
	Bound       float64       `json:"bound_accuracy,omitempty"`
	BoundPrice  float64       `json:"bound_usd_per_hour,omitempty"`
	Plans       []placedFleet `json:"plans"`
	Margin      *margin       `json:"margin,omitempty"`
	Notes       []string      `json:"notes,omitempty"`
	Doubt       string        `json:"doubt,omitempty"`
}

// A margin is what a little more costs, if machines can be divided: a million queries, and one more
// a second, by family; a point of accuracy of all answers; and what a millisecond more of a
// family's QoS target saves.
type margin struct {
	Queries     map[string]float64 `json:"usd_per_million_queries"`
	Rate        map[string]float64 `json:"usd_per_hour_per_qps"`
	Millisecond map[string]float64 `json:"usd_per_hour_saved_per_ms_of_qos_target"`
	Point       float64            `json:"usd_per_hour_per_point_of_accuracy"`
}

type placedFleet struct {
	Configuration map[string]int  `json:"configuration"`
	Price         float64         `json:"price_usd_per_hour"`
	Served        float64         `json:"served_share"`
	Accuracy      float64         `json:"accuracy"`
	Holds         []heldLayout    `json:"holds"`
	Families      []placedFamily  `json:"families"`
	Simulated     *simulatedFleet `json:"simulated,omitempty"`

	name string
}

// A heldLayout is what some instances of a type hold, and how much of what is planned for they
// serve together.
type heldLayout struct {
	Type   string   `json:"instance_type"`
	Count  int      `json:"count"`
	Models []string `json:"models"`
	Rate   float64  `json:"serves_qps"`
}

type placedFamily struct {
	Family   string             `json:"family"`
	Rate     float64            `json:"rate_qps"`
	Planned  float64            `json:"planned_qps"`
	Served   float64            `json:"served_share"`
	Accuracy float64            `json:"accuracy"`
	Shares   map[string]float64 `json:"shares"`

	order []string
}

// A simulatedFleet is a plan at the rate without headroom.
type simulatedFleet struct {
	WithinQoS float64 `json:"qos_satisfaction"`
	Accuracy  float64 `json:"effective_accuracy"`
}

// WriteText writes the report for people: the plans, what the instances of the first hold, and what
// that means for the families.
func (r *PlacedReport) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", strings.Join(r.Families, ", "))
	within := ""
	if r.Budget > 0 {
		within = fmt.Sprintf(", within %v $/hr", r.Budget)
	}
	if r.LeastAccuracy > 0 {
		fmt.Fprintf(&b, "minimum cost for %v queries/s at an accuracy of %v%s\n", r.Rate,
			r.LeastAccuracy, within)
	} else {
		fmt.Fprintf(&b, "maximum share of %v queries/s, then maximum accuracy%s\n", r.Rate, within)
	}
	fmt.Fprintf(&b, "planned for %v times the rate (%s)\n\n", r.Headroom, r.Source)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t$/hr\tserved\taccuracy\tconfiguration")
	for i, f := range r.Plans {
		fmt.Fprintf(t, "%d\t%.3f\t%s %%\t%.4f\t%s\n", i+1, f.Price, percentDown(f.Served),
			roundDown4(f.Accuracy), f.name)
	}
	t.Flush()
	first := &r.Plans[0]
	fmt.Fprintln(&b, "\nPlan 1:")
	most := 0
	for _, h := range first.Holds {
		most = max(most, h.Count)
	}
	for _, h := range first.Holds {
		fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%.1f queries/s\n", h.Type, drawBar(h.Count, most),
			h.Count,
			strings.Join(h.Models, ", "), h.Rate)
	}
	t.Flush()
	fmt.Fprintln(&b)
	fmt.Fprintln(t, "  family\tqueries/s\tplanned for\tserved\taccuracy\tby")
	for _, f := range first.Families {
		var by []string
		for _, v := range f.order {
			by = append(by, fmt.Sprintf("%s %.1f %%", v, 100*f.Shares[v]))
		}
		fmt.Fprintf(t, "  %s\t%.1f\t%.1f\t%s %%\t%.4f\t%s\n", f.Family, f.Rate, f.Planned,
			percentDown(f.Served), roundDown4(f.Accuracy), strings.Join(by, ", "))
	}
	t.Flush()
	if s := first.Simulated; s != nil {
		fmt.Fprintf(&b, "\nSimulated at %v queries/s: %.2f %% within QoS, accuracy %.4f.\n", r.Rate,
			100*s.WithinQoS, s.Accuracy)
	}
	switch {
	case r.BoundPrice > 0:
		fmt.Fprintf(&b, "Every fleet that serves this costs at least %.3f $/hr.\n",
			math.Floor(r.BoundPrice*1e3+1e-3)/1e3)
	case r.BoundServed > first.Served+5e-5:
		fmt.Fprintf(&b, "No fleet within the limits serves more than %.2f %%.\n", 100*r.BoundServed)
	case r.Bound > 0:
		fmt.Fprintf(&b, "No fleet that serves as much has an accuracy above %.4f.\n",
			math.Ceil(r.Bound*1e4-1e-6)/1e4)
	}
	if m := r.Margin; m != nil {
		var queries, rates, targets []string
		for _, f := range r.Families {
			queries = append(queries, fmt.Sprintf("of %s $%.3f", f, m.Queries[f]))
			rates = append(rates, fmt.Sprintf("of %s $%.4f/hr", f, m.Rate[f]))
			if saved, ok := m.Millisecond[f]; ok {
				targets = append(targets, fmt.Sprintf("of %s's QoS target $%.4f/hr", f, saved))
			}
		}
		fmt.Fprintf(&b, "A million queries more cost: %s", strings.Join(queries, ", "))
		if m.Point > 0 {
			fmt.Fprintf(&b, "; a point of accuracy more: $%.3f/hr", m.Point)
		}
		fmt.Fprintf(&b, ".\nOne query/s more costs: %s.\n", strings.Join(rates, ", "))
		if len(targets) > 0 {
			fmt.Fprintf(&b, "A millisecond more saves: %s.\n", strings.Join(targets, ", "))
		}
	}
	if r.Doubt != "" {
		fmt.Fprintf(&b, "\nNot sure: %s.\n", r.Doubt)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\nNote: %s.\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// drawBar is a bar of n marks, of at most 24.
func drawBar(n, most int) string {
	return strings.Repeat("#", max(1, n*min(most, 24)/max(1, most)))
}

// percentDown writes a share as percent, rounded down, so that only all is 100.
func percentDown(share float64) string { return fmt.Sprintf("%.2f", 100*roundDown4(share)) }

// roundDown4 rounds down to four decimals.
func roundDown4(x float64) float64 { return math.Floor(x*1e4+1e-6) / 1e4 }
