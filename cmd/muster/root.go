package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// run executes the command that args name. Settings are read from the process's
// environment and working directory as well.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// hintAtHelp has errors of the arguments of cmd, and of those below it, say where
// the usage is.
func hintAtHelp(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return fmt.Errorf("%w; see %q", err, cmd.CommandPath()+" --help")
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		hintAtHelp(child)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "Serve recommendation models within their QoS targets",
		Long: `Muster serves ONNX recommendation models and answers each query within its
QoS target. Clients speak the Open Inference Protocol (version 2).

Settings come from flags, then from environment variables (--model-dir is
MUSTER_MODEL_DIR), then from one YAML file (model-dir: ...), strongest first.
The file is --config, or MUSTER_CONFIG, or ./muster.yaml if there is one.
"muster config print" shows what holds and where each setting came from.`,
		Example: `  muster models generate ncf wnd     make two models in ./model-repository
  muster agent                       serve them
  muster infer ncf --batch-size 8    send a query by hand`,
		Version:       agent.Version(),
		SilenceErrors: true, // main prints the error, once
		SilenceUsage:  true,
		// Settings belong to the commands that have some; see applySettings.
		PersistentPreRunE: applySettings,
	}
	root.PersistentFlags().String(configFlag, "",
		"YAML file with settings (default ./"+defaultConfigFile+" if there is one)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %q", err, cmd.CommandPath()+" --help")
	})
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Serve models:", []*cobra.Command{
			newAgentCommand(), newModelsCommand(), newConfigCommand(), newCertsCommand(),
		}},
		{"Send queries:", []*cobra.Command{newInferCommand(), newBenchCommand()}},
		{"Watch and run a fleet:", []*cobra.Command{
			newStatusCommand(), newTopCommand(), newEventsCommand(), newDrainCommand(),
			newKeysCommand(),
		}},
		{"Simulate and plan a fleet:", []*cobra.Command{
			newSimCommand(), newPlanCommand(), newReproduceCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newVersionCommand(), newLicensesCommand())
	hintAtHelp(root)
	return root
}

// printError tells why the command failed.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "muster: %s\n", terminal.PlainLines(err.Error()))
}
