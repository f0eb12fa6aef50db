package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/cmd/muster/internal/suggest"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show settings",
	}
	cmd.AddCommand(newConfigCheckCommand(), newConfigPrintCommand(),
		newConfigReferenceCommand())
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Report all faults of a config file",
		Example: `  muster config check muster.yaml`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkConfigFile(args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: no fault\n", args[0])
			return nil
		},
	}
}

// checkConfigFile reports every fault of the settings in the file, in the order of the lines. It
// ignores the environment. The error is misuse.
func checkConfigFile(path string) error {
	var agent agentSettings
	flags := pflag.NewFlagSet("check", pflag.ContinueOnError)
	agent.add(flags)
	new(clientSettings).add(flags)

	lines, err := settings.Check(path, flags)
	faults := flattenErrors(err)
	for _, fault := range flattenErrors(agent.validate()) {
		text := fault.Error()
		key, _, _ := strings.Cut(text, ":")
		position := path
		if line, ok := lines[key]; ok {
			position = line
		}
		if m := wantOneOf.FindStringSubmatch(text); m != nil {
			text += suggest.Near(m[1], strings.Split(strings.Trim(m[2], `"`), `" "`))
		}
		faults = append(faults, fmt.Errorf("%s: %s", position, text))
	}
	slices.SortStableFunc(faults, func(a, b error) int {
		return cmp.Compare(lineOf(path, a), lineOf(path, b))
	})
	return misuse.Wrap(errors.Join(faults...))
}

// wantOneOf matches the fault of a setting that has one of a few values.
var wantOneOf = regexp.MustCompile(`^[a-z0-9-]+: "(.*)", want one of \[(.*)\]$`)

// flattenErrors returns the errors that are joined in err.
func flattenErrors(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, flattenErrors(e)...)
	}
	return all
}

// lineOf is the number of the line of the file at path that a fault is about; above all others of
// one that is about no line.
func lineOf(path string, fault error) int {
	rest, _ := strings.CutPrefix(fault.Error(), path+":")
	number, _, _ := strings.Cut(rest, ":")
	if line, err := strconv.Atoi(number); err == nil {
		return line
	}
	return math.MaxInt
}

func newConfigPrintCommand() *cobra.Command {
	var agent agentSettings
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Show the effective settings and where each came from",
		Long: `Show the effective settings, each with its origin: a flag, an environment
variable, a line of the config file, or the default. The output is a valid config
file without the secrets: keys are left out. To see the effect of a setting, give
it as a flag.`,
		Example: `  muster config print
  muster config print --config fleet.yaml --json
  muster config print > muster.yaml`,
		Args: cobra.NoArgs,
		// RunE resolves the settings, because it needs the origins too.
		PersistentPreRunE: warnOfVariables,
		RunE: func(cmd *cobra.Command, _ []string) error {
			origins, err := settings.Resolve(cmd, allSettings())
			if err = errors.Join(err, agent.validate()); err != nil {
				return misuse.Wrap(err)
			}
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), settings.List(cmd.Flags(), origins))
			}
			return settings.WriteYAML(cmd.OutOrStdout(), cmd.Flags(), origins)
		},
	}
	agent.add(cmd.Flags())
	new(clientSettings).add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
