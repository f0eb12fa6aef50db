package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader"
)

func newSimReplayCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Replay recorded events and check that the decisions are the same",
		Long: `Replay the events of a recording, made with "muster sim --record" or
"muster agent --record", and check that the leader decides the same, byte for byte.
The first line that differs is an error, unless another version of Muster made the
recording, which may decide otherwise: then the command only reports the difference.`,
		Example: `  muster sim replay run.txt`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			defer f.Close()
			r, err := leader.Replay(f)
			if err != nil {
				return fmt.Errorf("replay %s: %w", args[0], err)
			}
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), r)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: policy %s, %d events over %v, %d decisions, ",
				args[0], r.Policy, r.Events, r.Duration.Round(time.Millisecond), r.Decisions)
			if r.Difference == "" {
				fmt.Fprintln(cmd.OutOrStdout(), "all as recorded")
			} else {
				fmt.Fprintln(cmd.OutOrStdout(), "not all as recorded")
			}
			if r.Decider != leader.DeciderVersion {
				fmt.Fprintf(cmd.OutOrStdout(),
					"recorded by decider %d, this is decider %d: decisions may differ\n",
					r.Decider, leader.DeciderVersion)
			}
			if r.Difference != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "first difference: %s\n", r.Difference)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
