package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/simcmd"
	"github.com/muster-serve/muster/sim"
)

func newSimPlaceCommand() *cobra.Command {
	var o simPoolOptions
	var placement simcmd.Placement
	cmd := &cobra.Command{
		Use:   "place",
		Short: "Simulate a fleet whose leader decides what its instances hold",
		Long: simcmd.PlacementHelp + `

` + simInputHelp + `

` + holdingsHelp + `

` + simcmd.ChangeHelp,
		Example: `  muster sim place --family ctr=wnd:1,wnd-int8:.985:wnd*.4 --family feed=dien:1,dien-s:.97:dien*.5 \
    --pool g4dn.xlarge=4,r5n.large=6 --rate 900 --queries 200000 --swing 2m:.5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer placement.Close()
			return o.simulateRate(cmd,
				func(cfg *sim.Config) error { return placement.Apply(cfg, o.seeds) })
		},
	}
	flags := cmd.Flags()
	o.addPool(flags)
	o.addHoldings(flags)
	o.addRate(flags)
	placement.Add(flags)
	return cmd
}
