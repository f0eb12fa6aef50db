package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/cmd/muster/internal/former"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/cmd/muster/internal/suggest"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

const (
	// agentName is the name of the command that drains when it is asked to finish.
	agentName = "agent"
	// endTime is how long every other command may take to finish: nothing can end one that opens a
	// FIFO to which nobody writes, or reads a network file system whose server is away.
	endTime = 5 * time.Second
)

// awaitEnd waits for the end of a command and returns its error; false if it does not end although
// ctx has. A command that drains has a limit of its own.
func awaitEnd(ctx context.Context, ended <-chan error, drains *atomic.Bool) (err error, ok bool) {
	select {
	case err := <-ended:
		return err, true
	case <-ctx.Done():
	}
	if drains.Load() {
		return <-ended, true
	}
	select {
	case err := <-ended:
		return err, true
	case <-time.After(endTime):
		return nil, false
	}
}

// run executes the command that args name and returns its error without printing it. Settings also
// come from the process's environment and from muster.yaml in the working directory. The end of ctx
// asks the command to finish.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := newRoot()
	args, note := former.Rewrite(root, args, selectors)
	if note != "" {
		fmt.Fprintf(stderr, "muster: note: %s\n", terminal.PlainLines(note))
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultCompletionCmd() // it keeps the writer that is set now
	refuseUnknown(root)
	var began, drains atomic.Bool
	beforeRun(root, func(cmd *cobra.Command) {
		began.Store(true)
		drains.Store(cmd.Name() == agentName)
	})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	err, ok := awaitEnd(ctx, ended, &drains)
	switch {
	case !ok:
		fmt.Fprintf(stderr,
			"the command has not ended %v after %v: does a file system not answer?\n",
			endTime, context.Cause(ctx))
		return interruptError{context.Cause(ctx)}
	case err != nil && !began.Load():
		return misuse.Wrap(err)
	case ctx.Err() != nil &&
		(errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled):
		return interruptError{context.Cause(ctx)}
	}
	return err
}

// selectors are the flags that once selected what commands of their own do now.
var selectors = []former.Selector{
	{Of: "muster plan", Flag: "live", Command: "live"},
	{Of: "muster plan", Flag: "place", Command: "place"},
	{Of: "muster plan", Flag: "evaluator", Prefix: "table:", Command: "table"},
	{Of: "muster sim", Flag: "place", Command: "place"},
	{Of: "muster sim", Flag: "find-throughput", Command: "throughput"},
	{Of: "muster sim", Flag: "fault", Command: "faults", Kept: true},
}

// interruptError is the error of a command that a signal ended before its work was done. What the
// command had found by then it has printed.
type interruptError struct{ cause error }

func (interruptError) Error() string { return "interrupted" }

// exitStatus returns the exit status of a command that ended with err, which is not nil: 2 for a
// misuse, 128 and the signal's number after a signal, else 1.
func exitStatus(err error) int {
	var signal interruptError
	if errors.As(err, &signal) {
		if s, ok := signal.cause.(signalError); ok {
			return s.exitStatus()
		}
		return signalError{syscall.SIGINT}.exitStatus()
	}
	if misuse.Is(err) {
		return 2
	}
	return 1
}

// beforeRun has do called before cmd or one of its subcommands runs, when its flags and arguments
// are known to be good.
func beforeRun(cmd *cobra.Command, do func(cmd *cobra.Command)) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			do(cmd)
			return run(cmd, args)
		}
	}
	for _, child := range cmd.Commands() {
		beforeRun(child, do)
	}
}

// presentFlag returns the present name of a flag that has a former one.
func presentFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "least-accuracy" {
		name = "min-accuracy"
	}
	return pflag.NormalizedName(name)
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
each setting and where it came from.

The exit status is 0 if all went well; 2 if the command line, a variable or the
config file has a fault, so that nothing was done; 130 after Ctrl-C, 143 after
SIGTERM, 129 after SIGHUP and 131 after SIGQUIT, if the work was not done by then;
else 1.`,
		Example: `  muster models generate ncf wnd     make two models in ./model-repository
  muster agent                       serve them
  muster infer ncf --batch-size 8    send a query by hand`,
		Version:       version.Current(),
		SilenceErrors: true, // main prints the error, once
		SilenceUsage:  true,
		// A command without flags that are settings ignores environment and config file.
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Hidden { // shell completion
				return nil
			}
			return errors.Join(warnOfVariables(cmd, args), applySettings(cmd, args))
		},
	}
	root.SetGlobalNormalizationFunc(presentFlag)
	root.PersistentFlags().String(settings.Flag, "",
		"YAML file with settings (default ./"+settings.DefaultFile+" if it exists)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return addHint(cmd, err)
	})
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Serve models:", []*cobra.Command{
			newDemoCommand(), newAgentCommand(), newModelsCommand(), newConfigCommand(),
			newCertsCommand(),
		}},
		{"Send queries:", []*cobra.Command{newInferCommand(), newBenchCommand()}},
		{"Watch and run a fleet:", []*cobra.Command{
			newStatusCommand(), newTopCommand(), newWhyCommand(), newEventsCommand(), newCaptureCommand(),
			newDrainCommand(), newKeysCommand(), newFleetCommand(), newDoctorCommand(),
			newDebugCommand(), newBackupCommand(),
		}},
		{"Simulate and plan a fleet:", []*cobra.Command{
			newSimCommand(), newPlanCommand(), newProfileCommand(), newPlaceCommand(),
			newReproduceCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newVersionCommand(), newLicensesCommand())
	root.SetHelpCommand(newHelpCommand())
	root.InitDefaultHelpCmd()
	return root
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show how to use a command",
		Example: `  muster help models list`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
			cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return subcommandNames(of), cobra.ShellCompDirectiveNoFileComp
		},
		// PreRunE, because an unknown command is misuse.
		PreRunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = unknownCommand(of, rest[0])
			}
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}

// refuseUnknown makes cmd and its subcommands refuse arguments that they do not take, with a
// suggestion. A command that only has subcommands shows its help if it is given none.
func refuseUnknown(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.ValidArgsFunction = cobra.NoArgs, cobra.NoFileCompletions
		cmd.RunE = func(*cobra.Command, []string) error { return pflag.ErrHelp }
		cmd.DisableFlagsInUseLine = true
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err != nil && len(args) > 0 && cmd.HasSubCommands() {
				return unknownCommand(cmd, args[0])
			} else if err != nil {
				return addHint(cmd, err)
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		refuseUnknown(child)
	}
}

// unknownCommand is the error of a subcommand that cmd does not have.
func unknownCommand(cmd *cobra.Command, name string) error {
	err := fmt.Errorf("unknown command %q for %q", name, cmd.CommandPath())
	if near := suggest.Near(name, subcommandNames(cmd)); near != "" {
		return fmt.Errorf("%w%s", err, near)
	}
	return addHint(cmd, err)
}

// subcommandNames returns the names of the subcommands of cmd that users may call.
func subcommandNames(cmd *cobra.Command) (names []string) {
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			names = append(names, child.Name())
		}
	}
	return names
}

// addHint adds to an error of arguments or flags where to read more: `see "muster ... --help"`. For
// an unknown flag it is the name of a near one.
func addHint(cmd *cobra.Command, err error) error {
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		err = fmt.Errorf("--%s: %w", wrong.GetFlag().Name,
			settings.WrongValue(wrong.GetFlag(), wrong.GetValue(), wrong.Unwrap()))
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		if now := former.CommandOf(cmd, unknown.GetSpecifiedName(), selectors); now != "" {
			return fmt.Errorf("%w; it is the command %q now", err, now)
		}
		if others := withFlag(cmd, unknown.GetSpecifiedName()); len(others) > 0 {
			return fmt.Errorf("%w; it is a flag of %s", err, strings.Join(others, ", "))
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		if near := suggest.Near("--"+unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Errorf("%w%s", err, near)
		}
	}
	return fmt.Errorf("%w; see %q", err, cmd.CommandPath()+" --help")
}

// withFlag returns the commands, quoted, that have a flag which cmd has not, of those that share
// its first word.
func withFlag(cmd *cobra.Command, flag string) (commands []string) {
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	var collect func(c *cobra.Command)
	collect = func(c *cobra.Command) {
		if c.Flags().Lookup(flag) != nil {
			commands = append(commands, strconv.Quote(c.CommandPath()))
		}
		for _, child := range c.Commands() {
			collect(child)
		}
	}
	collect(top)
	return commands
}

// printError writes err to w without the characters that control a
// terminal.
func printError(w io.Writer, err error) {
	fmt.Fprintf(w, "muster: %s\n", terminal.PlainLines(err.Error()))
}
