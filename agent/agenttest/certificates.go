package agenttest

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
)

// A CA issues certificates into a directory.
type CA struct {
	t   testing.TB
	dir string
	Ca  *secure.CA
	Pem []byte
}

func NewCA(t testing.TB) *CA {
	t.Helper()
	ca, cert, _, err := secure.NewCA("test", time.Now(), 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := &CA{t: t, dir: t.TempDir(), Ca: ca, Pem: cert}
	c.Write("ca.crt", string(cert))
	return c
}

// CallAs has the fleet's clients call with an agent's certificate of that name.
func (f *Fleet) CallAs(ca *CA, name string) {
	f.Helper()
	guard, err := secure.Open(ca.Agent(name), secure.Options{
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.credentials = guard.PeerCredentials()
}

func (c *CA) Write(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// Issue returns the paths of a certificate and its key.
func (c *CA) Issue(order secure.Order) (cert, key string) {
	c.t.Helper()
	order.Life = 24 * time.Hour
	certPEM, keyPEM, err := c.Ca.Issue(order, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return c.Write(order.Name+".crt", string(certPEM)), c.Write(order.Name+".key", string(keyPEM))
}

// Agent is the security of an agent with a certificate of the CA.
func (c *CA) Agent(name string) secure.Config {
	c.t.Helper()
	config := secure.Config{CAFile: filepath.Join(c.dir, "ca.crt")}
	config.CertFile, config.KeyFile = c.Issue(secure.Order{
		Name: name, Agent: true, Hosts: []string{"127.0.0.1"},
	})
	return config
}

// Client is a client with a certificate of the CA, or with none.
func (c *CA) Client(name string) secure.ClientConfig {
	c.t.Helper()
	config := secure.ClientConfig{CAFile: filepath.Join(c.dir, "ca.crt")}
	if name != "" {
		config.CertFile, config.KeyFile = c.Issue(secure.Order{Name: name})
	}
	return config
}

func DialSecurely(t testing.TB, address string, config secure.ClientConfig,
	options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	proof, err := config.DialOptions(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		append(append(oip.DialOptions(), proof...), options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
