package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aead.dev/minisign"
)

func TestMain(m *testing.M) {
	partBytes = 64 << 10
	os.Exit(m.Run())
}

// model writes a version of a model with weights of size bytes, which follow from seed, into dir.
func model(t *testing.T, dir, name string, version int64, seed uint64, size int) string {
	t.Helper()
	folder := filepath.Join(dir, name)
	weights := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(weights)
	for path, data := range map[string][]byte{
		"model.yaml":                          []byte("qos_target_ms: 10\n"),
		fmt.Sprintf("%d/model.onnx", version): fmt.Appendf(nil, "graph %d", version),
		fmt.Sprintf("%d/weights", version):    weights,
		".hidden":                             []byte("no"),
	} {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// pushed is a store with the versions 1 and 2 of ncf, which have the same weights of three parts.
func pushed(t *testing.T) (*Store, string) {
	t.Helper()
	s, dir := open(t)
	from := t.TempDir()
	for v := int64(1); v <= 2; v++ {
		folder := model(t, from, "ncf", v, 1, 2*int(partBytes)+100)
		p, err := s.Push(context.Background(), folder, v, PushOptions{By: "me"})
		if err != nil || !p.New {
			t.Fatalf("push: %+v, %v", p, err)
		}
		if sent := p.Sent < partBytes; sent != (v == 2) {
			t.Errorf("pushing version %d sent %d bytes, expected the weights once", v, p.Sent)
		}
	}
	return s, dir
}

// fetcher returns one that fetches into an empty model directory, and the directory.
func fetcher(t *testing.T, s *Store) (*Fetcher, string) {
	t.Helper()
	dir := t.TempDir()
	return &Fetcher{Cache: openedFile(t, dir, 0), Store: s}, dir
}

// openedFile returns the cache of a model directory, until the test ends.
func openedFile(t *testing.T, dir string, bound int64) *Cache {
	t.Helper()
	c, err := OpenCache(dir, bound)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // or the test has done it
	return c
}

// reopen closes the cache and opens it as the next process does.
func (f *Fetcher) reopen(t *testing.T, bound int64) {
	t.Helper()
	if err := f.Cache.Close(); err != nil {
		t.Fatal(err)
	}
	f.Cache = openedFile(t, f.Cache.dir, bound)
}

// TestCacheInUse: a cache that one process has open, another does not open: it would remove what
// the first has not finished. When the first has ended, it does.
func TestCacheInUse(t *testing.T) {
	s, _ := pushed(t)
	f, dir := fetcher(t, s)
	unfinished := f.Cache.pathOf(modelsFolder, "unfinished")
	if err := os.Mkdir(unfinished, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCache(dir, 0); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("while it is in use: got %v, want an error that names %s", err, dir)
	}
	if _, err := os.Stat(unfinished); err != nil {
		t.Error(err)
	}
	f.reopen(t, 0)
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was not finished is there: %v", err)
	}
	if err := f.ensure(t, 1); err != nil {
		t.Error(err)
	}
}

func (f *Fetcher) ensure(t *testing.T, versions ...int64) error {
	t.Helper()
	var all []*Manifest
	for _, v := range versions {
		m, err := f.Store.Trusted(context.Background(), "ncf", v, f.Keys)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	_, err := f.Ensure(context.Background(), "ncf", all, nil)
	return err
}

// TestPush: a version never changes, and what the store has is not sent again.
func TestPush(t *testing.T) {
	ctx := context.Background()
	s, dir := pushed(t)
	from := t.TempDir()
	folder := model(t, from, "ncf", 2, 1, 2*int(partBytes)+100)
	p, err := s.Push(ctx, folder, 2, PushOptions{})
	if err != nil || p.New || p.Sent != 0 {
		t.Errorf("the same again: %+v, %v", p, err)
	}
	folder = model(t, from, "ncf", 2, 2, 100)
	if _, err := s.Push(ctx, folder, 2, PushOptions{}); !errors.Is(err, ErrExists) ||
		!strings.Contains(err.Error(), "another 2/weights, pushed ") {
		t.Errorf("other files: got %v, want %v with the file", err, ErrExists)
	}
	m, _, err := s.Manifest(ctx, "ncf", 2)
	if err != nil || m.Bytes() < partBytes {
		t.Errorf("after that: %+v, %v", m, err)
	}
	outside := filepath.Join(from, "ncf", "2", "passwd")
	if err := os.Symlink("/etc/passwd", outside); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Push(ctx, folder, 2, PushOptions{}); err == nil ||
		!strings.Contains(err.Error(), "outside of the model directory") {
		t.Errorf("a link that leads out: got %v", err)
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(blobs) != 4 { // settings, two graphs, weights
		t.Errorf("got %d files in the store, want 4: %v", len(blobs), err)
	}
}

// TestEnsure: versions and settings change together, versions with the same weights share a file,
// and what no folder holds leaves the cache when its place is needed.
func TestEnsure(t *testing.T) {
	s, _ := pushed(t)
	f, dir := fetcher(t, s)
	inode := func(path string) os.FileInfo {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	if err := f.ensure(t, 1); err != nil {
		t.Fatal(err)
	}
	one := inode("ncf/1/weights")
	if err := f.ensure(t, 1, 2); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(one, inode("ncf/1/weights")) || !os.SameFile(one, inode("ncf/2/weights")) {
		t.Error("the versions do not share their weights")
	}
	held := f.Cache.Held()["ncf"]
	if len(held) != 2 || held[0].Version != 1 || held[1].Version != 2 {
		t.Errorf("got %v, want versions 1 and 2", held)
	}
	if err := f.ensure(t, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ncf", "1")); err == nil {
		t.Error("version 1 is still there")
	}
	f.reopen(t, one.Size()+1000)
	file := File{Path: "2/x", Size: 970, SHA256: strings.Repeat("00", 32)}
	if err := f.Cache.Room([]File{file}); err != nil {
		t.Errorf("room beside what is held: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".store", "files", "*"))
	if len(left) != 3 { // the graph of version 1 is gone
		t.Errorf("got %d files, want 3: %v", len(left), left)
	}
	file.Size = 1100
	if err := f.Cache.Room([]File{file}); err == nil ||
		!strings.Contains(err.Error(), "are in use") {
		t.Errorf("too little room: got %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "wnd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Cache.Install("wnd", held[1:]); !errors.Is(err, os.ErrExist) {
		t.Errorf("a folder in the way: got %v", err)
	}
	for _, name := range []string{"../ncf", "..", ".x"} {
		if _, err := f.Cache.Install(name, held[1:]); err == nil {
			t.Errorf("installed %q", name)
		}
	}
	if err := f.Cache.Remove("ncf"); err != nil {
		t.Fatal(err)
	}
	if len(f.Cache.Held()) != 0 {
		t.Error("ncf is still held")
	}
}

// faulty is a bucket that does with reads of files what its function does.
type faulty struct {
	Bucket
	open func(r io.ReadCloser, size, offset, length int64) (io.ReadCloser, int64, error)
}

func (b faulty) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	r, size, err := b.Bucket.Open(ctx, key, offset, length)
	if err != nil || !strings.HasPrefix(key, "blobs/") {
		return r, size, err
	}
	return b.open(r, size, offset, length)
}

// TestFetchFaults: whatever a store does, an agent has the whole version or the old one, and what
// was right is not fetched again. Time is virtual.
func TestFetchFaults(t *testing.T) {
	limited := func(r io.ReadCloser, n int64) io.ReadCloser {
		return struct {
			io.Reader
			io.Closer
		}{io.LimitReader(r, n), r}
	}
	var calls atomic.Int64
	const cut = 3000
	for _, tt := range []struct {
		name string
		open func(r io.ReadCloser, size, offset, length int64) (io.ReadCloser, int64, error)
		says string // "": it succeeds
		most int64  // bytes received beyond those of the files; -1: any number
	}{
		{"whole", func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64, error) {
			return r, size, nil
		}, "", 0},
		{"cut every 3000 bytes",
			func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64, error) {
				return limited(r, cut), size, nil
			}, "", 0},
		{"every second call fails", func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64,
			error) {
			if calls.Add(1)%2 == 0 {
				return nil, 0, errors.New("503 slow down")
			}
			return r, size, nil
		}, "", 0},
		{"reset now and then", func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64,
			error) {
			if calls.Add(1)%3 == 0 {
				return struct {
					io.Reader
					io.Closer
				}{
					io.MultiReader(io.LimitReader(r, 1000), errorAfter("reset by peer")), r,
				}, size, nil
			}
			return r, size, nil
		}, "", 0},
		{"wrong now and then", func(r io.ReadCloser, size, offset, length int64) (io.ReadCloser,
			int64, error) {
			if calls.Add(1)%4 == 0 {
				return limited(struct {
					io.Reader
					io.Closer
				}{zeroes{}, r}, length), size, nil
			}
			return r, size, nil
		}, "", -1},
		{"always wrong", func(r io.ReadCloser, size, _, length int64) (io.ReadCloser, int64,
			error) {
			return limited(struct {
				io.Reader
				io.Closer
			}{zeroes{}, r}, length), size, nil
		}, "wrong bytes: the SHA-256 of bytes", -1},
		{"lies about sizes", func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64, error) {
			return r, size + 1, nil
		}, "bytes, the manifest says", -1},
		{"sends more", func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64, error) {
			return struct {
				io.Reader
				io.Closer
			}{io.MultiReader(r, zeroes{}), r}, size, nil
		}, "", 0},
		{"cut after each byte",
			func(r io.ReadCloser, size, _, _ int64) (io.ReadCloser, int64, error) {
				return limited(r, 1), size, nil
			}, "after 1 of", 0},
		{"always away", func(io.ReadCloser, int64, int64, int64) (io.ReadCloser, int64, error) {
			return nil, 0, errors.New("connection refused")
		}, "connection refused", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			whole, _ := pushed(t)
			f, dir := fetcher(t, whole)
			if err := f.ensure(t, 1); err != nil {
				t.Fatal(err)
			}
			// The weights, which version 2 has too, are to be fetched again.
			m, _, err := whole.Manifest(context.Background(), "ncf", 2)
			if err != nil {
				t.Fatal(err)
			}
			missing := int64(0)
			for _, file := range m.Files {
				if file.Path != "model.yaml" {
					_ = os.Remove(f.Cache.pathOf(filesFolder, file.SHA256))
					missing += file.Size
				}
			}
			var received atomic.Int64
			f.Received = func(_ string, n int) { received.Add(int64(n)) }
			f.Store = New(faulty{whole.bucket, tt.open}, "faulty")
			calls.Store(0)
			synctest.Test(t, func(t *testing.T) { err = f.ensure(t, 2) })
			now := "2"
			if tt.says != "" {
				now = "1"
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("got %v, want an error with %q", err, tt.says)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			versions, _ := filepath.Glob(filepath.Join(dir, "ncf", "[0-9]*"))
			if len(versions) != 1 || filepath.Base(versions[0]) != now {
				t.Errorf("got %v, want version %s alone", versions, now)
			}
			got, err := buildManifest(context.Background(), filepath.Join(dir, "ncf"),
				int64(now[0]-'0'))
			if err != nil {
				t.Fatal(err)
			}
			want, _, err := whole.Manifest(context.Background(), "ncf", int64(now[0]-'0'))
			if err != nil || !got.SameFiles(want) {
				t.Errorf("got other files than were pushed: %v", err)
			}
			if more := received.Load() - missing; tt.most >= 0 && tt.says == "" && more > tt.most {
				t.Errorf("received %d bytes more than the %d that were missing", more, missing)
			}
		})
	}
}

// slowBucket is a bucket whose files come a byte every ten seconds.
type slowBucket struct{ Bucket }

func (b slowBucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser,
	int64, error) {
	r, size, err := b.Bucket.Open(ctx, key, offset, length)
	if err != nil || !ReadsFile(ctx) {
		return r, size, err
	}
	return drip{r, ctx}, size, nil
}

type drip struct {
	io.ReadCloser
	ctx context.Context
}

func (d drip) Read(p []byte) (int, error) {
	if err := sleep(d.ctx, 10*time.Second); err != nil {
		return 0, err
	}
	return d.ReadCloser.Read(p[:1])
}

// TestFetchDrips: a store that sends a byte now and then is given up. Time is virtual.
func TestFetchDrips(t *testing.T) {
	s, _ := pushed(t)
	f, _ := fetcher(t, New(slowBucket{s.bucket}, "dripping"))
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := f.ensure(t, 1)
		if took := time.Since(begin); err == nil || took > 10*time.Minute {
			t.Errorf("got %v after %v, want an error within ten minutes", err, took)
		}
	})
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type errorAfter string

func (e errorAfter) Read([]byte) (int, error) { return 0, errors.New(string(e)) }

// TestFetchResumes: a process that is killed in the middle goes on where it was, and one whose
// parts were damaged on the disk begins anew rather than serve them.
func TestFetchResumes(t *testing.T) {
	s, _ := pushed(t)
	f, _ := fetcher(t, s)
	var received atomic.Int64
	f.Received = func(_ string, n int) { received.Add(int64(n)) }
	var opened atomic.Int64
	f.Store = New(faulty{s.bucket, func(r io.ReadCloser, size, _, length int64) (io.ReadCloser,
		int64, error) {
		if length > 1000 && opened.Add(1) > 1 { // one part of the weights comes
			return nil, 0, fmt.Errorf("%w: the key was revoked", ErrDenied)
		}
		return r, size, nil
	}}, "faulty")
	// One part at a time, so that the first is there when the second fails.
	m, _, err := s.Manifest(context.Background(), "ncf", 1)
	if err != nil {
		t.Fatal(err)
	}
	weights := m.Files[1]
	p, err := f.Cache.open(weights)
	if err != nil {
		t.Fatal(err)
	}
	swarm := &swarm{fetcher: f, parts: p}
	err = swarm.fetchParts(context.Background(), make(chan struct{}, 1), func(int64) {})
	if !errors.Is(err, ErrDenied) {
		t.Fatalf("got %v, want %v", err, ErrDenied)
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	f.reopen(t, 0)
	f.Store = s
	if err := f.ensure(t, 1); err != nil {
		t.Fatal(err)
	}
	if got := received.Load(); got != m.Bytes() {
		t.Errorf("received %d bytes in all, want %d", got, m.Bytes())
	}

	for _, file := range []File{weights, m.Files[0]} { // of three parts, and of one
		f, _ = fetcher(t, s)
		p, err = f.Cache.open(file)
		if err != nil {
			t.Fatal(err)
		}
		all := bytes.Repeat([]byte{1}, file.countParts())
		if _, err := p.have.WriteAt(all, 0); err != nil { // but the disk has lost the data
			t.Fatal(err)
		}
		if err := p.close(); err != nil {
			t.Fatal(err)
		}
		if err := f.ensure(t, 1); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: got %v, want %v", file.Path, err, ErrCorrupt)
		}
		if err := f.ensure(t, 1); err != nil {
			t.Errorf("%s, the time after: %v", file.Path, err)
		}
	}
}

// TestCacheRemoved: a model is installed anew if somebody has removed the cache, whose folder its
// link still names, or the model's folder alone.
func TestCacheRemoved(t *testing.T) {
	s, _ := pushed(t)
	for _, gone := range []string{".store", ".store/models"} {
		f, dir := fetcher(t, s)
		if err := f.ensure(t, 1); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, filepath.FromSlash(gone))); err != nil {
			t.Fatal(err)
		}
		f.reopen(t, 0)
		if err := f.ensure(t, 1); err != nil {
			t.Errorf("without %s: %v", gone, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "ncf", "1", "weights")); err != nil {
			t.Errorf("without %s: %v", gone, err)
		}
	}
}

// TestSignatures: what is not signed by a trusted key is not fetched.
func TestSignatures(t *testing.T) {
	ctx := context.Background()
	s, dir := open(t)
	from := t.TempDir()
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, key interface{ MarshalText() ([]byte, error) }) string {
		text, err := key.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(from, name)
		if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keys, err := ReadKeys(write("key.pub", public))
	if err != nil {
		t.Fatal(err)
	}
	strangers, err := ReadKeys(write("other.pub", other))
	if err != nil {
		t.Fatal(err)
	}
	sign, err := ReadSigner(write("key", private), nil)
	if err != nil {
		t.Fatal(err)
	}
	folder := model(t, from, "ncf", 1, 1, 100)
	if _, err := s.Push(ctx, folder, 1, PushOptions{}); err != nil {
		t.Fatal(err)
	}
	f, _ := fetcher(t, s)
	f.Keys = keys
	if err := f.ensure(t, 1); !errors.Is(err, ErrSignature) ||
		!strings.Contains(err.Error(), "muster models push --sign KEY") {
		t.Errorf("without a signature: got %v", err)
	}
	p, err := s.Push(ctx, folder, 1, PushOptions{Sign: sign.Sign})
	if err != nil || p.New || !p.Signed {
		t.Fatalf("signing what is there: %+v, %v", p, err)
	}
	if err := f.ensure(t, 1); err != nil {
		t.Errorf("signed: %v", err)
	}
	f.Keys = append(strangers, keys...)
	if err := f.ensure(t, 1); err != nil {
		t.Errorf("signed by the second of two keys: %v", err)
	}
	f.Keys = strangers
	if err := f.ensure(t, 1); !errors.Is(err, ErrSignature) ||
		!strings.Contains(err.Error(), "has signed it, trusted is") {
		t.Errorf("signed by a stranger: got %v", err)
	}
	f.Keys = keys
	path := filepath.Join(dir, "models", "ncf", "1.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte(`"created_by": ""`), []byte(`"created_by": "x"`), 1)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.ensure(t, 1); !errors.Is(err, ErrSignature) ||
		!strings.Contains(err.Error(), "does not fit the document") {
		t.Errorf("a manifest that was changed: got %v", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.ensure(t, 1); !errors.Is(err, ErrSignature) {
		t.Errorf("a manifest that is none, which only its signature is to show: got %v", err)
	}
}

// fleet is the peers of agents in one process.
type fleet struct {
	mu     sync.Mutex
	caches map[string]*Cache
	wrong  string // the agent that sends wrong bytes
}

type seat struct {
	*fleet
	name string
}

func (s seat) Self() string { return s.name }

func (s seat) Ask(context.Context, File) bool { return true }

func (s seat) Known(f File) map[string]Has {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]Has{}
	for name, cache := range s.caches {
		if has, ok := cache.Has(f.SHA256); ok && name != s.name {
			all[name] = has
		}
	}
	return all
}

func (s seat) Open(_ context.Context, peer string, f File, offset, length int64) (io.ReadCloser,
	error) {
	s.mu.Lock()
	cache := s.caches[peer]
	s.mu.Unlock()
	data := make([]byte, length)
	if err := cache.ReadAt(f.SHA256, data, offset); err != nil {
		return nil, err
	}
	if peer == s.wrong {
		data[0]++
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// TestPeers: agents that begin together take about one copy from the store, also if one of them
// sends wrong bytes.
func TestPeers(t *testing.T) {
	for _, wrong := range []string{"", "agent-3"} {
		s, _ := pushed(t)
		m, _, err := s.Manifest(context.Background(), "ncf", 1)
		if err != nil {
			t.Fatal(err)
		}
		all := &fleet{caches: map[string]*Cache{}, wrong: wrong}
		var fetchers []*Fetcher
		var received [2]atomic.Int64
		for i := range 10 {
			f, _ := fetcher(t, s)
			name := fmt.Sprintf("agent-%d", i)
			all.caches[name] = f.Cache
			f.Peers = seat{all, name}
			f.Received = func(source string, n int) {
				if source == "store" {
					received[0].Add(int64(n))
				} else {
					received[1].Add(int64(n))
				}
			}
			fetchers = append(fetchers, f)
		}
		synctest.Test(t, func(t *testing.T) {
			var group sync.WaitGroup
			for _, f := range fetchers {
				group.Go(func() {
					if err := f.ensure(t, 1); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
		})
		t.Logf("store %.2f copies, peers %.2f", float64(received[0].Load())/float64(m.Bytes()),
			float64(received[1].Load())/float64(m.Bytes()))
		if got, most := received[0].Load(), 3*m.Bytes(); got > most {
			t.Errorf("wrong %q: %d bytes from the store, want at most %d", wrong, got, most)
		}
	}
}

// TestCheck: a version of the store is loaded from the disk only as somebody trusted has signed it,
// with its settings; a folder of the operator's is loaded as it is. Signatures that are added to
// the store come to what is there already.
func TestCheck(t *testing.T) {
	ctx, from := t.Context(), t.TempDir()
	s := New(Directory(filepath.Join(from, "store")), "store")
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := Keys{public}
	sign := func(document []byte) ([]byte, error) { return minisign.Sign(private, document), nil }
	folder := model(t, from, "ncf", 1, 1, 100)
	if err := os.WriteFile(filepath.Join(folder, "model.yaml"), []byte("family: f\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Push(ctx, folder, 1, PushOptions{}); err != nil {
		t.Fatal(err)
	}
	f, dir := fetcher(t, s)
	check := func(when, model string, fromStore bool, says string) {
		t.Helper()
		got, err := f.Cache.Check(ctx, model, 1, keys)
		if got != fromStore || (err == nil) != (says == "") ||
			err != nil && (!errors.Is(err, ErrSignature) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: got %v, %v, want %v, %q", when, got, err, fromStore, says)
		}
	}
	if err := f.ensure(t, 1); err != nil {
		t.Fatal(err)
	}
	check("not signed", "ncf", true, "it has no signature")
	if _, err := s.Push(ctx, folder, 1, PushOptions{Sign: sign}); err != nil {
		t.Fatal(err)
	}
	if err := f.ensure(t, 1); err != nil {
		t.Fatal(err)
	}
	check("signed", "ncf", true, "")
	if held := f.Cache.Held()["ncf"]; len(held) != 1 || held[0].Verify(keys) != nil {
		t.Errorf("the cache holds %v, want the one version, signed", held)
	}
	model(t, dir, "own", 1, 1, 100)
	check("of the operator", "own", false, "")
	if got, err := f.Cache.Check(ctx, "ncf", 2, keys); !got || !errors.Is(err, ErrSignature) {
		t.Errorf("a version beside those of the store: got %v, %v", got, err)
	}
	replace := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, "ncf", path)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	replace("config.pbtxt", "")
	check("other settings", "ncf", true, "config.pbtxt is beside it")
	if err := os.Remove(filepath.Join(dir, "ncf", "config.pbtxt")); err != nil {
		t.Fatal(err)
	}
	replace("model.yaml", "family: g\n")
	check("changed settings", "ncf", true, "model.yaml has the SHA-256")
	replace("model.yaml", "family: f\n")
	check("as it was", "ncf", true, "")
	files := f.Cache.Held()["ncf"][0].Files
	replace(files[0].Path, "another model")
	check("another file", "ncf", true, "has the SHA-256")
}

// TestRevoke: a revocation counts for the version, and where signatures are required for the fleet,
// that it was signed for. One that exists is not written again.
func TestRevoke(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := New(Directory(dir), "store")
	keys, signers := []Keys{}, []*Signer{}
	for range 2 {
		public, private, err := minisign.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, Keys{public})
		signers = append(signers, &Signer{Key: Keys{public}, Sign: func(d []byte) ([]byte, error) {
			return minisign.Sign(private, d), nil
		}})
	}
	r := Revocation{Fleet: "prod", Model: "ncf", Version: 3, Why: "it leaks"}
	if err := s.Revoke(ctx, r, signers[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(ctx, r, signers[0]); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := s.Revoke(ctx, r, signers[1]); !errors.Is(err, ErrExists) {
		t.Errorf("by another key: got %v", err)
	}
	if index, err := s.Index(ctx); err != nil || !slices.Equal(index["ncf"].Revoked, []int64{3}) {
		t.Errorf("the index is %v, %v", index, err)
	}
	folder := filepath.Join(dir, "models", "ncf", "revoked")
	for _, end := range []string{".json", ".json.minisig"} {
		data, err := os.ReadFile(filepath.Join(folder, "3"+end))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "4"+end), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		version int64
		keys    Keys
		fleet   string
		is      error
	}{
		{3, keys[0], "prod", nil},
		{3, nil, "", nil},
		{3, keys[1], "prod", ErrSignature},
		{3, keys[0], "staging", ErrSignature},
		{4, keys[0], "prod", ErrInvalid},
		{5, nil, "", ErrNotFound},
	} {
		got, err := s.Revoked(ctx, "ncf", tt.version, tt.keys, tt.fleet)
		if !errors.Is(err, tt.is) || err == nil && got.Why != r.Why {
			t.Errorf("version %d for %q: got %v, %v, want %v", tt.version, tt.fleet, got, err,
				tt.is)
		}
	}
}
