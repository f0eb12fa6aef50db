package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFreeAddresses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	got, err := freeAddresses("127.0.0.1:0", taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if got[0] == got[1] || got[1] == taken.Addr().String() {
		t.Errorf("got %v, want two different ones other than %v", got, taken.Addr())
	}
	for _, address := range got {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Errorf("%s is not free: %v", address, err)
			continue
		}
		l.Close()
	}
}

// startScript starts a shell script in place of the agent.
func startScript(t *testing.T, script string) *agent {
	t.Helper()
	path := filepath.Join(t.TempDir(), "muster")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	a, err := startAgent(path, filepath.Join(t.TempDir(), "agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAgentThatEnds(t *testing.T) {
	a := startScript(t, "echo starting; echo no model will ever do; exit 3\n")
	<-a.exited
	err := a.stop()
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
	err := a.stop()
	// A signal that comes before the trap is set ends the script just so.
	if err == nil || !strings.Contains(err.Error(), "stopped badly") {
		t.Errorf("error %v, want one that says it stopped badly", err)
	}
}
