package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/simcmd"
	"github.com/muster-serve/muster/sim"
)

func newSimPlaceCommand() *cobra.Command {
	var o simPoolOptions
	var placement simcmd.Placement
	var faults []string
	cmd := &cobra.Command{
		Use:   "place",
		Short: "Simulate a fleet whose leader decides what its instances hold",
		Long: simcmd.PlacementHelp + `

` + simInputHelp + `

` + holdingsHelp + `

` + simcmd.ChangeHelp,
		Example: `  muster sim place --family ctr=wnd:1,wnd-int8:.985:wnd*.4 --family feed=dien:1,dien-s:.97:dien*.5 \
    --pool g4dn.xlarge=4,r5n.large=6 --rate 900 --queries 200000 --swing 2m:.5 \
    --fault kill-leader@90s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer placement.Close()
			return o.simulateRate(cmd, func(cfg *sim.Config) (err error) {
				if cfg.Faults, err = readFaults(faults); err != nil {
					return err
				}
				return placement.Apply(cfg, o.seeds)
			})
		},
	}
	flags := cmd.Flags()
	o.addPool(flags)
	o.addHoldings(flags)
	o.addRate(flags)
	addFaults(flags, &faults, `see "muster sim faults"`)
	placement.Add(flags)
	return cmd
}
