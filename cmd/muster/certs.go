package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/cmd/muster/internal/lists"
	"github.com/muster-serve/muster/cmd/muster/internal/misuse"
)

const (
	day = 24 * time.Hour
	// Files of the CA in its directory: certificate, private key, revocation list.
	caCertFile, caKeyFile, caListFile = "ca.crt", "ca.key", "ca.crl"
)

func newCertsCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make a certificate authority, and issue and revoke certificates",
		Long: `Make a certificate authority (CA), and issue and revoke certificates of agents
and clients. You do not need it if you already have a CA.

Keys are ECDSA on P-256, in files that only their owner can read. No file is
overwritten except the CA's revocation list.`,
	}
	cmd.AddCommand(newCertsInitCommand(&dir), newCertsIssueCommand(&dir),
		newCertsRevokeCommand(&dir))
	cmd.PersistentFlags().StringVar(&dir, "dir", "certs", "directory of the CA")
	return cmd
}

func newCertsInitCommand(dir *string) *cobra.Command {
	var name string
	var days int
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a CA",
		Example: `  muster certs init
  muster certs init --dir /root/fleet --name "recommendation fleet"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			life, err := parseLifetime(days)
			if err != nil {
				return err
			}
			_, cert, key, err := secure.NewCA(name, time.Now(), life)
			if err != nil {
				return err
			}
			certFile, keyFile := filepath.Join(*dir, caCertFile), filepath.Join(*dir, caKeyFile)
			if err := writePair(certFile, cert, keyFile, key); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(),
				`%s: the CA's certificate, not secret; every agent and client needs it (--tls-ca)
%s: the CA's private key, secret; whoever has it can pose as any agent or client, so keep it off the agents

Next, a certificate for each agent:
  muster certs issue agent NAME --dir %s
`, certFile, keyFile, *dir)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "muster", "name of the CA")
	cmd.Flags().IntVar(&days, "days", 3650, "days until the CA expires")
	return cmd
}

func newCertsIssueCommand(dir *string) *cobra.Command {
	var out string
	var days int
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Issue a certificate of the CA",
	}
	var hosts []string
	agent := &cobra.Command{
		Use:   "agent NAME",
		Short: "Issue the certificate of an agent",
		Long: `Issue the certificate of an agent. The agent serves TLS with it, and proves to
other agents that it belongs to the fleet. Whoever holds it may do everything, so
do not give it to clients.

Other clients, such as curl and tritonclient, check the certificate's host names;
Muster's own clients and agents do not. The certificate always holds NAME,
localhost, 127.0.0.1 and ::1; --host adds more.`,
		Example: `  muster certs issue agent node1
  muster certs issue agent node1 --host 10.0.0.7,node1.example.com`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return issueCertificate(cmd, *dir, out, days, secure.Order{
				Name: args[0], Agent: true,
				Hosts: slices.Concat([]string{args[0], "localhost", "127.0.0.1", "::1"}, hosts),
			})
		},
	}
	lists.Var(agent.Flags(), &hosts, "host", nil,
		"more DNS names and IP addresses at which clients reach the agent")
	client := &cobra.Command{
		Use:   "client NAME",
		Short: "Issue the certificate of a client",
		Long: `Issue the certificate of a client. The agents' access file (muster agent --access)
says what the client of this name may do. Without an access file every client may
query, and only the client "admin" may load, unload, drain, plan, change keys and
see events.`,
		Example: `  muster certs issue client ads
  muster certs issue client admin --days 30`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return issueCertificate(cmd, *dir, out, days, secure.Order{Name: args[0]})
		},
	}
	cmd.PersistentFlags().StringVar(&out, "out", "",
		"directory to write to (default the CA's directory)")
	cmd.PersistentFlags().IntVar(&days, "days", 365,
		"days until the certificate expires; it never outlives the CA's own certificate")
	cmd.AddCommand(agent, client)
	return cmd
}

func newCertsRevokeCommand(dir *string) *cobra.Command {
	var days int
	cmd := &cobra.Command{
		Use:   "revoke [NAME|FILE...]",
		Short: "Revoke certificates of the CA",
		Long: `Revoke certificates of the CA. NAME stands for NAME.crt in the CA's directory. An
argument with a / or that ends with .crt is the path of a certificate.

The command adds them to the revocation list, ca.crl in the CA's directory, which
agents and clients read (--tls-crl). Without arguments it only renews the list.`,
		Example: `  muster certs revoke ads
  muster certs revoke old/node1.crt
  muster certs revoke --days 30`,
		RunE: func(cmd *cobra.Command, args []string) error {
			life, err := parseLifetime(days)
			if err != nil {
				return err
			}
			ca, err := readCA(*dir)
			if err != nil {
				return err
			}
			var certs []*x509.Certificate
			for _, arg := range args {
				file := arg
				if !strings.Contains(arg, "/") && !strings.HasSuffix(arg, ".crt") {
					file = filepath.Join(*dir, arg+".crt")
				}
				data, err := os.ReadFile(file)
				if err != nil {
					return fmt.Errorf("revoke %s: %w", arg, err)
				}
				found, err := secure.ParseCertificates(data)
				if err != nil {
					return fmt.Errorf("revoke %s: %s: %w", arg, file, err)
				}
				// The first is the certificate itself; intermediate ones follow it.
				certs = append(certs, found[0])
			}
			listFile := filepath.Join(*dir, caListFile)
			before, err := os.ReadFile(listFile)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			list, err := ca.Revoke(before, certs, time.Now(), life)
			if err != nil {
				return fmt.Errorf("%s: %w", listFile, err)
			}
			if err := files.Replace(listFile, list, 0o644); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(),
				`%s: the revocation list, not secret; renew it within %d days

Next, replace the list of every agent and client with it:
  muster agent --tls-crl %s ...
`, listFile, days, listFile)
			return nil
		},
	}
	cmd.Flags().IntVar(&days, "days", 365, "days until the list must be renewed")
	return cmd
}

// parseLifetime converts days to a duration; it accepts 1 day to 100 years.
func parseLifetime(days int) (time.Duration, error) {
	const most = 100 * 365
	if days < 1 || days > most {
		return 0, misuse.Errorf("days: %d, want 1 to %d", days, most)
	}
	return time.Duration(days) * day, nil
}

// issueCertificate issues the certificate that order describes with the CA in dir, writes it and
// its key to out (or to dir, if out is ""), and prints how to use it. It sets order.Life from days.
func issueCertificate(cmd *cobra.Command, dir, out string, days int, order secure.Order) error {
	var err error
	if order.Life, err = parseLifetime(days); err != nil {
		return err
	}
	if order.Name != filepath.Base(order.Name) || order.Name == "ca" {
		return misuse.Errorf("name %q, want a valid file name other than ca", order.Name)
	}
	ca, err := readCA(dir)
	if err != nil {
		return err
	}
	cert, key, err := ca.Issue(order, time.Now())
	if err != nil {
		return err
	}
	if out == "" {
		out = dir
	}
	certFile, keyFile := filepath.Join(out, order.Name+".crt"), filepath.Join(out,
		order.Name+".key")
	if err := writePair(certFile, cert, keyFile, key); err != nil {
		return err
	}
	caFile := filepath.Join(dir, caCertFile)
	fmt.Fprintf(cmd.OutOrStdout(), "%s: the certificate of %s\n%s: its private key\n\n", certFile,
		order.Name, keyFile)
	if order.Agent {
		fmt.Fprintf(cmd.OutOrStdout(),
			"Next, on the agent's machine, with these two and %s:\n  muster agent --tls-cert %s "+
				"--tls-key %s --tls-ca %s\n", caFile, certFile, keyFile, caFile)
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(),
		"Next, on the client's machine, with these two and %s:\n  muster infer MODEL --tls-cert "+
			"%s --tls-key %s --tls-ca %s\n", caFile, certFile, keyFile, caFile)
	return nil
}

// readCA reads the CA's certificate and private key from its directory.
func readCA(dir string) (*secure.CA, error) {
	certFile, keyFile := filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile)
	cert, err := os.ReadFile(certFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"there is no CA in %s (%w); make one with %q, or give its directory with --dir", dir,
			err, "muster certs init")
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf(
			"the CA in %s lacks its private key, which signs certificates: %w", dir, err)
	}
	ca, err := secure.ReadCA(cert, key)
	if err != nil {
		return nil, fmt.Errorf("the CA of %s and %s: %w", certFile, keyFile, err)
	}
	return ca, nil
}

// writePair writes a certificate and its private key to two new files, or to neither. An existing
// file is an error.
func writePair(certFile string, cert []byte, keyFile string, key []byte) error {
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return err
	}
	for _, path := range []string{certFile, keyFile} {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf(
				"%s exists and is not overwritten: move it away, or choose another directory", path)
		}
	}
	err := files.Replace(keyFile, key, 0o600)
	if err == nil {
		err = files.Replace(certFile, cert, 0o600)
	}
	if err != nil {
		for _, path := range []string{keyFile, certFile} {
			if left := os.Remove(path); !errors.Is(left, fs.ErrNotExist) {
				err = errors.Join(err, left)
			}
		}
		return fmt.Errorf("%w; nothing was written to %s and %s", err, keyFile, certFile)
	}
	return nil
}
