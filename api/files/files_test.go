package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestRead: what is no regular file is an error at once, and what is longer than wanted is not read.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	err := errors.Join(syscall.Mkfifo(fifo, 0o644), os.WriteFile(file, []byte("12345"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir, os.DevNull} {
		if _, err := Read(path, 5); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: got %v, want ErrNotRegular", path, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "none"), 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
	if data, err := Read(file, 5); err != nil || string(data) != "12345" {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := Read(file, 4); err == nil {
		t.Error("a file that is too long: no error")
	}
}

// TestDo: a call that does not end makes no caller wait for longer than the caller's context and 2
// s; what it returns later is dropped, and no more calls begin than may hang at a time. Time is
// virtual.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := NewCalls(1)
		late, hang := make(chan int, 1), make(chan int)
		call := func() (int, error) { return <-hang, nil }
		do := func(timeout time.Duration) (int, error) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			return Do(ctx, calls, call, func(n int) { late <- n })
		}
		begin := time.Now()
		_, err := do(time.Second)
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) ||
			took != time.Second+abandonAfter {
			t.Errorf("a call that hangs: %v after %v", err, took)
		}
		begin = time.Now()
		_, err = do(time.Second)
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("a second call: %v after %v", err, took)
		}
		hang <- 1
		if n := <-late; n != 1 {
			t.Errorf("dropped %d, want 1", n)
		}
		synctest.Wait()
		go func() { hang <- 2 }()
		if n, err := do(time.Second); n != 2 || err != nil {
			t.Errorf("after the call has ended: %d, %v", n, err)
		}
	})
}
