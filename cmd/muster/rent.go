package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/fleetcmd"
)

func newFleetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Rent and return machines, so that the fleet is what its plan says",
	}
	cmd.AddCommand(fleetcmd.Commands(func(cmd *cobra.Command) func() (fleetcmd.Client, error) {
		settings := &clientSettings{}
		settings.add(cmd.Flags())
		return func() (fleetcmd.Client, error) { return settings.open(cmd.ErrOrStderr()) }
	})...)
	return cmd
}
