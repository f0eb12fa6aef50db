package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// A waitSetting is the flag --wait of a command that asks agents.
type waitSetting time.Duration

// add defines the flag. what is what the command waits for.
func (w *waitSetting) add(flags *pflag.FlagSet, what string) {
	flags.DurationVar((*time.Duration)(w), "wait", 0,
		"longest time to wait until "+what+"; 0: it must be at once")
}

// readyInterval is the time between two questions whether something is ready. Chosen: a person does
// not notice it, and an agent that starts has other work than to answer.
const readyInterval = 200 * time.Millisecond

// awaitReady blocks until the server and all of the models are ready, for as long as the flag says:
// of each the version, or any if that is "". It returns at once without the flag.
func (w waitSetting) awaitReady(ctx context.Context, stderr io.Writer, c *client.Client,
	version string, models ...string) error {
	if w == 0 {
		return nil
	}
	if w < 0 {
		return misuse.Errorf("wait: %v, want 0 or more", time.Duration(w))
	}
	started := time.Now()
	line := terminal.NewStatusLine(stderr)
	defer line.Done()
	waiting, cancel := context.WithTimeout(ctx, time.Duration(w))
	defer cancel()
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	missing := "the server"
	var last error
	for {
		what, err := firstNotReady(waiting, c, version, models)
		if what == "" {
			return nil
		}
		if waiting.Err() == nil {
			missing, last = what, err
			line.Show("waiting for %s, %v of %v", what, time.Since(started).Round(time.Second),
				time.Duration(w))
		}
		select {
		case <-tick.C:
			continue
		case <-waiting.Done():
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case last != nil:
			return fmt.Errorf("wait: %s is not ready after %v: %w", missing, time.Duration(w), last)
		}
		return fmt.Errorf("wait: %s is not ready after %v; \"muster models list\" says why", missing,
			time.Duration(w))
	}
}

// firstNotReady names what is not ready: the server, or the first of the models that is not; ""
// if all are. The error is why it is not known.
func firstNotReady(ctx context.Context, c *client.Client, version string,
	models []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	if ready, err := c.Ready(ctx); err != nil || !ready {
		return "the server", err
	}
	for _, m := range models {
		if ready, err := c.ModelReady(ctx, m, version); err != nil || !ready {
			return fmt.Sprintf("model %q", m), err
		}
	}
	return "", nil
}
