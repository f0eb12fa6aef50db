package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/runtime/runtimetest"
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

// TestCPUQuota: an agent in a control group with a CPU quota computes on as many cores as that is
// worth, and says so. More lanes are refused.
func TestCPUQuota(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("with one processor a quota of one changes nothing")
	}
	group, err := quotaOfOne(t)
	if err != nil {
		t.Skip("no control group with a quota can be made here:", err)
	}
	t.Setenv(groupVariable, group)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func(settings ...string) *exec.Cmd {
		cmd := exec.Command(self, append([]string{"agent", "--model-dir", smallNCF(t),
			"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
			"--gossip", "127.0.0.1:0", "--onnxruntime-lib", runtimetest.Library(t)}, settings...)...)
		cmd.Env, cmd.Dir = append(os.Environ(), mainVariable+"=1"), t.TempDir()
		return cmd
	}
	out, err := start("--lanes", "2").CombinedOutput()
	if want := "lanes: 2, want 1 to 1 (the CPU quota of its cgroup, 1 of"; err == nil ||
		!strings.Contains(string(out), want) {
		t.Errorf("two lanes: got %s, want %q", out, want)
	}
	cmd := start()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd, log: bufio.NewReader(stderr)}
	defer func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	}()
	if line := p.waitForLog(t, "ONNX Runtime loaded"); !strings.Contains(line, "threads=1 ") {
		t.Errorf("got %q, want threads=1", line)
	}
	if line := p.waitForLog(t, "runs queries on these cores"); !strings.Contains(line,
		"cores=1 ") ||
		!strings.Contains(line, "the CPU quota of its cgroup, 1 of") {
		t.Errorf("got %q, want cores=1, and why", line)
	}
}

// quotaOfOne makes a control group with the time of one processor, of version 2 or 1, until the end of
// the test.
func quotaOfOne(t *testing.T) (group string, err error) {
	name := fmt.Sprintf("muster-test-%d", os.Getpid())
	for _, c := range []struct {
		in    string
		limit map[string]string
	}{
		{"/sys/fs/cgroup", map[string]string{"cpu.max": "100000 100000"}},
		{"/sys/fs/cgroup/cpu", map[string]string{
			"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000",
		}},
	} {
		group = filepath.Join(c.in, name)
		if _, err = os.Stat(filepath.Join(c.in, "cgroup.procs")); err != nil {
			continue
		}
		if err = os.Mkdir(group, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(group) }) // the kernel has no process there any more
		for file, text := range c.limit {
			err = errors.Join(err, os.WriteFile(filepath.Join(group, file), []byte(text), 0))
		}
		if err == nil {
			return group, nil
		}
	}
	return "", err
}
