package oci

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/releases"
)

// A server is a registry on loopback, which notes the requests that it gets. If user is set, it wants
// that user's password.
type server struct {
	*httptest.Server
	user string

	mu   sync.Mutex
	said []string
	cut  int // bodies of blobs that end after a MiB
}

func newServer(t *testing.T, user string) *server {
	t.Helper()
	s := &server{user: user}
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if name, _, _ := req.BasicAuth(); s.user != "" && name != s.user {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors": [{"code": "UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		s.mu.Lock()
		cut := s.cut > 0 && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/")
		if cut {
			s.cut--
		}
		s.said = append(s.said, req.Method+" "+req.URL.Path+" "+req.Header.Get("Range"))
		s.mu.Unlock()
		if cut {
			w = &short{ResponseWriter: w, left: 1 << 20}
		}
		real.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	return s
}

// A short response ends before its end.
type short struct {
	http.ResponseWriter
	left int
}

func (s *short) Write(p []byte) (int, error) {
	n := min(len(p), s.left)
	s.left -= n
	if n < len(p) {
		_, _ = s.ResponseWriter.Write(p[:n])
		_ = http.NewResponseController(s.ResponseWriter).Flush() // the client has it, or the test fails
		panic(http.ErrAbortHandler)
	}
	return s.ResponseWriter.Write(p)
}

// open opens the store in a repository of the registry.
func (s *server) open(t *testing.T) *store.Store {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	u, err := url.Parse("oci" + strings.TrimPrefix(s.URL, "http") + "/acme/models")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(u, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	return store.New(b, u.String())
}

// model makes a version of ncf with a file of size bytes, and returns the model's folder.
func model(t *testing.T, dir string, version string, size int) string {
	t.Helper()
	folder := filepath.Join(dir, "ncf")
	if err := os.MkdirAll(filepath.Join(folder, version), 0o755); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	copy(data, version)
	if err := os.WriteFile(filepath.Join(folder, version, "model.onnx"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestRegistry: versions are pushed, listed and fetched, by ranges of their blobs; a part that is cut
// off goes on where it stopped.
func TestRegistry(t *testing.T) {
	ctx := context.Background()
	srv := newServer(t, "")
	s := srv.open(t)
	if all, err := s.Index(ctx); err != nil || len(all) != 0 {
		t.Fatalf("an empty registry: got %v, %v", all, err)
	}
	from := t.TempDir()
	for _, version := range []int64{1, 10} {
		number := map[int64]string{1: "1", 10: "10"}[version]
		folder := model(t, from, number, 20<<20)
		sign := func([]byte) ([]byte, error) { return []byte("signed"), nil }
		for again := range 2 {
			p, err := s.Push(ctx, folder, version, store.PushOptions{Sign: sign})
			if err != nil || p.New != (again == 0) || p.Signed != (again == 0) {
				t.Fatalf("push %d, %d: got %+v, %v", version, again, p, err)
			}
		}
	}
	if _, err := s.Push(ctx, model(t, from, "1", 32), 1, store.PushOptions{}); !errors.Is(err,
		store.ErrExists) {
		t.Errorf("other files under the same number: got %v", err)
	}
	entry, err := s.Entry(ctx, "ncf")
	if err != nil || !slices.Equal(entry.Versions, []int64{1, 10}) ||
		!slices.Equal(entry.Signed, []int64{1, 10}) {
		t.Fatalf("got %+v, %v", entry, err)
	}
	if text, err := s.Signature(ctx, "ncf", 10); err != nil || string(text) != "signed" {
		t.Errorf("got %q, %v", text, err)
	}
	m, _, err := s.Manifest(ctx, "ncf", 10)
	if err != nil {
		t.Fatal(err)
	}
	srv.mu.Lock()
	srv.said, srv.cut = nil, 1
	srv.mu.Unlock()
	dir := t.TempDir()
	cache, err := store.OpenCache(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	fetcher := store.Fetcher{Store: s, Cache: cache}
	if _, err := fetcher.Ensure(ctx, "ncf", []*store.Manifest{m}, nil); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "ncf", "10", "model.onnx"))
	want, wantErr := os.ReadFile(filepath.Join(from, "ncf", "10", "model.onnx"))
	if err != nil || wantErr != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want %d as pushed", len(got), err, len(want))
	}
	// 20 MiB are three parts; the one that was cut took one more request, from where it stopped on.
	ranges, resumed := 0, 0
	for _, said := range srv.said {
		var from, to int64
		if _, err := fmt.Sscanf(said[strings.LastIndexByte(said, ' '):], " bytes=%d-%d", &from,
			&to); err == nil {
			ranges++
			if from%(8<<20) > 0 {
				resumed++
			}
		}
	}
	if ranges != 4 || resumed != 1 {
		t.Errorf("got %q, want 4 ranges, one of them from within a part on", srv.said)
	}
	_, _, err = s.Manifest(ctx, "ncf", 11)
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a version that is not there: got %v", err)
	}
	if _, err := s.Entry(ctx, "wnd"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a model that is not there: got %v", err)
	}
}

// TestRelease: releases are tags, and one with the same number stays.
func TestRelease(t *testing.T) {
	ctx := context.Background()
	s := newServer(t, "").open(t)
	if _, err := s.Push(ctx, model(t, t.TempDir(), "1", 32), 1, store.PushOptions{}); err != nil {
		t.Fatal(err)
	}
	first := &control.Release{Model: "ncf", Number: 9, Current: 1}
	other := &control.Release{Model: "ncf", Number: 9, Current: 2}
	next := &control.Release{Model: "ncf", Number: 10, Current: 3}
	if err := releases.Create(ctx, s, first); err != nil {
		t.Fatal(err)
	}
	if err := releases.Create(ctx, s, other); !errors.Is(err, store.ErrExists) {
		t.Errorf("the same number again: got %v", err)
	}
	if err := releases.Create(ctx, s, next); err != nil {
		t.Fatal(err)
	}
	r, _, err := releases.Newest(ctx, s, "ncf")
	if err != nil || r.GetNumber() != 10 || r.GetCurrent() != 3 {
		t.Errorf("got %v, %v", r, err)
	}
}

// TestCredentials: docker's are used; without them, or without a registry, it is said so.
func TestCredentials(t *testing.T) {
	ctx := context.Background()
	srv := newServer(t, "alice")
	s := srv.open(t)
	if _, err := s.Index(ctx); !errors.Is(err, store.ErrDenied) {
		t.Errorf("without credentials: got %v", err)
	}
	srv.open(t)
	host := strings.TrimPrefix(srv.URL, "http://")
	config := `{"auths": {"` + host + `": {"auth": "` +
		base64.StdEncoding.EncodeToString([]byte("alice:secret")) + `"}}}`
	path := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse("oci://" + host + "/acme/models")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(u, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	s = store.New(b, "store")
	folder := model(t, t.TempDir(), "1", 32)
	if _, err := s.Push(ctx, folder, 1, store.PushOptions{}); err != nil {
		t.Errorf("with docker's credentials: %v", err)
	}
	if _, err := s.Newest(ctx, "ncf"); err != nil {
		t.Error(err)
	}
}

// TestRealm: docker's credentials go to a host that a registry names by HTTPS alone, whether they are
// a password or a token; by plain HTTP they go to the registry's own host, and the error says what
// was found.
func TestRealm(t *testing.T) {
	const refresh = "refresh-token"
	var realm string
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer good" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="registry"`)
			http.Error(w, `{"errors": [{"code": "UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"tags": []}`)
	}))
	defer registry.Close()
	var mu sync.Mutex
	var got []string
	tokens := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		mu.Lock()
		got = append(got, req.Header.Get("Authorization")+" "+string(body))
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"token": "good", "access_token": "good"}`)
	})
	plain, encrypted := httptest.NewServer(tokens), httptest.NewTLSServer(tokens)
	defer plain.Close()
	defer encrypted.Close()
	// All names are of this machine, by the port.
	real := http.DefaultTransport
	defer func() { http.DefaultTransport = real }()
	named := encrypted.Client().Transport.(*http.Transport).Clone()
	named.TLSClientConfig.ServerName = "example.com" // which its certificate is of
	named.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
	}
	http.DefaultTransport = named

	port := func(s *httptest.Server) string { return s.URL[strings.LastIndex(s.URL, ":"):] }
	const here = "registry.example"
	for _, tt := range []struct {
		realm string
		sent  bool
	}{
		{"http://tokens.example" + port(plain), false},
		{"https://tokens.example" + port(encrypted), true},
		{"http://" + here + port(plain), true},
	} {
		for _, secret := range []string{`"auth": "YWxpY2U6cGFzc3dvcmQ="`,
			`"auth": "YWxpY2U6cGFzc3dvcmQ=", "identitytoken": "` + refresh + `"`} {
			realm, got = tt.realm, nil
			t.Setenv("DOCKER_CONFIG", t.TempDir())
			config := `{"auths": {"` + here + port(registry) + `": {` + secret + `}}}`
			path := filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse("oci://" + here + port(registry) + "/acme/models?plain_http=true")
			if err != nil {
				t.Fatal(err)
			}
			b, err := Open(u, http.DefaultTransport)
			if err != nil {
				t.Fatal(err)
			}
			_, err = store.New(b, "store").Index(context.Background())
			mu.Lock()
			said := strings.Join(got, "\n")
			mu.Unlock()
			sent := strings.Contains(said, "Basic ") || strings.Contains(said, refresh)
			if sent != tt.sent {
				t.Errorf("realm %s: was told %q, want credentials %v", tt.realm, said, tt.sent)
			}
			if tt.sent && err != nil {
				t.Errorf("realm %s: %v", tt.realm, err)
			}
			if !tt.sent && (!errors.Is(err, store.ErrDenied) ||
				!strings.Contains(err.Error(), tt.realm)) {
				t.Errorf("realm %s: got %v, want it named", tt.realm, err)
			}
		}
	}
}

// TestTags: what a tag says of a document's key comes back, and other tags are none of a store.
func TestTags(t *testing.T) {
	for key, want := range map[string]string{
		"models/ncf/3.json":                  "ncf.3",
		"models/ncf/3.json.minisig":          "ncf.3.minisig",
		"models/ncf/releases/7.json":         "ncf.release-7",
		"models/ncf/releases/7.json.minisig": "ncf.release-7.minisig",
		"models/ncf/revoked/3.json":          "ncf.revoked-3",
		"models/ncf/revoked/3.json.minisig":  "ncf.revoked-3.minisig",
		"models/a.b_c-D/3.json":              "a.b_c-D.3",
		"models/ncf.3/1.json":                "ncf.3.1",
		"models/ncf.release-1/2.json":        "ncf.release-1.2",
		"models/ncf.minisig/releases/1.json": "ncf.minisig.release-1",
	} {
		tag, err := tagOf(key)
		if err != nil || tag != want || keyOf(tag) != key {
			t.Errorf("%s: got %q, %v, and back %q, want %q", key, tag, err, keyOf(tag), want)
		}
	}
	for _, key := range []string{"models/n c/3.json", "models/né/3.json",
		"models/" + strings.Repeat("n", 130) + "/3.json", "models/-n/3.json"} {
		if tag, err := tagOf(key); err == nil {
			t.Errorf("%s: got %q, want an error", key, tag)
		}
	}
	for _, tag := range []string{"latest", "v1.2.x", "ncf.minisig", ".3", "ncf.released-7", "3"} {
		if key := keyOf(tag); key != "" {
			t.Errorf("%s: got %q, want none", tag, key)
		}
	}
}

// TestCheck: URLs that name no repository are refused.
func TestCheck(t *testing.T) {
	for address, good := range map[string]bool{
		"oci://ghcr.io/acme/models": true, "oci://127.0.0.1:5000/m?plain_http=true": true,
		"oci://ghcr.io": false, "oci://ghcr.io/Acme": false, "oci://ghcr.io/acme:latest": false,
		"oci://ghcr.io/acme?region=x": false, "oci:///acme": false,
		"oci://h/acme?plain_http=perhaps": false,
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(u); (err == nil) != good {
			t.Errorf("%s: got %v", address, err)
		}
	}
}
