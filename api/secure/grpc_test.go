package secure

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
)

const (
	free         = "health, live"
	queries      = "ncf, wnd, wnd metadata, all statistics, metadata, status, watch"
	controlCalls = "load, unload, drain, demand, rented, list keys, rotate keys, events"
	agents       = "describe, link, keyring"
)

// TestWhoMayDoWhat goes through all kinds of configurations and callers, with
// the tap before the interceptors and without.
func TestWhoMayDoWhat(t *testing.T) {
	for _, tapped := range []bool{true, false} {
		t.Run(fmt.Sprintf("tap=%v", tapped), func(t *testing.T) { testWhoMayDoWhat(t, tapped) })
	}
}

func testWhoMayDoWhat(t *testing.T, tapped bool) {
	p := newPKI(t)
	p.issue("ads", Order{Name: "ads"}, 0)
	p.issue("admin", Order{Name: "admin"}, 0)
	p.issue("planner", Order{Name: "planner"}, 0)
	p.issue("renter", Order{Name: "renter"}, 0)
	p.issue("other-agent", Order{Name: "a2", Agent: true}, 0)
	keys := p.write("keys", "feed: feed-feed-feed-feed\nadmin: admin-admin-admin\n", 0o600)
	access := p.write("access.yaml", `
clients:
  ads: {models: [ncf]}
  ops: {control: [load, unload, drain, plan, keys, events]}
  feed: {models: [wnd], control: [load]}
  planner: {control: [plan]}
  renter: {control: [fleet]}
`, 0o644)

	t.Run("nothing", func(t *testing.T) {
		s := serve(t, Config{}, tapped)
		c := s.dial("somewhere:1", plainText())
		checkCalls(t, c, codes.OK, free+","+queries+","+controlCalls+","+agents)
	})
	t.Run("encryption alone", func(t *testing.T) {
		s := serve(t, p.agent(), tapped)
		anyone := s.as(p.client(""))
		checkCalls(t, anyone, codes.OK, free+","+queries)
		checkCalls(t, anyone, codes.Unauthenticated, controlCalls)
		checkCalls(t, anyone, codes.PermissionDenied, agents)
		if tapped { // otherwise grpc answers before it asks
			checkCalls(t, anyone, codes.PermissionDenied, "control that is not there")
		}
		checkCalls(t, s.as(p.client("ads")), codes.PermissionDenied, controlCalls)
		checkCalls(t, s.as(p.client("admin")), codes.OK, controlCalls)
	})
	t.Run("an agent may do everything", func(t *testing.T) {
		config := p.agent()
		config.AccessFile, config.RequireClientCert = access, true
		s := serve(t, config, tapped)
		other, _ := openGuard(t, Config{
			CertFile: p.path("other-agent.crt"), KeyFile: p.path("other-agent.key"),
			CAFile: p.path("ca.crt"),
		})
		checkCalls(t, s.dial("10.0.0.7:8001", peerOf(other)), codes.OK,
			free+","+queries+","+controlCalls+","+agents)
	})
	t.Run("certificates", func(t *testing.T) {
		config := p.agent()
		config.ClientCAFile = config.CAFile
		s := serve(t, config, tapped)
		anyone := s.as(p.client(""))
		checkCalls(t, anyone, codes.OK, free)
		checkCalls(t, anyone, codes.Unauthenticated, queries+","+controlCalls)
		ads := s.as(p.client("ads"))
		checkCalls(t, ads, codes.OK, free+","+queries)
		checkCalls(t, ads, codes.PermissionDenied, controlCalls+","+agents)
	})
	t.Run("API keys", func(t *testing.T) {
		s := serve(t, Config{APIKeysFile: keys}, tapped)
		checkCalls(t, s.dial("127.0.0.1:1", plainText()), codes.OK, free)
		checkCalls(t, s.dial("127.0.0.1:1", plainText()), codes.Unauthenticated,
			queries+","+controlCalls+","+agents)
		feed := s.as(ClientConfig{APIKey: "feed-feed-feed-feed"})
		checkCalls(t, feed, codes.OK, free+","+queries)
		checkCalls(t, feed, codes.PermissionDenied, controlCalls+","+agents)
		checkCalls(t, s.as(ClientConfig{APIKey: "feed-feed-feed-fee"}), codes.Unauthenticated,
			queries)
		checkCalls(t, s.as(ClientConfig{APIKey: "admin-admin-admin"}), codes.OK,
			queries+","+controlCalls)
	})
	t.Run("access", func(t *testing.T) {
		config := p.agent()
		config.AccessFile, config.APIKeysFile = access, keys
		s := serve(t, config, tapped)
		ads := s.as(p.client("ads"))
		checkCalls(t, ads, codes.OK, "ncf, metadata, all statistics")
		checkCalls(t, ads, codes.PermissionDenied, "wnd, wnd metadata,"+controlCalls)
		// A key counts before the certificate.
		both := p.client("ads")
		both.APIKey = "feed-feed-feed-feed"
		checkCalls(t, s.as(both), codes.OK, "wnd, wnd metadata, load")
		checkCalls(t, s.as(both), codes.PermissionDenied, "ncf, unload, drain")
		// Who may see the plan sees what is rented, and so does who may change that.
		planner, renter := s.as(p.client("planner")), s.as(p.client("renter"))
		checkCalls(t, planner, codes.OK, "rented, demand")
		checkCalls(t, planner, codes.PermissionDenied, "set fleet")
		checkCalls(t, renter, codes.OK, "rented, set fleet")
		checkCalls(t, renter, codes.PermissionDenied, "demand")
		// The access file has no "*", and no admin of its own.
		checkCalls(t, s.as(p.client("admin")), codes.PermissionDenied, "ncf, wnd,"+controlCalls)
		if _, message := call(t, ads, "wnd"); message != `client "ads" may not query model "wnd"` {
			t.Errorf("got %q", message)
		}
	})
}

// TestClientsOfAnotherCA: the clients' CA makes no agents, whatever it writes
// into a certificate.
func TestClientsOfAnotherCA(t *testing.T) {
	cluster, clients := newPKI(t), newPKI(t)
	clients.issue("ads", Order{Name: "ads"}, 0)
	clients.issue("impostor", Order{Name: "a9", Agent: true}, 0)
	config := cluster.agent()
	config.ClientCAFile = clients.path("ca.crt")
	s := serve(t, config, true)
	for _, file := range []string{"ads", "impostor"} {
		c := cluster.client("")
		c.CertFile, c.KeyFile = clients.path(file+".crt"), clients.path(file+".key")
		checkCalls(t, s.as(c), codes.OK, queries)
		checkCalls(t, s.as(c), codes.PermissionDenied, agents+","+controlCalls)
	}
}

// TestBadClients have no way in, and the log says so once.
func TestBadClients(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	p.issue("expired", Order{Name: "ads", Life: time.Minute}, time.Hour)
	p.issue("future", Order{Name: "ads"}, -2*time.Hour)
	stranger.issue("ads", Order{Name: "ads"}, 0)
	config := p.agent()
	config.RequireClientCert = true
	selfSigned, _, _, err := selfSignedPair()
	if err != nil {
		t.Fatal(err)
	}
	// Shows the certificate even where the server has said that it will not do.
	withCert := func(cert tls.Certificate) grpc.DialOption {
		return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			InsecureSkipVerify: true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &cert, nil
			},
		}))
	}
	load := func(p *pki, name string) tls.Certificate {
		pair, err := tls.LoadX509KeyPair(p.path(name+".crt"), p.path(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	for _, tt := range []struct {
		name   string
		option grpc.DialOption
		reason string
	}{
		{"expired", withCert(load(p, "expired")), `"certificate expired"`},
		{"not yet valid", withCert(load(p, "future")), `"certificate not valid yet"`},
		{"another CA", withCert(load(stranger, "ads")), `"certificate of an unknown CA"`},
		{"self-signed", withCert(selfSigned), `"certificate of an unknown CA"`},
		{"no certificate", withCert(tls.Certificate{}), `"no certificate"`},
		{"plain text", plainText(), `"plain text on a port with TLS"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, config, true)
			for range 3 {
				c := s.dial("127.0.0.1:1", tt.option)
				checkCalls(t, c, codes.Unavailable, "live")
				_ = c.Close()
			}
			// The client hears of it before the server has written its line.
			for wait := time.Now().Add(10 * time.Second); !strings.Contains(s.log.String(),
				"connection refused") && time.Now().Before(wait); {
				time.Sleep(time.Millisecond)
			}
			if n := strings.Count(s.log.String(), "connection refused"); n != 1 ||
				!strings.Contains(s.log.String(), "reason="+tt.reason) {
				t.Errorf("log has %d refusals, want one for %s:\n%s", n, tt.reason, s.log)
			}
			p.issue("good", Order{Name: "ads"}, 0)
			checkCalls(t, s.as(p.client("good")), codes.OK, "ncf")
		})
	}
}

// selfSignedPair is a certificate that nobody has issued.
func selfSignedPair() (pair tls.Certificate, cert, key []byte, err error) {
	_, cert, key, err = NewCA("ads", time.Now(), time.Hour)
	if err != nil {
		return pair, nil, nil, err
	}
	pair, err = tls.X509KeyPair(cert, key)
	return pair, cert, key, err
}

// TestBadServers are not believed.
func TestBadServers(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	p.issue("me", Order{Name: "a1", Agent: true}, 0)
	p.issue("expired", Order{Name: "a1", Agent: true, Life: time.Minute}, time.Hour)
	p.issue("future", Order{Name: "a1", Agent: true}, -2*time.Hour)
	p.issue("client", Order{Name: "ads"}, 0)
	stranger.issue("agent", Order{Name: "a1", Agent: true}, 0)
	_, cert, key, err := selfSignedPair()
	if err != nil {
		t.Fatal(err)
	}
	p.write("self.crt", string(cert), 0o644)
	p.write("self.key", string(key), 0o600)
	p.named("web", "web.example.com")
	me, _ := openGuard(t, Config{
		CertFile: p.path("me.crt"), KeyFile: p.path("me.key"), CAFile: p.path("ca.crt"),
	})

	for _, tt := range []struct {
		name     string
		dir      *pki
		file     string
		address  string
		asClient codes.Code
		asAgent  codes.Code
		words    string // of the client's error
	}{
		{"good", p, "me", "10.1.2.3:8001", codes.OK, codes.OK, ""},
		{"expired", p, "expired", "127.0.0.1:1", codes.Unavailable, codes.Unavailable,
			"set the clock"},
		{"not yet valid", p, "future", "127.0.0.1:1", codes.Unavailable, codes.Unavailable,
			"set the clock"},
		{"another CA", stranger, "agent", "127.0.0.1:1", codes.Unavailable, codes.Unavailable,
			"unknown authority"},
		{"self-signed", p, "self", "127.0.0.1:1", codes.Unavailable, codes.Unavailable,
			"unknown authority"},
		{"a client's certificate", p, "client", "127.0.0.1:1", codes.Unavailable, codes.Unavailable,
			"incompatible key usage"},
		{"right name, no agent", p, "web", "web.example.com:443", codes.OK, codes.Unavailable, ""},
		{"wrong name", p, "web", "db.example.com:443", codes.Unavailable, codes.Unavailable,
			"web.example.com, not db.example.com"},
		{"wrong address", p, "web", "10.0.0.1:443", codes.Unavailable, codes.Unavailable,
			"10.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(
				t,
				Config{
					CertFile: tt.dir.path(tt.file + ".crt"), KeyFile: tt.dir.path(tt.file + ".key"),
				}, true)
			options, err := ClientConfig{CAFile: p.path("ca.crt")}.DialOptions(s.log.logger())
			if err != nil {
				t.Fatal(err)
			}
			code, message := call(t, s.dial(tt.address, options...), "live")
			if code != tt.asClient || !strings.Contains(message, tt.words) {
				t.Errorf("client: got %v (%s), want %v with %q", code, message, tt.asClient,
					tt.words)
			}
			if code, message := call(t, s.dial(tt.address, peerOf(me)),
				"live"); code != tt.asAgent {
				t.Errorf("agent: got %v (%s), want %v", code, message, tt.asAgent)
			}
		})
	}

	t.Run("TLS to a plain port", func(t *testing.T) {
		s := serve(t, Config{}, true)
		lines := func() int {
			return strings.Count(s.log.String(), `reason="TLS on a port without"`)
		}
		logged := 0
		// A client that sees no TLS may be gone before the server has read what it said.
		for tries := 0; logged < 3 && tries < 100; tries++ {
			c := s.as(p.client(""))
			checkCalls(t, c, codes.Unavailable, "live")
			_ = c.Close()
			logged += min(1, lines())
		}
		if n := lines(); n != 1 {
			t.Errorf("log has %d lines, want one:\n%s", n, s.log)
		}
		checkCalls(t, s.dial("x:1", plainText()), codes.OK, "live")
	})
}

// TestKeyStaysHome: a key does not leave the machine in the clear.
func TestKeyStaysHome(t *testing.T) {
	p := newPKI(t)
	keys := p.write("keys", "feed: feed-feed-feed-feed\n", 0o600)
	s := serve(t, Config{APIKeysFile: keys}, true)
	for _, tt := range []struct {
		address  string
		insecure bool
		want     codes.Code
	}{
		{"127.0.0.1:8001", false, codes.OK},
		{"localhost:8001", false, codes.OK},
		{"[::1]:8001", false, codes.OK},
		{"10.0.0.1:8001", false, codes.Unauthenticated},
		{"example.com:8001", false, codes.Unauthenticated},
		{"10.0.0.1:8001", true, codes.OK},
	} {
		options, err := ClientConfig{
			APIKey: "feed-feed-feed-feed", Insecure: tt.insecure,
		}.DialOptions(s.log.logger())
		if err != nil {
			t.Fatal(err)
		}
		if code, message := call(t, s.dial(tt.address, options...), "ncf"); code != tt.want {
			t.Errorf("%s, insecure %v: got %v (%s), want %v", tt.address, tt.insecure, code,
				message, tt.want)
		}
	}
	if strings.Contains(s.log.String(), "refused") {
		t.Errorf("the server has seen a call without the key:\n%s", s.log)
	}
}

// TestReloadWhileServing changes certificates, keys and access under a server.
func TestReloadWhileServing(t *testing.T) {
	p := newPKI(t)
	config := p.agent()
	config.APIKeysFile = p.write("keys", "feed: feed-feed-feed-feed\n", 0o600)
	config.AccessFile = p.write("access", "clients: {feed: {models: [ncf]}}\n", 0o600)
	s := serve(t, config, true)
	withKey := func(ca *pki, key string) ClientConfig {
		c := ca.client("")
		c.APIKey = key
		return c
	}
	old := s.as(withKey(p, "feed-feed-feed-feed"))
	checkCalls(t, old, codes.OK, "ncf")
	checkCalls(t, old, codes.PermissionDenied, "wnd")

	// Another CA, as an operator would: the new certificate, then its key.
	next := newPKI(t)
	next.issue("agent", Order{Name: "a1", Agent: true}, 0)
	replace := func(from, to string) {
		t.Helper()
		data, err := os.ReadFile(next.path(from))
		if err != nil {
			t.Fatal(err)
		}
		p.write(to, string(data), 0o600)
	}
	replace("agent.crt", "agent.crt")
	for range 3 { // the key is still the old one
		s.Refresh()
	}
	if n := strings.Count(s.log.String(), "stays in force"); n != 1 {
		t.Errorf("a certificate without its key is logged %d times, want once:\n%s", n, s.log)
	}
	checkCalls(t, s.as(withKey(p, "feed-feed-feed-feed")), codes.OK, "ncf")
	replace("agent.key", "agent.key")
	replace("ca.crt", "ca2.crt")
	lookTwice(s)
	// p's own ca.crt is as it was; who believes the next CA gets in, and who believes
	// this one does not.
	checkCalls(t, s.as(ClientConfig{CAFile: p.path("ca2.crt"), APIKey: "feed-feed-feed-feed"}),
		codes.OK, "ncf")
	checkCalls(t, s.as(withKey(p, "feed-feed-feed-feed")), codes.Unavailable, "ncf")
	// A connection that was open goes on, with the keys that hold now.
	checkCalls(t, old, codes.OK, "ncf")

	p.write("keys", "feed: another-feed-key-now\n", 0o600)
	p.write("access", "clients: {feed: {models: [wnd]}}\n", 0o600)
	lookTwice(s)
	checkCalls(t, old, codes.Unauthenticated, "ncf, wnd")
	fresh := s.as(ClientConfig{CAFile: p.path("ca2.crt"), APIKey: "another-feed-key-now"})
	checkCalls(t, fresh, codes.OK, "wnd")
	checkCalls(t, fresh, codes.PermissionDenied, "ncf")

	// What makes no sense changes nothing: a fault in each file, half a
	// certificate, a file that is gone, keys open to the world.
	half, err := os.ReadFile(p.path("agent.crt"))
	if err != nil {
		t.Fatal(err)
	}
	p.write("agent.crt", string(half[:len(half)/2]), 0o600)
	p.write("keys", "feed\n", 0o600)
	if err := os.Remove(p.path("access")); err != nil {
		t.Fatal(err)
	}
	lookTwice(s)
	p.write("access", "clients: {feed: {models: [], later: 1}}\nrequires: 99\n", 0o600)
	lookTwice(s)
	p.write("keys", "feed: third-feed-key-now\n", 0o644)
	lookTwice(s)
	checkCalls(t, s.as(ClientConfig{CAFile: p.path("ca2.crt"), APIKey: "another-feed-key-now"}),
		codes.OK, "wnd")
	for _, want := range []string{
		"cut off or damaged", "want a line of `name: key`", "no such file", "mode 0644, want 0600",
		"access:2: requires format 99",
	} {
		if n := strings.Count(s.log.String(), want); n != 1 {
			t.Errorf("log has %q %d times, want once:\n%s", want, n, s.log)
		}
	}
}

// TestClientReloads: a client that connects anew shows its new certificate.
func TestClientReloads(t *testing.T) {
	p := newPKI(t)
	config := p.agent()
	config.AccessFile = p.write("access", "clients: {second: {models: [ncf]}}\n", 0o600)
	s := serve(t, config, true)
	p.issue("me", Order{Name: "first"}, 0)
	c := p.client("me")
	log := &logBuffer{}
	id, err := identityFiles{cert: c.CertFile, key: c.KeyFile, ca: c.CAFile}.watch()
	if err != nil {
		t.Fatal(err)
	}
	option := grpc.WithTransportCredentials(clientCredentials{
		identity: func() *identity { return id.currentValue(log.logger()) },
	})
	checkCalls(t, s.dial("x:1", option), codes.PermissionDenied, "ncf")
	p.issue("me", Order{Name: "second"}, 0)
	// it may not be whole yet when it is first seen
	for _, want := range []codes.Code{codes.PermissionDenied, codes.OK} {
		id.mu.Lock()
		id.looked = time.Time{} // a second has passed
		id.mu.Unlock()
		checkCalls(t, s.dial("x:1", option), want, "ncf")
	}
}

// lookTwice has a server look at its files as often as it takes to believe them.
func lookTwice(s *guarded) {
	s.Refresh()
	s.Refresh()
}

// TestHalfWritten: lists that are being written are not taken for whole, and neither is one whose
// last line does not end.
func TestHalfWritten(t *testing.T) {
	p := newPKI(t)
	const ads, feed = "ads: ads-ads-ads-ads-ads-ads\n", "feed: feed-feed-feed-feed\n"
	config := Config{
		APIKeysFile: p.write("keys", ads+feed, 0o600),
		AccessFile:  p.write("access", "clients:\n  feed: {models: [ncf]}\n", 0o600),
	}
	s := serve(t, config, true)
	client := s.as(ClientConfig{APIKey: "feed-feed-feed-feed"})
	checkCalls(t, client, codes.OK, "ncf")
	// An editor writes the same again, in two pieces, and is looked at in between.
	for range 3 {
		p.write("keys", ads, 0o600)
		p.write("access", "clients: {}\n", 0o600)
		s.Refresh()
		checkCalls(t, client, codes.OK, "ncf")
		p.write("keys", ads+feed, 0o600)
		p.write("access", "clients:\n  feed: {models: [ncf]}\n", 0o600)
		s.Refresh()
		checkCalls(t, client, codes.OK, "ncf")
	}
	// What a full disk left of a list is none, even if it stays so: half a key would be a key.
	p.write("keys", feed+strings.TrimSuffix(ads, "-ads\n"), 0o600)
	p.write("access", "clients:\n  feed:\n    models:\n    - wn", 0o600)
	lookTwice(s)
	checkCalls(t, client, codes.OK, "ncf")
	checkCalls(t, s.as(ClientConfig{APIKey: "ads-ads-ads-ads-ads"}), codes.Unauthenticated, "ncf")
	for _, file := range []string{config.APIKeysFile, config.AccessFile} {
		if want := file + " has no newline at its end"; strings.Count(s.log.String(), want) != 1 {
			t.Errorf("log has not %q once:\n%s", want, s.log)
		}
		if _, err := Open(Config{APIKeysFile: config.APIKeysFile},
			Options{Logger: slog.New(slog.DiscardHandler)}); err == nil ||
			!strings.Contains(err.Error(), "no newline") {
			t.Errorf("start with %s: got %v", file, err)
		}
	}
}

// TestChangesWhileRead: a file that changes while it is read is read again.
func TestChangesWhileRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	contents := []string{"half", "whole at last"}
	write := func() {
		if err := os.WriteFile(path, []byte(contents[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		if len(contents) > 1 {
			contents = contents[1:]
		}
	}
	write()
	read := func() (string, error) {
		data, err := os.ReadFile(path)
		if len(data) < len(contents[0]) {
			write()
		}
		return string(data), err
	}
	w, err := watch("test", read, path)
	if err != nil || w.get() != "whole at last" {
		t.Fatalf("at the start: got %v, %v", w, err)
	}
	contents = []string{"half", "whole again, and longer"}
	write()
	for range 4 {
		w.refreshFiles(slog.New(slog.DiscardHandler))
		if w.get() == "half" {
			t.Fatal("read half")
		}
	}
	if w.get() != "whole again, and longer" {
		t.Errorf("got %q", w.get())
	}
}

// TestUnknownModels: a slip in the access file is told, at first and with each
// change.
func TestUnknownModels(t *testing.T) {
	p := newPKI(t)
	access := p.write("access", "clients: {ads: {models: [ncf, wdn, '*']}, b: {models: [rm3]}}\n",
		0o600)
	g, log := openGuard(t, Config{AccessFile: access, APIKeysFile: p.write("keys", "", 0o600)})
	g.KnowModels(func(model string) bool { return model == "ncf" })
	if !strings.Contains(log.String(), `models="rm3 wdn"`) {
		t.Errorf("got %s", log)
	}
	p.write("access", "clients: {ads: {models: [ncf, dine]}}\n", 0o600)
	g.Refresh()
	g.Refresh()
	if strings.Count(log.String(), "models=dine") != 1 {
		t.Errorf("got %s", log)
	}
}

// TestSilentConnections: connections that send nothing keep no client out, and are named once.
func TestSilentConnections(t *testing.T) {
	connections := 400
	if os.Getenv("MUSTER_SLOW_TESTS") != "" {
		connections = 10_000
	}
	p := newPKI(t)
	s := serve(t, p.agent(), true)
	s.waiting.limit = 100
	silent := make([]net.Conn, connections)
	for i := range silent {
		var err error
		if silent[i], err = s.listener.DialContext(context.Background()); err != nil {
			t.Fatal(err)
		}
		if i%(connections/10) == 0 {
			checkCalls(t, s.as(p.client("")), codes.OK, "ncf")
		}
	}
	checkCalls(t, s.as(p.client("")), codes.OK, "ncf")
	// All but the latest are closed by now, or about to be.
	for _, c := range silent[:connections-100] {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("a connection that said nothing was answered")
		}
	}
	for _, c := range silent {
		_ = c.Close() // most are closed
	}
	if n := strings.Count(s.log.String(), `reason="no handshake in time"`); n != 1 {
		t.Errorf("log has %d lines, want one:\n%s", n, s.log)
	}
}

// BenchmarkEnter is what the guard adds to a call: of anybody, and with a key among
// 1000.
func BenchmarkEnter(b *testing.B) {
	p := newPKI(b)
	var keys strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&keys, "client%d: key-of-the-client-%d\n", i, i)
	}
	for name, config := range map[string]Config{
		"open": {},
		"keys": {APIKeysFile: p.write("keys", keys.String(), 0o600)},
	} {
		g, _ := openGuard(b, config)
		header := map[string][]string{"authorization": {"Bearer key-of-the-client-500"}}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := g.enterCall(b.Context(), "/inference.GRPCInferenceService/ModelInfer",
					header); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
