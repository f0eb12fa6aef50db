package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/muster-serve/muster/cmd/muster/internal/fleetview"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

const fleetTimeout = 10 * time.Second

func newStatusCommand() *cobra.Command {
	var settings clientSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the agents of a fleet, who leads it, and how it does",
		Long: `Show the agents of a fleet as one of them sees it: types, lanes, how long until
they are free, who leads. Rates, QoS and factors are the leader's, so they are
missing while there is none.`,
		Example: `  muster status
  muster status --server 10.0.0.7:8001 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
			defer cancel()
			status, err := c.Status(ctx)
			if err != nil {
				return err
			}
			if !asJSON {
				terminal.PlainMessage(status)
				return fleetview.Print(cmd.OutOrStdout(), status)
			}
			status.View.Profiles = nil // long, and of no use to who asks how the fleet does
			text, err := protojson.MarshalOptions{
				UseProtoNames: true, EmitUnpopulated: true,
			}.Marshal(status)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), json.RawMessage(text))
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func newDrainCommand() *cobra.Command {
	var settings clientSettings
	cmd := &cobra.Command{
		Use:   "drain [AGENT...]",
		Short: "Have agents finish what they hold, hand over and stop",
		Long: `Have agents finish what they hold, hand over to others and stop: those named, as
"muster status" shows them, or the one that is asked. It does not wait until
they have.`,
		Example: `  muster drain --server 10.0.0.7:8001
  muster drain worker-3-1f2e3d4c worker-4-5a6b7c8d`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
			defer cancel()
			draining, err := c.Drain(ctx, args...)
			if err != nil {
				return err
			}
			for _, name := range draining {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: draining\n", terminal.Plain(name))
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	return cmd
}
