package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/plancmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/cmd/muster/internal/variants"
	"github.com/muster-serve/muster/leader/staffing"
	"github.com/muster-serve/muster/sim"
)

// planPlaceOptions are the flags of `muster plan place`.
type planPlaceOptions struct {
	planOptions
	headroom      float64
	leastAccuracy float64
}

func newPlanPlaceCommand() *cobra.Command {
	var o planPlaceOptions
	cmd := &cobra.Command{
		Use:   "place",
		Short: "Plan which instances to rent and which variants each of them holds",
		Long: plancmd.PlaceHelp + `

` + familyHelp + `

` + latenciesHelp,
		Example: `  muster plan place --family ctr=wnd:1,wnd-int8:.985:wnd*.4 \
    --family feed=dien:1,dien-s:.97:dien*.5@2 --rate 900 --budget 2.5
  muster plan place --family ctr=wnd:1,wnd-int8:.985:wnd*.4 --rate 900 --min-accuracy 0.99`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.planFleet(cmd) },
	}
	flags := cmd.Flags()
	o.sim.addModels(flags)
	o.sim.addFamilies(flags)
	o.addGoal(flags)
	o.addEvaluation(flags)
	flags.Float64Var(&o.headroom, "place-headroom", staffing.Headroom,
		"factor of the rate to plan for")
	flags.Float64Var(&o.leastAccuracy, "min-accuracy", 0,
		"minimum mean accuracy of the answers, for the cheapest fleet that serves all queries")
	o.sim.addLoad(flags)
	o.sim.addRuns(flags)
	o.sim.addConditions(flags)
	return cmd
}

// open makes the problem of instances and what they hold.
func (o *planPlaceOptions) open(cmd *cobra.Command) (*plancmd.PlacementProblem, error) {
	given := cmd.Flags().Changed
	err := cmp.Or(o.checkEvaluator(), o.checkGoal(cmd))
	switch {
	case err != nil:
		return nil, err
	case !given("rate") || math.IsInf(o.rate, 1):
		return nil, fmt.Errorf("rate: %v queries/s, want above 0: give --rate", o.rate)
	case !given("budget") && !given("min-accuracy"):
		return nil, errors.New("budget: give --budget for the most accurate fleet within it, or " +
			"--min-accuracy for the cheapest")
	case given("min-accuracy") && !(o.leastAccuracy > 0 && o.leastAccuracy <= 1):
		return nil, fmt.Errorf("min-accuracy: %v, want above 0 and up to 1", o.leastAccuracy)
	case !(o.headroom >= 1 && o.headroom <= 100):
		return nil, fmt.Errorf("place-headroom: %v, want 1..100", o.headroom)
	case load.IsFile(o.sim.arrivals):
		return nil,
			errors.New("arrivals: the load is --rate; give poisson, constant, gamma:SHAPE " +
				"or artifact")
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
		types = plancmd.ProfiledTypes(source, models)
	}
	cfg, source, err := o.sim.makeConfig(types)
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
	if err := plancmd.SetLimits(problem, o.limits); err != nil {
		return nil, err
	}
	return &plancmd.PlacementProblem{
		Problem: problem, Config: cfg, Seeds: o.sim.seeds, Headroom: o.headroom,
		LeastAccuracy: o.leastAccuracy, Source: source.String(),
	}, validate(*cfg, types)
}

// planFleet plans instances and what they hold.
func (o *planPlaceOptions) planFleet(cmd *cobra.Command) error {
	p, err := o.open(cmd)
	if err != nil {
		return misuse.Wrap(err)
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
