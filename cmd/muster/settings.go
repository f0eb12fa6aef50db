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

// A setting is a flag that describes the installation rather than one call of a command. It can
// also be given as an environment variable and as a key in the config file: the flag --model-dir as
// MUSTER_MODEL_DIR and as `model-dir`. The definitions of the flags below are the only list of
// settings.
//
// The config file is flat. It may hold settings of several commands; a name means the same
// in all of them.

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
	fs.StringVar(&s.StateDir, "state-dir", s.StateDir,
		"directory for what the agent keeps across restarts, such as learned profiles")
	fs.IntVar(&s.Cores, "cores", s.Cores, "CPU cores to run queries on; 0 means all")
	fs.IntVar(&s.Lanes, "lanes", s.Lanes,
		"lanes, each running one query at a time on its share of the cores; 0 means 1")
	fs.StringVar(&s.Executor, "executor", s.Executor,
		"what runs the models: "+strings.Join(agent.Executors(), ", ")+
			" (runs no model, only waits for the latency that --profile gives)")
	fs.StringVar(&s.Profile, "profile", s.Profile,
		"latencies of the emulated executor: a file of profiles, or \"shipped\" for the built-in "+
			"ones")
	fs.StringVar(&s.ModelData, "model-data", s.ModelData,
		"how a model's external data is loaded: "+strings.Join(agent.ModelDatas(), ", "))
	fs.StringVar(&s.Provider, "provider", s.Provider,
		"ONNX Runtime execution provider: "+strings.Join(agent.Providers(), ", "))
	fs.StringVar(&s.ONNXRuntimeLib, "onnxruntime-lib", s.ONNXRuntimeLib,
		"ONNX Runtime library to load instead of the embedded one")
	fs.IntVar(&s.MaxWaitingQueries, "max-waiting-queries", s.MaxWaitingQueries,
		"queries that may wait in the agent; more are refused")
	fs.Int64Var(&s.MaxWaitingBytes, "max-waiting-bytes", s.MaxWaitingBytes,
		"bytes of queries that the agent may hold; more queries are refused unread")
	fs.DurationVar(&s.LoadTimeout, "load-timeout", s.LoadTimeout,
		"time after which the load and warm-up of a model version has failed")
	fs.IntVar(&s.Limits.Connections, "max-connections", s.Limits.Connections,
		"most open connections, not counting agents with certificates; one address may have 3/4 "+
			"of them; 0: no limit")
	fs.IntVar(&s.Limits.Calls, "max-calls", s.Limits.Calls,
		"most open gRPC calls and streams, not counting queries and agents with certificates; "+
			"one peer may have 3/4 of them; 0: no limit")
	fs.DurationVar(&s.DrainTimeout, "drain-timeout", s.DrainTimeout,
		"longest time that a draining agent waits for its queries to finish")
	fs.StringSliceVar(&s.Join, "join", s.Join,
		"gossip addresses of agents of the fleet to join; without any the agent starts a new fleet")
	fs.StringVar(&s.GossipAddress, "gossip", s.GossipAddress,
		"address to gossip with other agents on, TCP and UDP")
	fs.StringVar(&s.Advertise, "advertise", s.Advertise,
		"host, or host:port for gossip, at which other agents reach this one")
	fs.StringVar(&s.GossipKey, "gossip-key", s.GossipKey,
		"gossip key of the fleet: 32 bytes in base64, or a file with one key per line")
	addIdentity(fs, &s.Security.CertFile, &s.Security.KeyFile, &s.Security.CAFile,
		&s.Security.CRLFile, &s.Insecure)
	fs.StringVar(&s.Security.ClientCAFile, "tls-client-ca", s.Security.ClientCAFile,
		"PEM file with the CA of clients' certificates (default: that of --tls-ca)")
	fs.BoolVar(&s.Security.RequireClientCert, "require-client-cert", s.Security.RequireClientCert,
		"refuse connections without a client's certificate")
	fs.StringVar(&s.Security.APIKeysFile, "api-keys", s.Security.APIKeysFile,
		"`file` with the API keys of clients, one \"name: key\" per line")
	fs.StringVar(&s.Security.AccessFile, "access", s.Security.AccessFile,
		"YAML file with the models, calls and rates that each client is allowed")
	fs.StringVar(&s.Leader, "leader", s.Leader,
		"whether this agent may lead the fleet: "+strings.Join(agent.Roles(), ", ")+
			" (is preferred to agents with \"may\")")
	fs.StringVar(&s.Policy, "policy", s.Policy,
		"how the leader distributes queries: "+strings.Join(match.Policies(), ", "))
	fs.StringVar(&s.Record, "record", s.Record,
		"file to write the leader's events and decisions to, for \"muster sim replay\"")
	fs.StringVar(&s.InstanceType, "instance-type", s.InstanceType,
		"instance type of this machine (default: the one EC2 reports, else its CPU and cores)")
	fs.StringVar(&s.Catalogue, "catalogue", s.Catalogue,
		"YAML file with more instance types and prices than the built-in ones")
	fs.BoolVar(&s.Pprof, "pprof", s.Pprof, "serve Go's profiles on the metrics address")
	fs.StringVar(&s.logFormat, "log-format", "text", "log format: text, json")
	fs.StringVar(&s.logLevel, "log-level", "info", "lowest level to log: debug, info, warn, error")
	addSettings(flags, fs)
	s.traceSettings.add(flags)
}

// validate reports all faults at once.
func (s *agentSettings) validate() error {
	_, err := s.logHandler(nil)
	return errors.Join(s.Config.Validate(), s.traceSettings.validate(), err)
}

// addIdentity defines the settings that agents and clients share: the certificate with which a
// process proves its identity, and the CA whose certificates it accepts.
func addIdentity(fs *pflag.FlagSet, cert, key, ca, crl *string, insecure *bool) {
	fs.StringVar(cert, "tls-cert", *cert, "PEM file with this process's certificate")
	fs.StringVar(key, "tls-key", *key, "PEM file with the private key of --tls-cert")
	fs.StringVar(ca, "tls-ca", *ca, "PEM file with the CA of the fleet's certificates")
	fs.StringVar(crl, "tls-crl", *crl,
		"PEM file with revocation lists of the CAs; revoked certificates are refused")
	fs.BoolVar(insecure, "insecure", *insecure,
		"allow addresses beyond this machine without TLS and without a gossip key")
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
		"API key to send with calls; other users can see flags, so prefer the environment")
	addSettings(flags, fs)
}

// open makes a client of the servers; the caller closes it. Problems with certificates that appear
// later, such as a file that cannot be read again, are written to stderr.
func (s *clientSettings) open(stderr io.Writer) (*client.Client, error) {
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	return client.New(s.servers, client.WithDialOptions(options...))
}

// dialOptions returns the gRPC options for TLS and the API key. Problems with certificates that
// appear later are written to stderr.
func (s *clientSettings) dialOptions(stderr io.Writer) ([]grpc.DialOption, error) {
	return s.DialOptions(warnings(stderr))
}

// warnings returns the logger of a command that does not log otherwise: it writes warnings and
// errors to stderr.
func warnings(stderr io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// addSettings adds the flags of fs to flags and marks them as settings. It skips a flag whose name
// flags has already: a name means the same setting everywhere.
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

// allSettings returns the flags of all settings, with their defaults.
func allSettings() *pflag.FlagSet {
	fs := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	new(agentSettings).add(fs)
	new(clientSettings).add(fs)
	return fs
}

// variable returns the name of a setting's environment variable.
func variable(setting string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// applySettings sets the settings of cmd that its command line does not give, from the environment
// and the config file. It reports all faults at once.
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
	// flagOf returns the flag of a setting that still has its default; nil if a flag or variable
	// has set it, or cmd has no such setting.
	flagOf := func(name string) *pflag.Flag {
		if origins[name] != "default" {
			return nil
		}
		return cmd.Flags().Lookup(name)
	}

	var faults []error
	known := allSettings()
	known.VisitAll(func(f *pflag.Flag) {
		// An empty variable counts as unset: compose files and systemd units pass empty variables
		// for settings that the user did not choose.
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
		// This is not an error: Kubernetes sets variables such as MUSTER_SERVICE_HOST for a
		// service with the name muster.
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

// findConfigFile returns the path of the config file: --config, else MUSTER_CONFIG, else
// muster.yaml in the working directory if it exists, else "".
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

// readConfigFile reads the settings in the file at path. known has every setting that the file may
// hold. It returns the settings that it could read, and one error with all faults of the others.
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
				fmt.Errorf("%s: %s is already set, at line %d", at(key), key.Value,
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

// scalars returns the values of a scalar, or of a list of scalars; false for any other node.
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

// setFlag sets f to the values. Only a list accepts another number of values than one.
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

// unknownVariables returns the names in environ, in order, that begin with MUSTER_ but belong to no
// setting.
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

// flagNames returns the names of flags, in order.
func flagNames(flags *pflag.FlagSet) []string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// variables returns the environment variables of settings.
func variables(settings *pflag.FlagSet) []string {
	variables := flagNames(settings)
	for i, name := range variables {
		variables[i] = variable(name)
	}
	return variables
}

// didYouMean suggests the candidate with the least edit distance to name: `; did you mean "http"?`.
// It returns "" if none is close.
func didYouMean(name string, candidates []string) string {
	nearest := slices.MinFunc(candidates, func(a, b string) int {
		return cmp.Compare(levenshtein.Distance(name, a, nil), levenshtein.Distance(name, b, nil))
	})
	if levenshtein.Distance(name, nearest, nil) > max(2, len(name)/3) {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}
