package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mdweVariable makes a process that is started by the tests one that can make no code, as
// MemoryDenyWriteExecute= of the unit does.
const mdweVariable = "RUN_WITHOUT_WRITE_EXECUTE"

func init() {
	if os.Getenv(mdweVariable) == "" {
		return
	}
	if err := unix.Prctl(unix.PR_SET_MDWE, unix.PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "deny memory that can be written and executed:", err)
		os.Exit(1)
	}
	if _, err := unix.Mmap(-1, 0, 4096, unix.PROT_WRITE|unix.PROT_EXEC,
		unix.MAP_ANON|unix.MAP_PRIVATE); err == nil {
		fmt.Fprintln(os.Stderr, "memory that can be written and executed is not denied")
		os.Exit(1)
	}
}

// TestUnit: the unit has what keeps a broken agent from the rest of the machine, and systemd finds
// that it does.
func TestUnit(t *testing.T) {
	const unit = "../../deploy/muster.service"
	content, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"MemoryMax=90%", "MemorySwapMax=0", "MemoryDenyWriteExecute=yes", "PrivateUsers=yes",
		"SystemCallFilter=~@privileged @resources", "NoNewPrivileges=yes",
		// starts an agent again that has drained for SIGHUP, not one that was asked to go
		"Restart=on-failure", "RestartForceExitStatus=SIGHUP SIGPIPE",
	} {
		if !strings.Contains(string(content), "\n"+want+"\n") {
			t.Errorf("%s lacks %s", unit, want)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze: what systemd finds is not known")
	}
	// Exposure, in tenths: 13 by systemd 252, of which serving the network is 10 (its sockets,
	// PrivateNetwork, IPAddressDeny); other versions may reckon a little differently.
	out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=15",
		unit).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && strings.Contains(string(out), "Overall exposure level"):
		t.Errorf("more exposed than 1.5:\n%s", out)
	case err != nil:
		t.Skipf("systemd-analyze cannot tell: %v\n%s", err, out)
	}
}

// TestWithoutWriteExecute: the agent with ONNX Runtime serves though it may not make code.
func TestWithoutWriteExecute(t *testing.T) {
	if _, err := unix.PrctlRetInt(unix.PR_GET_MDWE, 0, 0, 0, 0); err != nil {
		t.Skip("the kernel cannot deny memory that can be written and executed:", err)
	}
	t.Setenv(mdweVariable, "1")
	p := startProcess(t)
	wantOutput(t, true, `^ncf version 1 answered`, "infer", "ncf", "--batch-size", "64", "--server",
		p.grpc)
}
