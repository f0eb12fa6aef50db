package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/plancmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/plan"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/charts"
)

// planOptions are the flags that commands which plan a fleet share.
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
	runs      int    // of a search that draws at random; 1 but of a table
	policy    string // "": the default one
	catalogue string // path; "": the built-in catalogue alone
	top       int
	plotFile  string
}

// planners has for each name of --planner the function that makes the planner. A planner that draws
// at random uses the seed.
var planners = map[string]func(o *planOptions, p *plancmd.Problem, seed uint64) plan.Planner{
	"fluid": func(o *planOptions, _ *plancmd.Problem, _ uint64) plan.Planner {
		return plan.Fluid{
			Top: o.top,
		}
	},
	"kairos": func(o *planOptions, _ *plancmd.Problem, _ uint64) plan.Planner {
		return plan.Kairos{
			Top: o.top,
		}
	},
	"kairos+": func(o *planOptions, _ *plancmd.Problem, _ uint64) plan.Planner {
		return plan.KairosPlus{
			Top: o.top,
		}
	},
	ribbonPlanner: func(o *planOptions, p *plancmd.Problem, seed uint64) plan.Planner {
		r := plan.Ribbon{Seed: seed, Plain: o.plain, Top: o.top}
		if p.Live != nil { // what runs was found for the load before: the search begins there
			r.Explored = []plan.Evaluation{
				{Configuration: p.Live.Running(p), Estimate: plan.Estimate{Value: p.Target}},
			}
		}
		return r
	},
	"twin": func(o *planOptions, p *plancmd.Problem, seed uint64) plan.Planner {
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
)

const plannersHelp = `Planners:
  fluid    takes the configuration with the highest fluid limit; evaluates none
  kairos   ranks configurations by KAIROS's bound (Eq. 15) and chooses among the
           best by the paper's similarity rule; evaluates none; for one model only
  kairos+  evaluates configurations in order of falling bound, until none of the
           others can be better
  ribbon   evaluates the configurations that Bayesian optimisation proposes; needs
           no profiles; with --plain it is the search as the paper published it,
           which ends when no configuration is left
  twin     evaluates the configurations that a quicker simulation proposes, and
           learns the error of that simulation; needs --rate

Evaluators:
  sim      simulates the configuration
  bound    estimates it by its fluid limit`

func newPlanCommand() *cobra.Command {
	o := planOptions{runs: 1}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Plan a fleet: the best for a budget, or the cheapest for a rate",
		Long: `Plan which instances to rent. With --budget alone the plan is the configuration
that serves the highest rate within the budget. With --rate it is the cheapest
configuration that serves this rate within the QoS target; --budget is then a
limit that no plan exceeds.

` + plannersHelp + `

` + simInputHelp,
		Example: `  muster plan --model rm2 --budget 2.5
  muster plan --model rm2 --rate 100
  muster plan --model wnd --budget 2.5 --max g4dn.xlarge=2 --planner kairos --json
  muster plan --model ncf=3 --model wnd --budget 4 --batch gaussian:250,100 --plot plan.png`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.openSimulation(cmd)
			if err != nil {
				return misuse.Wrap(err)
			}
			return o.run(cmd, p)
		},
	}
	flags := cmd.Flags()
	o.sim.addModels(flags)
	o.addGoal(flags)
	o.addSearch(flags)
	o.addEvaluation(flags)
	flags.StringVar(&o.plotFile, "plot", "",
		"simulate the plans shown, and draw their bound, simulated rate and price to this PNG or SVG file")
	o.sim.add(flags)
	cmd.AddCommand(newPlanLiveCommand(), newPlanPlaceCommand(), newPlanTableCommand(),
		newPlanCertifyCommand())
	return cmd
}

// addGoal adds what a plan is for, and what it may choose from.
func (o *planOptions) addGoal(flags *pflag.FlagSet) {
	o.addLimits(flags)
	flags.Float64Var(&o.rate, "rate", 0, "queries a second to serve at minimum cost")
}

// addLimits adds what a plan may choose from.
func (o *planOptions) addLimits(flags *pflag.FlagSet) {
	flags.Float64Var(&o.budget, "budget", 0, "$/hr that the fleet may cost")
	lists.Var(flags, &o.types, "types", nil,
		"instance types to choose from (default: all with a profile of the models)")
	lists.Var(flags, &o.limits, "max", nil,
		"maximum number of instances of a type, as TYPE=N,TYPE=N")
	flags.StringVar(&o.catalogue, "catalogue", "",
		"YAML file with more instance types and prices than the built-in ones")
	flags.IntVar(&o.top, "top", plan.DefaultTop, "how many plans to show")
}

// addTarget adds the share of queries that must be in time.
func (o *planOptions) addTarget(flags *pflag.FlagSet) {
	flags.Float64Var(&o.target, "target", 99,
		"percent of each model's queries that must meet their QoS target")
}

// addSearch adds how plans are searched.
func (o *planOptions) addSearch(flags *pflag.FlagSet) {
	o.addTarget(flags)
	flags.StringVar(&o.planner, "planner", defaultPlanner,
		"planner: "+strings.Join(slices.Sorted(maps.Keys(planners)), ", "))
	o.addPlain(flags)
}

func (o *planOptions) addPlain(flags *pflag.FlagSet) {
	flags.BoolVar(&o.plain, "plain", false,
		"with --planner ribbon: search as RIBBON's paper does, without Muster's additions")
}

// addEvaluation adds how plans are evaluated.
func (o *planOptions) addEvaluation(flags *pflag.FlagSet) {
	flags.StringVar(&o.evaluator, "evaluator", bySimulation,
		"how to evaluate a configuration: "+bySimulation+" or "+byBound)
	flags.StringVar(&o.policy, "policy", "",
		"how queries are distributed (default "+sim.DefaultPolicy+")")
}

// checkGoal returns the fault of the flags that say what a plan is for, if there is one.
func (o *planOptions) checkGoal(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	switch {
	case o.top < 1:
		return fmt.Errorf("top is %d plans, want at least 1", o.top)
	case given("rate") && !(o.rate > 0):
		return fmt.Errorf("rate: %v queries/s, want above 0", o.rate)
	case given("budget") && !(o.budget > 0):
		return fmt.Errorf("budget: %v $/hr, want above 0", o.budget)
	}
	return nil
}

// checkSearch returns the fault of the flags that say how plans are searched, if there is one.
func (o *planOptions) checkSearch() error {
	switch {
	case planners[o.planner] == nil:
		return fmt.Errorf("planner %q is unknown, there are: %s", o.planner,
			strings.Join(slices.Sorted(maps.Keys(planners)), ", "))
	case o.plain && o.planner != ribbonPlanner:
		return fmt.Errorf(
			"plain: the planner is %s; only "+ribbonPlanner+" has a plain form, that of its paper",
			o.planner)
	case !(o.target > 0 && o.target < 100):
		return fmt.Errorf("target: %v %%, want within 0..100, such as 99", o.target)
	}
	return nil
}

// checkEvaluator returns what is wrong with --evaluator, if anything is.
func (o *planOptions) checkEvaluator() error {
	if o.evaluator != bySimulation && o.evaluator != byBound {
		return fmt.Errorf("evaluator %q is unknown, want %s or %s", o.evaluator, bySimulation,
			byBound)
	}
	return nil
}

// check returns the fault of all these flags, if there is one.
func (o *planOptions) check(cmd *cobra.Command) error {
	return cmp.Or(o.checkGoal(cmd), o.checkSearch(), o.checkEvaluator())
}

// run plans and prints the report. Planning blocks for as long as the planner evaluates, up to
// minutes.
func (o *planOptions) run(cmd *cobra.Command, p *plancmd.Problem) error {
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
		if err := o.plotPlans(cmd, p, first, line); err != nil {
			return err
		}
	}
	line.Done()
	return o.print(cmd, plancmd.NewReport(p, o.planner, o.plain, first, trials))
}

func (o *planOptions) print(cmd *cobra.Command, report *plancmd.Report) error {
	if o.sim.json {
		return terminal.PrintJSON(cmd.OutOrStdout(), report)
	}
	return report.WriteText(cmd.OutOrStdout())
}

// reportSoFar prints what was evaluated until the command's context ended, and returns why it did.
func (o *planOptions) reportSoFar(cmd *cobra.Command, p *plancmd.Problem,
	evaluations []plan.Evaluation) error {
	p.Live = nil // it was not compared with the plan
	r, err := plan.SoFar(p.Problem, evaluations, o.top)
	if err == nil && r != nil {
		report := plancmd.NewReport(p, o.planner, o.plain, r, nil)
		report.Interrupted = true
		err = o.print(cmd, report)
	}
	return errors.Join(err, cmd.Context().Err())
}

// openSimulation makes the problem that the flags describe, and the simulation that evaluates its
// configurations.
func (o *planOptions) openSimulation(cmd *cobra.Command) (*plancmd.Problem, error) {
	if err := cmp.Or(o.check(cmd), checkPicture(o.plotFile)); err != nil {
		return nil, err
	}
	source, err := sim.OpenSource(o.sim.samples)
	if err != nil {
		return nil, err
	}
	types := o.types
	if len(types) == 0 {
		types = plancmd.ProfiledTypes(source, o.sim.models)
	}
	cfg, source, err := o.sim.makeConfig(types)
	if err != nil {
		return nil, err
	}
	prices, err := readPrices(o.catalogue, types)
	if err != nil {
		return nil, err
	}
	if o.rate == 0 && o.budget == 0 {
		return nil, errors.New("budget: give --budget for the most throughput, or --rate for the " +
			"least cost")
	}
	return o.simulatedProblem(cfg, prices, source.String())
}

// simulatedProblem makes the problem for the queries of cfg on the types of prices, and the
// simulation that evaluates its configurations. It changes cfg. source says where the latencies
// come from.
func (o *planOptions) simulatedProblem(cfg *sim.Config, prices []sim.Price,
	source string) (*plancmd.Problem, error) {
	types := make([]string, len(prices))
	for i, price := range prices {
		types[i] = price.Type
	}
	p := sim.Problem(cfg.Models, prices)
	if o.rate != 0 {
		p.Objective, p.Rate = plan.LeastCost, o.rate
	}
	p.Budget, p.Target = o.budget, o.target/100
	if err := plancmd.SetLimits(p, o.limits); err != nil {
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
	opened := &plancmd.Problem{
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

// plotPlans simulates the throughput of every plan of r and draws it with the bound and the price
// to o.plotFile. If throughput is the objective, the simulated value also becomes the plan's
// predicted one.
func (o *planOptions) plotPlans(cmd *cobra.Command, p *plancmd.Problem, r *plan.Result,
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
		plancmd.TypeNames(p.Problem))
	err := writePicture(o.plotFile, func(w io.Writer, format string) error {
		return charts.DrawPlans(w, format, title, names, r.Plans, simulated)
	})
	if err == nil {
		line.Done()
		fmt.Fprintf(cmd.ErrOrStderr(), "bound, simulated rate and price drawn to %s\n", o.plotFile)
	}
	return err
}
