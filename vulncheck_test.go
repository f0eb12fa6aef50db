package muster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVulncheck: only a database that is out of reach is a reason to skip, and is said.
func TestVulncheck(t *testing.T) {
	const get = `govulncheck: fetching vulnerabilities: Get "https://vuln.go.dev/index/modules.json.gz": `
	for _, tt := range []struct {
		name, stderr string
		status       string // of go run: it says the program's, and exits with 1
		passes       bool
		says         string
	}{
		{"nothing found", "", "0", true, "vulncheck: ok\n"},
		{"found", "exit status 3", "1", false, "vulnerabilities, or"},
		{"no name server", get + "dial tcp: lookup vuln.go.dev: no such host\nexit status 1", "1", true, "SKIPPED"},
		{"refused by a proxy", get + "Forbidden\nexit status 1", "1", true, "SKIPPED"},
		{"refused", "govulncheck: fetching vulnerabilities: HTTP GET https://vuln.go.dev/index/modules.json.gz " +
			"returned unexpected status: 403 Forbidden\nexit status 1", "1", true, "SKIPPED"},
		{"a damaged database", "govulncheck: fetching vulnerabilities: invalid character 'x'\nexit status 1", "1", false, "did not get to its end"},
		{"the tool cannot be had", "go: golang.org/x/vuln/cmd/govulncheck@v1.8.0: 403 Forbidden", "1", false, "did not get to its end"},
		{"code that does not build", "govulncheck: loading packages: undefined: x\nexit status 1", "1", false, "did not get to its end"},
	} {
		dir := t.TempDir()
		stub := "#!/bin/sh\nprintf '%s\\n' \"$STDERR\" >&2\nexit " + tt.status + "\n"
		if err := os.WriteFile(filepath.Join(dir, "go"), []byte(stub), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("scripts/vulncheck.sh")
		cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "STDERR="+tt.stderr)
		out, err := cmd.CombinedOutput()
		if (err == nil) != tt.passes || !strings.Contains(string(out), tt.says) || !strings.Contains(string(out), tt.stderr) {
			t.Errorf("%s: got %v and %q, want it to pass: %v, and to say %q", tt.name, err, out, tt.passes, tt.says)
		}
	}
}
