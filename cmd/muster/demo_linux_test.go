package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-serve/muster/cmd/muster/internal/demo"
)

// demoConfig is a demo of a few seconds, of which nothing but its agents is left out.
func demoConfig(t *testing.T, out io.Writer) demo.Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return demo.Config{
		Program: self, Env: append(os.Environ(), mainVariable+"=1", "MUSTER_TLS_CA=missing"),
		Load: 1500 * time.Millisecond, Out: out, Status: io.Discard,
	}
}

// The demo tells its story from the balancer to the table, and leaves no file.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var out strings.Builder
	if err := demo.Run(t.Context(), demoConfig(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		"EMULATED", `Watch it: http://127\.0\.0\.1:\d+/dashboard/`,
		`\(r5n\.large\) was killed; \d+ ms later \S+ \(\S+\) led`, "No query was lost",
		`(?m)^plain load balancer +\d+ `, `(?m)^Muster +\d+ `, `(?m)^Muster, its leader killed +\d+ `,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the demo does not say %q:\n%s", want, &out)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("the demo leaves %v, %v in the temporary directory", left, err)
	}
}

// startDemo starts `muster demo` and returns it, and the line of its output that has the text.
func startDemo(t *testing.T, text string) (*exec.Cmd, string) {
	t.Helper()
	c := demoConfig(t, nil)
	cmd := exec.Command(c.Program, "demo", "--short")
	cmd.Env = c.Env
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // it has ended where the test passed
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return cmd, lines.Text()
		}
	}
	t.Fatalf("the demo ended before it said %q", text)
	return nil, ""
}

// After Ctrl-C the demo ends its agents, removes its files, and ends as other commands do.
func TestDemoInterrupted(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cmd, _ := startDemo(t, "asks the machines in turn")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit status %d, want 130", got)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("the demo leaves %v, %v in the temporary directory", left, err)
	}
}

// The demo's agents end with it, even if it is killed.
func TestDemoKilled(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd, line := startDemo(t, "Watch it")
	address := regexp.MustCompile(`http://([^/]+)/`).FindStringSubmatch(line)[1]
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(conn) // until the agent has gone
	// The kernel closes connections of a process that ends before its listener, newest first. Who
	// connects between these is let go when the listener closes, and the next one is refused.
	for range 3 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		_, _ = io.ReadAll(conn)
		conn.Close()
	}
	t.Error("an agent still listens")
}

// The load is what the fleet serves with and without the leader, by simulation.
func TestDemoRate(t *testing.T) {
	counts := map[string]int{}
	for _, m := range demo.Machines {
		counts[string(m)]++
	}
	for _, dead := range []string{"", string(demo.Machines[0])} {
		var pool []string
		for m, n := range counts {
			if m == dead {
				n--
			}
			pool = append(pool, fmt.Sprintf("%s=%d", m, n))
		}
		out, _, err := execute(t, "sim", "--model", demo.Model, "--pool", strings.Join(pool, ","),
			"--rate", fmt.Sprint(demo.RateQPS), "--queries", "2000", "--seeds", "1", "--json")
		if err != nil {
			t.Fatal(err)
		}
		var result struct {
			QoSSatisfaction float64 `json:"qos_satisfaction"`
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			t.Fatal(err)
		}
		if result.QoSSatisfaction < 0.995 {
			t.Errorf("without %q %.4f of the queries are in time, want at least 0.995", dead,
				result.QoSSatisfaction)
		}
	}
}
