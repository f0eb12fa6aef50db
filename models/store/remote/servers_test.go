package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// faults stands between the client and a server, and spoils what it answers for files.
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
	if q := r.URL.Query(); q.Get("uploadType") == "resumable" && q.Has("ifGenerationMatch") {
		// fake-gcs-server looks whether there is an object only at uploads of one part.
		look := httptest.NewRequestWithContext(r.Context(), http.MethodGet,
			strings.TrimPrefix(r.URL.Path, "/upload")+"/"+url.PathEscape(q.Get("name")), nil)
		found := httptest.NewRecorder()
		if f.to.ServeHTTP(found, look); found.Code == http.StatusOK {
			http.Error(w, "there is one", http.StatusPreconditionFailed)
			return
		}
	}
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
	f.to.ServeHTTP(&spoiledWriter{ResponseWriter: w, faults: f, n: n}, r)
}

type spoiledWriter struct {
	http.ResponseWriter
	faults *faults
	n      int64
	sent   int64
}

func (s *spoiledWriter) WriteHeader(code int) {
	if at := s.Header().Get("Content-Range"); s.faults.lie && s.n%3 == 0 && at != "" {
		begin, _, _ := strings.Cut(at, "/")
		s.Header().Set("Content-Range", begin+"/7")
	}
	s.ResponseWriter.WriteHeader(code)
}

func (s *spoiledWriter) Write(p []byte) (int, error) {
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

// TestMoto: a store in S3, by moto, a program that answers like AWS. TestAzurite and TestFakeGCS
// hold Azure and Google likewise. scripts/stores.sh starts the servers and says where they are.
func TestMoto(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	testServer(t, "MOTO_URL", func(server *url.URL, bucket string) string {
		return fmt.Sprintf("s3://%s/a/b?endpoint=%s&use_path_style=true&region=us-east-1", bucket,
			server)
	}, func(server *url.URL, bucket string) error {
		return request(http.MethodPut, server.JoinPath(bucket).String(), "")
	})
}

func TestAzurite(t *testing.T) {
	t.Setenv("AZURE_STORAGE_ACCOUNT", "muster")
	t.Setenv("AZURE_STORAGE_KEY", "bXVzdGVy")
	testServer(t, "AZURITE_URL", func(server *url.URL, bucket string) string {
		return fmt.Sprintf("azblob://%s/a/b?protocol=http&domain=%s", bucket, server.Host)
	}, func(server *url.URL, bucket string) error {
		u, err := url.Parse(fmt.Sprintf("azblob://%s?protocol=http&domain=%s", bucket, server.Host))
		if err != nil {
			return err
		}
		b, err := openAzure(u)
		if err != nil {
			return err
		}
		_, err = b.client.Create(t.Context(), nil)
		return err
	})
}

func TestFakeGCS(t *testing.T) {
	testServer(t, "FAKE_GCS_URL", func(server *url.URL, bucket string) string {
		t.Setenv("STORAGE_EMULATOR_HOST", server.Host)
		return fmt.Sprintf("gs://%s/a/b", bucket)
	}, func(server *url.URL, bucket string) error {
		return request(http.MethodPost, server.JoinPath("storage/v1/b").String()+"?project=p",
			fmt.Sprintf(`{"name": %q}`, bucket))
	})
}

// request sends a request to a server that needs no credentials.
func request(method, address, body string) error {
	r, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, address, answer.Status)
	}
	return errors.Join(err, answer.Body.Close())
}

// testServer holds a store against the server that a variable names: if that is cut, fails, lies
// about sizes and dies in the middle, an agent's directory has the whole version or the old one,
// and nothing is fetched anew that was right. address is the store's URL by a bucket and the
// server's URL.
func testServer(t *testing.T, variable string, address func(server *url.URL, bucket string) string,
	makeBucket func(server *url.URL, bucket string) error) {
	at := os.Getenv(variable)
	if at == "" {
		t.Skipf("no %s; `make stores` runs this test", variable)
	}
	target, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &faults{to: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // by which a server says where an upload goes on
	}}}
	server := httptest.NewServer(proxy)
	defer server.Close()
	through, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("models-%d", time.Now().UnixNano())
	if err := makeBucket(target, name); err != nil {
		t.Fatalf("make a bucket: %v", err)
	}
	whole, err := url.Parse(address(through, name))
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := openBucket(t.Context(), whole)
	if err != nil {
		t.Fatal(err)
	}
	testBucket(t, &prefixedBucket{bucket, "c/", name})
	open := func(bucket string) *store.Store {
		s, err := Open(t.Context(), address(through, bucket))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() }) // nothing was written
		return s
	}
	s := open(name)
	from := t.TempDir()
	push := func(version int64, seed byte) (store.PushResult, error) {
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
	proxy.calls.Store(0)
	proxy.sent.Store(0)
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

// testBucket holds a bucket to what store.Bucket says.
func testBucket(t *testing.T, b store.Bucket) {
	t.Helper()
	large := make([]byte, 2*minPartBytes+1)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(large)
	objects := map[string]string{
		"models/ncf/1.json": "{}", "models/a 40% #1?+é&=\"/2.json": `{"a": 1}`,
		"blobs/sha256/empty": "", "blobs/sha256/large": string(large),
	}
	for key, want := range objects {
		create := func(text string, size int) error {
			return b.Create(t.Context(), key, int64(size), strings.NewReader(text))
		}
		if _, _, err := b.Open(t.Context(), key, 0, 0); !errors.Is(err, store.ErrNotFound) ||
			!strings.Contains(err.Error(), key) {
			t.Errorf("%s, which is not there: %v", key, err)
		}
		for _, size := range []int{len(want) - 1, len(want) + 1} {
			if err := create(want, max(size, 1)); err == nil {
				t.Errorf("%s of %d bytes, announced %d: no error", key, len(want), size)
			}
		}
		if _, _, err := b.Open(t.Context(), key, 0, -1); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s, which was not written whole: %v", key, err)
		}
		if err := create(want, len(want)); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if err := create(strings.Repeat("x", len(want)), len(want)); !errors.Is(err,
			store.ErrExists) {
			t.Errorf("%s again: %v", key, err)
		}
		for _, part := range [][2]int{{0, -1}, {0, 1}, {1, 1}, {max(len(want)-1, 0), -1}, {0, 0}} {
			offset, end := part[0], part[0]+part[1]
			if part[1] < 0 {
				end = len(want)
			}
			if offset > end || end > len(want) {
				continue
			}
			r, size, err := b.Open(t.Context(), key, int64(offset), int64(part[1]))
			if err != nil {
				t.Fatalf("%s from %d, %d bytes: %v", key, offset, part[1], err)
			}
			got, err := io.ReadAll(r)
			if err = errors.Join(err, r.Close()); err != nil || size != int64(len(want)) ||
				string(got) != want[offset:end] {
				t.Errorf("%s from %d, %d bytes: got %d of %d, %v", key, offset, part[1], len(got),
					size,
					err)
			}
		}
	}
	got := map[string]int64{}
	err := b.List(t.Context(), "models/", func(key string, size int64) error {
		got[key] = size
		return nil
	})
	for key, text := range objects {
		if strings.HasPrefix(key, "models/") && got[key] != int64(len(text)) {
			t.Errorf("the list has %v (%v), expected %s of %d bytes", got, err, key, len(text))
		}
	}
	stop := errors.New("stop")
	if err := b.List(t.Context(), "", func(string, int64) error { return stop }); err != stop {
		t.Errorf("a list that is stopped: %v", err)
	}
}
