package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// open returns the store in an empty folder, and the folder.
func open(t *testing.T) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	return New(Directory(dir), dir), dir
}

// some returns the manifest of a version with one file, which need not be in the store.
func some(model string, version int64) *Manifest {
	return &Manifest{
		Format: 1, Model: model, Version: version,
		Files: []File{{
			Path: fmt.Sprintf("%d/model.onnx", version), Size: 3,
			SHA256: strings.Repeat("ab", 32),
		}},
	}
}

// TestCreate: of many that write an object at once, one wins.
func TestCreate(t *testing.T) {
	ctx := context.Background()
	s, _ := open(t)
	for round := range 20 {
		var won atomic.Int64
		var writers sync.WaitGroup
		for i := range 8 {
			writers.Go(func() {
				err := s.createObject(ctx, fmt.Sprintf("models/ncf/%d.json", round),
					[]byte{byte(i)})
				if err == nil {
					won.Add(1)
				} else if !errors.Is(err, ErrExists) {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		writers.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d writers won, want one", round, won.Load())
		}
	}
}

// zeros is an endless file of them that ends a context when it is read.
type zeros struct {
	end  context.CancelFunc
	read int
}

func (z *zeros) Read(p []byte) (int, error) {
	z.end()
	clear(p)
	z.read += len(p)
	return len(p), nil
}

// TestCreateEnds: a push that its user ends does not copy on.
func TestCreateEnds(t *testing.T) {
	dir := t.TempDir()
	ctx, end := context.WithCancel(t.Context())
	file := &zeros{end: end}
	err := Directory(dir).Create(ctx, "blobs/a", 1<<30, io.LimitReader(file, 1<<30))
	if !errors.Is(err, context.Canceled) || file.read > 64<<20 {
		t.Errorf("read %d bytes, %v", file.read, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "blobs")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestCreateAfterKilled: a push removes what one that was killed has left, and nothing that another
// one may be writing.
func TestCreateAfterKilled(t *testing.T) {
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs")
	if err := os.Mkdir(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{
		".new-killed": 25 * time.Hour, ".new-slow": 23 * time.Hour, "old": 1000 * time.Hour,
	} {
		path, then := filepath.Join(blobs, name), time.Now().Add(-age)
		err := os.WriteFile(path, []byte("x"), 0o644)
		if err := errors.Join(err, os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Directory(dir).Create(t.Context(), "blobs/a", 1, strings.NewReader("a")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(blobs)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if want := []string{".new-slow", "a", "old"}; !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
}

// TestIndex: what is not of a store is passed over, and a prefix with too much is an error.
func TestIndex(t *testing.T) {
	ctx := context.Background()
	s, dir := open(t)
	for _, key := range []string{
		"models/ncf/1.json", "models/ncf/10.json", "models/ncf/10.json.minisig",
		"models/ncf/2.json", "models/ncf/x.json", "models/ncf/-1.json",
		"models/ncf/03.json", "models/ncf/11.json.minisig.json", "models/ncf/releases/012.json",
		"models/ncf/releases/7.json", "models/ncf/releases/11.json", "models/ncf/releases/x.json",
		"models/gone/releases/1.json",
		"models/ncf/deep/er/1.json", "models/.x/1.json", "models/wnd/notes.txt", "blobs/sha256/00",
	} {
		path := filepath.Join(dir, key)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Index(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e := all["ncf"]
	if len(all) != 1 || e == nil || !slices.Equal(e.Versions, []int64{1, 2, 10}) ||
		!slices.Equal(e.Signed, []int64{10}) || e.Release != 11 {
		t.Errorf("got %+v of %v", e, all)
	}
	if _, err := s.Entry(ctx, "wnd"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a model without versions: got %v, want %v", err, ErrNotFound)
	}
	many := New(endless{}, "s3://data")
	if _, err := many.Index(ctx); err == nil || !strings.Contains(err.Error(), "s3://data") ||
		!strings.Contains(err.Error(), "more than 100000 objects") {
		t.Errorf("a million objects: got %v", err)
	}
}

// endless is a bucket with a million objects.
type endless struct{ Bucket }

func (endless) List(_ context.Context, prefix string, each func(string, int64) error) error {
	for i := range 1_000_000 {
		if err := each(fmt.Sprintf("%sx/%d.parquet", prefix, i), 1); err != nil {
			return err
		}
	}
	return nil
}

// TestDeepManifest: what the check of a manifest takes does not grow with the depth of its folders.
func TestDeepManifest(t *testing.T) {
	m := some("ncf", 3)
	f := m.Files[0]
	m.Files = nil
	size := 0
	for i := range 500 {
		f.Path = fmt.Sprintf("3/%d%s", i, strings.Repeat("/x", 500))
		m.Files = append(m.Files, f)
		size += len(f.Path)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// The names of the folders on the way are 500 to a path, of 500 bytes on average.
	if n := after.TotalAlloc - before.TotalAlloc; n > uint64(20*size) {
		t.Errorf("%d bytes for paths of %d bytes", n, size)
	}
}

// TestManifest: what a manifest must not say is named.
func TestManifest(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for says, files := range map[string][]File{
		`"../x"`:         {{Path: "../x", Size: 1, SHA256: sum}},
		`"/etc/passwd"`:  {{Path: "/etc/passwd", Size: 1, SHA256: sum}},
		`"3/../../x"`:    {{Path: "3/../../x", Size: 1, SHA256: sum}},
		`"3/.x/y"`:       {{Path: "3/.x/y", Size: 1, SHA256: sum}},
		`"4/model.onnx"`: {{Path: "4/model.onnx", Size: 1, SHA256: sum}},
		`"3"`:            {{Path: "3", Size: 1, SHA256: sum}},
		`3//x`:           {{Path: "3//x", Size: 1, SHA256: sum}},
		`twice`: {
			{Path: "3/x", Size: 1, SHA256: sum}, {Path: "3/x", Size: 1, SHA256: sum},
		},
		`"3/x" is also a folder`: {
			{Path: "3/x", Size: 1, SHA256: sum}, {Path: "3/x/y", Size: 1, SHA256: sum},
		},
		`file "3/x" is also a folder`: {
			{Path: "3/x/y/z", Size: 1, SHA256: sum}, {Path: "3/x-y", Size: 1, SHA256: sum},
			{Path: "3/x", Size: 1, SHA256: sum},
		},
		`has a path of 1025 bytes, expected at most 1024`: {
			{Path: "3/" + strings.Repeat("x", 1023), Size: 1, SHA256: sum},
		},
		`has -1 bytes`: {{Path: "3/x", Size: -1, SHA256: sum}},
		`has 9223372036854775807`: {
			{Path: "3/w", Size: 1, SHA256: sum}, {Path: "3/x", Size: 1<<63 - 1, SHA256: sum},
		},
		// Were its parts miscounted as one, its first 8 MiB would be taken for all of it.
		`sums of 0 parts, expected 140737488355328`: {{Path: "3/x", Size: 1<<63 - 1, SHA256: sum}},
		`SHA-256 is "AB`:              {{Path: "3/x", Size: 1, SHA256: strings.Repeat("AB", 32)}},
		`SHA-256 is "0a0a"`:           {{Path: "3/x", Size: 1, SHA256: "0a0a"}},
		`0 files`:                     nil,
		`sums of 0 parts, expected 2`: {{Path: "3/x", Size: partBytes + 1, SHA256: sum}},
		`sums of 1 parts, expected 0`: {{Path: "3/x", Size: 1, SHA256: sum, Parts: []string{sum}}},
	} {
		m := &Manifest{Format: 1, Model: "ncf", Version: 3, Files: files}
		_, err := ParseManifest(write(m), "ncf", 3)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error with %q", err, says)
		}
	}
	if _, err := ParseManifest(write(some("ncf", 3)), "ncf", 3); err != nil {
		t.Error(err)
	}
	for _, model := range []string{"wnd", "..", ""} {
		if _, err := ParseManifest(write(some("ncf", 3)), model, 3); err == nil {
			t.Errorf("manifest of ncf for %q: no error", model)
		}
	}
	if _, err := ParseManifest(append(write(some("ncf", 3)), '{'), "ncf", 3); err == nil {
		t.Error("a document with more behind it: no error")
	}
}

// TestFIFO: a FIFO in place of any object is an error at once, and hides no other object. Whoever
// opens one as a file waits until somebody writes to it.
func TestFIFO(t *testing.T) {
	ctx := t.Context()
	s, dir := open(t)
	for _, path := range []string{
		"models/ncf/1.json", "models/ncf/1.json.minisig", "models/ncf/releases/1.json",
		"blobs/sha256/" + strings.Repeat("0a", 32),
	} {
		path = filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err := errors.Join(err, syscall.Mkfifo(path, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for what, do := range map[string]func() error{
		"manifest":  func() error { _, _, err := s.Manifest(ctx, "ncf", 1); return err },
		"signature": func() error { _, err := s.Signature(ctx, "ncf", 1); return err },
		"release":   func() error { _, err := s.Release(ctx, "ncf", 1); return err },
		"file": func() error {
			_, err := s.hasBlob(ctx, File{Size: 1, SHA256: strings.Repeat("0a", 32)})
			if err == nil { // it counts as missing
				return ErrNotFound
			}
			return err
		},
	} {
		if err := do(); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", what, err)
		}
	}
	if _, err := ReadKeys(filepath.Join(dir, "models/ncf/1.json")); err == nil {
		t.Error("public keys in a FIFO: no error")
	}
	if all, err := s.Index(ctx); err != nil || len(all["ncf"].Versions) != 1 {
		t.Errorf("index: %v, %v", all, err)
	}
}

// TestHangs: an object whose bucket does not answer is an error after a minute. Time is virtual.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(hangs{}, "store")
		for what, do := range map[string]func() error{
			"index":    func() error { _, err := s.Index(t.Context()); return err },
			"manifest": func() error { _, _, err := s.Manifest(t.Context(), "ncf", 1); return err },
			"release":  func() error { _, err := s.Release(t.Context(), "ncf", 1); return err },
			"create": func() error {
				return s.CreateRelease(t.Context(), "ncf", 1, []byte("{}"))
			},
		} {
			begin := time.Now()
			err := do()
			if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) ||
				took != time.Minute {
				t.Errorf("%s: %v after %v, want an error after a minute", what, err, took)
			}
		}
	})
}

// hangs is a bucket that answers when a context ends.
type hangs struct{ Bucket }

func (hangs) List(ctx context.Context, _ string, _ func(string, int64) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hangs) Open(ctx context.Context, _ string, _, _ int64) (io.ReadCloser, int64, error) {
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

func (hangs) Create(ctx context.Context, _ string, _ int64, _ io.Reader) error {
	<-ctx.Done()
	return ctx.Err()
}
