package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/cmd/muster/internal/fleetview"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func newWhyCommand() *cobra.Command {
	var settings clientSettings
	var last time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "why [MODEL]",
		Short: "Say why queries are late, what was measured, and what to do",
		Long: `Say why queries were late, refused or failed: each has one cause, the largest part
of its time without which it would have been in time. MODEL is a model or a family;
without one it is about all. Under the sentence stand, for each cause, what was
measured and what to do. The leader knows the causes since it began to lead.

The exit status is 0, whatever is found.`,
		Example: `  muster why
  muster why ncf --last 10m`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 5*time.Second || last > lateness.MaxLast {
				return misuse.Errorf("last: %v, want 5s to %v", last, lateness.MaxLast)
			}
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
			defer cancel()
			status, err := c.StatusWithMissed(ctx, last)
			if err != nil {
				return err
			}
			terminal.SanitizeFields(status)
			summary := status.GetMissed().Summary()
			if !asJSON {
				summary = fleetview.ShownMissed(status)
			}
			if summary == nil {
				return errNoCauses(status)
			}
			of := summary.Of(strings.Join(args, ""))
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), of.Report())
			}
			for _, line := range of.Explain() {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().DurationVar(&last, "last", time.Minute, "the time to look back, up to 15m")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// errNoCauses says why a status has no causes.
func errNoCauses(s *control.FleetStatus) error {
	leader := s.GetView().GetLeadership().GetLeader()
	if leader == "" {
		return errors.New("there is no leader now, and only a leader knows why queries are late")
	}
	software := "an older version"
	for _, m := range s.GetView().GetMembers() {
		if m.GetName() == leader && m.GetSoftware() != "" {
			software = m.GetSoftware()
		}
	}
	return fmt.Errorf("the leader, %s, runs %s, which does not know why queries are late: upgrade it",
		s.GetView().ShownNames().Agent(leader), software)
}
