package harness

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFreePorts(t *testing.T) {
	ports, err := FreePorts("127.0.0.1", 3)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] {
			t.Errorf("port %d twice in %v", port, ports)
		}
		seen[port] = true
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
		if err != nil {
			t.Errorf("%d is not free: %v", port, err)
			continue
		}
		l.Close()
	}
}

// startScript starts a shell script in place of the agent.
func startScript(t *testing.T, script string) *Agent {
	t.Helper()
	path := filepath.Join(t.TempDir(), "muster")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := Start(Config{Muster: path, Log: filepath.Join(t.TempDir(), "agent.log")})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAgentThatEnds(t *testing.T) {
	a := startScript(t, "echo starting; echo no model will ever do; exit 3\n")
	<-a.Exited()
	err := a.Stop()
	if err == nil {
		t.Fatal("an agent that ended by itself is no error")
	}
	for _, want := range []string{"ended by itself", "exit status 3", "no model will ever do"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestAgentThatStopsBadly(t *testing.T) {
	a := startScript(t, "trap 'exit 4' TERM; while :; do sleep 0.05; done\n")
	err := a.Stop()
	// A signal that comes before the trap is set ends the script just so.
	if err == nil || !strings.Contains(err.Error(), "stopped badly") {
		t.Errorf("error %v, want one that says it stopped badly", err)
	}
}
