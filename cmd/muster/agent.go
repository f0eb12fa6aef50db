package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/cmd/muster/internal/fleetcmd"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/store/remote"
)

func newAgentCommand() *cobra.Command {
	var settings agentSettings
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Serve the models of a directory",
		Long: `Serve the models of a directory by the Open Inference Protocol, over REST and
gRPC, with Prometheus metrics at an address of their own. The agent loads models
that are added to the directory, loads changed ones again, and stops serving
removed ones, without a restart.

SIGTERM or SIGINT drains the agent: it refuses new queries, finishes those it
holds, and exits with status 0. A second one ends it at once. SIGHUP drains it
too, and SIGQUIT after it has written the stacks of all goroutines; the status
is then 129 or 131, so that a service manager starts the agent again. Other
signals are ignored, and the agent serves on if nobody reads its log.`,
		Example: `  muster agent                                serve ./model-repository on loopback
  muster agent --http :8000 --grpc :8001 --tls-cert node1.crt --tls-key node1.key   reachable from other machines
  MUSTER_MODEL_DIR=/srv/models muster agent   settings from the environment`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkSystem(runtime.GOOS); err != nil {
				return err
			}
			if err := settings.validate(); err != nil {
				return misuse.Wrap(err)
			}
			handler, err := settings.logHandler(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			var greet func(agent.Addresses, []models.Status)
			if terminal.IsTerminal(cmd.ErrOrStderr()) {
				greet = func(at agent.Addresses, index []models.Status) {
					fmt.Fprint(cmd.ErrOrStderr(), settings.greeting(at, index))
				}
			}
			err = settings.run(cmd.Context(), slog.New(handler), greet)
			if errors.Is(err, agent.ErrRestart) {
				return restart()
			}
			if err != nil {
				return err
			}
			cause := context.Cause(cmd.Context())
			if s, ok := cause.(signalError); ok && s.mustRestart() {
				return interruptError{cause}
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	return cmd
}

// run runs the agent until it has drained. greet, if it is not nil, is called once the agent serves.
func (s *agentSettings) run(ctx context.Context, log *slog.Logger,
	greet func(agent.Addresses, []models.Status)) error {
	defer serveOnWithoutReaders(log)()
	a, err := agent.New(s.Config, log)
	if err != nil {
		return err
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(countGoThreads(s.Executor, a.MostLanes()))
	}
	provider, flush, err := s.traceSettings.open(ctx, a.Name(), log)
	if err != nil {
		return err
	}
	defer flush()
	if provider != nil {
		a.Trace(provider)
	}
	if greet != nil {
		a.OnReady(greet)
	}
	a.OpenStore(remote.Open)
	a.OpenBucket(remote.OpenBucket)
	a.Rent(fleetcmd.Find, func(p *policy.Policy, join string) (cloud.Provider, error) {
		return fleetcmd.Open(p, s.Config, join, log)
	})
	return a.Run(ctx)
}

// restart makes this process one of the same program with the same arguments. It returns only if it
// cannot.
func restart() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("start the agent anew: %w", err)
}

// checkSystem returns an error if agents do not run on an operating system.
func checkSystem(goos string) error {
	if goos == "linux" {
		return nil
	}
	return fmt.Errorf("an agent needs Linux; this is %s, where the commands work that need no "+
		"agent of their own, such as infer, bench, status, top, plan and sim", goos)
}

// countGoThreads returns how many of an agent's threads may run Go at once.
func countGoThreads(executor string, lanes int) int {
	if executor == "emulated" {
		// Many emulated agents share one machine. Idle Go threads spin while they look for work,
		// which takes CPU time from the other agents.
		return 1
	}
	// A run of ONNX Runtime keeps its thread's right to run Go until Go's monitor takes it back,
	// after up to 10 ms. So there are some that no run holds, for what serves the network.
	now := runtime.GOMAXPROCS(0)
	return max(now, lanes+(now+1)/2)
}

// logHandler returns the handler that writes log lines to w, in the format of --log-format and from
// the level of --log-level upwards.
func (s *agentSettings) logHandler(w io.Writer) (slog.Handler, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, fmt.Errorf("log-level: %q, want debug, info, warn or error", s.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch s.logFormat {
	case "text":
		return slog.NewTextHandler(w, options), nil
	case "json":
		return slog.NewJSONHandler(w, options), nil
	}
	return nil, fmt.Errorf("log-format: %q, want text or json", s.logFormat)
}
