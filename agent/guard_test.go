package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
)

// A testCA issues certificates into a directory.
type testCA struct {
	t   testing.TB
	dir string
	ca  *secure.CA
	pem []byte
}

func newTestCA(t testing.TB) *testCA {
	t.Helper()
	ca, cert, _, err := secure.NewCA("test", time.Now(), 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := &testCA{t: t, dir: t.TempDir(), ca: ca, pem: cert}
	c.write("ca.crt", string(cert))
	return c
}

// callAs has the fleet's clients call with an agent's certificate of that name.
func (f *testFleet) callAs(ca *testCA, name string) {
	f.Helper()
	guard, err := secure.Open(ca.agent(name), secure.Options{
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.credentials = guard.PeerCredentials()
}

func (c *testCA) write(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// issue returns the paths of a certificate and its key.
func (c *testCA) issue(order secure.Order) (cert, key string) {
	c.t.Helper()
	order.Life = 24 * time.Hour
	certPEM, keyPEM, err := c.ca.Issue(order, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return c.write(order.Name+".crt", string(certPEM)), c.write(order.Name+".key", string(keyPEM))
}

// agent is the security of an agent with a certificate of the CA.
func (c *testCA) agent(name string) secure.Config {
	c.t.Helper()
	config := secure.Config{CAFile: filepath.Join(c.dir, "ca.crt")}
	config.CertFile, config.KeyFile = c.issue(secure.Order{
		Name: name, Agent: true, Hosts: []string{"127.0.0.1"},
	})
	return config
}

// client is a client with a certificate of the CA, or with none.
func (c *testCA) client(name string) secure.ClientConfig {
	c.t.Helper()
	config := secure.ClientConfig{CAFile: filepath.Join(c.dir, "ca.crt")}
	if name != "" {
		config.CertFile, config.KeyFile = c.issue(secure.Order{Name: name})
	}
	return config
}

func dialSecurely(t testing.TB, address string, config secure.ClientConfig,
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

// TestGuardedAgent: all three servers of an agent speak TLS, and answer those
// who may ask.
func TestGuardedAgent(t *testing.T) {
	ca := newTestCA(t)
	config := testConfig(t)
	config.Security = ca.agent("a1")
	config.Security.APIKeysFile = ca.write("keys", "feed: feed-feed-feed-feed\n")
	config.Security.AccessFile = ca.write("access",
		"clients: {feed: {models: [ncf, ncv]}, ops: {models: [wnd], control: [unload]}}\n")
	a := startAgent(t, config, emulated())

	withKey := ca.client("")
	withKey.APIKey = "feed-feed-feed-feed"
	for _, tt := range []struct {
		name          string
		client        secure.ClientConfig
		infer, unload codes.Code
	}{
		{"nobody", ca.client(""), codes.Unauthenticated, codes.Unauthenticated},
		{"feed", withKey, codes.OK, codes.PermissionDenied},
		{"ops", ca.client("ops"), codes.PermissionDenied, codes.OK},
		{"plain text", secure.ClientConfig{}, codes.Unavailable, codes.Unavailable},
	} {
		conn := dialSecurely(t, a.Addresses().GRPC, tt.client)
		ids, err := tensor.Of("ids", ncfIDs(2), 2, 4)
		if err != nil {
			t.Fatal(err)
		}
		request := &oip.Request{Model: "ncf", Inputs: []tensor.Tensor{ids}}
		err = conn.Invoke(t.Context(), inference.GRPCInferenceService_ModelInfer_FullMethodName,
			request, new(oip.Response))
		if status.Code(err) != tt.infer {
			t.Errorf("%s: infer: got %v, want %v", tt.name, err, tt.infer)
		}
		_, err = inference.NewGRPCInferenceServiceClient(conn).RepositoryModelUnload(t.Context(),
			&inference.RepositoryModelUnloadRequest{ModelName: "wnd"})
		if status.Code(err) != tt.unload {
			t.Errorf("%s: unload: got %v, want %v", tt.name, err, tt.unload)
		}
		_ = conn.Close() // its calls are over
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	get := func(url, key string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for _, tt := range []struct {
		url, key string
		want     int
		body     string
	}{
		{"https://" + a.Addresses().HTTP + "/readyz", "", 200, ""},
		{"https://" + a.Addresses().HTTP + "/v2/models/ncf", "", 401,
			"no credentials: want a client certificate or an API key"},
		{"https://" + a.Addresses().HTTP + "/v2/models/ncf", "feed-feed-feed-feed", 200,
			`"name":"ncf"`},
		{"https://" + a.Addresses().HTTP + "/v2/models/dien", "feed-feed-feed-feed", 403,
			`client \"feed\" may not query model \"dien\"`},
		{"https://" + a.Addresses().HTTP + "/", "feed-feed-feed-feed", 200, `"metrics":"https://`},
		{"https://" + a.Addresses().Metrics + "/metrics", "", 401, "no credentials"},
		{"https://" + a.Addresses().Metrics + "/metrics", "feed-feed-feed-feed", 200,
			`muster_refusals_total{reason="denied"} 3`},
		{"http://" + a.Addresses().HTTP + "/readyz", "", 400, "use https"},
	} {
		if code, body := get(tt.url, tt.key); code != tt.want || !strings.Contains(body, tt.body) {
			t.Errorf("%s with key %q: got %d %s, want %d with %q", tt.url, tt.key, code, body,
				tt.want, tt.body)
		}
	}
	if !strings.Contains(a.log.String(), "models=ncv") {
		t.Errorf("the model that is not there is not in the log:\n%s", a.log)
	}
}

// TestGuardedFleet: agents with certificates of one CA find each other; one that
// gossips and has no such certificate gets no queries.
func TestGuardedFleet(t *testing.T) {
	testInFleet(t, func(f *testFleet) {
		ca, stranger := newTestCA(f.T), newTestCA(f.T)
		with := func(config secure.Config) func(Inside) {
			return func(a Inside) { a.Config().Security = config }
		}
		agents := []*fleetAgent{
			f.start(with(ca.agent("a1"))), f.start(with(ca.agent("a2"))),
			f.start(with(ca.agent("a3"))),
		}
		f.settled(agents...)
		other := ca.agent("a5")
		other.CertFile, other.KeyFile = ca.issue(secure.Order{Name: "client-only"})
		outsiders := []*fleetAgent{
			f.start(with(stranger.agent("a4"))), f.start(with(other)), f.start(),
		}
		time.Sleep(10 * time.Second)
		for _, a := range f.agents {
			var serving []string // who can get queries, as a sees it
			for _, m := range a.Members().View().Members {
				if len(m.Models) > 0 {
					serving = append(serving, m.Name)
				}
			}
			want := []string{string(a.AgentName())}
			if !slices.Contains(outsiders, a) {
				want = []string{
					string(agents[0].AgentName()), string(agents[1].AgentName()), string(agents[2].AgentName()),
				}
			}
			slices.Sort(want)
			if !slices.Equal(serving, want) {
				f.Errorf("%s sees that %q serve, want %q", a.AgentName(), serving, want)
			}
		}

		ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
		defer cancel()
		conn := dialSecurely(f, agents[0].host+":8001", ca.client("ads"),
			grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.network.dial(ctx, "client", to)
			}))
		defer conn.Close()
		if _, err := control.NewControlClient(conn).Describe(ctx,
			&control.DescribeRequest{}); status.Code(err) != codes.PermissionDenied {
			f.Errorf("a client asks what only agents may: got %v", err)
		}
		watch, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{})
		if err != nil {
			f.Fatal(err)
		}
		if v, err := watch.Recv(); err != nil || len(v.GetMembers()) == 0 {
			f.Errorf("a client watches: got %v, %v", v, err)
		}
	})
}

// TestSecurityFaults are what an agent does not start with.
func TestSecurityFaults(t *testing.T) {
	both := secure.Config{CertFile: "c", KeyFile: "k"}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string // "": no fault
	}{
		{"loopback", func(*Config) {}, ""},
		{"open", func(c *Config) { c.HTTPAddress = ":8000" },
			`http: address ":8000" can be reached from other machines`},
		{"all open", func(c *Config) { c.GRPCAddress, c.MetricsAddress = "10.0.0.1:1", "[::]:2" },
			`metrics: address "[::]:2" can be`},
		{"insecure", func(c *Config) { c.HTTPAddress, c.Insecure = ":8000", true }, ""},
		{"TLS", func(c *Config) {
			c.HTTPAddress, c.GRPCAddress, c.Security = ":8000", ":8001", both
		}, ""},
		{"fleet without CA",
			func(c *Config) { c.Security, c.Join = both, []string{"10.0.0.1:7946"} },
			"tls-ca: empty"},
		{"fleet with keys alone",
			func(c *Config) { c.Security.APIKeysFile, c.Join = "keys", []string{"10.0.0.1:7946"} },
			"tls-cert: empty"},
		{"half a pair", func(c *Config) { c.Security.CertFile = "c" }, "tls-key: empty"},
	} {
		config := DefaultConfig()
		tt.change(&config)
		err := config.Validate()
		if tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	config := testConfig(t)
	config.Security = both
	if a, err := New(config, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	} else if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "tls-cert") {
		t.Errorf("certificate that is not there: got %v", err)
	}
}

// TestStopWithIdleConnections: connections that say nothing, or nothing more, do not keep an agent
// from stopping.
func TestStopWithIdleConnections(t *testing.T) {
	for _, name := range []string{"plain", "TLS"} {
		t.Run(name, func(t *testing.T) {
			testInFleet(t, func(f *testFleet) {
				ca := newTestCA(f.T)
				a := f.start(func(a Inside) {
					if name == "TLS" {
						a.Config().Security = ca.agent("a1")
					}
				})
				f.settled(a)
				// only to open connections
				config := &tls.Config{
					InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"},
				}
				for i := range 80 {
					for _, port := range []string{":8000", ":8001", ":8002"} {
						conn, err := f.network.dial(f.Context(), "client", a.host+port)
						if err != nil {
							f.Fatal(err)
						}
						defer conn.Close()
						if i%2 == 0 {
							continue
						}
						if name == "TLS" {
							conn = tls.Client(conn, config)
							if err := conn.(*tls.Conn).Handshake(); err != nil {
								f.Fatal(err)
							}
						}
						if i%4 == 1 || port == ":8001" {
							continue
						}
						// One that was served, and is kept.
						if _, err := io.WriteString(conn,
							"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
							f.Fatal(err)
						}
						if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
							f.Fatal(err)
						} else {
							resp.Body.Close()
						}
					}
				}
				if name == "plain" {
					// leaves one of gRPC's idle
					if _, err := a.oip.ServerLive(f.Context(),
						&inference.ServerLiveRequest{}); err != nil {
						f.Error(err)
					}
				}
				begun := time.Now()
				if err := a.stop(); err != nil {
					f.Error(err)
				}
				if took := time.Since(begun); took > time.Second {
					f.Errorf("it took %v of virtual time to stop\n%s", took, a.log)
				}
			})
		})
	}
}
