package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/plancmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// planLiveOptions are the flags of `muster plan live`.
type planLiveOptions struct {
	planOptions
	client clientSettings
}

func newPlanLiveCommand() *cobra.Command {
	o := planLiveOptions{planOptions: planOptions{runs: 1}}
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Plan for a running fleet, with its demand, profiles and prices",
		Long: `Plan which instances a running fleet should have, with the demand, profiles and
prices that its leader knows, and compare the plan with the fleet as it is. Without
--budget and --rate the plan may cost what the fleet costs now.

` + plannersHelp,
		Example: `  muster plan live
  muster plan live --server 10.0.0.7:8001 --model rm2
  muster plan live --rate 500 --planner fluid --evaluator bound`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.open(cmd)
			if err != nil {
				return err
			}
			return o.run(cmd, p)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.sim.models, "model", nil,
		"model to plan for (default: every model that gets queries); repeat it for several")
	o.addGoal(flags)
	o.addSearch(flags)
	o.addEvaluation(flags)
	o.sim.addArrivals(flags)
	o.sim.addRuns(flags)
	o.sim.addConditions(flags)
	o.client.add(flags)
	return cmd
}

// open makes the problem of a running fleet from the demand, profiles and prices that its
// leader reports. Without --budget and --rate the budget is what the fleet costs now.
func (o *planLiveOptions) open(cmd *cobra.Command) (*plancmd.Problem, error) {
	if err := o.check(cmd); err != nil {
		return nil, misuse.Wrap(err)
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
	terminal.SanitizeFields(fleet)
	catalogue, err := readCatalogue(o.catalogue)
	if err != nil {
		return nil, misuse.Wrap(err)
	}
	live, models, prices, err := plancmd.ReadFleet(fleet, plancmd.FleetOptions{
		Models: o.sim.models, Types: o.types, Catalogue: catalogue, Override: o.catalogue != "",
		RejectLate: o.sim.rejectLate,
	})
	if err != nil {
		return nil, err
	}
	cfg, _, err := o.sim.baseConfig()
	if err != nil {
		return nil, misuse.Wrap(err)
	}
	cfg.Models, o.sim.models = models, nil
	for i := range models {
		models[i].Splits = o.sim.split
		o.sim.models = append(o.sim.models, models[i].Name)
	}
	if !cmd.Flags().Changed("budget") && !cmd.Flags().Changed("rate") {
		o.budget = live.Cost(prices)
	}
	p, err := o.simulatedProblem(cfg, prices, "the fleet's own profiles where it has learned some")
	if err != nil {
		return nil, err
	}
	p.Live = live
	return p, nil
}
