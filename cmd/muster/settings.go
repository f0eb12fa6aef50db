package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/leader/match"
)

// A setting describes the installation rather than one call of a command, so
// that beside its flag it has an environment variable and a key in the config
// file. The flags' definitions below are the only list of them.
//
// A flag `--model-dir` is the variable MUSTER_MODEL_DIR and the key
// `model-dir`. The file is flat: settings of several commands stand side by
// side, and a name means the same in all of them.

const (
	configFlag        = "config"
	configVariable    = "MUSTER_CONFIG"
	defaultConfigFile = "muster.yaml"
	variablePrefix    = "MUSTER_"
	settingAnnotation = "muster_setting" // marks the flags that are settings
)

// agentSettings are the settings of `muster agent`.
type agentSettings struct {
	agent.Config
	traceSettings
	logFormat string
	logLevel  string
}

// add defines the settings on flags, with their defaults.
func (s *agentSettings) add(flags *pflag.FlagSet) {
	s.Config = agent.DefaultConfig()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	fs.StringVar(&s.HTTPAddress, "http", s.HTTPAddress, "address to serve REST on")
	fs.StringVar(&s.GRPCAddress, "grpc", s.GRPCAddress, "address to serve gRPC on")
	fs.StringVar(&s.MetricsAddress, "metrics", s.MetricsAddress,
		"address to serve Prometheus metrics on")
	fs.StringVar(&s.ModelDir, "model-dir", s.ModelDir, "directory of the models to serve")
	fs.StringVar(&s.StateDir, "state-dir", s.StateDir, "directory for what must outlive the agent")
	fs.IntVar(&s.Cores, "cores", s.Cores, "CPU cores to run queries on; 0 means all")
	fs.IntVar(&s.Lanes, "lanes", s.Lanes,
		"queries to run at once, each on its share of the cores; 0 means 1")
	fs.StringVar(&s.Executor, "executor", s.Executor,
		"what runs the models: "+strings.Join(agent.Executors(), ", ")+
			" (runs nothing, waits as long as --profile says)")
	fs.StringVar(&s.Profile, "profile", s.Profile,
		"latencies of the emulated executor: a file of profiles, or shipped")
	fs.StringVar(&s.ModelData, "model-data", s.ModelData,
		"where models' external data lies while they serve: "+
			strings.Join(agent.ModelDatas(), ", "))
	fs.StringVar(&s.Provider, "provider", s.Provider,
		"where models run: "+strings.Join(agent.Providers(), ", "))
	fs.StringVar(&s.ONNXRuntimeLib, "onnxruntime-lib", s.ONNXRuntimeLib,
		"ONNX Runtime library to load instead of the embedded one")
	fs.IntVar(&s.MaxWaitingQueries, "max-waiting-queries", s.MaxWaitingQueries,
		"queries that may wait; one more is refused")
	fs.Int64Var(&s.MaxWaitingBytes, "max-waiting-bytes", s.MaxWaitingBytes,
		"bytes of queries in the agent; beyond them a query is refused unread")
	fs.DurationVar(&s.LoadTimeout, "load-timeout", s.LoadTimeout,
		"time for a version to load and warm up, else it has failed")
	fs.IntVar(&s.Limits.Connections, "max-connections", s.Limits.Connections,
		"connections open at a time but for agents with certificates, one address at most 3/4; "+
			"0: no limit")
	fs.IntVar(&s.Limits.Calls, "max-calls", s.Limits.Calls,
		"gRPC calls but queries, streams too, open at a time but for such agents, one peer at "+
			"most 3/4; 0: no limit")
	fs.DurationVar(&s.DrainTimeout, "drain-timeout", s.DrainTimeout,
		"time for running queries to finish on SIGTERM")
	fs.StringSliceVar(&s.Join, "join", s.Join,
		"gossip addresses of agents of the fleet to join; none starts a fleet")
	fs.StringVar(&s.GossipAddress, "gossip", s.GossipAddress,
		"address to gossip with other agents on, TCP and UDP")
	fs.StringVar(&s.Advertise, "advertise", s.Advertise,
		"host, or host:port of gossip, by which others reach this agent")
	fs.StringVar(&s.GossipKey, "gossip-key", s.GossipKey,
		"key of the fleet: 32 bytes in base64, or a file with one a line")
	addIdentity(fs, &s.Security.CertFile, &s.Security.KeyFile, &s.Security.CAFile,
		&s.Security.CRLFile, &s.Insecure)
	fs.StringVar(&s.Security.ClientCAFile, "tls-client-ca", s.Security.ClientCAFile,
		"CA of clients' certificates, PEM (default that of --tls-ca)")
	fs.BoolVar(&s.Security.RequireClientCert, "require-client-cert", s.Security.RequireClientCert,
		"refuse connections without a client's certificate")
	fs.StringVar(&s.Security.APIKeysFile, "api-keys", s.Security.APIKeysFile,
		"file with the API keys of clients, lines of `name: key`")
	fs.StringVar(&s.Security.AccessFile, "access", s.Security.AccessFile,
		"YAML file that says what each client may do, and how much")
	fs.StringVar(&s.Leader, "leader", s.Leader,
		"whether this agent leads the fleet: "+strings.Join(agent.Roles(), ", ")+" (comes first)")
	fs.StringVar(&s.Policy, "policy", s.Policy,
		"how the leader distributes queries: "+strings.Join(match.Policies(), ", "))
	fs.StringVar(&s.Record, "record", s.Record, "file for the leader's events and decisions")
	fs.StringVar(&s.InstanceType, "instance-type", s.InstanceType,
		"what this machine is (default: what EC2 says, else its CPU and cores)")
	fs.StringVar(&s.Catalogue, "catalogue", s.Catalogue,
		"YAML file with instance types and prices beside the built-in ones")
	fs.BoolVar(&s.Pprof, "pprof", s.Pprof, "serve Go's profiles on the metrics address")
	fs.StringVar(&s.logFormat, "log-format", "text", "log format: text, json")
	fs.StringVar(&s.logLevel, "log-level", "info", "least level to log: debug, info, warn, error")
	addSettings(flags, fs)
	s.traceSettings.add(flags)
}

// validate reports all faults at once.
func (s *agentSettings) validate() error {
	_, err := s.logHandler(nil)
	return errors.Join(s.Config.Validate(), s.traceSettings.validate(), err)
}

// addIdentity defines the settings that agents and clients have in common: how
// a process proves who it is, and whom it believes.
func addIdentity(fs *pflag.FlagSet, cert, key, ca, crl *string, insecure *bool) {
	fs.StringVar(cert, "tls-cert", *cert, "own certificate, PEM")
	fs.StringVar(key, "tls-key", *key, "private key of the own certificate, PEM")
	fs.StringVar(ca, "tls-ca", *ca, "CA of the fleet's certificates, PEM")
	fs.StringVar(crl, "tls-crl", *crl,
		"revocation lists of the CAs, PEM: certificates in them are not believed")
	fs.BoolVar(insecure, "insecure", *insecure,
		"allow to do without TLS, and without a key of gossip, where others can reach it")
}

// clientSettings are the settings of the commands that talk to agents.
type clientSettings struct {
	servers []string // gRPC addresses
	secure.ClientConfig
}

// add defines the settings on flags, with their defaults.
func (s *clientSettings) add(flags *pflag.FlagSet) {
	fs := pflag.NewFlagSet("client", pflag.ContinueOnError)
	fs.StringSliceVar(&s.servers, "server", []string{agent.DefaultConfig().GRPCAddress},
		"gRPC addresses of agents")
	addIdentity(fs, &s.CertFile, &s.KeyFile, &s.CAFile, &s.CRLFile, &s.Insecure)
	fs.StringVar(&s.APIKey, "api-key", s.APIKey,
		"API key to call with; better given by the environment, where fewer see it")
	addSettings(flags, fs)
}

// open makes a client of the servers. What is amiss with its certificates later
// is told to stderr.
func (s *clientSettings) open(stderr io.Writer) (*client.Client, error) {
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	return client.New(s.servers, client.WithDialOptions(options...))
}

// dialOptions are what a connection needs. What is amiss with certificates later
// is told to stderr.
func (s *clientSettings) dialOptions(stderr io.Writer) ([]grpc.DialOption, error) {
	return s.DialOptions(warnings(stderr))
}

// warnings is the log of a command that prints something else.
func warnings(stderr io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// addSettings adds the flags of fs to flags and marks them as settings. One that
// is there already is the same setting, of another command.
func addSettings(flags, fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) != nil {
			return
		}
		f.Annotations = map[string][]string{settingAnnotation: {"true"}}
		f.Usage += " [" + variable(f.Name) + "]"
		flags.AddFlag(f)
	})
}

// allSettings are the flags of every setting there is.
func allSettings() *pflag.FlagSet {
	fs := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	new(agentSettings).add(fs)
	new(clientSettings).add(fs)
	return fs
}

// variable is the environment variable of a setting.
func variable(setting string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// applySettings fills in the settings of cmd that its command line does not
// give, from the environment and the config file.
func applySettings(cmd *cobra.Command, _ []string) error {
	_, err := resolveSettings(cmd)
	return err
}

// resolveSettings does what applySettings does and returns where each setting
// came from: "flag --http", "MUSTER_HTTP", "muster.yaml:3", or "default".
func resolveSettings(cmd *cobra.Command) (origins map[string]string, err error) {
	origins = map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[settingAnnotation] == nil {
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
	// nil if something stronger gave it, or cmd has no such setting
	flagOf := func(name string) *pflag.Flag {
		if origins[name] != "default" {
			return nil
		}
		return cmd.Flags().Lookup(name)
	}

	var faults []error
	known := allSettings()
	known.VisitAll(func(f *pflag.Flag) {
		// An empty variable counts as unset: compose files and unit files
		// pass those for what nobody chose.
		value := os.Getenv(variable(f.Name))
		own := flagOf(f.Name)
		if value == "" || own == nil {
			return
		}
		if err := setFlag(own, []string{value}); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", variable(f.Name), err))
		}
		origins[f.Name] = variable(f.Name)
	})
	for _, name := range unknownVariables(os.Environ(), known) {
		// No error: a container platform sets variables of its own for a
		// service that is named muster (MUSTER_SERVICE_HOST).
		fmt.Fprintf(cmd.ErrOrStderr(), "muster: warning: environment variable %s is no setting%s\n",
			name, didYouMean(name, append(variables(known), configVariable)))
	}

	file, err := findConfigFile(cmd)
	if err != nil {
		return nil, errors.Join(append(faults, err)...)
	}
	if file != "" {
		entries, err := readConfigFile(file, known)
		if err != nil {
			faults = append(faults, err)
		}
		for _, e := range entries {
			own := flagOf(e.key)
			if own == nil {
				continue
			}
			if err := setFlag(own, e.values); err != nil {
				faults = append(faults, fmt.Errorf("%s: %s: %w", e.position, e.key, err))
			}
			origins[e.key] = e.position
		}
	}
	return origins, errors.Join(faults...)
}

// findConfigFile is the path of the config file, "" if there is none.
func findConfigFile(cmd *cobra.Command) (string, error) {
	if path, err := cmd.Flags().GetString(configFlag); err == nil && path != "" {
		return path, nil
	}
	if path := os.Getenv(configVariable); path != "" {
		return path, nil
	}
	if _, err := os.Stat(defaultConfigFile); errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("look for a config file: %w", err)
	}
	return defaultConfigFile, nil
}

// A configEntry is one setting in a config file.
type configEntry struct {
	key      string
	values   []string // one, unless the file has a list
	position string   // "muster.yaml:3"
}

// readConfigFile reads the settings in the file. It returns those it could read
// together with all the faults of the others.
func readConfigFile(path string, known *pflag.FlagSet) ([]configEntry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read config file: %w", err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if document.Kind == 0 || document.Content[0].Tag == "!!null" { // empty, or comments alone
		return nil, nil
	}
	root := document.Content[0]
	at := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", path, n.Line) }
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: want lines of `setting: value`", at(root))
	}

	var entries []configEntry
	var faults []error
	first := map[string]*yaml.Node{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		values, ok := scalars(value)
		switch f := known.Lookup(key.Value); {
		case f == nil:
			faults = append(faults,
				fmt.Errorf("%s: unknown setting %q%s", at(key), key.Value,
					didYouMean(key.Value, flagNames(known))))
		case first[key.Value] != nil:
			faults = append(faults,
				fmt.Errorf("%s: %s is set before, at line %d", at(key), key.Value,
					first[key.Value].Line))
		case !ok:
			faults = append(faults,
				fmt.Errorf("%s: %s: want a %s", at(key), key.Value, f.Value.Type()))
		default:
			entries = append(entries, configEntry{
				key: key.Value, values: values, position: at(key),
			})
		}
		if first[key.Value] == nil {
			first[key.Value] = key
		}
	}
	return entries, errors.Join(faults...)
}

// scalars are the values of a scalar, or of a list of scalars.
func scalars(n *yaml.Node) ([]string, bool) {
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

// setFlag gives f its value, or values if f is a list.
func setFlag(f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok && len(values) != 1 {
		return list.Replace(values)
	}
	if len(values) != 1 {
		return fmt.Errorf("got %d values, want one %s", len(values), f.Value.Type())
	}
	if err := f.Value.Set(values[0]); err != nil {
		return fmt.Errorf("%q is no %s", values[0], f.Value.Type())
	}
	return nil
}

// unknownVariables are the names in environ that look like settings and are none.
func unknownVariables(environ []string, known *pflag.FlagSet) []string {
	var unknown []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, variablePrefix) && name != configVariable &&
			!slices.Contains(variables(known), name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

func flagNames(flags *pflag.FlagSet) []string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

func variables(settings *pflag.FlagSet) []string {
	variables := flagNames(settings)
	for i, name := range variables {
		variables[i] = variable(name)
	}
	return variables
}

// didYouMean names the candidate nearest to name: `; did you mean "http"?`.
// Empty if none is near.
func didYouMean(name string, candidates []string) string {
	nearest := slices.MinFunc(candidates, func(a, b string) int {
		return cmp.Compare(levenshtein.Distance(name, a, nil), levenshtein.Distance(name, b, nil))
	})
	if levenshtein.Distance(name, nearest, nil) > max(2, len(name)/3) {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}
