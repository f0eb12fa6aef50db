package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/figures"
)

// planOptions are the flags of `muster plan` beside those of the simulation.
type planOptions struct {
	sim       simOptions
	budget    float64
	rate      float64
	target    float64 // percent
	types     []string
	limits    []string // TYPE=N
	planner   string
	policy    string
	catalogue string
	top       int
	plotFile  string
}

// planners makes the planners by name.
var planners = map[string]func(o *planOptions) plan.Planner{
	"fluid":   func(o *planOptions) plan.Planner { return plan.Fluid{Top: o.top} },
	"kairos":  func(o *planOptions) plan.Planner { return plan.Kairos{Top: o.top} },
	"kairos+": func(o *planOptions) plan.Planner { return plan.KairosPlus{Top: o.top} },
}

// defaultPlanner ended at the best configuration of all five models after one or two simulations.
const defaultPlanner = "kairos+"

func newPlanCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Plan a fleet: which instances a budget should buy, or a load needs",
		Long: `Plan which instances to buy: the configuration that serves most within --budget,
or the cheapest that serves --rate within the QoS target (and within --budget,
if that is given too; it is a hard limit).

Planners:
  fluid    takes the configuration of the highest fluid limit; simulates none
  kairos   ranks by KAIROS's bound (Eq. 15) and takes one of the highest by its
           similarity rule; simulates none; plans for one model
  kairos+  simulates by falling bound until no other configuration can be better

` + simInputHelp,
		Example: `  muster plan --model rm2 --budget 2.5
  muster plan --model rm2 --rate 100
  muster plan --model wnd --budget 2.5 --max g4dn.xlarge=2 --planner kairos --json
  muster plan --model ncf=3 --model wnd --budget 4 --batch gaussian:250,100 --plot plan.png`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.sim.models, "model", nil, "model that is asked for, as NAME or NAME=SHARE of the queries; repeat it for several")
	flags.Float64Var(&o.budget, "budget", 0, "$/hr that the fleet may cost")
	flags.Float64Var(&o.rate, "rate", 0, "queries a second to serve at the least cost")
	flags.Float64Var(&o.target, "target", 99, "percent of each model's queries that must meet their QoS target")
	flags.StringSliceVar(&o.types, "types", nil, "instance types to choose from (default: all with a profile of the models)")
	flags.StringSliceVar(&o.limits, "max", nil, "most instances of a type, as TYPE=N,TYPE=N")
	flags.StringVar(&o.planner, "planner", defaultPlanner, "how to search: "+strings.Join(slices.Sorted(maps.Keys(planners)), ", "))
	flags.StringVar(&o.policy, "policy", "", "how queries are distributed (default "+sim.DefaultPolicy+")")
	flags.StringVar(&o.catalogue, "catalogue", "", "YAML file of instance types and prices, beside those known")
	flags.IntVar(&o.top, "top", plan.DefaultTop, "plans to show")
	flags.StringVar(&o.plotFile, "plot", "", "simulate the plans shown, and draw bound, simulated rate and price to this PNG file")
	o.sim.add(flags)
	return cmd
}

func (o *planOptions) run(cmd *cobra.Command) error {
	newPlanner := planners[o.planner]
	if newPlanner == nil {
		return fmt.Errorf("planner %q is unknown, there are: %s", o.planner, strings.Join(slices.Sorted(maps.Keys(planners)), ", "))
	}
	if o.top < 1 {
		return fmt.Errorf("top is %d plans, want at least 1", o.top)
	}
	p, e, source, err := o.problem(cmd)
	if err != nil {
		return err
	}
	line := newStatusLine(cmd.ErrOrStderr())
	defer line.done()
	simulated := 0
	watched := plan.EvaluatorFunc(func(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
		line.show("%d configurations simulated, now %s", simulated, p.Name(c))
		simulated++
		return e.Evaluate(ctx, c)
	})
	r, err := newPlanner(o).Plan(cmd.Context(), p, watched)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	r.Plans = r.Plans[:min(o.top, len(r.Plans))]
	if o.plotFile != "" {
		if err := o.plot(cmd, p, e, r, line); err != nil {
			return err
		}
	}
	line.done()
	report := o.report(p, e, source, r)
	if o.sim.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	return report.writeText(cmd.OutOrStdout())
}

// problem is what the flags ask, and the simulation that evaluates for it.
func (o *planOptions) problem(cmd *cobra.Command) (*plan.Problem, *sim.Evaluator, *sim.Source, error) {
	fail := func(err error) (*plan.Problem, *sim.Evaluator, *sim.Source, error) { return nil, nil, nil, err }
	source, err := sim.OpenSource(o.sim.samples)
	if err != nil {
		return fail(err)
	}
	types := o.types
	if len(types) == 0 {
		types = profiledTypes(source, o.sim.models)
	}
	cfg, source, err := o.sim.config(types)
	if err != nil {
		return fail(err)
	}
	prices, err := readPrices(o.catalogue, types)
	if err != nil {
		return fail(err)
	}
	p := sim.Problem(cfg.Models, prices)
	if err := o.objective(cmd, p); err != nil {
		return fail(err)
	}
	if err := setLimits(p, o.limits); err != nil {
		return fail(err)
	}
	a, err := plan.Analyse(p)
	if err != nil {
		return fail(err)
	}
	cfg.Policy, cfg.Rate = o.policy, p.Rate
	for i := range cfg.Models {
		m := &cfg.Models[i]
		m.QoSShare = p.Target
		// What is planned for is what can be served.
		sizes := a.Problem.Models[i].BatchSizes
		if m.BatchSizes, err = m.BatchSizes.AtMost(sizes[len(sizes)-1].BatchSize); err != nil {
			return fail(err)
		}
	}
	return p, &sim.Evaluator{Config: cfg, Types: types, Seeds: o.sim.seeds, Objective: p.Objective}, source, nil
}

// objective sets what the problem is to make best: a rate asks for the least cost.
func (o *planOptions) objective(cmd *cobra.Command, p *plan.Problem) error {
	given := cmd.Flags().Changed
	switch {
	case given("rate") && !(o.rate > 0):
		return fmt.Errorf("rate: %v queries/s, want above 0", o.rate)
	case given("rate"):
		p.Objective, p.Rate = plan.LeastCost, o.rate
	case !given("budget"):
		return errors.New("budget: give --budget for the most throughput, or --rate for the least cost")
	}
	if given("budget") && !(o.budget > 0) {
		return fmt.Errorf("budget: %v $/hr, want above 0", o.budget)
	}
	p.Budget = o.budget
	if !(o.target > 0 && o.target < 100) {
		return fmt.Errorf("target: %v %%, want within 0..100, such as 99", o.target)
	}
	p.Target = o.target / 100
	return nil
}

// profiledTypes are the instance types on which all models have profiles, those of the papers' experiments first.
func profiledTypes(source *sim.Source, models []string) []string {
	var types []string
	for i, text := range models {
		name, _, _ := strings.Cut(text, "=")
		known := source.InstanceTypes(name)
		if i == 0 {
			types = known
		} else {
			types = slices.DeleteFunc(types, func(t string) bool { return !slices.Contains(known, t) })
		}
	}
	rank := func(t string) int {
		if i := slices.Index(sim.PaperTypes(), t); i >= 0 {
			return i
		}
		return len(sim.PaperTypes())
	}
	slices.SortStableFunc(types, func(a, b string) int { return rank(a) - rank(b) })
	return types
}

// setLimits reads TYPE=N.
func setLimits(p *plan.Problem, limits []string) error {
	for _, text := range limits {
		name, count, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n < 0 {
			return fmt.Errorf("max: got %q, want TYPE=N with N of 0 or more", text)
		}
		i := slices.IndexFunc(p.Types, func(t plan.Type) bool { return string(t.Name) == name })
		switch {
		case i < 0:
			return fmt.Errorf("max: %s is not among the types to choose from: %s", name, typeNames(p))
		case n == 0:
			return fmt.Errorf("max: %s=0: leave %s out of --types instead", name, name)
		}
		p.Types[i].Max = n
	}
	return nil
}

func typeNames(p *plan.Problem) string {
	names := make([]string, len(p.Types))
	for i, t := range p.Types {
		names[i] = string(t.Name)
	}
	return strings.Join(names, ", ")
}

// plot simulates the throughput of every plan and draws it beside the bound and the price.
func (o *planOptions) plot(cmd *cobra.Command, p *plan.Problem, e *sim.Evaluator, r *plan.Result, line *statusLine) error {
	throughput := *e
	throughput.Objective = plan.MostThroughput
	simulated := make([]plan.Estimate, len(r.Plans))
	names := make([]string, len(r.Plans))
	for i := range r.Plans {
		one := &r.Plans[i]
		names[i] = one.Configuration.String()
		if one.Evaluated && p.Objective == plan.MostThroughput {
			simulated[i] = plan.Estimate{Value: one.Predicted, StdErr: one.StdErr}
			continue
		}
		line.show("%d of %d plans simulated for the picture", i, len(r.Plans))
		var err error
		if simulated[i], err = throughput.Evaluate(cmd.Context(), one.Configuration); err != nil {
			return err
		}
		if p.Objective == plan.MostThroughput {
			one.Evaluated, one.Predicted, one.StdErr = true, min(simulated[i].Value, one.FluidLimit), simulated[i].StdErr
		}
	}
	title := fmt.Sprintf("%s: plans by %s (%s)", strings.Join(o.sim.models, ", "), o.planner, typeNames(p))
	err := writeFile(o.plotFile, func(w io.Writer) error { return figures.DrawPlans(w, title, names, r.Plans, simulated) })
	if err == nil {
		line.done()
		fmt.Fprintf(cmd.ErrOrStderr(), "bound, simulated rate and price drawn to %s\n", o.plotFile)
	}
	return err
}

// A planReport is what `muster plan` prints.
type planReport struct {
	Planner   string   `json:"planner"`
	Objective string   `json:"objective"`
	Models    []string `json:"models"`
	// Evaluator says what evaluated, and Source where the latencies come from.
	Evaluator   string           `json:"evaluator"`
	Source      string           `json:"source"`
	Budget      float64          `json:"budget_usd_per_hour,omitempty"`
	Rate        float64          `json:"rate_qps,omitempty"`
	Target      float64          `json:"target_percent"`
	Evaluations int              `json:"evaluations"`
	SearchSpace int              `json:"search_space"`
	Plans       []plannedFleet   `json:"plans"`
	Log         []loggedEstimate `json:"evaluation_log"`
	Notes       []string         `json:"notes,omitempty"`
	Doubt       string           `json:"doubt,omitempty"`
}

type plannedFleet struct {
	Configuration map[string]int `json:"configuration"`
	Price         float64        `json:"price_usd_per_hour"`
	Predicted     float64        `json:"predicted_qps"`
	Satisfaction  float64        `json:"predicted_qos_satisfaction,omitempty"`
	StdErr        float64        `json:"standard_error"`
	// Evaluated: what is predicted was evaluated, and is no estimate by a bound.
	Evaluated  bool         `json:"evaluated"`
	Bound      float64      `json:"bound_qps"`
	FluidLimit float64      `json:"fluid_limit_qps"`
	Binding    string       `json:"binding_constraint"`
	Gains      []gainOfType `json:"one_more"`
	Reason     string       `json:"reason"`

	name string
}

type gainOfType struct {
	Type  string  `json:"instance_type"`
	Rate  float64 `json:"gain_qps"`
	Price float64 `json:"price_usd_per_hour"`
}

// A loggedEstimate is an evaluation: a throughput in queries/s, or the share of the queries within QoS.
type loggedEstimate struct {
	Configuration map[string]int `json:"configuration"`
	Throughput    *float64       `json:"throughput_qps,omitempty"`
	Satisfaction  *float64       `json:"qos_satisfaction,omitempty"`
	StdErr        float64        `json:"standard_error"`
}

func (o *planOptions) report(p *plan.Problem, e *sim.Evaluator, source *sim.Source, r *plan.Result) *planReport {
	policy := e.Config.Policy
	if policy == "" {
		policy = sim.DefaultPolicy
	}
	report := &planReport{
		Planner: o.planner, Objective: "most throughput", Models: o.sim.models,
		Evaluator: "simulation under " + policy, Source: source.String(),
		Budget: p.Budget, Rate: p.Rate, Target: o.target,
		Evaluations: len(r.Evaluations), SearchSpace: r.SearchSpace, Notes: r.Notes, Doubt: r.Doubt,
		Log: []loggedEstimate{},
	}
	if p.Objective == plan.LeastCost {
		report.Objective = "least cost"
	}
	counts := func(c plan.Configuration) map[string]int {
		m := map[string]int{}
		for i, n := range c {
			m[string(p.Types[i].Name)] = n
		}
		return m
	}
	for _, one := range r.Plans {
		f := plannedFleet{
			Configuration: counts(one.Configuration), Price: rounded(one.Price), Predicted: rounded(one.Predicted), Satisfaction: rounded(one.Satisfaction),
			StdErr: rounded(one.StdErr), Evaluated: one.Evaluated, Bound: rounded(one.Bound), FluidLimit: rounded(one.FluidLimit),
			Binding: one.Binding, Reason: one.Reason, name: p.Name(one.Configuration),
		}
		for _, g := range one.Gains {
			f.Gains = append(f.Gains, gainOfType{g.Type, rounded(g.Rate), g.Price})
		}
		report.Plans = append(report.Plans, f)
	}
	for _, one := range r.Evaluations {
		l := loggedEstimate{Configuration: counts(one.Configuration), StdErr: rounded(one.StdErr)}
		if value := rounded(one.Value); p.Objective == plan.LeastCost {
			l.Satisfaction = &value
		} else {
			l.Throughput = &value
		}
		report.Log = append(report.Log, l)
	}
	return report
}

// writeText writes a table that a person can decide from.
func (r *planReport) writeText(w io.Writer) error {
	var b strings.Builder
	asked := fmt.Sprintf("the most throughput within %v $/hr", r.Budget)
	if r.Rate > 0 {
		asked = fmt.Sprintf("the least cost for %v queries/s", r.Rate)
		if r.Budget > 0 {
			asked += fmt.Sprintf(", within %v $/hr", r.Budget)
		}
	}
	fmt.Fprintf(&b, "%s: %s, %v %% of the queries within QoS\n", strings.Join(r.Models, ", "), asked, r.Target)
	fmt.Fprintf(&b, "planner %s: %d of %d configurations evaluated (%s, %s)\n\n", r.Planner, r.Evaluations, r.SearchSpace, r.Evaluator, r.Source)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t$/hr\texpected\tbound\tconfiguration\twhy")
	for i, one := range r.Plans {
		expected := fmt.Sprintf("%.1f queries/s by the bound", one.Predicted)
		switch {
		case one.Evaluated && r.Rate > 0:
			expected = fmt.Sprintf("%.2f ± %.2f %% within QoS", 100*one.Satisfaction, 100*one.StdErr)
		case one.Evaluated:
			expected = fmt.Sprintf("%.1f ± %.1f queries/s", one.Predicted, one.StdErr)
		}
		fmt.Fprintf(t, "%d\t%.3f\t%s\t%.1f\t%s\t%s\n", i+1, one.Price, expected, one.Bound, one.name, one.Reason)
	}
	t.Flush()
	if first := r.Plans[0]; len(first.Gains) > 0 {
		fmt.Fprintf(&b, "\nWhat limits the first: %s. One instance more raises its fluid limit of %.1f queries/s by\n", first.Binding, first.FluidLimit)
		for _, g := range first.Gains {
			fmt.Fprintf(t, "  %s\t%.1f queries/s\tfor %v $/hr\t%.1f queries/s a $/hr\n", g.Type, g.Rate, g.Price, g.Rate/g.Price)
		}
		t.Flush()
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

// rounded keeps six decimals: processors differ in the last digits.
func rounded(x float64) float64 { return math.Round(x*1e6) / 1e6 }
