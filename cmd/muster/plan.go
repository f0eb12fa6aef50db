package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/profiles"
	"github.com/muster-serve/muster/profiles/published"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/figures"
)

// planOptions are the flags of `muster plan`.
type planOptions struct {
	sim       simOptions
	budget    float64  // $/hr; 0 if not given
	rate      float64  // queries/s; 0 if not given
	target    float64  // percent of queries within QoS, in (0, 100)
	types     []string // empty: all with profiles
	limits    []string // TYPE=N
	planner   string
	plain     bool
	evaluator string
	runs      int
	policy    string // "": the default one
	catalogue string // path; "": the built-in catalogue alone
	top       int
	plotFile  string
	live      bool
	client    clientSettings
}

// planners has for each name of --planner the function that makes the planner. A planner that draws
// at random uses the seed.
var planners = map[string]func(o *planOptions, p *planning, seed uint64) plan.Planner{
	"fluid": func(o *planOptions, _ *planning, _ uint64) plan.Planner {
		return plan.Fluid{
			Top: o.top,
		}
	},
	"kairos": func(o *planOptions, _ *planning, _ uint64) plan.Planner {
		return plan.Kairos{
			Top: o.top,
		}
	},
	"kairos+": func(o *planOptions, _ *planning, _ uint64) plan.Planner {
		return plan.KairosPlus{
			Top: o.top,
		}
	},
	ribbonPlanner: func(o *planOptions, p *planning, seed uint64) plan.Planner {
		r := plan.Ribbon{Seed: seed, Plain: o.plain, Top: o.top}
		if p.live != nil { // what runs was found for the load before: the search begins there
			r.Explored = []plan.Evaluation{
				{Configuration: p.live.running(p), Estimate: plan.Estimate{Value: p.Target}},
			}
		}
		return r
	},
	"twin": func(o *planOptions, p *planning, seed uint64) plan.Planner {
		return plan.Twin{Model: p.twin, Runs: p.twinRuns, Seed: seed, Top: o.top}
	},
}

const (
	// In our measurements kairos+ found the best configuration for each of the papers' five models
	// after one or two simulations.
	defaultPlanner = "kairos+"
	// The other planners need profiles, which a table does not have.
	defaultTablePlanner = ribbonPlanner
	ribbonPlanner       = "ribbon"
	twinPlanner         = "twin"
)

// The evaluators of --evaluator.
const (
	bySimulation = "sim"
	byBound      = "bound"
	byTable      = "table:"
)

func newPlanCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Plan a fleet: the best for a budget, or the cheapest for a rate",
		Long: `Plan which instances to buy. With --budget alone the plan is the configuration
that serves the highest rate within the budget. With --rate it is the cheapest
configuration that serves this rate within the QoS target; --budget is then a
limit that no plan exceeds.

Planners:
  fluid    takes the configuration with the highest fluid limit; evaluates none
  kairos   ranks configurations by KAIROS's bound (Eq. 15) and chooses among the
           best by the paper's similarity rule; evaluates none; for one model only
  kairos+  evaluates configurations in order of falling bound, until none of the
           others can be better
  ribbon   evaluates the configurations that Bayesian optimisation proposes; needs
           no profiles; with --plain it is the search as the paper published it,
           which ends when no configuration is left
  twin     evaluates the configurations that a quicker simulation proposes, and
           learns the error of that simulation; needs --rate, or a table together
           with its --model and the --samples behind it

Evaluators:
  sim              simulates the configuration
  bound            estimates it by its fluid limit
  table:FILE       looks it up in a JSON file of the form
                   {"4, 0, 1": [2.25, 99.24], ...}: the counts of --types in their
                   order, the price in $/hr, and the percent of queries within QoS
                   at the load that was measured
  table:published  looks it up in the tables of RIBBON's authors, for --model mtwnd
                   or dien

--runs repeats a search that draws at random, and reports how many evaluations it
needs to find the best configuration of the table.

` + simInputHelp,
		Example: `  muster plan --model rm2 --budget 2.5
  muster plan --model rm2 --rate 100
  muster plan --live --server 10.0.0.7:8001
  muster plan --model wnd --budget 2.5 --max g4dn.xlarge=2 --planner kairos --json
  muster plan --evaluator table:published --model mtwnd --runs 30
  muster plan --model ncf=3 --model wnd --budget 4 --batch gaussian:250,100 --plot plan.png`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.sim.models, "model", nil,
		"model that queries are for, as NAME or NAME=SHARE of the queries; repeat it for several")
	flags.Float64Var(&o.budget, "budget", 0, "$/hr that the fleet may cost")
	flags.Float64Var(&o.rate, "rate", 0, "queries a second to serve at the least cost")
	flags.Float64Var(&o.target, "target", 99,
		"percent of each model's queries that must meet their QoS target")
	flags.StringSliceVar(&o.types, "types", nil,
		"instance types to choose from (default: all with a profile of the models)")
	flags.StringSliceVar(&o.limits, "max", nil, "most instances of a type, as TYPE=N,TYPE=N")
	flags.StringVar(&o.planner, "planner", "",
		"planner: "+strings.Join(slices.Sorted(maps.Keys(planners)), ", ")+" (default "+
			defaultPlanner+", with a table "+defaultTablePlanner+")")
	flags.BoolVar(&o.plain, "plain", false,
		"with --planner ribbon: search as RIBBON's paper does, without Muster's additions")
	flags.StringVar(&o.evaluator, "evaluator", bySimulation,
		"how to evaluate a configuration: sim, bound, table:FILE or table:published")
	flags.IntVar(&o.runs, "runs", 1,
		"with a table: how often to repeat the search, each time with the next seed")
	flags.StringVar(&o.policy, "policy", "",
		"how queries are distributed (default "+sim.DefaultPolicy+")")
	flags.StringVar(&o.catalogue, "catalogue", "",
		"YAML file with more instance types and prices than the built-in ones")
	flags.IntVar(&o.top, "top", plan.DefaultTop, "how many plans to show")
	flags.StringVar(&o.plotFile, "plot", "",
		"simulate the plans shown, and draw their bound, simulated rate and price to this PNG file")
	flags.BoolVar(&o.live, "live", false,
		"plan for the running fleet at --server, with its demand, profiles and prices; --model "+
			"then limits the plan to some of its models")
	o.sim.add(flags)
	o.client.add(flags)
	return cmd
}

// A planning is a planning problem together with its evaluators.
type planning struct {
	*plan.Problem
	evaluator  plan.Evaluator
	simulation *sim.Evaluator // nil if a table evaluates
	// twin is the quicker evaluator of the planner twin; nil with a table for other planners. Its
	// estimates are the mean of twinRuns runs.
	twin     plan.Evaluator
	twinRuns int
	// For the report: described is the evaluator in words, such as "looked up"; source is where its
	// latencies come from.
	described, source string
	live              *liveFleet // nil without --live
}

// run checks the flags, plans and prints the report. Planning blocks for as long as the planner
// evaluates, up to minutes.
func (o *planOptions) run(cmd *cobra.Command) error {
	table, isTable := strings.CutPrefix(o.evaluator, byTable)
	if o.planner == "" {
		if o.planner = defaultPlanner; isTable {
			o.planner = defaultTablePlanner
		}
	}
	newPlanner := planners[o.planner]
	switch {
	case newPlanner == nil:
		return fmt.Errorf("planner %q is unknown, there are: %s", o.planner,
			strings.Join(slices.Sorted(maps.Keys(planners)), ", "))
	case o.plain && o.planner != ribbonPlanner:
		return fmt.Errorf(
			"plain: the planner is %s; only "+ribbonPlanner+" has a plain form, that of its paper",
			o.planner)
	case o.top < 1:
		return fmt.Errorf("top is %d plans, want at least 1", o.top)
	case o.runs < 1:
		return fmt.Errorf("runs: %d, want at least 1", o.runs)
	case o.runs > 1 && !isTable:
		return errors.New("runs: repeated runs are compared with the best configuration, which " +
			"only a table knows: give --evaluator table:FILE")
	case o.live && isTable:
		return errors.New("live: a table cannot evaluate the running fleet; omit --evaluator")
	case !isTable && o.evaluator != bySimulation && o.evaluator != byBound:
		return fmt.Errorf("evaluator %q is unknown, want %s, %s or %sFILE", o.evaluator,
			bySimulation, byBound, byTable)
	case !(o.target > 0 && o.target < 100):
		return fmt.Errorf("target: %v %%, want within 0..100, such as 99", o.target)
	}
	open := o.openSimulation
	if o.live {
		open = o.openLive
	}
	if isTable {
		open = func(cmd *cobra.Command) (*planning, error) { return o.openTable(cmd, table) }
	}
	p, err := open(cmd)
	if err != nil {
		return err
	}
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	defer line.Done()
	run := func(run int) (*plan.Result, error) {
		evaluated := 0
		watched := plan.EvaluatorFunc(
			func(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
				line.Show("run %d: %d configurations evaluated, now %s", run+1, evaluated,
					p.Name(c))
				evaluated++
				return p.evaluator.Evaluate(ctx, c)
			})
		r, err := newPlanner(o, p, o.sim.seed+uint64(run)).Plan(cmd.Context(), p.Problem, watched)
		if err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		r.Plans = r.Plans[:min(o.top, len(r.Plans))]
		return r, nil
	}
	first, err := run(0)
	if err != nil {
		return err
	}
	var trials *plan.Trials
	if o.runs > 1 {
		if trials, err = plan.Try(cmd.Context(), p.Problem, p.evaluator, o.runs, run); err != nil {
			return err
		}
	}
	if p.live != nil {
		line.Show("comparing the running fleet with the plan")
		if err := p.live.compare(cmd.Context(), p, first); err != nil {
			return err
		}
	}
	if o.plotFile != "" {
		if err := o.plot(cmd, p, first, line); err != nil {
			return err
		}
	}
	line.Done()
	report := o.report(p, first, trials)
	if o.sim.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	return report.writeText(cmd.OutOrStdout())
}

// openTable makes the problem of a table: the least cost of the load that was measured. path is a
// file or published.Name.
func (o *planOptions) openTable(cmd *cobra.Command, path string) (*planning, error) {
	open := func() (io.ReadCloser, error) { return os.Open(path) }
	if path == published.Name {
		if err := o.publishedTable(); err != nil {
			return nil, err
		}
		path = o.sim.models[0] + ".json"
		open = func() (io.ReadCloser, error) { return published.Files(published.RIBBON).Open(path) }
	}
	for _, flag := range []string{"model", "rate", "plot"} {
		if cmd.Flags().Changed(flag) &&
			!(flag == "model" && (o.evaluator == byTable+published.Name ||
				o.planner == twinPlanner)) {
			return nil, fmt.Errorf(
				"%s: a table is of one model at one rate, and has no bounds to draw; omit --%s",
				flag, flag)
		}
	}
	if len(o.types) == 0 {
		return nil, errors.New("types: give --types in the order of the table's counts")
	}
	catalogue, err := readCatalogue(o.catalogue)
	if err != nil {
		return nil, err
	}
	types := make([]profiles.InstanceType, len(o.types))
	for i, t := range o.types {
		types[i] = profiles.InstanceType(t)
	}
	f, err := open()
	if err != nil {
		return nil, fmt.Errorf("evaluator: %w", err)
	}
	defer f.Close()
	table, err := plan.ReadTable(path, f, types, catalogue)
	if err != nil {
		return nil, fmt.Errorf("evaluator: %w", err)
	}
	p := table.Problem(o.target / 100)
	if cmd.Flags().Changed("budget") {
		if !(o.budget > 0) {
			return nil, fmt.Errorf("budget: %v $/hr, want above 0", o.budget)
		}
		p.Budget = o.budget
	}
	limits := make([]int, len(p.Types))
	for i, t := range p.Types {
		limits[i] = t.Max
	}
	if err := setLimits(p, o.limits); err != nil {
		return nil, err
	}
	for i := range p.Types {
		p.Types[i].Max = min(p.Types[i].Max, limits[i]) // the table has no larger counts
	}
	opened := &planning{Problem: p, evaluator: table, described: "looked up", source: path}
	for _, t := range table.Priced() {
		opened.source += fmt.Sprintf(
			" (price of %s from the table, as the catalogue has none)", t)
	}
	if o.planner == twinPlanner {
		if err := o.openTableTwin(opened); err != nil {
			return nil, err
		}
	}
	return opened, p.Validate()
}

// publishedTable checks --model and --types for a published table, and sets the types and samples
// that the flags do not give.
func (o *planOptions) publishedTable() error {
	if len(o.sim.models) != 1 {
		return errors.New("model: give that of a published table, --model mtwnd or --model dien")
	}
	_, types, err := sim.RIBBONTable(o.sim.models[0])
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if len(o.types) != 0 && !slices.Equal(o.types, types) {
		return fmt.Errorf("types: the table of %s has %s in this order; omit --types",
			o.sim.models[0], strings.Join(types, ","))
	}
	o.types = types
	if o.sim.samples == "" {
		o.sim.samples = published.Name
	}
	return nil
}

// openTableTwin sets p.twin to a simulation of the load behind a published table.
func (o *planOptions) openTableTwin(p *planning) error {
	if len(o.sim.models) != 1 || o.sim.samples == "" {
		return errors.New("twin: give the table's --model and the --samples behind it")
	}
	model := o.sim.models[0]
	load, _, err := sim.RIBBONTable(model)
	if err != nil {
		return fmt.Errorf("twin: %w", err)
	}
	load.Seeds = o.sim.seeds
	samples, err := sim.OpenSamples(o.sim.samples, published.RIBBON)
	if err != nil {
		return err
	}
	p.twin, err = sim.NewFCFS(load, samples, model, o.types, nil)
	p.twinRuns = load.Seeds
	p.source += ", proposed by " + samples.Name()
	return err
}

// openSimulation makes the problem that the flags describe, and the simulation that evaluates its
// configurations.
func (o *planOptions) openSimulation(cmd *cobra.Command) (*planning, error) {
	source, err := sim.OpenSource(o.sim.samples)
	if err != nil {
		return nil, err
	}
	types := o.types
	if len(types) == 0 {
		types = profiledTypes(source, o.sim.models)
	}
	cfg, source, err := o.sim.config(types)
	if err != nil {
		return nil, err
	}
	prices, err := readPrices(o.catalogue, types)
	if err != nil {
		return nil, err
	}
	return o.simulated(cmd, cfg, prices, source.String())
}

// simulated makes the problem for the queries of cfg on the types of prices, and the simulation
// that evaluates its configurations. It changes cfg. source says where the latencies come from.
func (o *planOptions) simulated(cmd *cobra.Command, cfg *sim.Config, prices []sim.Price,
	source string) (*planning, error) {
	types := make([]string, len(prices))
	for i, price := range prices {
		types[i] = price.Type
	}
	p := sim.Problem(cfg.Models, prices)
	if err := o.objective(cmd, p); err != nil {
		return nil, err
	}
	if err := setLimits(p, o.limits); err != nil {
		return nil, err
	}
	a, err := plan.Analyse(p)
	if err != nil {
		return nil, err
	}
	cfg.Policy, cfg.Rate = o.policy, p.Rate
	for i := range cfg.Models {
		m := &cfg.Models[i]
		m.QoSShare = p.Target
		// The problem leaves out batch sizes that no type can serve; so must the simulation.
		sizes := a.Problem.Models[i].BatchSizes
		if m.BatchSizes, err = m.BatchSizes.AtMost(sizes[len(sizes)-1].BatchSize); err != nil {
			return nil, err
		}
	}
	e := &sim.Evaluator{Config: cfg, Types: types, Seeds: o.sim.seeds, Objective: p.Objective}
	policy := o.policy
	if policy == "" {
		policy = sim.DefaultPolicy
	}
	// The twin simulates one run, with a seed that the evaluator does not use.
	quick := *cfg
	quick.Seed = cfg.Seed + uint64(o.sim.seeds)
	twin := &sim.Evaluator{Config: &quick, Types: types, Seeds: 1, Objective: p.Objective}
	opened := &planning{p, e, e, twin, 1, "simulated under " + policy, source, nil}
	if o.evaluator == byBound {
		opened.evaluator, opened.described = plan.BoundEvaluator{
			Analysis: a,
		}, "estimated by the fluid limit"
	}
	return opened, nil
}

// objective sets the problem's objective and limits from --rate, --budget and --target: least cost
// if there is a rate, else most throughput.
func (o *planOptions) objective(cmd *cobra.Command, p *plan.Problem) error {
	given := cmd.Flags().Changed
	switch {
	case given("rate") && !(o.rate > 0):
		return fmt.Errorf("rate: %v queries/s, want above 0", o.rate)
	case given("rate"):
		p.Objective, p.Rate = plan.LeastCost, o.rate
	case o.live && !given("budget"): // set by openLive
	case !given("budget"):
		return errors.New("budget: give --budget for the most throughput, or --rate for the " +
			"least cost")
	}
	if given("budget") && !(o.budget > 0) {
		return fmt.Errorf("budget: %v $/hr, want above 0", o.budget)
	}
	p.Budget = o.budget
	p.Target = o.target / 100
	return nil
}

// profiledTypes returns the instance types on which all models have profiles, those of the papers'
// experiments first.
func profiledTypes(source *sim.Source, models []string) []string {
	var types []string
	for i, text := range models {
		name, _, _ := strings.Cut(text, "=")
		known := source.InstanceTypes(name)
		if i == 0 {
			types = known
		} else {
			types = slices.DeleteFunc(types,
				func(t string) bool { return !slices.Contains(known, t) })
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

// setLimits sets the largest counts of types from limits of the form TYPE=N.
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
			return fmt.Errorf("max: %s is not one of the types to choose from: %s", name,
				typeNames(p))
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

// plot simulates the throughput of every plan of r and draws it with the bound and the price to
// o.plotFile. If throughput is the objective, the simulated value also becomes the plan's predicted
// one.
func (o *planOptions) plot(cmd *cobra.Command, p *planning, r *plan.Result,
	line *terminal.StatusLine) error {
	throughput := *p.simulation
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
		line.Show("%d of %d plans simulated for the plot", i, len(r.Plans))
		var err error
		if simulated[i], err = throughput.Evaluate(cmd.Context(), one.Configuration); err != nil {
			return err
		}
		if p.Objective == plan.MostThroughput {
			one.Evaluated, one.Predicted, one.StdErr = true, min(simulated[i].Value,
				one.FluidLimit), simulated[i].StdErr
		}
	}
	title := fmt.Sprintf("%s: plans by %s (%s)", strings.Join(o.sim.models, ", "), o.planner,
		typeNames(p.Problem))
	err := writeFile(o.plotFile,
		func(w io.Writer) error { return figures.DrawPlans(w, title, names, r.Plans, simulated) })
	if err == nil {
		line.Done()
		fmt.Fprintf(cmd.ErrOrStderr(), "bound, simulated rate and price drawn to %s\n", o.plotFile)
	}
	return err
}

const leastCost = "least cost"

// A planReport is the output of `muster plan`: --json prints its fields, writeText a table. Numbers
// are rounded to six decimals, so that all machines print the same.
type planReport struct {
	Planner   string   `json:"planner"`
	Plain     bool     `json:"plain,omitempty"`
	Objective string   `json:"objective"`
	Models    []string `json:"models,omitempty"`
	// Evaluator and Source are planning.described and planning.source.
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
	Live        *liveFleet       `json:"live,omitempty"`

	// With --runs, Trials is how many evaluations the runs needed to find the best configuration.
	// The fields above are then of the first run.
	*plan.Trials
	Optimum      map[string]int `json:"optimum,omitempty"`
	OptimumPrice float64        `json:"optimum_price_usd_per_hour,omitempty"`
	optimum      string
}

type plannedFleet struct {
	Configuration map[string]int `json:"configuration"`
	Price         float64        `json:"price_usd_per_hour"`
	Predicted     float64        `json:"predicted_qps"`
	Satisfaction  float64        `json:"predicted_qos_satisfaction,omitempty"`
	StdErr        float64        `json:"standard_error"`
	// Evaluated is whether the evaluator gave Predicted or Satisfaction; otherwise Predicted is an
	// estimate by the bound.
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

// A loggedEstimate is an evaluation: a throughput in queries/s, or the share of the queries within
// QoS.
type loggedEstimate struct {
	Configuration map[string]int `json:"configuration"`
	Throughput    *float64       `json:"throughput_qps,omitempty"`
	Satisfaction  *float64       `json:"qos_satisfaction,omitempty"`
	StdErr        float64        `json:"standard_error"`
}

// report makes the report of the result r; trials is nil unless runs were repeated.
func (o *planOptions) report(p *planning, r *plan.Result, trials *plan.Trials) *planReport {
	report := &planReport{
		Planner: o.planner, Plain: o.plain, Objective: "most throughput", Models: o.sim.models,
		Evaluator: p.described, Source: p.source,
		Budget: p.Budget, Rate: p.Rate, Target: o.target,
		Evaluations: len(r.Evaluations), SearchSpace: r.SearchSpace, Notes: r.Notes, Doubt: r.Doubt,
		Live: p.live,
		Log:  []loggedEstimate{},
	}
	if p.Objective == plan.LeastCost {
		report.Objective = leastCost
	}
	counts := func(c plan.Configuration) map[string]int {
		m := map[string]int{}
		for i, n := range c {
			m[string(p.Types[i].Name)] = n
		}
		return m
	}
	if trials != nil {
		t := *trials
		t.Mean, t.Ended, t.Violating, t.Cost = rounded(t.Mean), rounded(t.Ended), rounded(
			t.Violating), rounded(t.Cost)
		report.Trials = &t
		report.Optimum, report.OptimumPrice, report.optimum = counts(trials.Optimum), rounded(
			trials.OptimumPrice), p.Name(trials.Optimum)
	}
	for _, one := range r.Plans {
		f := plannedFleet{
			Configuration: counts(one.Configuration), Price: rounded(one.Price),
			Predicted: rounded(one.Predicted), Satisfaction: rounded(one.Satisfaction),
			StdErr: rounded(one.StdErr), Evaluated: one.Evaluated, Bound: rounded(one.Bound),
			FluidLimit: rounded(one.FluidLimit),
			Binding:    one.Binding, Reason: one.Reason, name: p.Name(one.Configuration),
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

// writeText writes the report for people: the plans as a table, what limits the best one, the
// comparison with the running fleet, and notes.
func (r *planReport) writeText(w io.Writer) error {
	var b strings.Builder
	asked := fmt.Sprintf("%s within %v $/hr", r.Objective, r.Budget)
	if r.Objective == leastCost {
		asked = r.Objective
		if r.Rate > 0 {
			asked += fmt.Sprintf(" for %v queries/s", r.Rate)
		}
		if r.Budget > 0 {
			asked += fmt.Sprintf(", within %v $/hr", r.Budget)
		}
	}
	if len(r.Models) > 0 {
		fmt.Fprintf(&b, "%s: ", strings.Join(r.Models, ", "))
	}
	fmt.Fprintf(&b, "%s, %v %% of the queries within QoS\n", asked, r.Target)
	planner := r.Planner
	if r.Plain {
		planner += " as in its paper (--plain)"
	}
	fmt.Fprintf(&b, "planner %s: %d of %d configurations %s (%s)\n\n", planner, r.Evaluations,
		r.SearchSpace, r.Evaluator, r.Source)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t$/hr\texpected\tbound\tconfiguration\twhy")
	for i, one := range r.Plans {
		expected := fmt.Sprintf("%.1f queries/s by the bound", one.Predicted)
		switch {
		case one.Evaluated && r.Objective == leastCost:
			expected = fmt.Sprintf("%.2f%s %% within QoS", 100*one.Satisfaction,
				plusMinus(100*one.StdErr, 2))
		case one.Evaluated:
			expected = fmt.Sprintf("%.1f%s queries/s", one.Predicted, plusMinus(one.StdErr, 1))
		}
		bound := "-" // a table has none
		if one.Bound > 0 {
			bound = fmt.Sprintf("%.1f", one.Bound)
		}
		fmt.Fprintf(t, "%d\t%.3f\t%s\t%s\t%s\t%s\n", i+1, one.Price, expected, bound, one.name,
			one.Reason)
	}
	t.Flush()
	if first := r.Plans[0]; len(first.Gains) > 0 {
		fmt.Fprintf(
			&b,
			"\nThe limit of plan 1: %s. One more instance raises its fluid limit of %.1f "+
				"queries/s by\n", first.Binding, first.FluidLimit)
		for _, g := range first.Gains {
			fmt.Fprintf(t, "  %s\t%.1f queries/s\tfor %v $/hr\t%.1f queries/s a $/hr\n", g.Type,
				g.Rate, g.Price, g.Rate/g.Price)
		}
		t.Flush()
	}
	if r.Trials != nil {
		fmt.Fprintf(
			&b,
			"\nEvaluations until a run found the best configuration, %[2]s at %.4[3]g $/hr, over "+
				"%[1]d runs: mean %.1[4]f, median %[5]v, most %[6]d; %[7]d runs did not find it.\n"+
				"Of these evaluations %.1[8]f missed the target, in the mean. They cost %.2[9]f "+
				"%% "+
				"of evaluating all configurations. A run ended after %.1[10]f evaluations.\n",
			r.Runs, r.optimum, r.OptimumPrice, r.Mean, r.Median, r.Worst, r.Failed, r.Violating,
			r.Cost, r.Ended)
	}
	if r.Live != nil {
		r.Live.writeText(&b)
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

// plusMinus formats a standard error as " ± 1.2"; "" for 0, which means that it is not known.
func plusMinus(standardError float64, decimals int) string {
	if standardError == 0 {
		return ""
	}
	return fmt.Sprintf(" ± %.*f", decimals, standardError)
}

// rounded rounds to six decimals, because processors differ in the last digits.
func rounded(x float64) float64 { return math.Round(x*1e6) / 1e6 }
