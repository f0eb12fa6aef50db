package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/placecmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/leader/place"
)

func newPlaceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "place",
		Short: "Decide what the agents of a fleet hold, live or on problems from files",
		Long: `Decide what the agents of a fleet hold, live or on problems from files.

pause, resume, pin, unpin, rollback and explain ask the leader of a running fleet
whose agents run with --model-control leader. They need the right "fleet" where
clients have names.`,
	}
	cmd.AddCommand(placecmd.Commands()...)
	cmd.AddCommand(placeVerb("pause", "", "Keep the placement as it is until it is resumed",
		`Keep the placement as it is until it is resumed, also under another leader. Changes
that have begun go on.`, "  muster place pause"),
		placeVerb("resume", "", "Place models again after a pause or a rollback", "",
			"  muster place resume"),
		placeVerb("pin", "AGENT LAYOUT", "Make one agent hold a layout until it is unpinned",
			`Make one agent hold a layout, whatever the leader would place there, until it is
unpinned. A layout names versions of models: "wnd/1", or "ncf/1,wnd/1" for both on
the same lanes; "-" is none.`,
			"  muster place pin worker-3-1f2e3d4c wnd/1\n"+
				"  muster place pin worker-3-1f2e3d4c ncf/1,wnd/1"),
		placeVerb("unpin", "AGENT", "Let the leader place models on an agent again", "",
			"  muster place unpin worker-3-1f2e3d4c"),
		placeVerb("rollback", "VERSION", "Return to an earlier placement, and pause",
			`Return to an earlier placement, as a new version, and pause, so that the leader does
not change it back at once. Muster status shows the version of the placement; the
leader remembers the last 16.`, "  muster place rollback 17"),
		placeVerb("explain", "AGENT", "Explain why the leader places these models on an agent", "",
			"  muster place explain worker-3-1f2e3d4c"))
	return cmd
}

// placeVerb is a command that asks the leader to do something about the placement,
// or to explain it.
func placeVerb(verb, args, short, long, example string) *cobra.Command {
	var settings clientSettings
	cmd := &cobra.Command{
		Use: strings.TrimSpace(verb + " " + args), Short: short, Long: long, Example: example,
		Args: cobra.ExactArgs(len(strings.Fields(args))),
		RunE: func(cmd *cobra.Command, given []string) error {
			req := &control.PlaceRequest{Verb: verb}
			for i, name := range strings.Fields(args) {
				if err := placeArgument(req, name, given[i]); err != nil {
					return misuse.Wrap(err)
				}
			}
			conn, err := settings.dialFirst(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer conn.Close()
			resp, err := control.NewControlClient(conn).Place(cmd.Context(), req)
			if err != nil {
				return wrapServerError(settings, err)
			}
			terminal.SanitizeFields(resp)
			for _, line := range resp.GetLines() {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if verb != "explain" {
				fmt.Fprintf(cmd.OutOrStdout(), "done; placement %d\n", resp.GetVersion())
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	return cmd
}

func placeArgument(req *control.PlaceRequest, name, text string) error {
	switch name {
	case "AGENT":
		req.Agent = text
	case "LAYOUT":
		layout, err := place.ParseLayout(text)
		if err != nil {
			return err
		}
		req.Layout = layout.String()
	case "VERSION":
		version, err := strconv.ParseUint(text, 10, 64)
		if err != nil || version == 0 {
			return fmt.Errorf("version %q, want the number of a placement, such as 17", text)
		}
		req.Version = version
	}
	return nil
}
