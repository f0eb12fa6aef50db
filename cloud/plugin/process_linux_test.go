package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/cloud"
	"github.com/muster-serve/muster/leader/rent"
)

// acts names what this test's program does in the place of tests: a provider's program, good or
// bad, or a parent of one.
const acts = "PLUGIN_TEST"

func TestMain(m *testing.M) {
	switch os.Getenv(acts) {
	case "":
		os.Exit(m.Run())
	case "serves":
		os.Exit(Serve(ownProgram()))
	case "dies":
		panic("as a test wants")
	case "hangs":
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "parent":
		runParent()
	default: // greets with this
		fmt.Println(os.Getenv(acts))
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

// ownProgram has a provider that says who it is, and whose List blocks.
func ownProgram() Program {
	return Program{Name: "test",
		Open: func(_ context.Context, _ Fleet, log *slog.Logger) (cloud.Provider, error) {
			fmt.Println("a library prints") // not into the connection
			if read, err := io.ReadAll(os.Stdin); len(read) > 0 || err != nil {
				return nil, fmt.Errorf("standard input has %q, %w", read, err)
			}
			for _, v := range os.Environ() {
				if strings.HasPrefix(v, "MUSTER_") {
					return nil, fmt.Errorf("the environment has %s", v)
				}
			}
			log.Warn("opened", "pid", os.Getpid())
			return scriptedProvider{list: func(ctx context.Context) ([]rent.Instance, error) {
				log.Warn("listing")
				<-ctx.Done()
				return nil, ctx.Err()
			}}, nil
		},
	}
}

// runParent starts a provider and waits for it, until it is killed.
func runParent() {
	_ = os.Setenv(acts, "serves")
	p := newProcesses(slog.New(slog.NewTextHandler(os.Stdout, nil)))
	_, err := p.List(context.Background())
	fmt.Println("not to be reached:", err)
}

// newProcesses returns a Provider whose processes run this test's program.
func newProcesses(log *slog.Logger) *Provider {
	own, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return newProvider("test", Fleet{}, log, func(ctx context.Context) (*process, error) {
		return startProcess(ctx, "test", own, log)
	})
}

// start returns a Provider whose processes do what acts says, and a channel of its log's lines.
func start(t *testing.T, act string) (*Provider, <-chan string) {
	t.Setenv(acts, act)
	t.Setenv("MUSTER_GOSSIP_KEY", "a secret of the agent's")
	read, write := io.Pipe()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(read); s.Scan(); {
			t.Log(s.Text())
			lines <- s.Text()
		}
	}()
	p := newProcesses(slog.New(slog.NewTextHandler(write, nil)))
	t.Cleanup(func() {
		_, _ = p.Close(), write.Close()
		for range lines {
		}
	})
	return p, lines
}

// await returns the first line that the pattern matches, as its first group.
func await(t *testing.T, lines <-chan string, pattern string) string {
	t.Helper()
	for line := range lines {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(line); m != nil {
			return m[len(m)-1]
		}
	}
	t.Fatalf("no line has %s", pattern)
	return ""
}

// TestBadPrograms: a program that is no provider, or another one, is told by what it does.
func TestBadPrograms(t *testing.T) {
	for name, tt := range map[string]struct{ act, want string }{
		"one that dies": {"dies", "muster-test has ended: exit status 2: panic: as a test wants"},
		"one that prints junk": {"Hello, World!", "does not greet as a provider of Muster does: its " +
			`first words are "Hello, World!"`},
		"one that never ends its line": {strings.Repeat("x", 1<<16), "does not greet as a provider"},
		"another protocol": {"muster-provider 2 test 9.9.9",
			"muster-test 9.9.9 speaks protocol 2, and muster 0.1.0-dev"},
		"another provider": {"muster-provider 1 ec3 9.9.9", `is the provider "ec3", want test`},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := start(t, tt.act)
			_, err := p.List(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			for _, kind := range kinds {
				if errors.Is(err, kind.err) {
					t.Errorf("%v is %v", err, kind.err)
				}
			}
			if faults := p.Check(t.Context()); len(faults) != 1 ||
				!strings.HasSuffix(faults[0].Why, "the agent starts it again in 1s") {
				t.Errorf("the next call: %v", faults)
			}
		})
	}
}

// TestHangs: a program that never greets is ended.
func TestHangs(t *testing.T) {
	p, _ := start(t, "hangs")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.List(ctx); err == nil || !strings.Contains(err.Error(), "does not greet within") {
		t.Errorf("got %v", err)
	}
}

// TestProcess: a provider's process keeps the connection for itself, outlives the signals that are
// for its parent, and is replaced when it is killed.
func TestProcess(t *testing.T) {
	p, lines := start(t, "serves")
	if text, err := p.Policy(t.Context(), "", ""); err == nil {
		t.Errorf("a policy: %s", text)
	}
	faults := p.Check(t.Context())
	if len(faults) != 2 {
		t.Fatalf("faults %v", faults)
	}
	pid, err := strconv.Atoi(await(t, lines, `level=WARN msg=opened pid=(\d+)`))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
		if got := p.Check(t.Context()); len(got) != 2 {
			t.Errorf("after %v: %v", s, got)
		}
	}
	ended := make(chan error)
	go func() {
		_, err := p.List(t.Context())
		ended <- err
	}()
	await(t, lines, "msg=listing")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err.Error() != "muster-test has ended: signal: killed" {
		t.Errorf("the call during which it is killed: %v", err)
	}
	if got := p.Check(t.Context()); len(got) != 2 {
		t.Errorf("the next call: %v", got)
	}
	again := await(t, lines, `msg=opened pid=(\d+)`)
	if again == strconv.Itoa(pid) {
		t.Errorf("process %s again", again)
	}
	if pid, err = strconv.Atoi(again); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.running.ended
	if got := p.Check(t.Context()); len(got) != 2 {
		t.Errorf("the next call after it is killed between two: %v", got)
	}
	await(t, lines, `level=WARN msg="the agent starts the provider again" .*signal: killed`)
}

// TestParentKilled: the process of a provider ends with its parent, also while it works.
func TestParentKilled(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(own)
	parent.Env = append(os.Environ(), acts+"=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	pid, err := strconv.Atoi(await(t, lines, `msg=opened pid=(\d+)`))
	if err != nil {
		t.Fatal(err)
	}
	await(t, lines, "msg=listing")
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for { // until the child has ended; if it never does, the test's time runs out
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			if n != 1 || err != nil {
				t.Errorf("poll: %d, %v", n, err)
			}
			break
		}
	}
	_ = parent.Wait() // that it was killed
}

// TestByHand: who starts a provider's program gets a sentence, its version, or why it refuses.
func TestByHand(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ said, argument, want string }{
		"by hand":         {"", "", "muster-test is a part of Muster, and not run by hand"},
		"a wrong cookie":  {"cookie 1 0.1.0", "", "not run by hand"},
		"a wrong word":    {"", "serve", "not run by hand"},
		"the version":     {"", "--version", "muster-test 0.1.0-dev"},
		"a later parent":  {cookie + " 2 0.9.0", "", "and muster 0.9.0 asks for protocol 2"},
		"an endless word": {cookie + " " + strings.Repeat("9", 1000) + " 1 2", "", "not run by hand"},
	} {
		cmd := exec.Command(own)
		if tt.argument != "" {
			cmd.Args = append(cmd.Args, tt.argument)
		}
		cmd.Env = append(os.Environ(), acts+"=serves", variable+"="+tt.said)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (tt.argument == "--version") || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: got %v, %s", name, err, out)
		}
	}
}

// TestFind: a program in PATH is found, one beside this program first, and the error of one that is
// nowhere says where it is to be.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, err = Find("such")
	for _, want := range []string{"muster-such", filepath.Dir(own), dir, "install", "make muster-such"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	p := Open("such", Fleet{}, slog.New(slog.DiscardHandler))
	defer p.Close()
	if faults := p.Check(t.Context()); len(faults) != 1 || faults[0].Why != err.Error() {
		t.Errorf("got %v, want %v", faults, err)
	}
	for _, in := range []string{dir, filepath.Dir(own)} {
		file := filepath.Join(in, "muster-such")
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file)
		if found, err := Find("such"); err != nil || found != file {
			t.Errorf("found %s, %v, want %s", found, err, file)
		}
	}
	p.next = time.Time{} // the pause is over
	if faults := p.Check(t.Context()); len(faults) != 1 ||
		faults[0].Why != "muster-such has ended: exit status 0" {
		t.Errorf("once it is there: %v", faults)
	}
}

// TestLog: a provider's log lines become the agent's, in order and from its level on; other lines
// become warnings, and the first since the log is kept.
func TestLog(t *testing.T) {
	var b strings.Builder
	out := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				a.Value = slog.StringValue(a.Value.Time().UTC().Format(time.RFC3339))
			}
			return a
		},
	})).With("provider", "test")
	l := &logLines{log: out}
	for _, part := range []string{
		"a library prints\n",
		`{"time":"2026-11-23T08:22:00.5Z","level":"WARN","msg":"AWS gives no valid price",`,
		`"instance_type":"r5n.large","used":0.149,"a":["b"],"error":"x"}` + "\n",
		`{"time":"2026-11-23T08:22:01Z","level":"DEBUG","msg":"chatter"}` + "\n\n",
		"panic: oh\n\ngoroutine 1\n" + strings.Repeat("x", 3*maxLine), "\nrest",
	} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flushLine()
	got := regexp.MustCompile(`time=2026\S*|time=\S+ `).ReplaceAllStringFunc(
		strings.ReplaceAll(b.String(), strings.Repeat("x", maxLine), "xxx"), func(s string) string {
			if strings.HasPrefix(s, "time=2026-11-23") {
				return s
			}
			return ""
		})
	const want = `time=2026-11-23T08:22:00Z level=WARN msg="AWS gives no valid price" provider=test ` +
		`instance_type=r5n.large used=0.149 a=[b] error=x` + "\n"
	if !strings.Contains(got, want) || l.first != "panic: oh" || strings.Contains(got, "chatter") {
		t.Errorf("got %s and %q", got, l.first)
	}
	for _, line := range []string{`line="panic: oh"`, `line="goroutine 1"`, "line=xxx\n", "line=rest"} {
		if !strings.Contains(got, line) {
			t.Errorf("no %s in %s", line, got)
		}
	}
}
