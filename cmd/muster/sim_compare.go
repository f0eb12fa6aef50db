package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/charts"
)

func newSimCompareCommand() *cobra.Command {
	var o simOptions
	var policies, types []string
	var budget float64
	var pool, catalogue, plotFile string
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare policies, each on its own best pool within a budget",
		Long: `Compare the allowable throughput of policies. Each policy gets the pool within the
budget that is best for it. The baseline is the best homogeneous pool: instances of
the base type only, with its throughput scaled to the whole budget. A bar chart is
drawn to a PNG or SVG file. For all models this takes minutes.

` + simInputHelp,
		Example: `  muster sim compare --model rm2 --budget 2.5
  muster sim compare --model all --budget 2.5 --samples published --plot all.png
  muster sim compare --model wnd --budget 2.5 --policies horizon,kairos --pool g4dn.xlarge=2,c5n.2xlarge=3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPicture(plotFile); err != nil {
				return misuse.Wrap(err)
			}
			if !(budget > 0) {
				return misuse.Errorf("budget: %v $/hr, want above 0", budget)
			}
			prices, err := readPrices(catalogue, types)
			if err != nil {
				return misuse.Wrap(err)
			}
			var given sim.Pool
			if pool != "" {
				if given, err = sim.ParsePool(pool); err != nil {
					return misuse.Wrap(err)
				}
			}
			return o.comparePolicies(cmd, policies, prices, budget, given, plotFile)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.models, "model", nil,
		"model to compare the policies on, or all; repeat it for several, compared one by one")
	flags.Float64Var(&budget, "budget", 2.5, "$/hr that a pool may cost")
	lists.Var(flags, &policies, "policies",
		[]string{"horizon", "kairos", "fcfs", "oracle"}, "policies to compare")
	lists.Var(flags, &types, "types", sim.PaperTypes(), "instance types that a pool may have")
	flags.StringVar(&pool, "pool", "",
		"pool that all policies use, as TYPE=COUNT,TYPE=COUNT, instead of each one's best")
	flags.StringVar(&catalogue, "catalogue", "",
		"YAML file with more instance types and prices than the built-in ones")
	flags.StringVar(&plotFile, "plot", "compare.png",
		"PNG or SVG file to draw the bar chart to; empty: draw none")
	o.add(flags)
	return cmd
}

// comparePolicies compares the policies on each model and prints each comparison when it is
// complete. A nil pool means each policy's best one.
func (o *simOptions) comparePolicies(cmd *cobra.Command, policies []string, prices []sim.Price,
	budget float64, pool sim.Pool, plotFile string) error {
	if o.hasTrace() {
		return misuse.Errorf("arrivals: a comparison varies the rate, so it takes no file; give " +
			"poisson, constant, gamma:SHAPE or artifact")
	}
	models := o.models
	if slices.Equal(models, []string{"all"}) {
		source, err := sim.OpenSource(o.samples)
		if err != nil {
			return misuse.Wrap(err)
		}
		models = source.Models()
	}
	if len(models) == 0 {
		models = []string{""} // config returns an error that lists the models
	}
	var all []*sim.Comparison
	for _, model := range models {
		one := *o
		if one.models = nil; model != "" {
			one.models = []string{model}
		}
		types := make([]string, len(prices))
		for i, p := range prices {
			types[i] = p.Type
		}
		cfg, source, err := one.makeConfig(types)
		if err != nil {
			return misuse.Wrap(err)
		}
		for _, policy := range policies {
			checked := *cfg
			checked.Policy = policy
			if err := validate(checked, types); err != nil {
				return misuse.Wrap(err)
			}
		}
		line := terminal.NewStatusLine(cmd.ErrOrStderr())
		c, err := sim.Compare(cmd.Context(), cfg, policies, prices, budget, pool, o.seeds,
			func(policy string, done, of int) {
				line.Show("%s, %s: %d of %d pools", model, policy, done, of)
			})
		line.Done()
		if err != nil && o.json && len(all) > 0 && cmd.Context().Err() != nil {
			return errors.Join(err, terminal.PrintJSON(cmd.OutOrStdout(), all))
		}
		if err != nil {
			return err
		}
		c.Source = source.String()
		if !o.json {
			if err := c.WriteText(cmd.OutOrStdout()); err != nil {
				return err
			}
		}
		all = append(all, c)
	}
	if o.json {
		if err := terminal.PrintJSON(cmd.OutOrStdout(), all); err != nil {
			return err
		}
	}
	if plotFile == "" {
		return nil
	}
	if err := writePicture(plotFile, func(w io.Writer, format string) error {
		return charts.DrawComparisons(w, format, all)
	}); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "bars drawn to %s\n", plotFile)
	return nil
}
