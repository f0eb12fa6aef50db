//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// startEmulated starts an agent that runs no model.
func startEmulated(t *testing.T, settings ...string) *process {
	t.Helper()
	return startAgent(t, smallNCF(t), append([]string{
		"--executor", "emulated", "--profile", "shipped", "--instance-type", "t3.xlarge",
	}, settings...)...)
}

// signal sends the process a signal.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// wantServing fails the test if the agent does not say that it is ready.
func (p *process) wantServing(t *testing.T) {
	t.Helper()
	resp, err := http.Get("http://" + p.http + "/v2/health/ready")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("readiness: got %s, want 200", resp.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestSignalsThatEnd: each signal that asks an agent to end makes it drain, and say why. After SIGHUP
// and SIGQUIT it ends with a status of which a service manager starts it again.
func TestSignalsThatEnd(t *testing.T) {
	for _, tt := range []struct {
		signal syscall.Signal
		status int
		log    string // of the lines before "draining"
	}{
		{syscall.SIGTERM, 0, ""},
		{syscall.SIGINT, 0, ""},
		{syscall.SIGHUP, 129, ""},
		{syscall.SIGQUIT, 131, `(?s)goroutine \d+ \[.*main\.main\(`},
	} {
		t.Run(unix.SignalName(tt.signal), func(t *testing.T) {
			if signal.Ignored(tt.signal) {
				t.Skip("the tests run under nohup, and agents inherit that")
			}
			p := startEmulated(t)
			p.signal(t, tt.signal)
			log, err := io.ReadAll(p.log)
			if err != nil {
				t.Fatal(err)
			}
			before, after, found := strings.Cut(string(log),
				"why="+unix.SignalName(tt.signal))
			if !found || !strings.Contains(after, "event=drained") ||
				!regexp.MustCompile(tt.log).MatchString(before) {
				t.Errorf("it does not say that it drains for %v: %s", tt.signal, log)
			}
			var exit *exec.ExitError
			if err := p.Wait(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := p.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("status: got %d (%v), want %d", got, p.ProcessState, tt.status)
			}
		})
	}
}

// TestSignalsThatDoNotEnd: signals that ask for nothing leave an agent serving, and it says so.
func TestSignalsThatDoNotEnd(t *testing.T) {
	p := startEmulated(t)
	for _, s := range logged {
		p.signal(t, s.(syscall.Signal))
		p.waitForLog(t, "signal="+unix.SignalName(s.(syscall.Signal)))
	}
	for _, s := range []syscall.Signal{syscall.SIGPIPE, syscall.SIGXFSZ, syscall.Signal(40)} {
		p.signal(t, s)
	}
	p.wantServing(t)
	p.signal(t, syscall.SIGTERM)
	p.waitForLog(t, "event=drained")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

// TestLogReaderGone: an agent whose log nobody reads any more keeps serving, and drains when it is
// asked to.
func TestLogReaderGone(t *testing.T) {
	p := startEmulated(t, "--log-level", "debug")
	if err := p.stderr.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // each makes a line that cannot be written
		p.signal(t, syscall.SIGUSR1)
		resp, err := http.Get("http://" + p.http + "/v2/models/none/infer")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		p.wantServing(t)
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestHangUpTwice: the shell and the kernel may both send SIGHUP when a session ends. The second one
// leaves the agent draining; so does SIGTERM, which is the first of its kind.
func TestHangUpTwice(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("the tests run under nohup, and agents inherit that")
	}
	p := startEmulated(t)
	conn, err := net.Dial("tcp", p.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const query = `{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,4],"data":[1,2,3,4]}]}`
	fmt.Fprintf(conn, "POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nExpect: "+
		"100-continue\r\nContent-Length: %d\r\n\r\n", len(query))
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('\n'); err != nil { // it is being served
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGHUP)
	p.waitForLog(t, "event=draining")
	p.signal(t, syscall.SIGHUP)
	p.signal(t, syscall.SIGTERM)
	p.signal(t, syscall.SIGUSR1) // its line is written after the others were handled or were not
	p.waitForLog(t, "signal=SIGUSR1")
	if _, err := reader.ReadString('\n'); err != nil { // the empty line of "100 Continue"
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, query); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatalf("the query that the agent held is lost: %v", err)
	}
	resp.Body.Close()
	p.waitForLog(t, "event=drained")
	_ = p.Wait()
	if got := p.ProcessState.ExitCode(); got != 129 {
		t.Errorf("status: got %d (%v), want 129, of the first signal", got, p.ProcessState)
	}
}

// TestNoHangUp: an agent that is started with SIGHUP ignored, as by nohup, serves on after it.
func TestNoHangUp(t *testing.T) {
	t.Setenv(ignoreVariable, "1")
	p := startEmulated(t)
	p.signal(t, syscall.SIGHUP)
	p.signal(t, syscall.SIGUSR1)
	p.waitForLog(t, "signal=SIGUSR1")
	p.wantServing(t)
	p.signal(t, syscall.SIGTERM)
	p.waitForLog(t, "why=SIGTERM")
}

// TestOutputReaderGone: a command whose output nobody reads ends as other tools do: of SIGPIPE, and
// without a word.
func TestOutputReaderGone(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	cmd := exec.Command(self, "version")
	cmd.Env, cmd.Dir = append(os.Environ(), mainVariable+"=1"), t.TempDir()
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = writer, &stderr
	_ = cmd.Run()
	writer.Close()
	if got := cmd.ProcessState.Sys().(syscall.WaitStatus); got.Signal() != syscall.SIGPIPE ||
		stderr.Len() > 0 {
		t.Errorf("got %v and %q, want the end by SIGPIPE and nothing", cmd.ProcessState, &stderr)
	}
}
