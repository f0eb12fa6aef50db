package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/secure"
)

// Admin is the name of the certificate with which this package asks agents about their fleet.
const Admin = "admin"

// Certificates are those of a fleet: a CA, a certificate and a private key for each agent and each
// client, and the agents' gossip key. The CA, each agent and each client has a folder of its name.
type Certificates struct {
	muster, dir, key string
	log              *slog.Logger // of clients that read their files again
}

// NewCertificates makes a CA, a gossip key, and the certificates of clients, the admin among them.
func NewCertificates(ctx context.Context, muster, dir string, log *slog.Logger,
	clients ...string) (*Certificates, error) {
	c := &Certificates{muster: muster, dir: dir, log: log}
	if _, err := c.Run(ctx, "certs", "init", "--dir", filepath.Dir(c.caPath())); err != nil {
		return nil, err
	}
	var err error
	if c.key, err = c.Run(ctx, "keys", "generate"); err != nil {
		return nil, err
	}
	for _, name := range append(clients, Admin) {
		if err := c.Issue(ctx, name, "", filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Run runs a command of the binary, in a folder without a muster.yaml.
func (c *Certificates) Run(ctx context.Context, args ...string) (string, error) {
	return Output(ctx, c.dir, c.muster, args...)
}

func (c *Certificates) caPath() string { return filepath.Join(c.dir, "ca", "ca.crt") }

// Pair returns the files of a certificate and its private key in the folder; if folder is empty, in
// the one that the agent or client of this name uses.
func (c *Certificates) Pair(name, folder string) (cert, key string) {
	if folder == "" {
		folder = filepath.Join(c.dir, name)
	}
	return filepath.Join(folder, name+".crt"), filepath.Join(folder, name+".key")
}

// Issue makes a certificate in a folder: for an agent if there is a host, else for a client.
func (c *Certificates) Issue(ctx context.Context, name, host, folder string) error {
	args := []string{
		"certs", "issue", "client", name, "--dir", filepath.Dir(c.caPath()), "--out", folder,
	}
	if host != "" {
		args[2] = "agent"
		args = append(args, "--host", host)
	}
	_, err := c.Run(ctx, args...)
	return err
}

// AgentName is the name of an agent's certificate.
func AgentName(index int) string { return fmt.Sprintf("agent-%d", index) }

// GossipKey is the file of an agent's gossip key.
func (c *Certificates) GossipKey(index int) string {
	return filepath.Join(c.dir, AgentName(index), "gossip.key")
}

// issueForAgent issues the certificate of an agent, and returns the settings that it needs.
func (c *Certificates) issueForAgent(ctx context.Context, index int, host string) ([]string,
	error) {
	name := AgentName(index)
	err := errors.Join(c.Issue(ctx, name, host, filepath.Join(c.dir, name)),
		os.WriteFile(c.GossipKey(index), []byte(c.key+"\n"), 0o600))
	return append(c.Args(name), "--require-client-cert", "--gossip-key", c.GossipKey(index)), err
}

// Args are the flags with which an agent, or a client's command, uses the certificate of this name.
func (c *Certificates) Args(name string) []string {
	cert, key := c.Pair(name, "")
	return []string{"--tls-ca", c.caPath(), "--tls-cert", cert, "--tls-key", key}
}

// DialOptions are for a client of Muster. It reads its files again when they change.
func (c *Certificates) DialOptions(name string) ([]grpc.DialOption, error) {
	cert, key := c.Pair(name, "")
	return secure.ClientConfig{CAFile: c.caPath(), CertFile: cert, KeyFile: key}.DialOptions(c.log)
}

// TLS is the configuration of a client that is not Muster's. It reads the files once.
func (c *Certificates) TLS(name string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.Pair(name, ""))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.caPath())
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", c.caPath())
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

// Shown is nil if the agent shows the certificate that is in its file, on each of its ports.
func (c *Certificates) Shown(n *Node) error {
	want, err := tls.LoadX509KeyPair(c.Pair(AgentName(n.Index), ""))
	if err != nil {
		return err
	}
	config, err := c.TLS(Admin)
	if err != nil {
		return err
	}
	for _, address := range []string{n.GRPC, n.HTTP, n.Metrics} {
		conn, err := tls.Dial("tcp", address, config)
		if err != nil {
			return err
		}
		leaf := conn.ConnectionState().PeerCertificates[0]
		conn.Close()
		if !leaf.Equal(want.Leaf) {
			return fmt.Errorf("%s shows the certificate %v, in its file is %v", address,
				leaf.SerialNumber, want.Leaf.SerialNumber)
		}
	}
	return nil
}
