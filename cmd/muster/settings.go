package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/models/store/remote"
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
	fs.StringVar(&s.ProbeAddress, "probe", s.ProbeAddress,
		"address to answer probes on, without TLS: live, ready, and nothing else (default: none)")
	fs.StringVar(&s.ModelDir, "model-dir", s.ModelDir, "directory of the models to serve")
	fs.StringVar(&s.ModelStore, "model-store", s.ModelStore,
		"URL of a model store, such as s3://bucket/prefix, whose models are fetched into "+
			"--model-dir")
	lists.Var(fs, &s.StoreModels, "store-models", s.StoreModels,
		"models to fetch from the store (default: all)")
	fs.Int64Var(&s.ModelCacheSize, "model-cache-size", s.ModelCacheSize,
		"bytes that files of the store may take in --model-dir; 0: 80 % of its file system")
	fs.Int64Var(&s.StoreRate, "model-store-rate", s.StoreRate,
		"maximum bytes a second to receive from the store and other agents; 0: no limit")
	fs.DurationVar(&s.StorePoll, "model-store-poll", s.StorePoll,
		"time between two polls of the store")
	fs.StringVar(&s.RequireSignature, "require-signature", s.RequireSignature,
		"`file` of minisign public keys, one of which must have signed each version and release of "+
			"the store")
	fs.StringVar(&s.FleetName, "fleet-name", s.FleetName,
		"`name` for which the store's releases must be signed (default: the URL of --model-store, "+
			"without parameters)")
	fs.StringVar(&s.StateDir, "state-dir", s.StateDir,
		"directory for what the agent keeps across restarts, such as learned profiles")
	fs.IntVar(&s.Cores, "cores", s.Cores,
		"CPU cores to run queries on; 0 means all that affinity and CPU quota leave the process")
	fs.IntVar(&s.Lanes, "lanes", s.Lanes,
		"lanes, each running one query at a time on its share of the cores; 0 means 1")
	fs.StringVar(&s.Layout, "layout", s.Layout,
		"lanes for each model, pinned to cores of their own, such as rm2:2x1+wnd:1x1 (2 lanes of 1 "+
			"core and 1 of 1); the agent serves no other models. With --model-control leader the "+
			"leader moves lanes between the models")
	fs.StringVar(&s.Sharing, "sharing", s.Sharing,
		"file of muster profile --pairs: how much models on one machine slow each other down, "+
			"until agents have learned it")
	fs.StringVar(&s.Executor, "executor", s.Executor,
		"what runs the models: "+strings.Join(agent.Executors(), ", ")+
			" (runs no model, only waits for the latency that --profile gives)")
	fs.StringVar(&s.Profile, "profile", s.Profile,
		"latencies of the emulated executor: a file of profiles, or \"shipped\" for the built-in "+
			"ones")
	fs.StringVar(&s.ModelData, "model-data", s.ModelData,
		"how a model's external data is loaded: "+strings.Join(agent.ModelDatas(), ", "))
	fs.StringVar(&s.Kernels, "kernels", s.Kernels,
		"whether lookups in embedding tables run as Muster's own operators: "+
			strings.Join(agent.KernelSwitch(), ", "))
	fs.StringVar(&s.ModelControl, "model-control", s.ModelControl,
		"when models load: poll (at start, and when their files change), explicit (by calls) or "+
			"leader (when the leader places them here)")
	fs.Int64Var(&s.ModelMemory, "model-memory", s.ModelMemory,
		"bytes that models may take in all, with --model-control leader; 0 means what the agent "+
			"may use")
	fs.StringVar(&s.Provider, "provider", s.Provider,
		"ONNX Runtime execution provider: "+strings.Join(agent.Providers(), ", "))
	fs.StringVar(&s.GPU, "gpu", s.GPU,
		"card, or MIG slice of one, to run models on: its number or its UUID (default: the first)")
	fs.Int64Var(&s.GPUMemory, "gpu-memory", s.GPUMemory,
		"bytes of the card's memory that each model may take for its tensors; 0: no limit")
	fs.StringVar(&s.ONNXRuntimeLib, "onnxruntime-lib", s.ONNXRuntimeLib,
		"ONNX Runtime library to load instead of the embedded one or that of muster-cuda")
	fs.IntVar(&s.MaxWaitingQueries, "max-waiting-queries", s.MaxWaitingQueries,
		"queries that may wait in the agent; more are refused")
	fs.Int64Var(&s.MaxWaitingBytes, "max-waiting-bytes", s.MaxWaitingBytes,
		"bytes of queries that the agent may hold; more queries are refused unread")
	fs.DurationVar(&s.LoadTimeout, "load-timeout", s.LoadTimeout,
		"time after which the load and warm-up of a model version has failed")
	fs.IntVar(&s.Limits.Connections, "max-connections", s.Limits.Connections,
		"maximum number of open connections, not counting agents with certificates; one address may have 3/4 "+
			"of them; 0: no limit")
	fs.IntVar(&s.Limits.Calls, "max-calls", s.Limits.Calls,
		"maximum number of open gRPC calls and streams, not counting queries and agents with certificates; "+
			"one peer may have 3/4 of them; 0: no limit")
	fs.DurationVar(&s.DrainTimeout, "drain-timeout", s.DrainTimeout,
		"longest time that a draining agent waits for its queries to finish")
	fs.DurationVar(&s.DrainDelay, "drain-delay", s.DrainDelay,
		"time that an agent goes on taking queries, and is not ready, before it drains")
	lists.Var(fs, &s.Join, "join", s.Join,
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
	fs.StringVar(&s.Rent, "rent", s.Rent,
		"fleet.yaml by which this agent, while it leads, rents and returns machines")
	fs.StringVar(&s.Rented, "rented", s.Rented,
		"\"`id slot zone`\" of this machine, as its provider names it; \"ec2\": ask EC2, as "+
			"without --instance-type")
	fs.StringVar(&s.Policy, "policy", s.Policy,
		"how the leader distributes queries: "+strings.Join(match.Policies(), ", "))
	fs.StringVar(&s.Record, "record", s.Record,
		"file to write the leader's events and decisions to, for \"muster sim replay\"")
	fs.StringVar(&s.Name, "name", s.Name,
		"name by which people know this agent (default: the one of before, else the host's)")
	fs.Float64Var(&s.Price, "price", s.Price,
		"price of this machine in USD per hour; 0: that of its instance type in the catalogue")
	fs.StringVar(&s.InstanceType, "instance-type", s.InstanceType,
		"instance type of this machine (default: the one EC2 reports, else its CPU and cores)")
	fs.StringVar(&s.Catalogue, "catalogue", s.Catalogue,
		"YAML file with more instance types and prices than the built-in ones")
	fs.BoolVar(&s.Dashboard, "dashboard", s.Dashboard,
		"serve a page that shows the fleet, under /dashboard/ on the address of --http")
	fs.BoolVar(&s.Pprof, "pprof", s.Pprof, "serve Go's profiles on the metrics address")
	fs.StringVar(&s.SlowLog, "slow-log", s.SlowLog,
		"`file` to log queries in that were late, refused or failed, as JSON: a sample, with causes")
	fs.StringVar(&s.Capture, "capture", s.Capture,
		"folder, or URL of a bucket, to keep queries in with their answers, of models whose model.yaml "+
			"has capture")
	fs.Int64Var(&s.CaptureBytes, "capture-bytes", s.CaptureBytes,
		"most bytes that the folder of --capture holds, or that go to its bucket in a day")
	fs.StringVar(&s.CaptureKeyFile, "capture-key", s.CaptureKeyFile,
		"`file` with the key of hashes in captures (default: a random key for each start)")
	fs.StringVar(&s.logFormat, "log-format", "text", "log format: text, json")
	fs.StringVar(&s.logLevel, "log-level", "info", "lowest level to log: debug, info, warn, error")
	settings.Add(flags, fs)
	s.traceSettings.add(flags)
}

// validate reports all faults at once.
func (s *agentSettings) validate() error {
	_, err := s.logHandler(nil)
	if s.ModelStore != "" {
		if bad := remote.Check(s.ModelStore); bad != nil {
			err = errors.Join(err, fmt.Errorf("model-store: %w", bad))
		}
	}
	if strings.Contains(s.Capture, "://") {
		if bad := remote.CheckBucket(s.Capture); bad != nil {
			err = errors.Join(err, fmt.Errorf("capture: %w", bad))
		}
	}
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
	lists.Var(fs, &s.servers, "server", []string{agent.DefaultConfig().GRPCAddress},
		"gRPC addresses of agents")
	addIdentity(fs, &s.CertFile, &s.KeyFile, &s.CAFile, &s.CRLFile, &s.Insecure)
	fs.StringVar(&s.APIKey, "api-key", s.APIKey,
		"API key to send with calls; other users can see flags, so prefer the environment")
	settings.Add(flags, fs)
}

// open makes a client of the servers; the caller closes it. Problems with certificates that appear
// later, such as a file that cannot be read again, are written to stderr.
func (s *clientSettings) open(stderr io.Writer) (*client.Client, error) {
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	c, err := client.New(s.servers, client.WithDialOptions(options...))
	return c, misuse.Wrap(err)
}

// dialOptions returns the gRPC options for TLS and the API key. Problems with certificates that
// appear later are written to stderr.
func (s *clientSettings) dialOptions(stderr io.Writer) ([]grpc.DialOption, error) {
	options, err := s.DialOptions(newWarningLogger(stderr))
	return options, misuse.Wrap(err)
}

// newWarningLogger returns the logger of a command that does not log otherwise: it writes warnings
// and errors to stderr.
func newWarningLogger(stderr io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// allSettings returns the flags of all settings, with their defaults.
func allSettings() *pflag.FlagSet {
	fs := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	new(agentSettings).add(fs)
	new(clientSettings).add(fs)
	return fs
}

// warnOfVariables warns of variables that look like settings and are none. Every command does.
func warnOfVariables(cmd *cobra.Command, _ []string) error {
	settings.WarnOfUnknown(cmd.ErrOrStderr(), allSettings())
	return nil
}

// applySettings sets the settings of cmd that its command line does not give, from the environment
// and the config file. It reports all faults at once.
func applySettings(cmd *cobra.Command, _ []string) error {
	_, err := settings.Resolve(cmd, allSettings())
	return err
}
