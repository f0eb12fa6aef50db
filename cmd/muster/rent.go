package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/fleetcmd"
)

func newFleetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Rent and return machines as the fleet's plan needs them",
	}
	cmd.AddCommand(fleetcmd.Commands(func(cmd *cobra.Command) func() (fleetcmd.Client, error) {
		settings := &clientSettings{}
		settings.add(cmd.Flags())
		return func() (fleetcmd.Client, error) { return settings.open(cmd.ErrOrStderr()) }
	})...)
	return cmd
}
