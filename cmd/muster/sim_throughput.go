package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/simcmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/sim"
)

func newSimThroughputCommand() *cobra.Command {
	var o simPoolOptions
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Search for the highest rate that a pool serves within its QoS target",
		Long: `Search for the allowable throughput of a pool: the highest arrival rate at which 99 %
of the queries still meet their QoS target.

` + simInputHelp + `

` + holdingsHelp + `

` + simcmd.ChangeHelp,
		Example: `  muster sim throughput --model rm2 --pool g4dn.xlarge=1,r5n.large=13
  muster sim throughput --model rm2 --pool g4dn.xlarge=1,r5n.large=13 --policy kairos --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, source, err := o.open()
			if err != nil {
				return misuse.Wrap(err)
			}
			if cfg.Rate == 0 {
				cfg.Rate = 1 // the search sets it
			}
			if err := cfg.Validate(); err != nil {
				return misuse.Wrap(err)
			}
			return o.findThroughput(cmd, cfg, source)
		},
	}
	flags := cmd.Flags()
	o.addPool(flags)
	o.addHoldings(flags)
	return cmd
}

// findThroughput searches for the allowable throughput with each seed and prints the report.
func (o *simOptions) findThroughput(cmd *cobra.Command, cfg *sim.Config, source *sim.Source) error {
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	n := 0
	report, err := sim.ReportThroughput(cmd.Context(), cfg, o.seeds, func() {
		n++
		line.Show("%d of %d seeds", n, o.seeds)
	})
	line.Done()
	return o.print(cmd, report, source, err)
}
