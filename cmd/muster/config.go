package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/gossip"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and show settings",
	}
	cmd.AddCommand(newConfigCheckCommand(), newConfigPrintCommand())
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

// checkConfigFile reports every fault of the settings in the file, each with its line. It ignores
// the environment.
func checkConfigFile(path string) error {
	var settings agentSettings
	flags := pflag.NewFlagSet("check", pflag.ContinueOnError)
	settings.add(flags)
	new(clientSettings).add(flags)

	entries, err := readConfigFile(path, flags)
	faults := []error{err}
	for _, e := range entries {
		if err := setFlag(flags.Lookup(e.key), e.values); err != nil {
			faults = append(faults, fmt.Errorf("%s: %s: %w", e.position, e.key, err))
		}
	}
	if err := settings.validate(); err != nil {
		faults = append(faults, fmt.Errorf("%s: %w", path, err))
	}
	return errors.Join(faults...)
}

func newConfigPrintCommand() *cobra.Command {
	var settings agentSettings
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
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, _ []string) error {
			origins, err := resolveSettings(cmd)
			if err != nil {
				return err
			}
			if err := settings.validate(); err != nil {
				return err
			}
			if asJSON {
				return printSettingsJSON(cmd, origins)
			}
			return printSettingsYAML(cmd, origins)
		},
	}
	settings.add(cmd.Flags())
	new(clientSettings).add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// A secretValue replaces the value of a setting that must not be shown.
type secretValue struct{}

// isSecret reports whether the setting's value is a secret itself. The path of a file that holds a
// secret is none.
func isSecret(f *pflag.Flag) bool {
	switch f.Name {
	case "api-key":
		return f.Value.String() != ""
	case "gossip-key":
		_, err := gossip.ParseKey(f.Value.String())
		return err == nil
	}
	return false
}

// printedSettings calls print for each setting of cmd in the order of their names. A value is a
// string, a []string or a secretValue.
func printedSettings(cmd *cobra.Command, origins map[string]string,
	print func(name string, value any)) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, ok := origins[f.Name]; !ok {
			return
		}
		if isSecret(f) {
			print(f.Name, secretValue{})
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			print(f.Name, list.GetSlice())
			return
		}
		print(f.Name, f.Value.String())
	})
}

func printSettingsYAML(cmd *cobra.Command, origins map[string]string) error {
	document := yaml.Node{Kind: yaml.MappingNode}
	var secrets []string
	printedSettings(cmd, origins, func(name string, value any) {
		var key, v yaml.Node
		key.SetString(name)
		switch value := value.(type) {
		case []string:
			v = yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, s := range value {
				v.Content = append(v.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: s})
			}
		case string:
			v = yaml.Node{Kind: yaml.ScalarNode, Value: value}
			if value == "" {
				v.Style = yaml.DoubleQuotedStyle
			}
		case secretValue:
			secrets = append(secrets,
				fmt.Sprintf("# %s: a secret, not shown # %s", name, origins[name]))
			return
		}
		v.LineComment = origins[name]
		document.Content = append(document.Content, &key, &v)
	})
	data, err := yaml.Marshal(&document)
	if err != nil {
		return err
	}
	for _, s := range secrets {
		data = append(data, s+"\n"...)
	}
	_, err = cmd.OutOrStdout().Write(data)
	return err
}

func printSettingsJSON(cmd *cobra.Command, origins map[string]string) error {
	type setting struct {
		Name   string `json:"name"`
		Value  any    `json:"value"`
		Secret bool   `json:"secret,omitempty"` // Value is null
		From   string `json:"from"`
	}
	var all []setting
	printedSettings(cmd, origins, func(name string, value any) {
		s := setting{Name: name, Value: value, From: origins[name]}
		if _, s.Secret = value.(secretValue); s.Secret {
			s.Value = nil
		}
		all = append(all, s)
	})
	return printJSON(cmd.OutOrStdout(), all)
}

// printJSON writes v to w as indented JSON. Characters that control a terminal are escaped.
func printJSON(w interface{ Write([]byte) (int, error) }, v any) error {
	encoder := json.NewEncoder(terminal.PlainJSON{W: w})
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
