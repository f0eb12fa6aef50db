package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-serve/muster/api/document"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/cloud/policy"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/models"
)

func newConfigReferenceCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reference",
		Short: "Print all settings, flags, variables and keys of files",
		Long: `Print, as Markdown, what can be configured: settings, the other flags of all
commands, environment variables, and the keys of model.yaml, fleet.yaml and the
access file, each with its values, its default and its meaning.`,
		Example: `  muster config reference > configuration.md`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeReference(cmd.OutOrStdout(), cmd.Root())
		},
	}
}

// otherVariables are the environment variables that no setting has, and those of libraries that
// people need.
var otherVariables = [][2]string{
	{"AWS_*", "region, credentials and profile for `s3://` and EC2, as the AWS SDK reads them."},
	{"AZURE_STORAGE_ACCOUNT", "the account of a store `azblob://`."},
	{"AZURE_STORAGE_CONNECTION_STRING", "account, key and address of a store `azblob://` in one."},
	{"AZURE_STORAGEBLOB_CONNECTIONSTRING", "the same, under its other name."},
	{"AZURE_STORAGE_DOMAIN", "the domain of the blob service; default `blob.core.windows.net`."},
	{"AZURE_STORAGE_IS_CDN", "`true` if the domain is that of a content delivery network."},
	{"AZURE_STORAGE_IS_LOCAL_EMULATOR", "`true` if the domain is an emulator's, such as Azurite's."},
	{"AZURE_STORAGE_KEY", "the account's key. Without one, the machine's identity counts."},
	{"AZURE_STORAGE_PROTOCOL", "`https` or `http`, for `azblob://`."},
	{"AZURE_STORAGE_SAS_TOKEN", "a token in place of the account's key."},
	{"CUDA_VISIBLE_DEVICES", "the cards that CUDA sees; the first counts where `--gpu` is not given."},
	{"GOMAXPROCS", "how many threads run Go at a time; by default the agent chooses."},
	{"GOMEMLIMIT", "Go's memory limit; by default what the cgroup's limit leaves beside the models."},
	{"GOOGLE_APPLICATION_CREDENTIALS", "the file of credentials for `gs://`."},
	{"HTTPS_PROXY", "the proxy for a store; `HTTP_PROXY` and `NO_PROXY` count too."},
	{"KUBERNETES_SERVICE_HOST", "set in each pod: the agent asks no metadata service there, and its " +
		"provider `kubernetes` this API server."},
	{"KUBERNETES_SERVICE_PORT", "the API server's port."},
	{settings.FileVariable, "the path of the config file, where `--config` does not give it."},
	{"OTEL_EXPORTER_OTLP_ENDPOINT", "the receiver of [spans](tracing.md); by default " +
		"`http://localhost:4318`, with `grpc` 4317."},
	{"OTEL_EXPORTER_OTLP_PROTOCOL", "`http/protobuf`, the default, or `grpc`."},
	{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "the receiver, for a process that also exports more."},
	{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "its protocol."},
	{"OTEL_RESOURCE_ATTRIBUTES", "more attributes; `service.instance.id` is the agent's name."},
	{"OTEL_SDK_DISABLED", "`true` turns tracing off."},
	{"OTEL_SERVICE_NAME", "the service's name in spans; by default `muster`."},
	{"OTEL_TRACES_EXPORTER", "the default of `--traces`."},
	{"OTEL_TRACES_SAMPLER", "which queries are traced, with `OTEL_TRACES_SAMPLER_ARG`; by default " +
		"all."},
	{"PATH", "folders in which `muster-ec2` is looked for, if it is not beside `muster`."},
	{"STORAGE_EMULATOR_HOST", "the address of an emulator of Google's store, for `gs://`."},
}

// writeReference writes docs/configuration.md: what the flags of root and the readers of files say
// of themselves.
func writeReference(w io.Writer, root *cobra.Command) error {
	r := referencePage{}
	r.line("<!-- Made by `muster config reference`: change the code, then run make reference. -->")
	r.heading("#", "Configuration")
	r.paragraph("This page is made from the code. It has the [settings](#settings), the other " +
		"[flags of each command](#commands), [environment variables](#environment-variables), and " +
		"the keys of [model.yaml](#modelyaml), [fleet.yaml](#fleetyaml) and the [access " +
		"file](#access-file). Each entry says which values there are, the default and the meaning.")
	r.heading("##", "Settings")
	r.paragraph("A setting describes an installation. It is a flag (`--model-dir`), an environment " +
		"variable (`MUSTER_MODEL_DIR`) or a key of the config file (`model-dir: ...`): the file that " +
		"`--config` or `" + settings.FileVariable + "` names, else `./" + settings.DefaultFile +
		"` if it exists. A flag overrides the variable, and the variable the file. The file is " +
		"flat, and may have settings of several commands. `muster config print` shows the value of " +
		"each setting and where it came from; `muster config check FILE` finds faults.")
	r.flags(allSettings())
	r.line("")
	r.paragraph("The client's settings, of the commands that call agents, are " +
		strings.Join(flagNames(clientFlags()), ", ") + ".")
	r.heading("##", "Commands")
	r.paragraph("Each command also has `--help` and `--config`.")
	r.command(root)
	r.heading("##", "Environment variables")
	r.paragraph("Beside those of settings:")
	for _, v := range otherVariables {
		r.entry(v[0], "", "", v[1])
	}
	for _, file := range []struct {
		title, about string
		keys         []document.Key
	}{
		{"model.yaml", "Lies beside the versions of a model ([model repository]" +
			"(model-repository.md#modelyaml)). Every key is optional.", models.ConfigKeys()},
		{"fleet.yaml", "Given by `--rent` ([rent machines](rent.md#fleetyaml)).", policy.Keys()},
		{"Access file", "Given by `--access` ([security](security.md#rights)).",
			secure.AccessKeys()},
	} {
		r.heading("##", file.title)
		r.paragraph(file.about)
		r.keys("", file.keys)
	}
	_, err := w.Write(r.Bytes())
	return err
}

// A referencePage is Markdown that grows.
type referencePage struct{ bytes.Buffer }

func (r *referencePage) line(text string) { fmt.Fprintln(r, text) }

func (r *referencePage) heading(level, text string) {
	if !bytes.HasSuffix(r.Bytes(), []byte("\n\n")) { // behind a list
		r.line("")
	}
	fmt.Fprintf(r, "%s %s\n\n", level, text)
}

func (r *referencePage) paragraph(text string) {
	fmt.Fprintf(r, "%s\n\n", strings.Join(wrap(text), "\n"))
}

// entry writes an item: a name with its values and its default, and what it means.
func (r *referencePage) entry(name, values, preset, meaning string) {
	text := "`" + name + "`"
	if preset != "" {
		preset = "default " + preset
	}
	if both := strings.Trim(values+"; "+preset, "; "); both != "" {
		text += " (" + both + ")"
	}
	r.item(text + ": " + strings.TrimSuffix(meaning, ".") + ".")
}

func (r *referencePage) item(text string) {
	fmt.Fprintf(r, "- %s\n", strings.Join(wrap(text), "\n  "))
}

// flags writes an item for each flag.
func (r *referencePage) flags(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" || f.Name == "help" || f.Name == "version" {
			return
		}
		_, usage := pflag.UnquoteUsage(f)
		values := strings.TrimPrefix(settings.DescribeValue(f), "a ")
		if settings.IsSetting(f) {
			usage = strings.TrimSuffix(usage, " ["+settings.VariableName(f.Name)+"]")
			values = "`" + settings.VariableName(f.Name) + "`; " + values
		}
		r.entry("--"+f.Name, values, presetOf(f), escape(usage))
	})
}

// presetOf is a flag's default; "" if it is to have no value.
func presetOf(f *pflag.Flag) string {
	preset := f.DefValue
	if _, isList := f.Value.(pflag.SliceValue); isList {
		preset = strings.Trim(preset, "[]")
	}
	if preset == "" {
		return ""
	}
	return "`" + preset + "`"
}

// command writes the flags of cmd and of its subcommands, and the names of their settings.
func (r *referencePage) command(cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	own := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	shared := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if settings.IsSetting(f) {
			shared.AddFlag(f)
		} else if f.Name != "help" && f.Name != "version" {
			own.AddFlag(f)
		}
	})
	if cmd.Runnable() && (own.HasFlags() || shared.HasFlags()) {
		r.heading("###", cmd.CommandPath())
		r.paragraph(escape(cmd.Short) + ".")
		r.flags(own)
		r.settings(shared)
	}
	for _, child := range cmd.Commands() {
		r.command(child)
	}
}

// settings writes which settings a command has.
func (r *referencePage) settings(shared *pflag.FlagSet) {
	missing, further := without(allSettings(), shared), without(shared, clientFlags())
	switch isClient := without(clientFlags(), shared) == nil; {
	case !shared.HasFlags():
	case missing == nil:
		r.item("All [settings](#settings).")
	case len(missing) < len(flagNames(shared)):
		r.item("All [settings](#settings) but " + strings.Join(missing, ", ") + ".")
	case isClient && further == nil:
		r.item("The [client's settings](#settings).")
	case isClient:
		r.item("The [client's settings](#settings), and " + strings.Join(further, ", ") + ".")
	default:
		r.item("The [settings](#settings) " + strings.Join(flagNames(shared), ", ") + ".")
	}
}

// clientFlags are the settings of commands that call agents.
func clientFlags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("client", pflag.ContinueOnError)
	new(clientSettings).add(flags)
	return flags
}

// flagNames are the names of flags as code.
func flagNames(flags *pflag.FlagSet) []string {
	return without(flags, pflag.NewFlagSet("none", pflag.ContinueOnError))
}

// without are the names, as code, of flags that others do not have.
func without(flags, others *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if others.Lookup(f.Name) == nil {
			names = append(names, "`--"+f.Name+"`")
		}
	})
	return names
}

// keys writes an item for each key of a file, and for the keys of its value. where is in front of
// their names.
func (r *referencePage) keys(where string, keys []document.Key) {
	for _, k := range keys {
		r.entry(where+k.Name, k.Type, k.Default, k.Meaning)
		r.keys(where+k.Name+k.Of+".", k.Keys)
	}
}

var (
	flagInText = regexp.MustCompile(`(^|[\s("])(--[a-z][a-z0-9-]*)`)
	// A span is a word of a line, or code, which is not broken.
	span = regexp.MustCompile("[^\\s`]*(?:`[^`]*`[^\\s`]*)+|\\S+")
)

// escape makes Markdown of the usage of a flag.
func escape(usage string) string {
	usage = strings.NewReplacer("*", `\*`, "<", `\<`, "_", `\_`).Replace(usage)
	return flagInText.ReplaceAllString(usage, "$1`$2`")
}

// wrap breaks a text into lines of at most 98 characters, which leaves room for an indent of 2.
func wrap(text string) (lines []string) {
	const width = 98
	for _, word := range span.FindAllString(text, -1) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
