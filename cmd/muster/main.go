//go:build !pages

// Command muster is the one binary of Muster. It runs agents that serve recommendation models,
// generates and lists models, sends queries, shows the state of a fleet, and simulates and plans
// fleets.
//
// There is one file for each command. A command reads flags, environment and config file, fills the
// Config of the package that does the work, and prints the result; it decides nothing itself. What
// several commands share, and the longer part of one, is a package of internal/. Packages below
// never read settings themselves. docs/internals/architecture.md lists them.
package main

import (
	"context"
	"os"

	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func main() {
	terminal.EnableEscapes()
	ctx, cancel := context.WithCancelCause(context.Background())
	go handleFinish(notifyFinish(), os.Stderr, cancel)
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		printError(os.Stderr, err)
		os.Exit(exitStatus(err))
	}
}
