package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster"
)

func newLicensesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "licenses",
		Short:   "Show the licences of this binary and of the code inside it",
		Example: "  muster licenses | less",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n%s",
				muster.License, muster.Notice, muster.ONNXRuntimeNotices)
			return err
		},
	}
}
