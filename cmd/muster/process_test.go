//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-serve/muster/models/zoo"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// mainVariable makes the test binary run main, so that tests can start muster as
// a process.
const mainVariable = "RUN_MAIN"

// ignoreVariable makes such a process ignore SIGHUP from its start, as nohup does.
const ignoreVariable = "RUN_IGNORING_HANG_UP"

// groupVariable is the directory of a control group that such a process enters.
const groupVariable = "RUN_IN_GROUP"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		if group := os.Getenv(groupVariable); group != "" {
			if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
				fmt.Fprintln(os.Stderr, "enter the control group:", err)
				os.Exit(1)
			}
		}
		if os.Getenv(ignoreVariable) != "" {
			signal.Ignore(syscall.SIGHUP)
		}
		main()
		return
	}
	if addresses := os.Getenv(siegeVariable); addresses != "" {
		besiege(strings.Fields(addresses))
		return
	}
	os.Unsetenv("MUSTER_SLOW_TESTS") // every command would warn of it
	os.Unsetenv("GOMAXPROCS")        // emulated agents choose it unless it is set
	os.Exit(m.Run())
}

// A process is a `muster agent` of its own.
type process struct {
	*exec.Cmd
	name                        string
	gossip, http, grpc, metrics string        // where it listens
	log                         *bufio.Reader // what follows of its log
	stderr                      io.Closer     // where log reads
}

// startProcess starts an agent that serves a small NCF with ONNX Runtime, and
// waits until it is ready.
func startProcess(t *testing.T) *process {
	t.Helper()
	library := runtimetest.Library(t)
	return startAgent(t, smallNCF(t), "--onnxruntime-lib", library)
}

// smallNCF is a model directory.
func smallNCF(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := zoo.Generate(t.Context(), dir, "ncf", zoo.Options{Scale: zoo.Small}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// startAgent starts an agent that serves the models of a directory, with more
// settings, and waits until it is ready.
func startAgent(t testing.TB, models string, settings ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self, append([]string{"agent", "--model-dir", models,
		"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--gossip",
		"127.0.0.1:0"}, settings...)...)}
	p.Dir = t.TempDir()
	p.Env = append(os.Environ(), mainVariable+"=1")
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // it has ended where the test passed
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.log, p.stderr = bufio.NewReader(stderr), stderr
	said := regexp.MustCompile(
		`(?s)advertised_addr=(\S+) .* agent=(\S+) http=(\S+) grpc=(\S+) metrics=(\S+)`).
		FindStringSubmatch(p.waitForLog(t, "advertised_addr=") + p.waitForLog(t, "http="))
	if said == nil {
		t.Fatal("the log does not begin with the agent's addresses")
	}
	p.gossip, p.name, p.http, p.grpc, p.metrics = said[1], said[2], said[3], said[4], said[5]
	p.waitForLog(t, "event=ready")
	return p
}

// waitForLog reads the log up to the line that has the word.
func (p *process) waitForLog(t testing.TB, word string) string {
	t.Helper()
	var log strings.Builder
	for {
		line, err := p.log.ReadString('\n')
		log.WriteString(line)
		if strings.Contains(line, word) {
			return line
		}
		if err != nil {
			t.Fatalf("no %q in the log: %s", word, &log)
		}
	}
}

func TestAgentProcess(t *testing.T) {
	p := startProcess(t)
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_SERVER", p.grpc)

	out, _, err := execute(t, "infer", "ncf", "--batch-size", "20")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(
		`(?s)^ncf version 1 answered in \S+s\nscores FP32 \[20 64\]\n` +
			`  \S+  .*\.\.\. 56 more\n.*  \.\.\. 12 more rows\n$`).MatchString(out) {
		t.Errorf("infer: got %q", out)
	}
	query := `{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,4],"data":[1,2,3,4]}]}`
	out, _, err = execute(t, "infer", "ncf", "--json", "--input", write(t, "q.json", query))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Outputs []struct{ Data []float64 }
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer.Outputs) != 1 ||
		len(answer.Outputs[0].Data) != 64 {
		t.Errorf("infer --json: got %s, %v", out, err)
	}
	var fromStdin bytes.Buffer
	if err := run(t.Context(), []string{"infer", "ncf", "--json", "--input", "-"},
		strings.NewReader(query), &fromStdin, io.Discard); err != nil || fromStdin.String() != out {
		t.Errorf("infer from standard input: got %s, %v", &fromStdin, err)
	}

	for _, tt := range []struct {
		args string
		want string // of the output, or of the error
		ok   bool
	}{
		{"models list", "ncf    1        READY", true},
		{"models list --json", `"state": "READY"`, true},
		{"models unload ncf", "ncf: unloaded", true},
		{"models list", "UNAVAILABLE", true},
		{"infer ncf", "ncf", false},
		{"models load ncf", "ncf: loaded", true},
		{"infer ncf --seed 3", "scores", true},
		{"models load dlrm", "dlrm", false},
		{"infer dlrm", "dlrm", false},
		{"infer ncf --batch-size 0", "batch-size: 0, want 1 or more", false},
		{"infer ncf --batch-size 1001", "1000", false},
		{"infer ncf --model-version 7", "7", false},
		{"__complete infer ", "ncf\n", true},
	} {
		args := strings.Fields(tt.args)
		if strings.HasSuffix(tt.args, " ") {
			args = append(args, "")
		}
		out, _, err := execute(t, args...)
		if (err == nil) != tt.ok {
			t.Errorf("%s: got error %v", tt.args, err)
		}
		if err != nil {
			out = err.Error()
		}
		if !strings.Contains(out, tt.want) {
			t.Errorf("%s: got %q, want %q in it", tt.args, out, tt.want)
		}
	}

	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitForLog(t, "event=drained")
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if _, _, err := execute(t, "infer", "ncf", "--timeout", "1s"); err == nil ||
		!strings.Contains(err.Error(), p.grpc) {
		t.Errorf("infer without an agent: got %v", err)
	}
}

// TestSecureProcess: an agent and its clients prove themselves by what their
// environment names.
func TestSecureProcess(t *testing.T) {
	certs := t.TempDir()
	for _, args := range []string{
		"init", "issue agent node1", "issue client ads", "issue client admin",
	} {
		if _, _, err := execute(t,
			append([]string{"certs", "--dir", certs}, strings.Fields(args)...)...); err != nil {
			t.Fatal(err)
		}
	}
	as := func(name string) {
		t.Setenv("MUSTER_TLS_CERT", filepath.Join(certs, name+".crt"))
		t.Setenv("MUSTER_TLS_KEY", filepath.Join(certs, name+".key"))
	}
	t.Setenv("MUSTER_TLS_CA", filepath.Join(certs, "ca.crt"))
	keys := filepath.Join(certs, "keys")
	if err := os.WriteFile(keys, []byte("feed: feed-feed-feed-feed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MUSTER_API_KEYS", keys)
	as("node1")
	p := startProcess(t)
	t.Chdir(t.TempDir())
	t.Setenv("MUSTER_SERVER", p.grpc)
	try := func(want string, args ...string) {
		t.Helper()
		out, _, err := execute(t, args...)
		if err != nil {
			out = err.Error()
		}
		if !strings.Contains(out, want) {
			t.Errorf("%q: got %q, want %q in it", args, out, want)
		}
	}
	as("ads")
	try("scores", "infer", "ncf")
	try(`not allowed: client "ads" may not unload`, "models", "unload", "ncf")
	try(`not allowed: client "ads" may not drain`, "drain")
	try(`client "ads" may not keys`, "keys", "list")
	try("leader ", "status")
	as("admin")
	try("ncf: loaded", "models", "load", "ncf")
	t.Setenv("MUSTER_TLS_CERT", "")
	t.Setenv("MUSTER_TLS_KEY", "")
	try("not allowed: no credentials", "infer", "ncf")
	try("scores", "infer", "ncf", "--api-key", "feed-feed-feed-feed")
	t.Setenv("MUSTER_TLS_CA", "")
	try("as by a server that wants TLS", "infer", "ncf", "--timeout", "1s")
	try("tls-cert: empty", "infer", "ncf", "--tls-key", "x")

	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitForLog(t, "event=drained")
	if err := p.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// TestSecondSignal: while an agent waits for a client that never finishes, a
// second signal ends it at once.
func TestSecondSignal(t *testing.T) {
	p := startProcess(t)
	conn, err := net.Dial("tcp", p.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(
		conn,
		"POST /v2/models/ncf/infer HTTP/1.1\r\nHost: localhost\r\nExpect: "+
			"100-continue\r\nContent-Length: 100\r\n\r\n")
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil { // it is being served
		t.Fatal(err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitForLog(t, "event=draining")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = p.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("after a second signal: got %v", err)
	}
}

// TestErrorsArePrintedOnce: main prints an error once, as muster's, and exits
// with status 1.
func TestErrorsArePrintedOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "agent", "--model-dir", "nowhere", "--http", "127.0.0.1:0", "--grpc",
		"127.0.0.1:0", "--metrics", "127.0.0.1:0", "--gossip", "127.0.0.1:0")
	cmd.Env, cmd.Dir = append(os.Environ(), mainVariable+"=1"), t.TempDir()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, want exit status 1", err)
	}
	if want := "muster: model-dir \"nowhere\" does not exist; make a model in it with \"muster " +
		"models generate ncf --out nowhere\", or name another with --model-dir\n"; string(
		out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// TestHungCommand: a command that waits for a file system for ever ends after SIGTERM.
func TestHungCommand(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "muster.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"models", "list", "--config", fifo}, {"agent", "--config", fifo}} {
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), mainVariable+"=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// A writer opens the FIFO when the command has: then the command reads it, until it is told to
		// end.
		writer, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 143 ||
			!strings.Contains(stderr.String(), "does a file system not answer?") {
			t.Errorf("%v: exit status %d (%v), want 143; it says %q", args, code, err, stderr.String())
		}
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCertsOnFullDisk: where a file cannot be written, nothing is left of it.
func TestCertsOnFullDisk(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if _, _, err := execute(t, "certs", "init", "--dir", "ca"); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"certs init --dir new", "certs issue client ads --dir ca --out new",
	} {
		cmd := exec.Command("sh", "-c", "ulimit -f 0; exec \"$0\" "+args, self)
		cmd.Env = append(os.Environ(), mainVariable+"=1")
		if out, err := cmd.CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "file too large; nothing was written to new/") {
			t.Errorf("%s: got %v %s", args, err, out)
		}
		if left, err := os.ReadDir("new"); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", args, left, err)
		}
	}
}
