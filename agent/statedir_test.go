package agent_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/muster-serve/muster/agent"
	"github.com/muster-serve/muster/agent/agenttest"
)

// TestStateDirNotWritable: an agent whose state directory takes nothing says so, serves, and does
// not stand for leader, so that the fleet chooses one that can be.
func TestStateDirNotWritable(t *testing.T) {
	config := agenttest.Config(t)
	config.StateDir = filepath.Join(t.TempDir(), "state")
	if err := os.Symlink("nowhere", config.StateDir); err != nil { // not even root can write there
		t.Fatal(err)
	}
	a := agenttest.Start(t, config, agenttest.Emulated())
	for !strings.Contains(a.Log.String(), "event=ready") {
		goruntime.Gosched()
	}
	for _, want := range []string{
		"cannot lead: it cannot write its state directory", config.StateDir,
		"and never leads\" may_lead=false",
	} {
		if log := a.Log.String(); !strings.Contains(log, want) {
			t.Errorf("no %q in the log", want)
		}
	}
	if role := a.Members().Own().Role; role != "never" {
		t.Errorf("its role is told as %q, want never", role)
	}
	if err := a.InferGRPC(agenttest.Patient(1)); err != nil {
		t.Error(err)
	}
}

// TestStateDirOfAnother: an agent does not run with the state directory of one that runs, whatever its
// role, and says whose it is; it does once that one has ended.
func TestStateDirOfAnother(t *testing.T) {
	config := agenttest.Config(t)
	first := agenttest.Start(t, config, agenttest.Emulated())
	second := agenttest.Config(t)
	second.StateDir = config.StateDir
	for _, role := range []string{"may", "never"} {
		second.Leader = role
		a, err := agent.New(second, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		err = a.Run(t.Context())
		if err == nil {
			t.Fatal("two agents run with one state directory")
		}
		for _, want := range []string{
			config.StateDir, fmt.Sprintf("process %d", os.Getpid()), "--state-dir of its own",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %q", want, err)
			}
		}
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	agenttest.Start(t, second, agenttest.Emulated())
}
