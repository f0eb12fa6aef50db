package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/version"
	"github.com/muster-serve/muster/cmd/muster/internal/doctor"
	"github.com/muster-serve/muster/cmd/muster/internal/settings"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// An examination is what doctor and debug bundle look at: a machine with the settings of its agent,
// and the fleet behind a server.
type examination struct {
	agent  agentSettings
	client clientSettings
}

func (e *examination) add(cmd *cobra.Command) {
	e.agent.add(cmd.Flags())
	e.client.add(cmd.Flags())
	// RunE resolves the settings, because it needs what is wrong with them, too.
	cmd.PersistentPreRunE = warnOfVariables
}

// examine returns all findings, and the fleet's status, which is nil if no server gives one.
func (e *examination) examine(cmd *cobra.Command) ([]doctor.Finding, *control.FleetStatus,
	map[string]string) {
	origins, wrong := settings.Resolve(cmd, allSettings())
	// These settings of agents and clients have one flag, which set the agent's.
	own := e.agent.Security
	e.client.CertFile, e.client.KeyFile, e.client.CAFile = own.CertFile, own.KeyFile, own.CAFile
	e.client.CRLFile, e.client.Insecure = own.CRLFile, e.agent.Insecure
	var fleet []doctor.Finding
	status, err := e.status(cmd)
	if err == nil {
		fleet = doctor.Fleet(status)
	} else {
		level := doctor.Unknown
		if cmd.Flags().Changed("server") {
			level = doctor.Fault
		}
		fleet = []doctor.Finding{{
			Check: "fleet", Level: level, Found: terminal.Plain(err.Error()),
			Remedy: "start an agent, or name one with --server",
		}}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
	defer cancel()
	all := doctor.Machine(ctx, doctor.This(), e.agent.Config, status != nil)
	for _, err := range flattenErrors(wrong) {
		all = append(all, doctor.Finding{
			Check: "settings", Level: doctor.Fault, Found: err.Error(),
			Remedy: "muster config check FILE names the lines",
		})
	}
	return slices.Concat(all, fleet), status, origins
}

func (e *examination) status(cmd *cobra.Command) (*control.FleetStatus, error) {
	c, err := e.client.open(cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
	defer cancel()
	s, err := c.Status(ctx)
	if err == nil {
		terminal.SanitizeFields(s)
	}
	return s, err
}

// errFaults ends a command that has printed faults.
var errFaults = errors.New("there are faults")

func newDoctorCommand() *cobra.Command {
	var e examination
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the fleet, and say what to do",
		Long: `Check this machine, for an agent with these settings, and the fleet of --server, and
say what to do: cores and quota, memory, huge pages, clock, ports, names, certificates,
disks, GPU; and agents' versions, names and prices, models that cannot be loaded or that
differ between agents, and latencies that nobody knows. It changes nothing.

It ends with status 1 if there is a fault: an agent would not start, or does not serve.`,
		Example: `  muster doctor
  muster doctor --config /etc/muster/muster.yaml
  muster doctor --server 10.0.0.7:8001 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, _, _ := e.examine(cmd)
			var err error
			if asJSON {
				err = terminal.PrintJSON(cmd.OutOrStdout(), all)
			} else {
				err = doctor.Print(cmd.OutOrStdout(), all)
			}
			if err == nil && doctor.HasFault(all) {
				err = errFaults
			}
			return err
		},
	}
	e.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func newDebugCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "Collect what helps to find a fault"}
	cmd.AddCommand(newBundleCommand())
	return cmd
}

func newBundleCommand() *cobra.Command {
	var e examination
	var out string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write an archive for support, without secrets",
		Long: `Write an archive for support: the findings of "muster doctor", the settings, and the
fleet's status and events. It has no keys, tokens, passwords, access files, environment
or inputs of queries. It has names of hosts, addresses, models, clients and paths: look
at it before you send it.`,
		Example: `  muster debug bundle --out bundle.tar.gz
  tar tzf bundle.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := e.collect(cmd)
			if err != nil {
				return err
			}
			err = writeFile(out, func(w io.Writer) error { return writeArchive(w, "muster-bundle", files) })
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files\n", out, len(files))
			return nil
		},
	}
	e.add(cmd)
	cmd.Flags().StringVar(&out, "out", "muster-bundle.tar.gz", "archive to write")
	return cmd
}

// A bundledFile is one file of a bundle.
type bundledFile struct {
	name string
	text []byte
}

// collect returns the files of a bundle. It takes in what is known to be no secret, and then removes
// the secrets that this process knows wherever they stand.
func (e *examination) collect(cmd *cobra.Command) ([]bundledFile, error) {
	findings, status, origins := e.examine(cmd)
	var found, config, fleet bytes.Buffer
	if err := terminal.PrintJSON(&found, findings); err != nil {
		return nil, err
	}
	if err := settings.WriteYAML(&config, cmd.Flags(), origins); err != nil {
		return nil, err
	}
	files := []bundledFile{
		{"version.txt", []byte(version.Current() + "\n")}, {"doctor.json", found.Bytes()},
		{"settings.yaml", config.Bytes()},
	}
	if status != nil {
		status.View.Profiles = nil // long
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(status)
		if err == nil {
			err = terminal.PrintJSON(&fleet, json.RawMessage(text))
		}
		if err != nil {
			return nil, err
		}
		files = append(files, bundledFile{"status.json", fleet.Bytes()})
		files = append(files, bundledFile{"events.jsonl", e.events(cmd)})
	}
	secrets := e.secrets()
	for i := range files {
		for _, s := range secrets {
			files[i].text = bytes.ReplaceAll(files[i].text, []byte(s), []byte("[removed]"))
		}
	}
	return files, nil
}

// events returns the fleet's events, a line of JSON each, or why there are none.
func (e *examination) events(cmd *cobra.Command) []byte {
	var b bytes.Buffer
	conn, err := e.client.dialFirst(cmd.ErrOrStderr())
	if err == nil {
		defer conn.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
		defer cancel()
		var stream interface {
			Recv() (*control.Event, error)
		}
		stream, err = control.NewControlClient(conn).Events(ctx,
			&control.EventsRequest{Fleet: true})
		for err == nil {
			var event *control.Event
			if event, err = stream.Recv(); err == nil {
				err = printEventJSON(&b, event, true)
			}
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintf(&b, "{\"error\": %q}\n", err)
	}
	return b.Bytes()
}

// minSecretBytes is the length of the shortest word of a file of secrets that is taken for one.
// Chosen: keys are longer, and shorter words stand in texts that are no secrets.
const minSecretBytes = 8

// secrets returns what this process knows that must not leave it: the values of settings that are
// keys, the words of files of keys, passwords in URLs and those of the environment whose names say
// that they are secrets.
func (e *examination) secrets() (all []string) {
	add := func(text string) {
		if len(text) >= minSecretBytes && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	add(e.client.APIKey)
	for _, path := range []string{
		e.agent.GossipKey, e.agent.Security.KeyFile, e.agent.Security.APIKeysFile,
		e.agent.Security.AccessFile, e.client.KeyFile,
	} {
		text, err := os.ReadFile(path)
		if err != nil { // it may be the key itself
			if path == e.agent.GossipKey {
				add(path)
			}
			continue
		}
		for _, line := range strings.Split(string(text), "\n") {
			name, value, found := strings.Cut(line, ": ")
			switch {
			case found && (path != e.agent.Security.AccessFile || namesSecret(name)):
				add(strings.Trim(value, " \"'"))
			case !found && path != e.agent.Security.AccessFile:
				add(strings.TrimSpace(line))
			}
		}
	}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if namesSecret(name) && !isPath(value) {
			add(value)
		}
	}
	if _, parameters, found := strings.Cut(e.agent.ModelStore, "?"); found {
		add(parameters)
	}
	if _, rest, found := strings.Cut(e.agent.ModelStore, "://"); found {
		if user, _, found := strings.Cut(rest, "@"); found {
			add(user)
		}
	}
	// Longer ones first: one may be a part of another.
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// namesSecret reports whether a key or variable of this name has a secret.
func namesSecret(name string) bool {
	return slices.ContainsFunc([]string{
		"key", "token", "secret", "password", "passwd", "credential",
	}, func(word string) bool { return strings.Contains(strings.ToLower(name), word) })
}

// isPath reports whether a value names a file, as that of MUSTER_TLS_KEY does.
func isPath(value string) bool {
	_, err := os.Stat(value)
	return err == nil
}

// writeArchive writes the files as a compressed tar, in a folder.
func writeArchive(w io.Writer, folder string, files []bundledFile) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	for _, f := range files {
		header := &tar.Header{
			Name: folder + "/" + f.name, Mode: 0o600, Size: int64(len(f.text)),
			ModTime: time.Now(),
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}
