package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-serve/muster/models/store"
)

// faults stands between the client and an S3 server, and spoils what it answers for files.
type faults struct {
	to    http.Handler
	calls atomic.Int64
	// cut ends every answer after so many bytes, with the connection; 0: none.
	cut int64
	// fail answers every second read with an error.
	fail bool
	// lie says another size of the file than it has, every third time.
	lie bool
	// dead answers nothing after so many reads; 0: never.
	dead int64
	sent atomic.Int64 // bytes of files
}

func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		f.to.ServeHTTP(w, r)
		return
	}
	n := f.calls.Add(1)
	if f.dead > 0 && n > f.dead {
		panic(http.ErrAbortHandler)
	}
	if f.fail && n%2 == 0 {
		http.Error(w, "slow down", http.StatusServiceUnavailable)
		return
	}
	f.to.ServeHTTP(&spoiled{ResponseWriter: w, faults: f, n: n}, r)
}

type spoiled struct {
	http.ResponseWriter
	faults *faults
	n      int64
	sent   int64
}

func (s *spoiled) WriteHeader(code int) {
	if at := s.Header().Get("Content-Range"); s.faults.lie && s.n%3 == 0 && at != "" {
		begin, _, _ := strings.Cut(at, "/")
		s.Header().Set("Content-Range", begin+"/7")
	}
	s.ResponseWriter.WriteHeader(code)
}

func (s *spoiled) Write(p []byte) (int, error) {
	if cut := s.faults.cut; cut > 0 && s.sent+int64(len(p)) > cut {
		n, _ := s.ResponseWriter.Write(p[:cut-s.sent])
		s.faults.sent.Add(int64(n))
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	n, err := s.ResponseWriter.Write(p)
	s.sent += int64(n)
	s.faults.sent.Add(int64(n))
	return n, err
}

// TestMoto: against an S3 server that is cut, fails, lies about sizes and dies in the middle, an
// agent's directory has the whole version or the old one, and nothing is fetched anew that was
// right. scripts/moto.sh starts moto and says where it is.
func TestMoto(t *testing.T) {
	at := os.Getenv("MOTO_URL")
	if at == "" {
		t.Skip("no MOTO_URL; `make moto` runs this test")
	}
	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	proxy := &faults{to: httputil.NewSingleHostReverseProxy(target)}
	server := httptest.NewServer(proxy)
	defer server.Close()
	name := fmt.Sprintf("models-%d", time.Now().UnixNano())
	request, err := http.NewRequest(http.MethodPut, at+"/"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("make a bucket: %v, %v", response, err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	open := func(bucket string) *store.Store {
		s, err := Open(t.Context(), fmt.Sprintf(
			"s3://%s/a/b?endpoint=%s&use_path_style=true&region=us-east-1", bucket, server.URL))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() }) // nothing was written
		return s
	}
	s := open(name)
	from := t.TempDir()
	push := func(version int64, seed byte) (store.Pushed, error) {
		folder := filepath.Join(from, fmt.Sprint(seed), "ncf")
		path := filepath.Join(folder, fmt.Sprint(version), "weights")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		data := make([]byte, 17<<20) // three parts
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return s.Push(t.Context(), folder, version, store.PushOptions{})
	}
	for v := range int64(2) {
		if p, err := push(v+1, byte(v)); err != nil || !p.New {
			t.Fatalf("push: %+v, %v", p, err)
		}
	}
	if p, err := push(1, 0); err != nil || p.New || p.Sent != 0 {
		t.Errorf("push the same: %+v, %v", p, err)
	}
	if _, err := push(1, 9); !errors.Is(err, store.ErrExists) {
		t.Errorf("push another as the same version: %v", err)
	}
	if newest, err := s.Newest(t.Context(), "ncf"); err != nil || newest != 2 {
		t.Errorf("newest: %d, %v", newest, err)
	}
	if _, _, err := s.Manifest(t.Context(), "ncf", 3); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a version that is not there: %v", err)
	}
	if _, err := open("no-such-bucket").Index(t.Context()); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a bucket that is not there: %v", err)
	}

	dir := t.TempDir()
	ensure := func(ctx context.Context, version int64) error {
		cache, err := store.OpenCache(dir, 0) // as a new process does
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close()
		m, err := s.Trusted(ctx, "ncf", version, nil)
		if err != nil {
			return err
		}
		_, err = (&store.Fetcher{Cache: cache, Store: s}).Ensure(ctx, "ncf", []*store.Manifest{m},
			nil)
		return err
	}
	holds := func(version int64) {
		t.Helper()
		got, _ := filepath.Glob(filepath.Join(dir, "ncf", "[0-9]*", "weights"))
		want := filepath.Join(dir, "ncf", fmt.Sprint(version), "weights")
		if len(got) != 1 || got[0] != want {
			t.Fatalf("got %v, want %s", got, want)
		}
		there, err := os.ReadFile(want)
		if err != nil {
			t.Fatal(err)
		}
		pushed, err := os.ReadFile(filepath.Join(from, fmt.Sprint(version-1), "ncf",
			fmt.Sprint(version), "weights"))
		if err != nil || string(there) != string(pushed) {
			t.Fatalf("version %d has other bytes than were pushed", version)
		}
	}
	forget := func() {
		files, _ := filepath.Glob(filepath.Join(dir, ".store", "files", "*"))
		for _, path := range files {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}

	// It dies after two of three parts, or fewer; the process ends, and the next goes on.
	proxy.dead = 2
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	if err := ensure(ctx, 1); err == nil {
		t.Fatal("a dead store: no error")
	}
	cancel()
	if _, err := os.Stat(filepath.Join(dir, "ncf")); err == nil {
		t.Fatal("a version that is not whole is there")
	}
	proxy.dead = 0
	if err := ensure(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	holds(1)
	if got, most := proxy.sent.Load(), int64(18<<20); got > most {
		t.Errorf("%d bytes for a file of %d in two goes", got, 17<<20)
	}
	for what, spoil := range map[string]func(){
		"cut":  func() { proxy.cut = 3 << 20 },
		"fail": func() { proxy.fail = true },
		"lie":  func() { proxy.lie = true },
	} {
		spoil()
		for _, version := range []int64{2, 1} {
			forget()
			proxy.sent.Store(0)
			if err := ensure(t.Context(), version); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			holds(version)
			if got, most := proxy.sent.Load(), int64(18<<20); what == "cut" && got > most {
				t.Errorf("%s: %d bytes for a file of %d", what, got, 17<<20)
			}
		}
		proxy.cut, proxy.fail, proxy.lie = 0, false, false
	}
	forget()
	proxy.dead = proxy.calls.Load()
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := ensure(ctx, 2); err == nil {
		t.Fatal("a dead store: no error")
	}
	holds(1)
}

// TestCheck: what cannot be the URL of a store is named.
func TestCheck(t *testing.T) {
	for address, says := range map[string]string{
		"s3://models":               "",
		"s3://models/prod?region=x": "",
		"gs://models/prod":          "",
		"azblob://models":           "",
		"file:///srv/models":        "",
		"models":                    `has the scheme ""`,
		"ftp://models":              `has the scheme "ftp"`,
		"s3:///prod":                "names no bucket",
		"file://srv/models":         "expected file:///PATH",
		"s3://key:secret@models":    "credentials come from where",
		"s3://%zz":                  "invalid URL escape",
	} {
		err := Check(address)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", address, err, says)
		}
	}
}
