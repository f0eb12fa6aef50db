package secure

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/test/bufconn"
)

// A guardedHTTP is an HTTP server behind a guard.
type guardedHTTP struct {
	t testing.TB
	*Guard
	log      *logBuffer
	listener *bufconn.Listener
}

func serveHTTP(t testing.TB, config Config) *guardedHTTP {
	t.Helper()
	s := &guardedHTTP{t: t, listener: bufconn.Listen(1 << 16)}
	s.Guard, s.log = openGuard(t, config)
	server := &http.Server{
		Handler: s.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "served")
		})),
		ErrorLog: log.New(io.Discard, "", 0),
	}
	var running sync.WaitGroup
	l := s.Listen(s.listener)
	running.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		_ = server.Close() // the listener says what Serve said
		running.Wait()
	})
	return s
}

// get asks for the path: 200, 401, or 0 if there was no answer.
func (s *guardedHTTP) get(config *tls.Config, method, path, key string) (int, string) {
	s.t.Helper()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.listener.DialContext(ctx)
		},
		TLSClientConfig: config,
	}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	req, err := http.NewRequest(method, scheme+"://agent.muster"+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	if resp.StatusCode == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") == "" {
		s.t.Error("401 without WWW-Authenticate")
	}
	return resp.StatusCode, string(body)
}

func (p *pki) tls(file string) *tls.Config {
	p.t.Helper()
	c := &tls.Config{RootCAs: poolOf([]*x509.Certificate{p.ca.cert})}
	if file != "" {
		pair, err := tls.LoadX509KeyPair(p.path(file+".crt"), p.path(file+".key"))
		if err != nil {
			p.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

func TestHTTP(t *testing.T) {
	p := newPKI(t)
	p.issue("ads", Order{Name: "ads"}, 0)
	config := p.agent()
	config.AccessFile = p.write("access",
		"clients: {ads: {models: [ncf]}, feed: {models: [wnd, stats], control: [unload]}}\n", 0o600)
	config.APIKeysFile = p.write("keys", "feed: feed-feed-feed-feed\n", 0o600)
	s := serveHTTP(t, config)
	const feed = "feed-feed-feed-feed"
	for _, tt := range []struct {
		path, cert, key string
		want            int
	}{
		{"/livez", "", "", 200},
		{"/readyz", "", "", 200},
		{"/v2/health/ready", "", "", 200},
		{"/livez/", "", "", 401},
		{"/dashboard", "", "", 200},
		{"/dashboard/", "", "", 200},
		{"/dashboard/app.js", "", "", 200},
		{"/dashboard/api/session", "", "", 200},
		{"/dashboard/api/login", "", "", 200},
		{"/dashboard/api/login/x", "", "", 401},
		{"/dashboard/api/stream", "", "", 401},
		{"/dashboard/%61pi/stream", "", "", 401},
		{"/dashboard/api/stream", "ads", "", 200},
		{"/dashboard/api/plan", "", feed, 200},
		{"/dashboardapi", "", "", 401},
		{"/", "", "", 401},
		{"/v2", "", "", 401},
		{"/v2", "ads", "", 200},
		{"/metrics", "", "", 401},
		{"/metrics", "ads", "", 200},
		{"/metrics", "", feed, 200},
		{"/v2", "", "wrong-wrong-wrong", 401},
		{"/v2", "ads", "wrong-wrong-wrong", 401},
		{"/v2/models/ncf/infer", "ads", "", 200},
		{"/v2/models/ncf/versions/1/infer", "ads", "", 200},
		{"/v2/models/ncf", "ads", "", 200},
		{"/v2/models/n%63f/infer", "ads", "", 200},
		{"/v2/models/wnd/infer", "ads", "", 403},
		{"/v2/models/wn%64/infer", "ads", "", 403},
		{"/v2/models/wnd%2Finfer", "ads", "", 403},
		{"/v2/models/ncf%2F..%2Fwnd/infer", "ads", "", 403},
		{"/%76%32/models/wnd/infer", "ads", "", 403},
		{"/v2/models/wnd", "ads", "", 403},
		{"/v2/models/wnd/stats", "ads", "", 403},
		{"/v2/models/stats", "ads", "", 200},
		{"/v2/models/stats/infer", "ads", "", 403},
		{"/v2/models/wnd/infer", "ads", feed, 200},
		{"/v2/models/ncf/infer", "ads", feed, 403},
		{"/v2/repository/index", "ads", "", 200},
		{"/v2/repository/models/ncf/load", "ads", "", 403},
		{"/v2/repository/models/ncf/l%6Fad", "ads", "", 403},
		{"/v2/repository/models/ncf/unload", "ads", "", 403},
		{"/v2/repository/models/ncf/unload", "", feed, 200},
		{"/v2/repository/models/ncf/load", "", feed, 403},
	} {
		if got, body := s.get(p.tls(tt.cert), "POST", tt.path, tt.key); got != tt.want {
			t.Errorf("%s as %q with key %q: got %d %s, want %d", tt.path, tt.cert, tt.key, got,
				body, tt.want)
		} else if got >= 400 && !strings.HasPrefix(body, `{"error":"`) {
			t.Errorf("%s: got body %q", tt.path, body)
		}
	}
	// An agent may do everything, wherever it calls.
	if got, body := s.get(p.tls("agent"), "POST", "/v2/repository/models/ncf/load",
		""); got != 200 {
		t.Errorf("an agent: got %d %s", got, body)
	}
}

// TestHTTPConnections: who does not speak TLS as wanted gets no service, and the
// others do.
func TestHTTPConnections(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	p.issue("ads", Order{Name: "ads"}, 0)
	stranger.issue("ads", Order{Name: "ads"}, 0)
	config := p.agent()
	config.RequireClientCert = true
	s := serveHTTP(t, config)
	wrong := stranger.tls("ads")
	wrong.RootCAs = p.tls("").RootCAs
	for range 3 {
		if got, _ := s.get(wrong, "GET", "/livez", ""); got != 0 {
			t.Errorf("another CA: got %d", got)
		}
		if got, _ := s.get(p.tls(""), "GET", "/livez", ""); got != 0 {
			t.Errorf("no certificate: got %d", got)
		}
		if got, body := s.get(nil, "GET", "/livez", ""); got != 400 ||
			!strings.Contains(body, "use https") {
			t.Errorf("plain HTTP: got %d %s", got, body)
		}
	}
	if got, body := s.get(p.tls("ads"), "GET", "/livez", ""); got != 200 {
		t.Errorf("good: got %d %s", got, body)
	}
	for _, reason := range []string{
		"certificate of an unknown CA", "no certificate", "plain text on a port with TLS",
	} {
		if n := strings.Count(s.log.String(), `reason="`+reason+`"`); n != 1 {
			t.Errorf("%s: %d lines, want 1:\n%s", reason, n, s.log)
		}
	}

	plain := serveHTTP(t, Config{})
	for range 3 {
		if got, _ := plain.get(p.tls(""), "GET", "/livez", ""); got != 0 {
			t.Errorf("TLS to a plain port: got %d", got)
		}
	}
	if n := strings.Count(plain.log.String(), `reason="TLS on a port without"`); n != 1 {
		t.Errorf("TLS to a plain port: %d lines, want 1:\n%s", n, plain.log)
	}
	if got, _ := plain.get(nil, "GET", "/v2/repository/models/x/load", ""); got != 200 {
		t.Errorf("nothing guarded: got %d", got)
	}
}

// TestCloseEndsHandshakes: a listener that is closed leaves nothing behind,
// whatever its connections were doing.
func TestCloseEndsHandshakes(t *testing.T) {
	p := newPKI(t)
	g, _ := openGuard(t, p.agent())
	inner := bufconn.Listen(1 << 16)
	l := g.Listen(inner)
	var conns []net.Conn
	for range 20 {
		c, err := inner.Dial()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	// One gets through, and nobody accepts it.
	ready := tls.Client(conns[0], &tls.Config{InsecureSkipVerify: true})
	if err := ready.Handshake(); err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // bufconn's has nothing to say
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: got %v", err)
	}
	for _, c := range conns {
		if _, err := bufio.NewReader(c).ReadByte(); err == nil && c != conns[0] {
			t.Error("a connection was answered")
		}
		_ = c.Close() // it is closed already
	}
}

// A failingListener fails to accept, as when there are no descriptors left.
type failingListener struct {
	net.Listener
	mu       sync.Mutex
	failures int
}

func (l *failingListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	fail := l.failures > 0
	l.failures--
	l.mu.Unlock()
	if fail {
		return nil, errors.New("out of descriptors")
	}
	return l.Listener.Accept()
}

// TestAcceptErrorsPass: the server hears of them, and goes on.
func TestAcceptErrorsPass(t *testing.T) {
	p := newPKI(t)
	g, _ := openGuard(t, p.agent())
	inner := bufconn.Listen(1 << 16)
	l := g.Listen(&failingListener{Listener: inner, failures: 2})
	defer l.Close()
	for range 2 {
		if _, err := l.Accept(); err == nil {
			t.Fatal("no error")
		}
	}
	var dialling sync.WaitGroup
	defer dialling.Wait()
	dialling.Go(func() {
		raw, err := inner.Dial()
		if err != nil {
			t.Error(err)
			return
		}
		defer raw.Close()
		if err := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}).Handshake(); err != nil {
			t.Error(err)
		}
	})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close() // the client may have gone
}

// TestForeignPages: what a web page of somebody else has a browser on this machine send is refused,
// and what people and tools send is not.
func TestForeignPages(t *testing.T) {
	guard, _ := openGuard(t, Config{})
	guard.hostname = "bench7"
	served := guard.HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	const unload, loopback, beyond = "/v2/repository/models/ncf/unload", "127.0.0.1", "192.0.2.1"
	for _, tt := range []struct {
		name, method, path, host, local string
		headers                         map[string]string
		want                            int
	}{
		{"curl", "POST", unload, "localhost:8000", loopback, nil, 200},
		{"curl by address", "POST", unload, "127.0.0.1:8000", loopback, nil, 200},
		{"curl by IPv6 address", "POST", unload, "[::1]:8000", "::1", nil, 200},
		{"the machine's name", "GET", "/v2", "Bench7:8000", loopback, nil, 200},
		{"a name below localhost", "GET", "/v2", "muster.localhost.", loopback, nil, 200},
		{"no host", "GET", "/v2", "", loopback, nil, 200},
		{"own page", "POST", unload, "localhost:8000", loopback,
			map[string]string{"Origin": "http://localhost:8000"}, 200},
		{"other page", "POST", unload, "localhost:8000", loopback,
			map[string]string{"Origin": "http://evil.example"}, 403},
		{"other page, new browser", "POST", unload, "localhost:8000", loopback,
			map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"page of another port", "POST", unload, "localhost:8000", loopback,
			map[string]string{"Origin": "http://localhost:3000"}, 403},
		{"page in a sandbox", "POST", unload, "localhost:8000", loopback,
			map[string]string{"Origin": "null"}, 403},
		{"other page, beyond loopback", "POST", unload, "node1:8000", beyond,
			map[string]string{"Origin": "http://evil.example"}, 403},
		{"rebound name", "POST", unload, "evil.example:8000", loopback,
			map[string]string{"Origin": "http://evil.example:8000"}, 403},
		{"rebound name, read", "GET", "/v2", "evil.example:8000", loopback, nil, 403},
		{"rebound name like ours", "GET", "/metrics", "localhost.evil.example", loopback, nil, 403},
		{"a name, beyond loopback", "GET", "/v2", "node1:8000", beyond, nil, 200},
	} {
		req := httptest.NewRequest(tt.method, "http://x"+tt.path, nil)
		req.Host = tt.host
		req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey,
			&net.TCPAddr{IP: net.ParseIP(tt.local)}))
		for k, v := range tt.headers {
			req.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		served.ServeHTTP(w, req)
		if w.Code != tt.want || w.Code == 403 && !strings.HasPrefix(w.Body.String(), `{"error":"`) {
			t.Errorf("%s: got %d %s, want %d", tt.name, w.Code, w.Body, tt.want)
		}
	}
}

// TestNoCBC: neither side agrees to a cipher suite with CBC.
func TestNoCBC(t *testing.T) {
	p := newPKI(t)
	s := serveHTTP(t, p.agent())
	config := p.tls("")
	config.MaxVersion = tls.VersionTLS12
	if got, body := s.get(config, "GET", "/livez", ""); got != 200 {
		t.Errorf("TLS 1.2: got %d %s", got, body)
	}
	config.CipherSuites = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,
	}
	if got, body := s.get(config, "GET", "/livez", ""); got != 0 ||
		!strings.Contains(body, "handshake failure") {
		t.Errorf("CBC alone: got %d %s", got, body)
	}
}
