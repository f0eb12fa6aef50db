//go:build !pages

// Command muster serves recommendation models: it is the agent, the tools that
// make and list models, and the clients that send queries by hand or as load.
// Each command fills the Config of the package that does the work and calls it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		// The first signal asks to finish; with the handler gone, a second one
		// ends the process at once.
		signal.Stop(signals)
		cancel()
	}()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		printError(os.Stderr, err)
		os.Exit(1)
	}
}
