//go:build fleet

// Package docs runs the shell blocks of pages as a user would paste them: in order, each page in an
// empty folder and network of its own. `make docs-commands` builds muster and runs this.
//
// A network namespace has nothing but loopback, so ports and addresses need no change: those that
// pages take for examples (10.0.0.7, node1) are addresses of loopback there. It needs root; without,
// the test is skipped. In the place of muster stands a script (see muster.sh), which starts agents in
// the background, as in a terminal of their own, and shortens what takes long. It reads these
// variables:
//
//	BENCH_DURATION   how long `muster bench` sends queries where the page does not say
//	SIM_QUERIES      how many queries each run of `muster sim` and `muster plan` has
package docs

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models/onnx"
)

// A page is one whose blocks run.
type page struct {
	// before is what the page takes for granted, as a script.
	before string
	// changed is what is replaced in the blocks, in pairs: what the page leaves to the user (the names
	// of a folder or a host) and what would never end.
	changed []string
	// left are blocks that do not run, by words in them, with the reason.
	left map[string]string
}

// anAgent is an agent that serves ncf, as many pages take for granted. It runs no model, so that
// the pages run wherever muster builds.
const anAgent = `muster models generate ncf --scale small --out model-repository
muster agent --executor emulated --profile shipped --instance-type r5n.large
muster infer ncf --wait 1m
`

//go:embed muster.sh
var wrapper string

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

// TestCommandsOfPages: every command of the pages ends with status 0.
func TestCommandsOfPages(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it needs root, to make network namespaces")
	}
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
	ran, found := 0, map[string]bool{}
	for _, file := range append(files, "../../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := shellBlock.FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			continue
		}
		name := filepath.Base(file)
		p := pages[name]
		if p == nil {
			t.Errorf("%s has %d blocks, and is not in pages", name, len(blocks))
			continue
		}
		found[name] = true
		script, n := p.script(t, name, blocks)
		ran += n
		if n > 0 {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				runScript(t, binary, script)
			})
		}
	}
	for name := range pages {
		if !found[name] {
			t.Errorf("%s has no blocks, and is in pages", name)
		}
	}
	t.Logf("%d blocks run", ran)
}

// script is the page's blocks as a script, and how many they are.
func (p *page) script(t *testing.T, name string, blocks [][]string) (script string, n int) {
	used := map[string]bool{}
	script = p.before
	for _, b := range blocks {
		left := false
		for words, reason := range p.left {
			if strings.Contains(b[1], words) {
				left, used[words] = true, true
				t.Logf("%s: %q does not run: %s", name, words, reason)
			}
		}
		if !left {
			script += strings.NewReplacer(p.changed...).Replace(b[1])
			n++
		}
	}
	for words := range p.left {
		if !used[words] {
			t.Errorf("%s: no block has %q", name, words)
		}
	}
	for pair := range slices.Chunk(p.changed, 2) {
		if !slices.ContainsFunc(blocks, func(b []string) bool { return strings.Contains(b[1], pair[0]) }) {
			t.Errorf("%s: no block has %q", name, pair[0])
		}
	}
	return script, n
}

// writeModels writes files as exporters do: ranker.onnx, which takes rows of four ids, and
// ranking.onnx, which takes a user and candidates.
func writeModels(dir string) error {
	table, err := tensor.Of("table", make([]float32, 100), 100)
	if err != nil {
		return err
	}
	port := func(name string, of tensor.DataType, dim string, more ...int64) onnx.ValueDescription {
		return onnx.ValueDescription{
			Name: name, DataType: of, Shape: append([]int64{onnx.Dynamic}, more...),
			Dims: append([]string{dim}, make([]string, len(more))...),
		}
	}
	gather := func(ids, out string) onnx.Node {
		return onnx.Node{
			Op: "Gather", Name: out, Inputs: []string{"table", ids}, Outputs: []string{out},
		}
	}
	tables := []onnx.Initializer{
		{Name: "table", DataType: tensor.FP32, Shape: []int64{100}, Data: table.Data},
	}
	ranker := onnx.Model{
		Inputs:  []onnx.ValueDescription{port("ids", tensor.Int64, "n", 4)},
		Outputs: []onnx.ValueDescription{port("scores", tensor.FP32, "n", 4)},
		Nodes:   []onnx.Node{gather("ids", "scores")}, Initializers: tables,
	}
	ranking := onnx.Model{
		Inputs: []onnx.ValueDescription{
			port("user_id", tensor.Int64, "u"), port("item_ids", tensor.Int64, "n"),
		},
		Outputs: []onnx.ValueDescription{port("scores", tensor.FP32, "n")},
		Nodes: []onnx.Node{
			gather("user_id", "user"), gather("item_ids", "items"),
			{Op: "Add", Name: "add", Inputs: []string{"items", "user"}, Outputs: []string{"scores"}},
		},
		Initializers: tables,
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "ranker.onnx"), ranker.Marshal(), 0o644),
		os.WriteFile(filepath.Join(dir, "ranking.onnx"), ranking.Marshal(), 0o644))
}

// network makes the addresses of the pages' examples those of loopback.
const network = `mount --make-rprivate /
ip link set lo up
for address in 10.0.0.1 10.0.0.7; do ip address add $address/32 dev lo; done
echo '127.0.0.1 localhost node1' > hosts
mount --bind hosts /etc/hosts
`

// runScript runs a script in an empty folder and a network of its own, and ends what it leaves
// running.
func runScript(t *testing.T, binary, script string) {
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(filepath.Join(work, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "bin", "muster"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cmd := exec.CommandContext(ctx, "bash", "-ec", "("+network+")\ncd work\nset -v\n"+script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // so that its agents end with it
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // agents in the background keep the pipe
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := writeModels(dir); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(work, "bin")+":"+os.Getenv("PATH"),
		"BINARY="+binary, "ROOT="+root, "MADE="+dir, "BENCH_DURATION=2s", "SIM_QUERIES=2000")
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // none may be left
	}
	t.Logf("took %v", time.Since(began).Round(100*time.Millisecond))
	if err != nil && err != exec.ErrWaitDelay {
		logs, _ := filepath.Glob(filepath.Join(work, "agent*.log"))
		for _, log := range logs {
			text, _ := os.ReadFile(log)
			fmt.Fprintf(&output, "\n%s:\n%s", filepath.Base(log), text)
		}
		t.Errorf("%v. It said\n%s", err, &output)
	}
}
