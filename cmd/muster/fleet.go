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

// fleetTimeout bounds a call about the fleet. It is longer than an agent waits for its leader's
// answer.
const fleetTimeout = 10 * time.Second

func newStatusCommand() *cobra.Command {
	var settings clientSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a fleet's leader, agents and models",
		Long: `Show a fleet as one of its agents sees it: the leader, and each agent's instance
type, lanes, and time until its lanes are free. The leader alone knows the rates,
the share of queries within QoS, and each agent's factor (its latencies relative
to the profile of its type), so these are missing while there is no leader.`,
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
			status.View.Profiles = nil // long, and not part of a status
			text, err := protojson.MarshalOptions{
				UseProtoNames: true, EmitUnpopulated: true,
			}.Marshal(status)
			if err != nil {
				return err
			}
			return terminal.PrintJSON(cmd.OutOrStdout(), json.RawMessage(text))
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
		Short: "Make agents finish their queries, hand over and stop",
		Long: `Make agents finish the queries they hold, hand leadership over if they lead, and
stop. AGENT is a name that "muster status" shows; without one it is the agent at
--server. The command returns at once and does not wait until the agents have
stopped.`,
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
