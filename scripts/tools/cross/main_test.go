package main

import (
	"strings"
	"testing"
)

// What one system lacks is found there, in tests too, and not elsewhere.
func TestCheck(t *testing.T) {
	const locks = "./testdata/locks"
	for _, platform := range []string{"linux/arm64", "darwin/arm64"} {
		if n, err := check(locks, platform); err != nil || n < 2 {
			t.Errorf("%s: %d packages, %v", platform, n, err)
		}
	}
	_, err := check(locks, "windows/amd64")
	for _, want := range []string{"locks.go:7:", "syscall.Flock", "fifo_test.go:6:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("windows/amd64: %v, want %s", err, want)
		}
	}
	if _, err := check(locks, "linux"); err == nil {
		t.Error("a platform without an architecture: no error")
	}
}
