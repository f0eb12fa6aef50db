package serve_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/secure"
)

// dialFrom connects to a test agent from another address of loopback.
func dialFrom(t *testing.T, a *agenttest.Agent, address string,
	proof credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := grpc.NewClient(a.Addresses().GRPC, grpc.WithTransportCredentials(proof),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", to)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// watchAll opens n streams, Control/Watch or else Health/Watch, and returns how many
// the agent has taken.
func watchAll(t *testing.T, ctx context.Context, conn *grpc.ClientConn, n int,
	fleet bool) (taken int) {
	t.Helper()
	for range n {
		var receive func() error
		if fleet {
			stream, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
			if err != nil {
				t.Fatal(err)
			}
			receive = func() error { _, err := stream.Recv(); return err }
		} else {
			stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			receive = func() error { _, err := stream.Recv(); return err }
		}
		switch err := receive(); status.Code(err) {
		case codes.OK:
			taken++
		case codes.ResourceExhausted:
		default:
			t.Fatal(err)
		}
	}
	return taken
}

// TestManyStreams: streams that anybody may open are bounded, in total and by peer; those refused
// hear why and are counted; queries go on; and what has ended makes room.
func TestManyStreams(t *testing.T) {
	config := agenttest.Config(t)
	config.Limits.Calls = 80
	a := agenttest.Start(t, config, agenttest.Emulated())
	ctx, end := context.WithCancel(t.Context())
	defer end()
	first, second := dialFrom(t, a, "127.0.0.2", insecure.NewCredentials()), dialFrom(t, a,
		"127.0.0.3", insecure.NewCredentials())
	if got, want := watchAll(t, ctx, first, 200, false), 60; got != want {
		t.Errorf("one peer got %d streams, want %d, three quarters of all", got, want)
	}
	if got, want := watchAll(t, ctx, second, 200, true), 3; got != want { // of 20 left, at 4 each
		t.Errorf("another peer got %d streams of the fleet, want %d", got, want)
	}
	if got := agenttest.Counted(a.Inside, "muster_refusals_total", secure.ReasonCalls); got != 140+197 {
		t.Errorf("%v refusals are counted, want 337", got)
	}
	// one for each peer, reason and error in it
	if lines := strings.Count(a.Log.String(), "too many calls"); lines > 4 {
		t.Errorf("the log tells it %d times", lines)
	}
	if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
		t.Errorf("a query fails: %v", err)
	}
	if got := watchAll(t, ctx, a.Conn, 1, false); got != 1 {
		t.Error("there is no room for a third peer")
	}
	end()
	for taken := 0; taken < 60; { // the agent hears of the ends one by one
		taken += watchAll(t, t.Context(), second, 1, false)
	}
}

// TestManyConnections: connections are bounded on all three servers together; those refused are
// closed and counted, and what is open is served.
func TestManyConnections(t *testing.T) {
	config := agenttest.Config(t)
	config.Limits.Connections = 40
	a := agenttest.Start(t, config, agenttest.Emulated())
	if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil { // is there before
		t.Fatal(err)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	refused := 0
	for i := range 60 {
		address := []string{a.Addresses().HTTP, a.Addresses().Metrics, a.Addresses().GRPC}[i%3]
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%3 == 2 {
			_, err = io.WriteString(conn,
				"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		} else {
			_, err = io.WriteString(conn, "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err != nil {
			refused++
		}
	}
	if refused != 30 { // the test has 1 of 40: three quarters of the others
		t.Errorf("%d connections were refused, want 30", refused)
	}
	if got := agenttest.Counted(a.Inside, "muster_refusals_total", secure.ReasonConnections); got != float64(
		refused) {
		t.Errorf("%v refusals are counted, want %d", got, refused)
	}
	if err := a.InferGRPC(agenttest.NCFRequest(2)); err != nil {
		t.Errorf("a query fails: %v", err)
	}
	if code, body := a.Do("GET", "/v2/health/ready", ""); code != http.StatusOK {
		t.Errorf("a third connection of another peer: %d %s", code, body)
	}
}

// TestAgentsAreApart: agents with certificates are not counted among the strangers.
func TestAgentsAreApart(t *testing.T) {
	ca := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security = ca.Agent("a1")
	config.Limits = secure.Limits{Connections: 4, Calls: 4}
	a := agenttest.Start(t, config, agenttest.Emulated())
	one := ca.Agent("a2")
	proof := secure.ClientConfig{
		CAFile: one.CAFile, CertFile: one.CertFile, KeyFile: one.KeyFile,
	}
	for range 10 {
		conn := agenttest.DialSecurely(t, a.Addresses().GRPC, proof)
		defer conn.Close()
		if got := watchAll(t, t.Context(), conn, 10, true); got != 10 {
			t.Fatalf("an agent got %d of 10 streams", got)
		}
	}
	stranger := agenttest.DialSecurely(t, a.Addresses().GRPC, ca.Client(""))
	defer stranger.Close()
	if got := watchAll(t, t.Context(), stranger, 10, false); got != 3 {
		t.Errorf("a stranger got %d of 10 streams, want 3", got)
	}
}

// TestStrangersKeepNobodyOut: strangers from many addresses, who do no more than open connections, or
// calls that anybody may make, take no room from who has shown an API key, and none that somebody needs
// to show one.
func TestStrangersKeepNobodyOut(t *testing.T) {
	ca := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security = ca.Agent("a1")
	config.Security.APIKeysFile = ca.Write("keys", "feed: "+agenttest.FeedKey+"\n")
	config.Limits = secure.Limits{Connections: 40, Calls: 40}
	a := agenttest.Start(t, config, agenttest.Emulated())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Pem)
	next := byte(1)
	// besiege opens three connections from each of some addresses, over TLS with HTTP/2's first words,
	// or with no word at all.
	besiege := func(addresses int, encrypted bool) {
		t.Helper()
		for range addresses {
			next++
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, next)}}
			for range 3 {
				conn, err := dialer.DialContext(ctx, "tcp", a.Addresses().GRPC)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				if encrypted {
					c := tls.Client(conn, &tls.Config{
						RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"},
					})
					if err := c.HandshakeContext(ctx); err != nil {
						continue // it was displaced by another already
					}
					_, _ = io.WriteString(c, http2.ClientPreface) // fails if it was displaced
				}
			}
		}
	}
	besiege(20, true)
	credentials := ca.Client("")
	credentials.APIKey = agenttest.FeedKey
	conn := agenttest.DialSecurely(t, a.Addresses().GRPC, credentials)
	defer conn.Close()
	watch, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatalf("one who has a key does not get in: %v", err)
	}
	req, err := http.NewRequestWithContext(ctx, "GET", "https://"+a.Addresses().HTTP+"/v2", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+agenttest.FeedKey)
	byREST := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer byREST.CloseIdleConnections()
	reused := false
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
	}))
	ask := func() {
		t.Helper()
		resp, err := byREST.RoundTrip(req)
		if err != nil {
			t.Fatalf("by REST: %v", err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("by REST: %v, %v", resp.Status, err)
		}
	}
	ask()
	besiege(30, false)
	besiege(20, true)
	if _, err := watch.Recv(); err != nil { // it tells the fleet again from time to time
		t.Errorf("who has shown a key loses the connection: %v", err)
	}
	if ask(); !reused {
		t.Error("who has shown a key loses the connection for REST")
	}
	if got := agenttest.Counted(a.Inside, "muster_refusals_total", secure.ReasonConnections); got < 100 {
		t.Errorf("%v refusals are counted, want those displaced", got)
	}

	taken := 0
	for address := range byte(10) {
		proof, err := ca.Client("").DialOptions(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, 1+address)}}
		stranger, err := grpc.NewClient("passthrough:///"+a.Addresses().GRPC, append(proof,
			grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", to)
			}))...)
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close()
		taken += watchAll(t, ctx, stranger, 10, false)
	}
	if taken > 10 {
		t.Errorf("strangers have %d streams, want a quarter of 40 at most", taken)
	}
	if got := watchAll(t, ctx, conn, 1, true); got != 1 {
		t.Error("no stream is left for who has shown a key")
	}
}
