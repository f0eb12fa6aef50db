package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cmd/muster/internal/families"
	"github.com/muster-serve/muster/cmd/muster/internal/importcmd"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/storecmd"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/zoo"
)

func newModelsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "models",
		Short: "Make and measure models, and list, load and unload those of an agent",
	}
	cmd.AddCommand(
		newModelsGenerateCommand(),
		newModelsListCommand(),
		newModelsChangeCommand("load", "Make agents load a model, or load it again", "loaded",
			(*client.Client).LoadModelOn),
		newModelsChangeCommand("unload", "Make agents stop serving a model", "unloaded",
			(*client.Client).UnloadModelOn),
	)
	cmd.AddCommand(importcmd.Commands()...)
	cmd.AddCommand(families.Commands()...)
	cmd.AddCommand(storecmd.Commands()...)
	cmd.AddCommand(releaseCommands()...)
	return cmd
}

func newModelsGenerateCommand() *cobra.Command {
	var out, scale string
	var options zoo.Options
	var variants families.Variants
	every := slices.Concat(zoo.Names(), []string{"all"}, zoo.Rankers())
	cmd := &cobra.Command{
		Use:   "generate MODEL...",
		Short: "Generate recommendation models",
		Long: `Generate recommendation models with deterministic weights, in a directory that an
agent can serve: ` + strings.Join(zoo.Names(), ", ") + `,
or all of these. Others score the candidates of one user:
` + strings.Join(zoo.Rankers(), ", ") + `.

--scale sets the number of rows of the embedding tables: small (a few MB a model,
for tests), default, full (up to 4 GB a model), or a fraction of full. A model that
was generated before with the same options is not written again.`,
		Example: `  muster models generate ncf wnd
  muster models generate all --scale small --out /tmp/models
  muster models generate rm2 --scale 0.01 --seed 7
  muster models generate wnd --variants int8,fp16,table8,lowrank:64`,
		ValidArgs: every,
		Args:      cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options.Scale = zoo.Scale(scale)
			if err := errors.Join(variants.Validate(), options.Scale.Validate()); err != nil {
				return misuse.Wrap(err)
			}
			wanted := args
			if slices.Contains(args, "all") {
				wanted = zoo.Names()
			}
			for _, model := range wanted {
				if !slices.Contains(every, model) {
					return misuse.Errorf("unknown model %q, want one of %s", model,
						strings.Join(every, ", "))
				}
			}
			for _, model := range wanted {
				options := options
				options.Progress = terminal.NewProgress(cmd.ErrOrStderr(), model)
				written, err := zoo.Generate(cmd.Context(), out, model, options)
				if err != nil {
					return err
				}
				state := "generated"
				if !written {
					state = "there already"
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s\n", model, state, out)
				if err := variants.Make(cmd, out, model, options.Overwrite); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", agent.DefaultConfig().ModelDir, "directory to write the models to")
	flags.StringVar(&scale, "scale", string(zoo.Default),
		"number of rows of the embedding tables: small, default, full, or a fraction of full, "+
			"such as 0.05")
	flags.Uint64Var(&options.Seed, "seed", options.Seed, "seed of the weights")
	flags.BoolVar(&options.Overwrite, "overwrite", false,
		"replace a model that was generated with other options")
	variants.Add(flags)
	return cmd
}

// A listedModel is one version of a model in the output of `muster models list`. Version is empty
// for a model without a usable version.
type listedModel struct {
	Model   string `json:"model"`
	Version string `json:"version"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
	// Family and Accuracy are known for a directory.
	Family        string  `json:"family,omitempty"`
	Accuracy      float64 `json:"accuracy,omitempty"`
	listedTensors         // with --long
}

func newModelsListCommand() *cobra.Command {
	var settings clientSettings
	var dir, address string
	var asJSON, long bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the models of a running agent, of a directory, or of a store",
		Example: `  muster models list
  muster models list --server 10.0.0.7:8001 --json
  muster models list --long
  muster models list --dir ./model-repository
  muster models list --store s3://acme-models/prod`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if address != "" {
				return storecmd.List(cmd, address, asJSON)
			}
			var list []listedModel
			var err error
			if dir != "" {
				list, err = listDirectory(dir, long)
			} else {
				list, err = listAgent(cmd.Context(), &settings, cmd.ErrOrStderr(), long)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return terminal.PrintJSON(cmd.OutOrStdout(), list)
			}
			return printModels(cmd.OutOrStdout(), list)
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().StringVar(&dir, "dir", "", "list this directory instead of an agent's models")
	storecmd.AddFlag(cmd.Flags(), &address, "list this store instead of asking an agent")
	cmd.MarkFlagsMutuallyExclusive("dir", "store")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().BoolVar(&long, "long", false,
		"print inputs and outputs too, with their roles in a ranking query")
	cmd.MarkFlagsMutuallyExclusive("long", "store")
	return cmd
}

// listAgent asks the first server that answers for the versions of its models and, if long, for
// their inputs and outputs. It makes a client for that.
func listAgent(ctx context.Context, settings *clientSettings, stderr io.Writer,
	long bool) ([]listedModel, error) {
	c, err := settings.open(stderr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	limit := 10 * time.Second
	if long {
		limit = longTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	index, err := c.RepositoryIndex(ctx, false)
	if err != nil {
		return nil, err
	}
	list := []listedModel{}
	for _, m := range index {
		list = append(list, listedModel{
			Model: m.GetName(), Version: m.GetVersion(), State: m.GetState(), Reason: m.GetReason(),
		})
	}
	if long {
		err = describeListed(ctx, c, list)
	}
	return list, err
}

// listDirectory lists the versions in a model directory without loading them. A version whose files
// cannot be served is BROKEN, with the reason.
func listDirectory(dir string, long bool) ([]listedModel, error) {
	repository, err := models.Open[io.Closer](dir, nil, models.Options{})
	if err != nil {
		return nil, err
	}
	places, err := families.Places(dir)
	if err != nil {
		return nil, err
	}
	list := []listedModel{}
	for _, s := range repository.Index() {
		m := listedModel{
			Model: s.Model, Version: strconv.FormatInt(s.Version, 10), State: "ON DISK",
		}
		if s.Version == 0 { // the model has no version
			m.Version, m.State, m.Reason = "", "BROKEN", s.Reason
		} else if v, err := models.ReadVersion(dir, s.Model, s.Version); err != nil {
			m.State, m.Reason = "BROKEN", err.Error()
		} else {
			p := places[s.Model]
			m.Family, m.Accuracy, m.Reason = p.Family, p.Accuracy, p.Reason
			if long {
				m.Inputs, m.Outputs = listSpecs(v.Inputs), listSpecs(v.Outputs)
				m.RowsIndependent = v.IndependentBy()
			}
		}
		list = append(list, m)
	}
	return list, nil
}

// printModels prints the list as a table, which shows families if there are any. Further lines of a
// reason are below its first one.
func printModels(w io.Writer, list []listedModel) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	families := slices.ContainsFunc(list, func(m listedModel) bool { return m.Family != "" })
	row := func(model, version, state, family, accuracy, reason string) {
		if families {
			state += "\t" + family + "\t" + accuracy
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", model, version, state, reason)
	}
	row("MODEL", "VERSION", "STATE", "FAMILY", "ACCURACY", "REASON")
	ends := make([]int, len(list)) // the lines up to each model's last
	lines := 1
	for i, m := range list {
		accuracy := ""
		if m.Accuracy > 0 {
			accuracy = strconv.FormatFloat(m.Accuracy, 'f', 4, 64)
		}
		reason := strings.Split(terminal.PlainLines(m.Reason), "\n")
		row(terminal.Plain(m.Model), terminal.Plain(m.Version), terminal.Plain(m.State),
			terminal.Plain(m.Family), accuracy, reason[0])
		for _, line := range reason[1:] {
			row("", "", "", "", "", line)
		}
		lines += len(reason)
		ends[i] = lines
	}
	if err := table.Flush(); err != nil { // cannot fail
		return err
	}
	// Lines of other columns within the table would end its columns.
	printed := strings.SplitAfter(text.String(), "\n")
	for i := range list {
		printed[ends[i]-1] += list[i].formatTensors()
	}
	_, err := io.WriteString(w, strings.Join(printed, ""))
	return err
}

// newModelsChangeCommand makes the command `muster models VERB`, which calls change for each model
// of its arguments. agent is "" for all agents; done is the verb's past tense.
func newModelsChangeCommand(verb, short, done string,
	change func(c *client.Client, ctx context.Context, agent, model string) error) *cobra.Command {
	var settings clientSettings
	var agent string
	cmd := &cobra.Command{
		Use:               verb + " MODEL...",
		Short:             short,
		Example:           "  muster models " + verb + " ncf",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeModels(&settings),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := settings.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer c.Close()
			for _, model := range args {
				if err := change(c, cmd.Context(), agent, model); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", model, done)
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().StringVar(&agent, "agent", "",
		"name of the only agent to do this (default: every agent that has the model's files)")
	return cmd
}

// completeModels returns the shell completion of model names. It asks the server for them and gives
// up after a second, as the user waits at the prompt.
func completeModels(settings *clientSettings) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		if err := applySettings(cmd, args); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		list, err := listAgent(ctx, settings, io.Discard, false)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, m := range list {
			if terminal.Plain(m.Model) == m.Model && !slices.Contains(names, m.Model) &&
				!slices.Contains(args, m.Model) {
				names = append(names, m.Model)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
