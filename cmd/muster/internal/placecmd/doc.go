// Package placecmd is the commands of `muster place`, which decide on problems from files what the
// agents of a fleet hold. They reach no fleet.
package placecmd

import "github.com/spf13/cobra"

// Commands returns the commands below `muster place`.
func Commands() []*cobra.Command {
	return []*cobra.Command{newSolveCommand(), newHeraCommand()}
}
