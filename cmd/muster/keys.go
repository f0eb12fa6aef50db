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
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
	"github.com/muster-serve/muster/gossip"
)

func newKeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make gossip keys, and change the key of a fleet that runs",
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
		Short: "Change the gossip key of a fleet that runs",
		Long: `Change the gossip key of a fleet that runs, with no agent lost. The agent asked
has all agents add the new key, then all use it, then all forget the others.
Agents whose key is in a file keep the new one there; those that have it in
their settings must be given the new one (--key) before they start anew.

Where an agent cannot be reached it stops and says so. What was done until then
does no harm, and the command can be run again. An agent that is not coming back
can be left out (--without): it needs the new key to join again. To be sure that
the agent asked sees all the others, say how many agents there are (--expect).`,
		Example: `  muster keys rotate --server 10.0.0.7:8001 --expect 12
  muster keys rotate --server 10.0.0.7:8001 --key gossip.key
  muster keys rotate --without worker-3-1f2e3d4c`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &control.RotateKeysRequest{Without: without, Expected: expect}
			if keyFile != "" {
				key, err := settings.readGossipKey(keyFile)
				if err != nil {
					return err
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
				return ofServer(settings, err)
			}
			if err := followRotation(cmd.OutOrStdout(), stream.Recv); err != nil {
				return ofServer(settings, err)
			}
			return nil
		},
	}
	settings.add(cmd.Flags())
	cmd.Flags().StringVar(&keyFile, "key", "",
		"file with the new key, as \"muster keys generate\" prints it (default: the agents make "+
			"one)")
	cmd.Flags().Uint32Var(&expect, "expect", 0,
		"how many agents the fleet has: with another number nothing is changed (default: "+
			"whatever the agent asked sees)")
	cmd.Flags().StringSliceVar(&without, "without", nil,
		"agents that may be left behind if they cannot be reached")
	return cmd
}

// rotationWords are what an agent has done, by step of the rotation.
var rotationWords = map[string]string{
	"list": "answers",
	"add":  "understands the new key",
	"use":  "uses the new key",
	"only": "has forgotten the other keys",
}

// followRotation prints what each agent does, and what is to do next.
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
		terminal.PlainMessage(p)
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
	fmt.Fprintf(w, "\ndone: %d agents use key %s, and no other\n", finished, key)
	if len(settled) > 0 {
		fmt.Fprintf(w, "give these the new key in their settings before they start anew: %s\n",
			strings.Join(settled, ", "))
	}
	if len(behind) > 0 {
		fmt.Fprintf(w, "left behind, and in need of the new key to join again: %s\n",
			strings.Join(slices.Sorted(maps.Keys(behind)), ", "))
	}
	return nil
}

func newKeysListCommand() *cobra.Command {
	var settings clientSettings
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show which gossip keys each agent holds",
		Long: `Show which gossip keys each agent holds, by the first 16 digits of their
SHA-256. An agent encrypts with the first and understands all.`,
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
				return ofServer(settings, err)
			}
			terminal.PlainMessage(list)
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "AGENT\tENCRYPTS WITH\tUNDERSTANDS TOO\tKEPT IN\tFAULT")
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

// readGossipKey reads a key that is to go to the server.
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
			"key: it would go to %s unencrypted: use TLS (--tls-ca), or --insecure to send it "+
				"all the same", s.servers[0])
	}
	return key, nil
}

// dialFirst connects to the first server.
func (s *clientSettings) dialFirst(stderr io.Writer) (*grpc.ClientConn, error) {
	if len(s.servers) == 0 {
		return nil, errors.New("server: no addresses")
	}
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(s.servers[0], append(oip.DialOptions(), options...)...)
}

// ofServer is an error of a call to the first server, for people.
func ofServer(s clientSettings, err error) error {
	return fmt.Errorf("%s: %s", s.servers[0], client.Reason(err))
}
