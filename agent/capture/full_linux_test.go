package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestFullDisk: a folder on a disk that is full keeps nothing, what waits is written when there is
// room again, and no query waits for it. It mounts a file system of 1 MB, which needs root.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting a small file system needs root: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, bytes.Repeat([]byte{1}, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	r := newRecorder(t, Folder(filepath.Join(dir, "kept"), 1<<30))
	for i := range 2 { // each fills a segment
		r.Keep(query(time.Duration(i), 20_000, func() {}))
	}
	for r.queued.Load() > 0 || testutil.ToFloat64(r.dropped.WithLabelValues("unwritable")) == 0 {
		if r.queued.Load() == 0 {
			r.Keep(query(9, 20_000, func() {}))
		}
		time.Sleep(time.Millisecond)
	}
	if got := testutil.ToFloat64(r.kept); got != 0 {
		t.Errorf("%v queries are counted as kept on a full disk", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "kept", prefix, "*", "*", "*")); len(left) > 0 {
		t.Errorf("left %v on the full disk", left)
	}
	if err := os.Truncate(ballast, 0); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if kept := testutil.ToFloat64(r.kept); kept < 2 || len(readAll(t, filepath.Join(dir, "kept"), epoch)) != int(kept) {
		t.Errorf("%v queries were kept once there was room", kept)
	}
}
