package main

import (
	"io"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/cmd/muster/internal/fleetview"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func newTopCommand() *cobra.Command {
	var settings clientSettings
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the fleet",
		Long: `Show the fleet's present state and update it each interval: the leader, the rate
of queries and the highest rate that the lanes could serve (the fluid limit), each
model's share of late queries, each agent's lanes and their remaining time, and the
leader's last decisions. Press q to quit.

--server can be any agent of the fleet. If that agent stops answering, the command
asks another one.

If the output is no terminal, or with --once, it prints the whole state once.`,
		Example: `  muster top
  muster top --server 10.0.0.7:8001 --interval 5s
  muster top --once | grep overdue`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < shortestInterval {
				return misuse.Errorf("interval: %v, want at least %v", interval, shortestInterval)
			}
			out := cmd.OutOrStdout()
			live := !once && terminal.IsTerminal(out) && terminal.IsTerminal(cmd.InOrStdin())
			warnings := cmd.ErrOrStderr()
			if live {
				// Warnings would be written over the screen. The screen shows their consequence.
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
				// lipgloss leaves colours out if the output is no terminal.
				text := fleetview.Draw(first, terminal.Width(out, wholeLines), 0)
				_, err := lipgloss.Fprintln(out, text)
				return err
			}
			return fleetview.Watch(cmd.Context(), source, first, interval, cmd.InOrStdin(), out)
		},
	}
	settings.add(cmd.Flags())
	flags := cmd.Flags()
	flags.DurationVar(&interval, "interval", time.Second, "time between updates")
	flags.BoolVar(&once, "once", false, "print the state once and exit")
	return cmd
}

// shortestInterval bounds --interval from below, so that a mistyped one does not load the fleet.
const shortestInterval = 100 * time.Millisecond

// wholeLines is the width of what is printed to a file or a pipe: no line is longer, so none is cut.
const wholeLines = 1 << 12

// openFleet makes a source that asks the servers for the fleet's state; the caller closes it.
func (s *clientSettings) openFleet(stderr io.Writer) (*fleetview.Source, error) {
	if len(s.servers) == 0 {
		return nil, misuse.Errorf("server: no addresses")
	}
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	return fleetview.NewSource(s.servers, append(oip.DialOptions(), options...)...), nil
}
