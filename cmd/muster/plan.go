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
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/planning"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/cmd/muster/internal/variants"
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

	place         bool
	headroom      float64
	leastAccuracy float64
}

// planners has for each name of --planner the function that makes the planner. A planner that draws
// at random uses the seed.
var planners = map[string]func(o *planOptions, p *planning.Problem, seed uint64) plan.Planner{
	"fluid": func(o *planOptions, _ *planning.Problem, _ uint64) plan.Planner {
		return plan.Fluid{
			Top: o.top,
		}
	},
	"kairos": func(o *planOptions, _ *planning.Problem, _ uint64) plan.Planner {
		return plan.Kairos{
			Top: o.top,
		}
	},
	"kairos+": func(o *planOptions, _ *planning.Problem, _ uint64) plan.Planner {
		return plan.KairosPlus{
			Top: o.top,
		}
	},
	ribbonPlanner: func(o *planOptions, p *planning.Problem, seed uint64) plan.Planner {
		r := plan.Ribbon{Seed: seed, Plain: o.plain, Top: o.top}
		if p.Live != nil { // what runs was found for the load before: the search begins there
			r.Explored = []plan.Evaluation{
				{Configuration: p.Live.Running(p), Estimate: plan.Estimate{Value: p.Target}},
			}
		}
		return r
	},
	"twin": func(o *planOptions, p *planning.Problem, seed uint64) plan.Planner {
		return plan.Twin{Model: p.Twin, Runs: p.TwinRuns, Seed: seed, Top: o.top}
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

` + planning.PlaceHelp + `

` + simInputHelp,
		Example: `  muster plan --model rm2 --budget 2.5
  muster plan --model rm2 --rate 100
  muster plan --live --server 10.0.0.7:8001
  muster plan --model wnd --budget 2.5 --max g4dn.xlarge=2 --planner kairos --json
  muster plan --evaluator table:published --model mtwnd --runs 30
  muster plan --model ncf=3 --model wnd --budget 4 --batch gaussian:250,100 --plot plan.png
  muster plan --place --family ctr=wnd:1,wnd-int8:.985:wnd*.4 \
    --family feed=dien:1,dien-s:.97:dien*.5@2 --rate 900 --budget 2.5`,
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
	lists.Var(flags, &o.types, "types", nil,
		"instance types to choose from (default: all with a profile of the models)")
	lists.Var(flags, &o.limits, "max", nil, "most instances of a type, as TYPE=N,TYPE=N")
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
		"simulate the plans shown, and draw their bound, simulated rate and price to this PNG or SVG file")
	flags.BoolVar(&o.live, "live", false,
		"plan for the running fleet at --server, with its demand, profiles and prices; --model "+
			"then limits the plan to some of its models")
	flags.BoolVar(&o.place, "place", false,
		"plan also which variants the instances hold (see above)")
	flags.StringArrayVar(&o.sim.families, "family", nil,
		"with --place: family of models that queries are for, as in \"muster sim\"; repeat it for "+
			"several")
	flags.Float64Var(&o.headroom, "place-headroom", 1.3,
		"with --place: how many times the rate is planned for")
	flags.Float64Var(&o.leastAccuracy, "least-accuracy", 0,
		"with --place: mean accuracy of the answers at which to serve all queries at the least cost")
	o.sim.add(flags)
	o.client.add(flags)
	return cmd
}

// check returns the fault of the flags, if there is one, and sets the planner where none is given.
func (o *planOptions) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	for _, flag := range []string{"family", "place-headroom", "least-accuracy"} {
		if given(flag) {
			return fmt.Errorf("%s: it means nothing without --place", flag)
		}
	}
	isTable := strings.HasPrefix(o.evaluator, byTable)
	if o.planner == "" {
		if o.planner = defaultPlanner; isTable {
			o.planner = defaultTablePlanner
		}
	}
	switch {
	case planners[o.planner] == nil:
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
	case given("rate") && !(o.rate > 0):
		return fmt.Errorf("rate: %v queries/s, want above 0", o.rate)
	case given("budget") && !(o.budget > 0):
		return fmt.Errorf("budget: %v $/hr, want above 0", o.budget)
	}
	return checkPicture(o.plotFile)
}

// open makes the problem that the flags describe. Only that of a running fleet asks anybody, so the
// faults of the others are the user's.
func (o *planOptions) open(cmd *cobra.Command) (p *planning.Problem, err error) {
	if err := o.check(cmd); err != nil {
		return nil, misuse.Of(err)
	}
	if o.live {
		return o.openLive(cmd)
	}
	if table, ok := strings.CutPrefix(o.evaluator, byTable); ok {
		p, err = o.openTable(cmd, table)
	} else {
		p, err = o.openSimulation(cmd)
	}
	return p, misuse.Of(err)
}

// run plans and prints the report. Planning blocks for as long as the planner evaluates, up to
// minutes.
func (o *planOptions) run(cmd *cobra.Command) error {
	if o.place {
		return o.runPlaced(cmd)
	}
	p, err := o.open(cmd)
	if err != nil {
		return err
	}
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	defer line.Done()
	var soFar []plan.Evaluation // of the present run
	run := func(run int) (*plan.Result, error) {
		soFar = nil
		watched := plan.EvaluatorFunc(
			func(ctx context.Context, c plan.Configuration) (plan.Estimate, error) {
				line.Show("run %d: %d configurations evaluated, now %s", run+1, len(soFar),
					p.Name(c))
				e, err := p.Evaluator.Evaluate(ctx, c)
				if err == nil {
					soFar = append(soFar, plan.Evaluation{Configuration: c.Clone(), Estimate: e})
				}
				return e, err
			})
		planner := planners[o.planner](o, p, o.sim.seed+uint64(run))
		r, err := planner.Plan(cmd.Context(), p.Problem, watched)
		if err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		r.Plans = r.Plans[:min(o.top, len(r.Plans))]
		return r, nil
	}
	first, err := run(0)
	if err != nil && cmd.Context().Err() != nil {
		line.Done()
		return o.reportSoFar(cmd, p, soFar)
	}
	if err != nil {
		return err
	}
	var trials *plan.Trials
	if o.runs > 1 {
		if trials, err = plan.Try(cmd.Context(), p.Problem, p.Evaluator, o.runs, run); err != nil {
			return err
		}
	}
	if p.Live != nil {
		line.Show("comparing the running fleet with the plan")
		if err := p.Live.Compare(cmd.Context(), p, first); err != nil {
			return err
		}
	}
	if o.plotFile != "" {
		if err := o.plot(cmd, p, first, line); err != nil {
			return err
		}
	}
	line.Done()
	return o.print(cmd, planning.NewReport(p, o.planner, o.plain, first, trials))
}

// openPlaced makes the problem of instances and what they hold.
func (o *planOptions) openPlaced(cmd *cobra.Command) (*planning.Placed, error) {
	given := cmd.Flags().Changed
	for _, flag := range []string{"live", "planner", "plain", "runs", "target", "plot"} {
		if given(flag) {
			return nil, fmt.Errorf("%s: it does not go with --place; omit one of them", flag)
		}
	}
	switch {
	case o.evaluator != bySimulation && o.evaluator != byBound:
		return nil, fmt.Errorf("evaluator %q: with --place want %s or %s", o.evaluator, bySimulation,
			byBound)
	case !given("rate") || !(o.rate > 0) || math.IsInf(o.rate, 1):
		return nil, fmt.Errorf("rate: %v queries/s, want above 0: give --rate", o.rate)
	case !given("budget") && !given("least-accuracy"):
		return nil, errors.New("budget: give --budget for the most accurate fleet within it, or " +
			"--least-accuracy for the cheapest")
	case given("budget") && !(o.budget > 0):
		return nil, fmt.Errorf("budget: %v $/hr, want above 0", o.budget)
	case given("least-accuracy") && !(o.leastAccuracy > 0 && o.leastAccuracy <= 1):
		return nil, fmt.Errorf("least-accuracy: %v, want above 0 and up to 1", o.leastAccuracy)
	case !(o.headroom >= 1 && o.headroom <= 100):
		return nil, fmt.Errorf("place-headroom: %v, want 1..100", o.headroom)
	case o.top < 1:
		return nil, fmt.Errorf("top is %d plans, want at least 1", o.top)
	case load.IsFile(o.sim.arrivals):
		return nil, errors.New("arrivals: with --place the load is --rate; give poisson, constant, " +
			"gamma:SHAPE or artifact")
	}
	source, err := sim.OpenSource(o.sim.samples)
	if err != nil {
		return nil, err
	}
	types := o.types
	if len(types) == 0 {
		models := slices.Clone(o.sim.models)
		for _, text := range o.sim.families {
			f, err := variants.Parse(text)
			if err != nil {
				return nil, err
			}
			for _, v := range f.Variants {
				models = append(models, v.Of)
			}
		}
		types = planning.ProfiledTypes(source, models)
	}
	cfg, source, err := o.sim.config(types)
	if err != nil {
		return nil, err
	}
	prices, err := readPrices(o.catalogue, types)
	if err != nil {
		return nil, err
	}
	cfg.Policy = o.policy
	problem := sim.Problem(nil, prices)
	problem.Budget, problem.Rate = o.budget, o.rate
	if err := planning.SetLimits(problem, o.limits); err != nil {
		return nil, err
	}
	return &planning.Placed{
		Problem: problem, Config: cfg, Seeds: o.sim.seeds, Headroom: o.headroom,
		LeastAccuracy: o.leastAccuracy, Source: source.String(),
	}, validate(*cfg, types)
}

// runPlaced plans instances and what they hold.
func (o *planOptions) runPlaced(cmd *cobra.Command) error {
	p, err := o.openPlaced(cmd)
	if err != nil {
		return misuse.Of(err)
	}
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	defer line.Done()
	report, err := p.Plan(cmd.Context(), o.top, o.evaluator == bySimulation,
		func(text string) { line.Show("%s", text) })
	line.Done()
	if err != nil {
		return err
	}
	if o.sim.json {
		return terminal.PrintJSON(cmd.OutOrStdout(), report)
	}
	return report.WriteText(cmd.OutOrStdout())
}

func (o *planOptions) print(cmd *cobra.Command, report *planning.Report) error {
	if o.sim.json {
		return terminal.PrintJSON(cmd.OutOrStdout(), report)
	}
	return report.WriteText(cmd.OutOrStdout())
}

// reportSoFar prints what was evaluated until the command's context ended, and returns why it did.
func (o *planOptions) reportSoFar(cmd *cobra.Command, p *planning.Problem,
	evaluations []plan.Evaluation) error {
	p.Live = nil // it was not compared with the plan
	r, err := plan.SoFar(p.Problem, evaluations, o.top)
	if err == nil && r != nil {
		report := planning.NewReport(p, o.planner, o.plain, r, nil)
		report.Interrupted = true
		err = o.print(cmd, report)
	}
	return errors.Join(err, cmd.Context().Err())
}

// openTable makes the problem of a table: the least cost of the load that was measured. path is a
// file or published.Name.
func (o *planOptions) openTable(cmd *cobra.Command, path string) (*planning.Problem, error) {
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
		p.Budget = o.budget
	}
	limits := make([]int, len(p.Types))
	for i, t := range p.Types {
		limits[i] = t.Max
	}
	if err := planning.SetLimits(p, o.limits); err != nil {
		return nil, err
	}
	for i := range p.Types {
		p.Types[i].Max = min(p.Types[i].Max, limits[i]) // the table has no larger counts
	}
	opened := &planning.Problem{
		Problem: p, Names: o.sim.models, Percent: o.target,
		Evaluator: table, Described: "looked up", Source: path,
	}
	for _, t := range table.Priced() {
		opened.Source += fmt.Sprintf(
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

// openTableTwin sets p.Twin to a simulation of the load behind a published table.
func (o *planOptions) openTableTwin(p *planning.Problem) error {
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
	p.Twin, err = sim.NewFCFS(load, samples, model, o.types, nil)
	p.TwinRuns = load.Seeds
	p.Source += ", proposed by " + samples.Name()
	return err
}

// openSimulation makes the problem that the flags describe, and the simulation that evaluates its
// configurations.
func (o *planOptions) openSimulation(cmd *cobra.Command) (*planning.Problem, error) {
	source, err := sim.OpenSource(o.sim.samples)
	if err != nil {
		return nil, err
	}
	types := o.types
	if len(types) == 0 {
		types = planning.ProfiledTypes(source, o.sim.models)
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
	source string) (*planning.Problem, error) {
	types := make([]string, len(prices))
	for i, price := range prices {
		types[i] = price.Type
	}
	p := sim.Problem(cfg.Models, prices)
	if err := o.objective(cmd, p); err != nil {
		return nil, err
	}
	if err := planning.SetLimits(p, o.limits); err != nil {
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
	if err := validate(*cfg, types); err != nil {
		return nil, err
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
	opened := &planning.Problem{
		Problem: p, Names: o.sim.models, Percent: o.target,
		Evaluator: e, Simulation: e, Twin: twin, TwinRuns: 1,
		Described: "simulated under " + policy, Source: source,
	}
	if o.evaluator == byBound {
		opened.Evaluator, opened.Described = plan.BoundEvaluator{
			Analysis: a,
		}, "estimated by the fluid limit"
	}
	return opened, nil
}

// openLive makes the problem of a running fleet from the demand, profiles and prices that its
// leader reports. Without --budget and --rate the budget is what the fleet costs now.
func (o *planOptions) openLive(cmd *cobra.Command) (*planning.Problem, error) {
	for _, flag := range []string{"samples", "batch", "qos-ms", "plot"} {
		if cmd.Flags().Changed(flag) {
			return nil, misuse.Errorf("%s: the running fleet has its own; omit --%s", flag, flag)
		}
	}
	if load.IsFile(o.sim.arrivals) {
		return nil, misuse.Errorf("arrivals: the running fleet has its own demand; give poisson, " +
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
	catalogue, err := readCatalogue(o.catalogue)
	if err != nil {
		return nil, misuse.Of(err)
	}
	live, models, prices, err := planning.ReadFleet(fleet, planning.FleetOptions{
		Models: o.sim.models, Types: o.types, Catalogue: catalogue, Override: o.catalogue != "",
		RejectLate: o.sim.rejectLate,
	})
	if err != nil {
		return nil, err
	}
	cfg, _, err := o.sim.base()
	if err != nil {
		return nil, misuse.Of(err)
	}
	cfg.Models, o.sim.models = models, nil
	for i := range models {
		models[i].Splits = o.sim.split
		o.sim.models = append(o.sim.models, models[i].Name)
	}
	if !cmd.Flags().Changed("budget") && !cmd.Flags().Changed("rate") {
		o.budget = live.Cost(prices)
	}
	p, err := o.simulated(cmd, cfg, prices, "the fleet's own profiles where it has learned some")
	if err != nil {
		return nil, err
	}
	p.Live = live
	return p, nil
}

// objective sets the problem's objective and limits from --rate, --budget and --target: least cost
// if there is a rate, else most throughput.
func (o *planOptions) objective(cmd *cobra.Command, p *plan.Problem) error {
	given := cmd.Flags().Changed
	switch {
	case given("rate"):
		p.Objective, p.Rate = plan.LeastCost, o.rate
	case o.live && !given("budget"): // set by openLive
	case !given("budget"):
		return misuse.Errorf("budget: give --budget for the most throughput, or --rate for the " +
			"least cost")
	}
	p.Budget = o.budget
	p.Target = o.target / 100
	return nil
}

// plot simulates the throughput of every plan of r and draws it with the bound and the price to
// o.plotFile. If throughput is the objective, the simulated value also becomes the plan's predicted
// one.
func (o *planOptions) plot(cmd *cobra.Command, p *planning.Problem, r *plan.Result,
	line *terminal.StatusLine) error {
	throughput := *p.Simulation
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
		planning.TypeNames(p.Problem))
	err := writePicture(o.plotFile, func(w io.Writer, format string) error {
		return figures.DrawPlans(w, format, title, names, r.Plans, simulated)
	})
	if err == nil {
		line.Done()
		fmt.Fprintf(cmd.ErrOrStderr(), "bound, simulated rate and price drawn to %s\n", o.plotFile)
	}
	return err
}
