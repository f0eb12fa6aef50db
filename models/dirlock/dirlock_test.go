package dirlock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLock: a file is locked once, until it is closed; whoever comes meanwhile is told who has it.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if _, err := Lock(path); !errors.As(err, &held) || held.PID != os.Getpid() ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("locked twice: got %v, want that process %d has %s", err, os.Getpid(), path)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Lock(path)
	if err != nil {
		t.Fatalf("after it was closed: %v", err)
	}
	defer second.Close()

	// What else may stand there is no process.
	for _, text := range []string{"", "x", "-1", strings.Repeat("9", 1000)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Lock(path); !errors.As(err, &held) || held.PID != 0 {
			t.Errorf("with %.20q in the file: got %v, want no process", text, err)
		}
	}
}

// TestLockNowhere: a directory that is not there is an error of its own.
func TestLockNowhere(t *testing.T) {
	var held *HeldError
	if f, err := Lock(filepath.Join(t.TempDir(), "none", "lock")); err == nil ||
		errors.As(err, &held) {
		t.Errorf("got %v, %v", f, err)
	}
}
