//go:build fleet

// Package docs runs the shell blocks of pages as a user would paste them: in order, each page in an
// empty folder of its own, with muster in PATH. make docs-commands builds that and runs this.
package docs

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A page is one whose blocks run.
type page struct {
	// before is what the page takes for granted, as a script.
	before string
	// short is what is replaced in the blocks, in pairs: addresses and folders of an installation by
	// those of the test, and long times by short ones.
	short []string
}

// anAgent is an agent that serves ncf, as many pages take for granted. It runs no model, so that
// the pages run wherever muster builds.
const anAgent = `muster models generate ncf --scale small --out model-repository
muster agent --executor emulated --profile shipped --instance-type r5n.large 2>agent.log &
muster status --wait 1m
muster infer ncf --wait 1m
`

// pages are those whose blocks run. Those of all others are counted and named at the end.
var pages = map[string]page{
	"docs/rent.md": {short: []string{"--duration 1m", "--duration 10s", "--rate 30", "--rate 5"}},
	"docs/doctor.md": {
		before: anAgent + "echo 'insecure: true' > muster.yaml\n",
		short:  []string{"10.0.0.7:8001", "$MUSTER_SERVER"},
	},
	"docs/backup.md":          {before: anAgent, short: []string{"/var/lib/muster/state", "state"}},
	"docs/metrics.md":         {before: anAgent, short: []string{"localhost:8002", "$MUSTER_METRICS"}},
	"docs/protocol.md":        {before: anAgent, short: []string{"localhost:8000", "$MUSTER_HTTP"}},
	"docs/troubleshooting.md": {before: anAgent},
	"docs/why.md":             {before: anAgent},
}

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

// TestCommandsOfPages: every command of the pages ends with status 0.
func TestCommandsOfPages(t *testing.T) {
	binary, err := filepath.Abs("../../../bin/muster")
	if named := os.Getenv("MUSTER"); named != "" {
		binary, err = named, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v: run make docs-commands, which builds it", err)
	}
	files, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	ran, left := 0, 0
	var others []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := shellBlock.FindAllStringSubmatch(string(text), -1)
		name := "docs/" + filepath.Base(file)
		p, runs := pages[name]
		if !runs {
			if left += len(blocks); len(blocks) > 0 {
				others = append(others, fmt.Sprintf("%s: %d", name, len(blocks)))
			}
			continue
		}
		if len(blocks) == 0 {
			t.Errorf("%s has no blocks to run", name)
		}
		ran += len(blocks)
		script := p.before
		for _, b := range blocks {
			script += strings.NewReplacer(p.short...).Replace(b[1])
		}
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, binary, script) })
	}
	t.Logf("%d blocks of %d pages ran; %d of these did not: %s", ran, len(pages), left,
		strings.Join(others, ", "))
}

// runScript runs a script in an empty folder, and ends what it leaves running.
func runScript(t *testing.T, binary, script string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-ec", script)
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its agents end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // agents in the background keep the pipe
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	for _, name := range []string{"HTTP", "GRPC", "METRICS", "GOSSIP"} {
		address := freeAddress(t)
		cmd.Env = append(cmd.Env, "MUSTER_"+name+"="+address)
		if name == "GRPC" {
			cmd.Env = append(cmd.Env, "MUSTER_SERVER="+address)
		}
	}
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // none may be left
	}
	if err != nil && err != exec.ErrWaitDelay {
		t.Errorf("%v, of\n%s\nIt said\n%s", err, script, &output)
	}
}

// freeAddress is an address on which nothing listens now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
