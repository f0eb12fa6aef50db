package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
)

// TestFullDisk: where the disk has no room for a version, the error names the disk's error and the
// folder, and the version of before stays. When there is room, the version comes. The test is a
// process with a disk of 1 MB of its own.
func TestFullDisk(t *testing.T) {
	const inside = "MUSTER_TEST_DISK"
	if os.Getenv(inside) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		child := exec.Command(self, "-test.run=^TestFullDisk$", "-test.v")
		child.Env = append(os.Environ(), inside+"="+t.TempDir())
		child.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		text, err := child.CombinedOutput()
		switch {
		case strings.Contains(string(text), "--- SKIP"), errors.Is(err, syscall.EPERM):
			t.Skipf("no disk of its own here: %v\n%s", err, text)
		case err != nil || !strings.Contains(string(text), "--- PASS: TestFullDisk"):
			t.Fatalf("%v\n%s", err, text)
		}
		return
	}
	dir := os.Getenv(inside)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	s, _ := open(t)
	from := t.TempDir()
	for v, size := range map[int64]int{1: 100_000, 2: 700_000} {
		if _, err := s.Push(t.Context(), model(t, from, "ncf", v, uint64(v), size), v,
			PushOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f, _ := fetcher(t, s)
	f.Cache = openedFile(t, dir, 0)
	if err := f.ensure(t, 1); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, make([]byte, 600_000), 0o644); err != nil {
		t.Fatal(err)
	}
	var received atomic.Int64 // of the blob and of the small files, which come side by side
	f.Received = func(_ string, n int) { received.Add(int64(n)) }
	for range 2 { // the first attempt leaves nothing that the second would fail of
		err := f.ensure(t, 2)
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) {
			t.Errorf("a full disk: got %v", err)
		}
	}
	if n := received.Load(); n > 1000 {
		t.Errorf("%d bytes came for which there was no room", n)
	}
	if got, _ := filepath.Glob(filepath.Join(dir, "ncf", "[0-9]*", "weights")); len(got) != 1 ||
		got[0] != filepath.Join(dir, "ncf", "1", "weights") {
		t.Errorf("got %v, want version 1", got)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := f.ensure(t, 2); err != nil {
		t.Errorf("with room: %v", err)
	}
}

// taken returns the bytes that what is below dir takes of the disk, but for the lock, in which the
// process has written its id.
func taken(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err == nil && info.Mode().IsRegular() && info.Name() != "lock" {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// TestClaims: a manifest takes no room for files that the store does not have, or has with other
// bytes, while they are fetched, afterwards, and after a restart.
func TestClaims(t *testing.T) {
	for name, send := range map[string]func(length int64) (io.Reader, error){
		"absent": func(int64) (io.Reader, error) { return nil, ErrNotFound },
		"wrong": func(length int64) (io.Reader, error) {
			return io.LimitReader(zeroes{}, length),
				nil
		},
		"cut": func(length int64) (io.Reader, error) {
			return io.LimitReader(zeroes{},
				length/2), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			const files, size = 8, 64 << 20
			m := some("ncf", 1)
			m.Files = nil
			for i := range files {
				f := File{Path: fmt.Sprintf("1/weights-%d", i), Size: size}
				f.SHA256 = strings.Repeat(fmt.Sprintf("a%d", i), 32)
				for range size / partBytes {
					f.Parts = append(f.Parts, f.SHA256)
				}
				m.Files = append(m.Files, f)
			}
			s, _ := open(t)
			f, dir := fetcher(t, s)
			most := int64(0)
			f.Store = New(claims{s.bucket, func(length int64) (io.Reader, error) {
				most = max(most, taken(t, f.Cache.pathOf(partsFolder)))
				return send(length)
			}}, "claims")
			synctest.Test(t, func(t *testing.T) {
				if _, err := f.Ensure(t.Context(), "ncf", []*Manifest{m}, nil); err == nil {
					t.Error("no error")
				}
			})
			if want := atOnce * atOnce * partBytes; most > want { // parts of each of some files
				t.Errorf("during the attempt: %d bytes, expected at most %d", most, want)
			}
			if got := taken(t, dir); got > 0 {
				t.Errorf("after it: %d bytes, expected none", got)
			}
			f.reopen(t, 0)
			if got := taken(t, dir); got > 0 {
				t.Errorf("after a restart: %d bytes, expected none", got)
			}
		})
	}
}

// claims is a bucket whose blobs are what a function makes. One call of it runs at a time.
type claims struct {
	Bucket
	send func(length int64) (io.Reader, error)
}

var claimed sync.Mutex

func (c claims) Open(_ context.Context, _ string, _, length int64) (io.ReadCloser, int64, error) {
	claimed.Lock()
	defer claimed.Unlock()
	r, err := c.send(length)
	return io.NopCloser(r), 64 << 20, err
}

// TestClaimsOfBefore: what an older program took on the disk before the bytes came is free again,
// and the part that is there stays.
func TestClaimsOfBefore(t *testing.T) {
	s, _ := open(t)
	f, dir := fetcher(t, s)
	for sum, have := range map[string][]byte{
		strings.Repeat("0a", 32): make([]byte, 16), strings.Repeat("0b", 32): append([]byte{0, 1},
			make([]byte, 14)...),
	} {
		path := f.Cache.pathOf(partsFolder, sum)
		err := errors.Join(os.WriteFile(path, bytes.Repeat([]byte("x"), 16*int(partBytes)), 0o644),
			os.WriteFile(path+".have", have, 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	f.reopen(t, 0)
	if got := taken(t, dir); got < partBytes || got > partBytes+8192 {
		t.Errorf("%d bytes, expected about the %d of one part", got, partBytes)
	}
	data, err := os.ReadFile(f.Cache.pathOf(partsFolder, strings.Repeat("0b", 32)))
	if err != nil || !bytes.Equal(data[partBytes:], bytes.Repeat([]byte("x"), int(partBytes))) {
		t.Errorf("the part that is there: %d bytes, %v", len(data), err)
	}
}

// TestBound: the bound is 80 % of the file system unless there is another; a cache that is above a
// new one keeps and serves what it has, and takes nothing more.
func TestBound(t *testing.T) {
	s, _ := pushed(t)
	f, dir := fetcher(t, s)
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	if _, bound, err := f.Cache.Over(); err != nil || bound != int64(stat.Blocks)*stat.Bsize/5*4 {
		t.Errorf("the bound is %d, %v, of a disk of %d", bound, err, int64(stat.Blocks)*stat.Bsize)
	}
	if err := f.ensure(t, 1); err != nil {
		t.Fatal(err)
	}
	f.reopen(t, 1000)
	if over, _, err := f.Cache.Over(); err != nil || over == 0 {
		t.Errorf("above the bound by %d, %v", over, err)
	}
	if err := f.ensure(t, 1); err != nil {
		t.Errorf("what is there: %v", err)
	}
	if err := f.ensure(t, 2); err == nil || !strings.Contains(err.Error(), "model-cache-size") {
		t.Errorf("what is not: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ncf", "1", "weights")); err != nil {
		t.Error(err)
	}
}
