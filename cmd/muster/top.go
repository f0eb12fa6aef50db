package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/cmd/muster/internal/fleetview"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func newTopCommand() *cobra.Command {
	var settings clientSettings
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the fleet",
		Long: `Show the fleet as it is now, again each interval: who leads, the rate of queries
beside the highest that the lanes could serve, the models with their share of
late queries, the agents with what their lanes still have to do, and what the
leader decided last. Keys: q ends it.

Any agent of the fleet will do as --server. When the one that is asked goes
away, another one is asked.

Without a terminal, or with --once, the fleet is printed once, whole.`,
		Example: `  muster top
  muster top --server 10.0.0.7:8001 --interval 5s
  muster top --once | grep overdue`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < shortestInterval {
				return fmt.Errorf("interval: %v, want at least %v", interval, shortestInterval)
			}
			out := cmd.OutOrStdout()
			live := !once && terminal.Is(out) && terminal.Is(cmd.InOrStdin())
			warnings := cmd.ErrOrStderr()
			if live {
				// they would be written across the screen, which shows what comes of them
				warnings = io.Discard
			}
			source, err := settings.openFleet(warnings)
			if err != nil {
				return err
			}
			defer source.Close()
			first, err := source.Ask(cmd.Context())
			if err != nil {
				return err
			}
			if !live {
				// lipgloss leaves out colours where nobody sees them.
				_, err := lipgloss.Fprintln(out, fleetview.Draw(first, terminal.Width(out, 120), 0))
				return err
			}
			return fleetview.Watch(cmd.Context(), source, first, interval, cmd.InOrStdin(), out)
		},
	}
	settings.add(cmd.Flags())
	flags := cmd.Flags()
	flags.DurationVar(&interval, "interval", time.Second, "time between two looks")
	flags.BoolVar(&once, "once", false, "print the fleet once, and end")
	return cmd
}

// shortestInterval keeps a typing error from being load on the fleet.
const shortestInterval = 100 * time.Millisecond

// openFleet makes a source of the servers.
func (s *clientSettings) openFleet(stderr io.Writer) (*fleetview.Source, error) {
	if len(s.servers) == 0 {
		return nil, errors.New("server: no addresses")
	}
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	return fleetview.NewSource(s.servers, append(oip.DialOptions(), options...)...), nil
}
