package main

import (
	"strings"
	"testing"
)

// TestAgentNeedsLinux: where agents do not run, the command says so, names the system, and names
// commands that work there.
func TestAgentNeedsLinux(t *testing.T) {
	if err := checkSystem("linux"); err != nil {
		t.Errorf("linux: %v", err)
	}
	for _, system := range []string{"darwin", "windows"} {
		err := checkSystem(system)
		for _, want := range []string{"an agent needs Linux; this is " + system, "infer, bench"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", system, err, want)
			}
		}
	}
}
