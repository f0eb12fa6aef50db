package agent_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/secure"
	"github.com/muster-serve/muster/api/tensor"
)

// TestGuardedAgent: all three servers of an agent speak TLS, and answer those
// who may ask.
func TestGuardedAgent(t *testing.T) {
	ca := agenttest.NewCA(t)
	config := agenttest.Config(t)
	config.Security = ca.Agent("a1")
	config.Security.APIKeysFile = ca.Write("keys", "feed: feed-feed-feed-feed\n")
	config.Security.AccessFile = ca.Write("access",
		"clients: {feed: {models: [ncf, ncv]}, ops: {models: [wnd], control: [unload]}}\n")
	a := agenttest.Start(t, config, agenttest.Emulated())

	withKey := ca.Client("")
	withKey.APIKey = "feed-feed-feed-feed"
	for _, tt := range []struct {
		name          string
		client        secure.ClientConfig
		infer, unload codes.Code
	}{
		{"nobody", ca.Client(""), codes.Unauthenticated, codes.Unauthenticated},
		{"feed", withKey, codes.OK, codes.PermissionDenied},
		{"ops", ca.Client("ops"), codes.PermissionDenied, codes.OK},
		{"plain text", secure.ClientConfig{}, codes.Unavailable, codes.Unavailable},
	} {
		conn := agenttest.DialSecurely(t, a.Addresses().GRPC, tt.client)
		ids, err := tensor.Of("ids", agenttest.NCFIDs(2), 2, 4)
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
	roots.AppendCertsFromPEM(ca.Pem)
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
	if !strings.Contains(a.Log.String(), "models=ncv") {
		t.Errorf("the model that is not there is not in the log:\n%s", a.Log)
	}
}

// TestGuardedFleet: agents with certificates of one CA find each other; one that
// gossips and has no such certificate gets no queries.
func TestGuardedFleet(t *testing.T) {
	agenttest.InFleet(t, func(f *agenttest.Fleet) {
		ca, stranger := agenttest.NewCA(f.T), agenttest.NewCA(f.T)
		with := func(config secure.Config) func(agent.Inside) {
			return func(a agent.Inside) { a.Config().Security = config }
		}
		agents := []*agenttest.Member{
			f.Start(with(ca.Agent("a1"))), f.Start(with(ca.Agent("a2"))),
			f.Start(with(ca.Agent("a3"))),
		}
		f.Settled(agents...)
		other := ca.Agent("a5")
		other.CertFile, other.KeyFile = ca.Issue(secure.Order{Name: "client-only"})
		outsiders := []*agenttest.Member{
			f.Start(with(stranger.Agent("a4"))), f.Start(with(other)), f.Start(),
		}
		time.Sleep(10 * time.Second)
		for _, a := range f.Agents {
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
		conn := agenttest.DialSecurely(f, agents[0].Host+":8001", ca.Client("ads"),
			grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
				return f.Network.Dial(ctx, "client", to)
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
		change func(*agent.Config)
		want   string // "": no fault
	}{
		{"loopback", func(*agent.Config) {}, ""},
		{"open", func(c *agent.Config) { c.HTTPAddress = ":8000" },
			`http: address ":8000" can be reached from other machines`},
		{"all open", func(c *agent.Config) { c.GRPCAddress, c.MetricsAddress = "10.0.0.1:1", "[::]:2" },
			`metrics: address "[::]:2" can be`},
		{"insecure", func(c *agent.Config) { c.HTTPAddress, c.Insecure = ":8000", true }, ""},
		{"TLS", func(c *agent.Config) {
			c.HTTPAddress, c.GRPCAddress, c.Security = ":8000", ":8001", both
		}, ""},
		{"fleet without CA",
			func(c *agent.Config) { c.Security, c.Join = both, []string{"10.0.0.1:7946"} },
			"tls-ca: empty"},
		{"fleet with keys alone",
			func(c *agent.Config) { c.Security.APIKeysFile, c.Join = "keys", []string{"10.0.0.1:7946"} },
			"tls-cert: empty"},
		{"half a pair", func(c *agent.Config) { c.Security.CertFile = "c" }, "tls-key: empty"},
	} {
		config := agent.DefaultConfig()
		tt.change(&config)
		err := config.Validate()
		if tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	config := agenttest.Config(t)
	config.Security = both
	if a, err := agent.New(config, slog.New(slog.DiscardHandler)); err != nil {
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
			agenttest.InFleet(t, func(f *agenttest.Fleet) {
				ca := agenttest.NewCA(f.T)
				a := f.Start(func(a agent.Inside) {
					if name == "TLS" {
						a.Config().Security = ca.Agent("a1")
					}
				})
				f.Settled(a)
				// only to open connections
				config := &tls.Config{
					InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"},
				}
				for i := range 80 {
					for _, port := range []string{":8000", ":8001", ":8002"} {
						conn, err := f.Network.Dial(f.Context(), "client", a.Host+port)
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
					if _, err := a.OIP.ServerLive(f.Context(),
						&inference.ServerLiveRequest{}); err != nil {
						f.Error(err)
					}
				}
				begun := time.Now()
				if err := a.Stop(); err != nil {
					f.Error(err)
				}
				if took := time.Since(begun); took > time.Second {
					f.Errorf("it took %v of virtual time to stop\n%s", took, a.Log)
				}
			})
		})
	}
}
