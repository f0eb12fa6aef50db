package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzConfigFile checks any config file. Each fault found must name the file.
func FuzzConfigFile(f *testing.F) {
	for _, seed := range []string{
		"http: 127.0.0.1:8000\njoin: [a:1, b:2]\nlanes: 2\n", "a: &x [1, *x]\n", "lanes: *y",
		"? [1]\n: 2", "join: [[a]]\nhttp: {}\n", "http: !!binary aGk=\n", "---\n---\n", "\xff",
		"drain-timeout: 9e99h\n",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "muster.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkConfigFile(path); err != nil && !strings.HasPrefix(err.Error(), path+":") {
			t.Errorf("%q: got %q, want it to begin with the file's name", data, err)
		}
	})
}
