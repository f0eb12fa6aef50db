package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cmd/muster/internal/fleetview"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// fleetTimeout bounds a call about the fleet. It is longer than an agent waits for its leader's
// answer.
const fleetTimeout = 10 * time.Second

func newStatusCommand() *cobra.Command {
	var settings clientSettings
	var wait waitSetting
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a fleet's leader, agents and models",
		Long: `Show a fleet as one of its agents sees it: the leader, and each agent's instance
type, lanes, and time until its lanes are free. The leader alone knows the rates,
the share of queries within QoS, and each agent's factor (its latencies relative
to the profile of its type), so these are missing while there is no leader.`,
		Example: `  muster status
  muster status --server 10.0.0.7:8001 --json
  muster status --wait 30s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			if err := wait.awaitReady(cmd.Context(), cmd.ErrOrStderr(), c, ""); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
			defer cancel()
			status, err := c.Status(ctx)
			if err != nil {
				return err
			}
			if !asJSON {
				terminal.SanitizeFields(status)
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
	wait.add(cmd.Flags(), "the server is ready")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func newDrainCommand() *cobra.Command {
	var settings clientSettings
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drain [AGENT...]",
		Short: "Make agents finish their queries, hand over and stop",
		Long: `Make agents finish the queries they hold, hand leadership over if they lead, and
stop. AGENT is a name that "muster status" shows; without one it is the agent at
--server. The command returns at once; with --wait when the agents have left the
fleet, or with an error after --timeout.`,
		Example: `  muster drain --server 10.0.0.7:8001
  muster drain worker-3-1f2e3d4c worker-4-5a6b7c8d --wait`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("timeout") && !(wait && timeout > 0) {
				return misuse.Errorf("timeout: %v, want above 0, with --wait", timeout)
			}
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			source, err := settings.openFleet(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer source.Close()
			if wait { // learn who could say later that the agents have gone
				if _, err := source.Ask(cmd.Context()); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
			defer cancel()
			draining, err := c.Drain(ctx, args...)
			if err != nil {
				return err
			}
			for i, name := range draining {
				draining[i] = terminal.Plain(name)
				fmt.Fprintf(cmd.OutOrStdout(), "%s: draining\n", draining[i])
			}
			if !wait {
				return nil
			}
			return waitGone(cmd, source, draining, timeout)
		},
	}
	settings.add(cmd.Flags())
	flags := cmd.Flags()
	flags.BoolVar(&wait, "wait", false, "wait until the agents have left the fleet")
	flags.DurationVar(&timeout, "timeout", agent.DefaultConfig().DrainTimeout+30*time.Second,
		"longest time to --wait")
	return cmd
}

// waitGone waits until the agents have left the fleet, and prints which have.
func waitGone(cmd *cobra.Command, source *fleetview.Source, agents []string,
	timeout time.Duration) error {
	started := time.Now()
	line := terminal.NewStatusLine(cmd.ErrOrStderr())
	defer line.Done()
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	err := source.WaitGone(ctx, agents, func(name string) {
		line.Done()
		fmt.Fprintf(cmd.OutOrStdout(), "%s: gone\n", name)
	}, func(left []string) {
		line.Show("waiting for %s, %v of %v", strings.Join(left, ", "),
			time.Since(started).Round(time.Second), timeout)
	})
	line.Done()
	if err == nil {
		return nil
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "The agents go on draining.")
	return fmt.Errorf("wait: %w", err)
}
