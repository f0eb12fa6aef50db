package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// run executes the command that args name and returns its error without printing it. Settings also
// come from the process's environment and from muster.yaml in the working directory. The end of ctx
// asks the command to finish.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// hintAtHelp makes cmd and its subcommands add `see "muster ... --help"` to errors about their
// arguments.
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

// newRoot makes the command `muster` with all its subcommands. Each call makes new ones, so that
// tests do not share the values of flags.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "Serve recommendation models within their QoS targets",
		Long: `Muster serves ONNX recommendation models and answers each query within its
QoS target. Clients speak the Open Inference Protocol (version 2).

A setting is a flag (--model-dir), an environment variable (MUSTER_MODEL_DIR) or
a key in a YAML file (model-dir: ...). A flag overrides the variable, and the
variable overrides the file. The file is the one that --config or MUSTER_CONFIG
names, else ./muster.yaml if it exists. "muster config print" shows the value of
each setting and where it came from.`,
		Example: `  muster models generate ncf wnd     make two models in ./model-repository
  muster agent                       serve them
  muster infer ncf --batch-size 8    send a query by hand`,
		Version:       agent.Version(),
		SilenceErrors: true, // main prints the error, once
		SilenceUsage:  true,
		// A command without flags that are settings ignores environment and config file.
		PersistentPreRunE: applySettings,
	}
	root.PersistentFlags().String(settings.Flag, "",
		"YAML file with settings (default ./"+settings.DefaultFile+" if it exists)")
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

// printError writes err to w without the characters that control a
// terminal.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "muster: %s\n", terminal.PlainLines(err.Error()))
}
