package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func newEventsCommand() *cobra.Command {
	var settings clientSettings
	var follow, fleet, asJSON bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what has happened, and who asked for it",
		Long: `Show the events that an agent has recorded, oldest first: agents that joined or
were lost, changes of the leader, models that were loaded, unloaded or failed,
lanes that were lost, changes of demand, calls that were refused, and which client
loaded or unloaded models, drained agents or changed keys. An agent keeps the last
1024 events since its start, at most 256 of each kind; its log has all of them.

Times are by the agent's clock. With --json each line is one event.`,
		Example: `  muster events
  muster events --follow --server 10.0.0.7:8001
  muster events --fleet --json | jq 'select(.who)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := settings.dialFirst(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			if !follow {
				timeout := time.AfterFunc(fleetTimeout, cancel)
				defer timeout.Stop()
			}
			stream, err := control.NewControlClient(conn).Events(ctx, &control.EventsRequest{
				Follow: follow, Fleet: fleet,
			})
			if err != nil {
				return wrapServerError(settings, err)
			}
			show := printEvent
			if asJSON {
				show = printEventJSON
			}
			for {
				e, err := stream.Recv()
				switch {
				case errors.Is(err, io.EOF), follow && cmd.Context().Err() != nil:
					return nil
				case err != nil:
					return wrapServerError(settings, err)
				}
				if err := show(cmd.OutOrStdout(), e, fleet); err != nil {
					return err
				}
			}
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().BoolVarP(&follow, "follow", "f", false,
		"also print new events as they happen, until interrupted")
	cmd.Flags().BoolVar(&fleet, "fleet", false,
		"show the events of all agents, by time; the server collects them")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	cmd.MarkFlagsMutuallyExclusive("follow", "fleet")
	return cmd
}

// printEvent prints an event on one line for people: its time and kind, its agent if agent is set,
// and its sentence.
func printEvent(w io.Writer, e *control.Event, agent bool) error {
	name := ""
	if agent {
		name = terminal.Plain(e.GetAgent()) + "  "
	}
	_, err := fmt.Fprintf(w, "%s  %-9s  %s%s\n",
		time.Unix(0, e.GetTimeUnixNs()).Format("2006-01-02 15:04:05.000"),
		terminal.Plain(e.GetKind()), name, terminal.Plain(e.Sentence()))
	return err
}

// printEventJSON prints an event as a line of JSON for programs. It always names the agent.
func printEventJSON(w io.Writer, e *control.Event, _ bool) error {
	return json.NewEncoder(terminal.PlainJSON{W: w}).Encode(e.JSON())
}
