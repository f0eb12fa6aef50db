package settings

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/cmd/muster/internal/suggest"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/models"
)

const (
	Flag        = "config"      // of the path of the config file
	DefaultFile = "muster.yaml" // in the working directory

	FileVariable = "MUSTER_CONFIG" // of the path of the config file, where Flag does not give it

	variablePrefix = "MUSTER_"
	annotation     = "muster_setting" // marks the flags that are settings
)

// Add adds the flags of fs to flags and marks them as settings. It skips a flag whose name
// flags has already: a name means the same setting everywhere.
func Add(flags, fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) != nil {
			return
		}
		f.Annotations = map[string][]string{annotation: {"true"}}
		f.Usage += " [" + VariableName(f.Name) + "]"
		flags.AddFlag(f)
	})
}

// IsSetting reports whether a flag is a setting.
func IsSetting(f *pflag.Flag) bool { return f.Annotations[annotation] != nil }

// VariableName returns the name of a setting's environment variable.
func VariableName(setting string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// Resolve sets the settings of cmd that its command line does not give, from the environment and
// the config file, and returns where each came from: "flag --http", "MUSTER_HTTP", "muster.yaml:3",
// or "default". known has the settings of all commands. It reports all faults at once.
func Resolve(cmd *cobra.Command, known *pflag.FlagSet) (origins map[string]string, err error) {
	origins = map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !IsSetting(f) {
			return
		}
		origins[f.Name] = "default"
		if f.Changed {
			origins[f.Name] = "flag --" + f.Name
		}
	})
	if len(origins) == 0 {
		return nil, nil
	}
	// flagOf returns the flag of a setting that still has its default; nil if a flag or variable
	// has set it, or cmd has no such setting.
	flagOf := func(name string) *pflag.Flag {
		if origins[name] != "default" {
			return nil
		}
		return cmd.Flags().Lookup(name)
	}

	var faults []error
	known.VisitAll(func(f *pflag.Flag) {
		// An empty variable counts as unset: compose files and systemd units pass empty variables
		// for settings that the user did not choose.
		value := os.Getenv(VariableName(f.Name))
		own := flagOf(f.Name)
		if value == "" || own == nil {
			return
		}
		if err := set(own, []string{value}); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", VariableName(f.Name), err))
		}
		origins[f.Name] = VariableName(f.Name)
	})
	file, err := findFile(cmd)
	if err != nil {
		return nil, errors.Join(append(faults, err)...)
	}
	if file != "" {
		entries, err := readFile(file, known)
		if err != nil {
			faults = append(faults, err)
		}
		for _, e := range entries {
			own := flagOf(e.key)
			if own == nil {
				continue
			}
			if err := set(own, e.values); err != nil {
				faults = append(faults, fmt.Errorf("%s: %s: %w", e.position, e.key, err))
			}
			origins[e.key] = e.position
		}
	}
	return origins, errors.Join(faults...)
}

// Check sets flags to the settings in the file at path, and reports all faults, each with its line.
// It ignores the environment. lines says where the file has each setting: "muster.yaml:3".
func Check(path string, flags *pflag.FlagSet) (lines map[string]string, err error) {
	entries, err := readFile(path, flags)
	faults := []error{err}
	lines = map[string]string{}
	for _, e := range entries {
		lines[e.key] = e.position
		if err := set(flags.Lookup(e.key), e.values); err != nil {
			faults = append(faults, fmt.Errorf("%s: %s: %w", e.position, e.key, err))
		}
	}
	return lines, errors.Join(faults...)
}

// findFile returns the path of the config file: --config, else MUSTER_CONFIG, else
// muster.yaml in the working directory if it exists, else "".
func findFile(cmd *cobra.Command) (string, error) {
	if path, err := cmd.Flags().GetString(Flag); err == nil && path != "" {
		return path, nil
	}
	if path := os.Getenv(FileVariable); path != "" {
		return path, nil
	}
	if _, err := os.Stat(DefaultFile); errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("look for a config file: %w", err)
	}
	return DefaultFile, nil
}

// A entry is one setting in a config file.
type entry struct {
	key      string
	values   []string // one, unless the file has a list
	position string   // "muster.yaml:3"
}

// readFile reads the settings in the file at path. known has every setting that the file may
// hold. It returns the settings that it could read, and one error with all faults of the others.
func readFile(path string, known *pflag.FlagSet) ([]entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read config file: %w", err)
	}
	doc, err := document.YAML(path, data)
	if err != nil {
		return nil, err
	}
	if doc == nil || doc.Content[0].Tag == "!!null" { // empty, or comments alone
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want lines of `setting: value`", path, root.Line)
	}
	var entries []entry
	faults := document.Faults{Path: path}
	for e := range document.Entries(root) {
		key := e.Key.Value
		values, ok := scalarValues(e.Value)
		switch f := known.Lookup(key); {
		case f == nil:
			near := suggest.Near(key, flagNames(known))
			if slices.ContainsFunc(models.ConfigKeys(), func(k document.Key) bool {
				return k.Name == key
			}) {
				near = "; it is a key of a model's model.yaml"
			}
			faults.Fault(e.Key, "unknown setting %q%s", key, near)
		case e.First != 0:
			faults.Fault(e.Key, "%s is already set, at line %d", key, e.First)
		case !ok:
			faults.Fault(e.Key, "%s: want %s", key, DescribeValue(f))
		default:
			entries = append(entries, entry{
				key: key, values: values, position: fmt.Sprintf("%s:%d", path, e.Key.Line),
			})
		}
	}
	return entries, faults.JoinFaults()
}

// scalarValues returns the values of a scalar, or of a list of scalars; false for any other node.
func scalarValues(n *yaml.Node) ([]string, bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return []string{n.Value}, true
	case n.Kind == yaml.SequenceNode:
		values := make([]string, 0, len(n.Content))
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return nil, false
			}
			values = append(values, c.Value)
		}
		return values, true
	}
	return nil, false
}

// set sets f to the values. Only a list accepts another number of values than one.
func set(f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok && len(values) != 1 {
		return list.Replace(values)
	}
	if len(values) != 1 {
		return fmt.Errorf("got %d values, want one: %s", len(values), DescribeValue(f))
	}
	if err := f.Value.Set(values[0]); err != nil {
		return WrongValue(f, values[0], err)
	}
	return nil
}

// WrongValue is the error of a value that f cannot be set to, given why.
func WrongValue(f *pflag.Flag, value string, why error) error {
	if errors.Is(why, strconv.ErrRange) {
		return fmt.Errorf("%q is too large or too small", value)
	}
	return fmt.Errorf("got %q, want %s", value, DescribeValue(f))
}

// DescribeValue says in words what values f has.
func DescribeValue(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "a whole number"
	case "uint", "uint32", "uint64":
		return "a whole number of 0 or more"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, such as 1m30s"
	case "string":
		return "a text"
	case "stringSlice", "stringArray":
		return "a list of texts"
	case "intSlice":
		return "a list of whole numbers"
	}
	return "a " + f.Value.Type()
}

// WarnOfUnknown writes a warning to stderr for each variable of the environment that begins with
// MUSTER_ but belongs to no setting. known has the settings of all commands. This is not an error:
// Kubernetes sets variables such as MUSTER_SERVICE_HOST for a service with the name muster.
func WarnOfUnknown(stderr io.Writer, known *pflag.FlagSet) {
	names := []string{strings.TrimPrefix(FileVariable, variablePrefix)}
	for _, name := range flagNames(known) {
		names = append(names, strings.TrimPrefix(VariableName(name), variablePrefix))
	}
	environment := os.Environ()
	slices.Sort(environment)
	for _, e := range environment {
		full, _, _ := strings.Cut(e, "=")
		name, ours := strings.CutPrefix(full, variablePrefix)
		if !ours || slices.Contains(names, name) {
			continue
		}
		near := strings.Replace(suggest.Near(name, names), `"`, `"`+variablePrefix, 1)
		fmt.Fprintf(stderr, "muster: warning: environment variable %s is no setting%s\n",
			terminal.Plain(full), near)
	}
}

// flagNames returns the names of flags, in order.
func flagNames(flags *pflag.FlagSet) []string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}
