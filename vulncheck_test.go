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
	const fetch = "govulncheck: fetching vulnerabilities: "
	const url = "https://vuln.go.dev/index/modules.json.gz"
	const refused = "HTTP GET " + url + " returned unexpected status: 403 Forbidden"
	const ended = "could not finish"
	for _, tt := range []struct {
		name, stderr string // of go run, which says the program's exit status, and ends with 1
		status       string
		reach        string // exit status of curl, by which the database is asked for
		passes       bool
		says         string
	}{
		{"nothing found", "", "0", "0", true, "vulncheck: ok\n"},
		{"found", "exit status 3", "1", "0", false, "vulnerabilities were found"},
		{"no network", "", "1", "6", true, "SKIPPED"},
		{"no name server", fetch + `Get "` + url + `": no such host`, "1", "0", true, "SKIPPED"},
		{"refused", fetch + refused, "1", "0", true, "SKIPPED"},
		{"a damaged database", fetch + "invalid character 'x'", "1", "0", false, ended},
		{"no such database", fetch + "no such directory: file:///x", "1", "0", false, ended},
		{"the tool cannot be had", "go: reading " + refused, "1", "0", false, ended},
		{"code that does not build", "govulncheck: loading packages: undefined: x", "1", "0", false,
			ended},
	} {
		dir := t.TempDir()
		for name, script := range map[string]string{
			"go":   "printf '%s\\n' \"$STDERR\" >&2\nexit " + tt.status + "\n",
			"curl": "exit " + tt.reach + "\n",
		} {
			err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755)
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("scripts/vulncheck.sh")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "STDERR="+tt.stderr)
		out, err := cmd.CombinedOutput()
		said := strings.Contains(string(out), tt.says) && strings.Contains(string(out), tt.stderr)
		if (err == nil) != tt.passes || !said {
			t.Errorf("%s: got %v and %q, want it to pass: %v, and to say %q",
				tt.name, err, out, tt.passes, tt.says)
		}
	}
}
