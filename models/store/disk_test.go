package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
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
	f.Cache = opened(t, dir, 0)
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
		// Another file of the version may fail first: while the kernel finds out that there is not
		// enough room for the weights, none is left.
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) ||
			!strings.Contains(err.Error(), " of ncf version 2: ") {
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
