package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-serve/muster/models/dirlock"
)

// TestBackup: what a backup keeps comes back, with a higher epoch, but not into the directory of an
// agent that runs nor over files that are there.
func TestBackup(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"epoch": "7\n", "releases.json": "{}", "name": "front\n", "lock": "1",
	} {
		if err := os.MkdirAll("state", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join("state", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := execute(t, "backup", "create", "b.tgz", "--state-dir", "state"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat("b.tgz"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive: %v, %v, want it for its owner alone", info.Mode(), err)
	}
	if _, _, err := execute(t, "backup", "restore", "b.tgz", "--state-dir", "new"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"epoch": "1000007\n", "releases.json": "{}", "name": "front\n",
	} {
		if got, err := os.ReadFile(filepath.Join("new", name)); string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	for _, tt := range []struct{ args, want string }{
		{"backup restore b.tgz --state-dir new", "already; --replace replaces it"},
		{"backup restore b.tgz --state-dir new --replace", ""},
		{"backup restore new/name --state-dir other", "it is no backup"},
		{"backup create c.tgz --state-dir nowhere", "has none of"},
	} {
		_, _, err := execute(t, strings.Fields(tt.args)...)
		if tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", tt.args, err, tt.want)
		}
	}
	lock, err := dirlock.Lock(filepath.Join("new", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	_, _, err = execute(t, "backup", "restore", "b.tgz", "--state-dir", "new", "--replace")
	if err == nil || !strings.Contains(err.Error(), "an agent runs in new") {
		t.Errorf("got %v, want that an agent runs", err)
	}
}
