package main

import (
	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
)

// newReproduceCommand returns the command that made the papers' figures. It says where they are made
// now.
func newReproduceCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "reproduce",
		Short:              "Say where the figures of the papers are made",
		Example:            "  go -C reproduce run . all",
		Hidden:             true,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // that its figures had
		RunE: func(*cobra.Command, []string) error {
			return misuse.Errorf("the papers' figures are made from a clone of Muster's repository: " +
				"go -C reproduce run . all")
		},
	}
}
