package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/load"
	"github.com/muster-serve/muster/cmd/muster/internal/simcmd"
	"github.com/muster-serve/muster/sim"
	"github.com/muster-serve/muster/sim/fleet"
)

func newSimFaultsCommand() *cobra.Command {
	var o simPoolOptions
	var faults []string
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "Simulate a fleet in which agents fail and links break",
		Long: `Simulate a fleet in which agents fail and links break. The report says what happened
to the queries of the two seconds before and after each fault. A fault is
` + fleet.Help + `
A file of faults has one on each line; the text after a # is a comment.

The whole fleet is simulated: agents elect a leader, and gateways decide alone while
no leader answers. All agents rank alike, so the last by name leads.

` + simInputHelp + `

` + holdingsHelp + `

` + simcmd.ChangeHelp,
		Example: `  muster sim faults --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --rtt-ms 1 \
    --fault kill-leader@10s --fault freeze-leader@15s+3s
  muster sim faults --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 \
    --fault cut-r5n.large-3@5s+2s --fault delay@10s+1s:20ms
  muster sim faults --model dien --pool g4dn.xlarge=2,r5n.large=9 --rate 450 --fault faults.txt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.simulateRate(cmd, func(cfg *sim.Config) (err error) {
				if cfg.Faults, err = readFaults(faults); err == nil && len(cfg.Faults) == 0 {
					err = errors.New("fault: give --fault at least once")
				}
				return err
			})
		},
	}
	flags := cmd.Flags()
	addFaults(flags, &faults, "see above")
	o.addPool(flags)
	o.addHoldings(flags)
	o.addRate(flags)
	return cmd
}

// addFaults adds the faults of a run, whose form is described in a place.
func addFaults(flags *pflag.FlagSet, faults *[]string, where string) {
	flags.StringArrayVar(faults, "fault", nil,
		"a fault, as VERB-TARGET@TIME+DURATION:AMOUNT ("+where+"), or a file with one on each "+
			"line; repeat it for several")
}

// readFaults reads the values of --fault. A value that is the path of a file stands for the faults
// in it.
func readFaults(texts []string) (faults []fleet.Fault, err error) {
	for _, text := range texts {
		if !load.IsFile(text) {
			f, err := fleet.ParseFault(text)
			if err != nil {
				return nil, fmt.Errorf("%w; or give a file with one fault on each line", err)
			}
			faults = append(faults, f)
			continue
		}
		f, err := os.Open(text)
		if err != nil {
			return nil, fmt.Errorf("faults: %w", err)
		}
		read, err := fleet.ReadFaults(text, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		faults = append(faults, read...)
	}
	return faults, nil
}
