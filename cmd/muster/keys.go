package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/gossip"
)

func newKeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make gossip keys, and change the key of a running fleet",
	}
	cmd.AddCommand(newKeysGenerateCommand(), newKeysRotateCommand(), newKeysListCommand())
	return cmd
}

func newKeysGenerateCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "generate",
		Short:   "Print a new gossip key",
		Example: `  (umask 077; muster keys generate > gossip.key)`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), gossip.FormatKey(gossip.NewKey()))
			return err
		},
	}
}

func newKeysRotateCommand() *cobra.Command {
	var settings clientSettings
	var keyFile string
	var without []string
	var expect uint32
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Change the gossip key of a running fleet",
		Long: `Change the gossip key of a running fleet without losing an agent. The agent at
--server makes all agents accept the new key, then makes all encrypt with it, then
makes all delete the other keys. An agent whose --gossip-key is a file writes the
new key to that file. An agent whose --gossip-key is the key itself needs the new
key in its settings before it restarts; choose the key with --key to have it.

If an agent cannot be reached, the command stops and says which. The steps done so
far do no harm, and you can run the command again. --without leaves out an agent
that does not come back; it needs the new key to join again. --expect makes sure
that the agent at --server knows all the others.`,
		Example: `  muster keys rotate --server 10.0.0.7:8001 --expect 12
  muster keys rotate --server 10.0.0.7:8001 --key gossip.key
  muster keys rotate --without worker-3-1f2e3d4c`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &control.RotateKeysRequest{Without: without, Expected: expect}
			if keyFile != "" {
				key, err := settings.readGossipKey(keyFile)
				if err != nil {
					return misuse.Wrap(err)
				}
				req.Key = key
			}
			conn, err := settings.dialFirst(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer conn.Close()
			stream, err := control.NewControlClient(conn).RotateKeys(cmd.Context(), req)
			if err != nil {
				return wrapServerError(settings, err)
			}
			if err := followRotation(cmd.OutOrStdout(), stream.Recv); err != nil {
				return wrapServerError(settings, err)
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().StringVar(&keyFile, "key", "",
		"file with the new key, as \"muster keys generate\" prints it (default: the agent makes "+
			"one)")
	cmd.Flags().Uint32Var(&expect, "expect", 0,
		"how many agents the fleet has; if the agent knows another number, nothing changes "+
			"(default: any number)")
	lists.Var(cmd.Flags(), &without, "without", nil,
		"names of agents to leave out if they cannot be reached")
	return cmd
}

// rotationWords says what an agent has done, by the name of the rotation's step.
var rotationWords = map[string]string{
	"list": "answers",
	"add":  "accepts the new key",
	"use":  "encrypts with the new key",
	"only": "has deleted the other keys",
}

// followRotation prints each agent's progress until next returns io.EOF, and then what the user
// must still do. It makes the messages of next safe to print.
func followRotation(w io.Writer, next func() (*control.KeysProgress, error)) error {
	key, finished := "", 0
	behind, settled := map[string]bool{}, []string{}
	for {
		p, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		terminal.SanitizeFields(p)
		keys := p.GetKeys()
		if fault := keys.GetFault(); fault != "" {
			behind[keys.GetAgent()] = true
			fmt.Fprintf(w, "%s: not done (%s): %s\n", keys.GetAgent(), p.GetStep(), fault)
			continue
		}
		said, ok := rotationWords[p.GetStep()]
		if !ok {
			said = p.GetStep()
		}
		fmt.Fprintf(w, "%s: %s\n", keys.GetAgent(), said)
		if p.GetStep() == "only" {
			finished++
			key = strings.Join(keys.GetFingerprints(), " ")
			if !keys.GetInFile() {
				settled = append(settled, keys.GetAgent())
			}
		}
	}
	use := "use"
	if finished == 1 {
		use = "uses"
	}
	fmt.Fprintf(w, "\ndone: %s %s key %s, and no other\n", terminal.CountNoun(finished, "agent"), use, key)
	if len(settled) > 0 {
		fmt.Fprintf(
			w, "put the new key into the settings of these agents before they restart: %s\n",
			strings.Join(settled, ", "))
	}
	if len(behind) > 0 {
		fmt.Fprintf(w, "left out; these agents need the new key to join again: %s\n",
			strings.Join(slices.Sorted(maps.Keys(behind)), ", "))
	}
	return nil
}

func newKeysListCommand() *cobra.Command {
	var settings clientSettings
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show which gossip keys each agent holds",
		Long: `Show which gossip keys each agent holds. A key is named by the first 16 hex
digits of its SHA-256. An agent encrypts with one key and accepts all it holds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := settings.dialFirst(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), fleetTimeout)
			defer cancel()
			list, err := control.NewControlClient(conn).ListKeys(ctx, &control.ListKeysRequest{})
			if err != nil {
				return wrapServerError(settings, err)
			}
			terminal.SanitizeFields(list)
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "AGENT\tENCRYPTS WITH\tALSO ACCEPTS\tKEPT IN\tFAULT")
			for _, a := range list.GetAgents() {
				use, others, kept := "-", "-", "-"
				if prints := a.GetFingerprints(); len(prints) > 0 {
					use, others = prints[0], terminal.OrDash(strings.Join(prints[1:], " "))
					if kept = "settings"; a.GetInFile() {
						kept = "file"
					}
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", a.GetAgent(), use, others, kept,
					terminal.OrDash(a.GetFault()))
			}
			return table.Flush()
		},
	}
	settings.add(cmd.Flags())
	return cmd
}

// readGossipKey reads the new gossip key from a file. It refuses to read it if the key would go to
// another machine without TLS, unless --insecure allows that.
func (s *clientSettings) readGossipKey(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	key, err := gossip.ParseKey(strings.TrimSpace(string(content)))
	if err != nil {
		return nil, fmt.Errorf("key: %s: %w", path, err)
	}
	if len(s.servers) > 0 && !s.TLS() && !s.Insecure && !secure.Loopback(s.servers[0]) {
		return nil, fmt.Errorf(
			"key: it would go to %s unencrypted: use TLS (--tls-ca), or allow this with --insecure",
			s.servers[0])
	}
	return key, nil
}

// dialFirst makes a connection to the first server; the caller closes it. Commands use it whose
// calls concern one agent, so that no other server answers in its place.
func (s *clientSettings) dialFirst(stderr io.Writer) (*grpc.ClientConn, error) {
	if len(s.servers) == 0 {
		return nil, misuse.Errorf("server: no addresses")
	}
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(s.servers[0], append(oip.DialOptions(), options...)...)
	return conn, misuse.Wrap(err)
}

// wrapServerError names the first server in an error of a call to it, and keeps the part of the
// error that people need.
func wrapServerError(s clientSettings, err error) error {
	return fmt.Errorf("%s: %s", s.servers[0], client.Reason(err))
}
