package client_test

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/client"
)

// TestCertificateRefused: with TLS 1.3 a server refuses a client's certificate after the client's
// handshake, so that a write fails where the server's reason has not been read. The client tells it
// all the same, and how to mend it.
func TestCertificateRefused(t *testing.T) {
	dir := t.TempDir()
	issue := func(file string, order secure.Order, of *secure.CA) {
		order.Life = time.Hour
		cert, key, err := of.Issue(order, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for ending, content := range map[string][]byte{".crt": cert, ".key": key} {
			if err := os.WriteFile(filepath.Join(dir, file+ending), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	newCA := func() *secure.CA {
		ca, cert, _, err := secure.NewCA("muster", time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "other.crt"), cert, 0o600); err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ca := newCA()
	if err := os.Rename(filepath.Join(dir, "other.crt"), filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	issue("agent", secure.Order{Name: "a1", Agent: true}, ca)
	issue("stranger", secure.Order{Name: "ads"}, newCA())
	path := func(name string) string { return filepath.Join(dir, name) }
	guard, err := secure.Open(secure.Config{
		CertFile: path("agent.crt"), KeyFile: path("agent.key"), CAFile: path("ca.crt"),
		RequireClientCert: true,
	}, secure.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(guard.ServerOptions(nil)...)
	go server.Serve(listener)
	defer server.Stop()
	for _, tt := range []struct {
		config secure.ClientConfig
		want   string
	}{
		{secure.ClientConfig{CAFile: path("ca.crt")}, "give one with --tls-cert"},
		{secure.ClientConfig{
			CAFile: path("ca.crt"), CertFile: path("stranger.crt"), KeyFile: path("stranger.key"),
		}, "--tls-cert"},
	} {
		options, err := tt.config.DialOptions(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for range 100 {
			c, err := client.New([]string{listener.Addr().String()},
				client.WithDialOptions(options...))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = c.ServerMetadata(t.Context()); !errors.Is(err, client.ErrDenied) ||
				!strings.Contains(err.Error(), tt.want) {
				seen[err.Error()]++
			}
			c.Close()
		}
		if len(seen) > 0 {
			t.Errorf("got %v, want ErrDenied with %q", seen, tt.want)
		}
	}
}
