package secure

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplaceFile: a file that all could read is one that only its owner reads once it is replaced, and
// nothing is left beside it.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "desired.json")
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(path, []byte("after")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || string(text) != "after" || info.Mode().Perm() != 0o600 {
		t.Errorf("got %q, %v with mode %v, %v, want \"after\" with -rw-------", text, err, info.Mode(),
			statErr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v, %v, want one file", left, err)
	}
}
