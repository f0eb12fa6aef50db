package harness

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
)

// none says of each process that it is not ours.
func none(int) bool { return false }

// writeProc writes what of /proc is read: ticks of user, system, idle and stolen time, and those of
// processes, each with its parent and its user and system time, and that of its children that
// ended.
func writeProc(t *testing.T, dir string, cpu [4]int, processes map[int][5]int) procfs.FS {
	t.Helper()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("stat", fmt.Sprintf("cpu  %d 0 %d %d 0 0 0 %d 0 0\n", cpu[0], cpu[1], cpu[2], cpu[3]))
	for pid, p := range processes {
		write(fmt.Sprintf("%d/stat", pid),
			fmt.Sprintf("%d (a process) S %d 1 1 0 -1 0 0 0 0 0 %d %d %d %d 20 0 1 0 1 1 1 1 %s\n",
				pid, p[0], p[1], p[2], p[3], p[4], strings.Repeat("0 ", 27)))
	}
	proc, err := procfs.NewFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

func TestCPUTimeTaken(t *testing.T) {
	dir := t.TempDir()
	processes := map[int][5]int{
		10: {1, 100, 50, 200, 0}, // the harness; ended children took 200
		11: {10, 300, 0, 0, 0},   // an agent
		12: {1, 5000, 0, 0, 0},   // another's
	}
	proc := writeProc(t, dir, [4]int{7000, 1000, 90000, 0}, processes)
	before, err := readCPUTime(proc, 10, none)
	if err != nil {
		t.Fatal(err)
	}
	if want := (cpuTime{all: 980, busy: 80, own: 6.5}); before != want {
		t.Fatalf("%+v, want %+v", before, want)
	}
	// 20 s of all CPUs: 3 of the harness's own, 4 of others, 1 stolen. The agent has ended.
	delete(processes, 11)
	if err := os.RemoveAll(filepath.Join(dir, "11")); err != nil {
		t.Fatal(err)
	}
	processes[10] = [5]int{1, 200, 100, 600, 50}
	processes[12] = [5]int{1, 5400, 0, 0, 0}
	after, err := readCPUTime(writeProc(t, dir, [4]int{7500, 1200, 91200, 100}, processes), 10,
		none)
	if err != nil {
		t.Fatal(err)
	}
	others, stolen := after.takenShares(before)
	if math.Abs(others-0.20) > 1e-9 || math.Abs(stolen-0.05) > 1e-9 {
		t.Errorf("others took %v and %v was stolen, want 0.20 and 0.05", others, stolen)
	}
	if others, stolen := after.takenShares(after); others != 0 || stolen != 0 {
		t.Errorf("in no time others took %v and %v was stolen", others, stolen)
	}
}

func TestNeighboursAreToldOfOnce(t *testing.T) {
	if text := note(0.06, 0.03); text != "" {
		t.Errorf("on a quiet machine: %q", text)
	}
	if text := note(0, 0.25); !strings.Contains(text, "stole 25 %") ||
		strings.Contains(text, "programs") {
		t.Errorf("with stolen time: %q", text)
	}
	dir := t.TempDir()
	me := map[int][5]int{10: {}}
	proc := writeProc(t, dir, [4]int{0, 0, 1000, 0}, me)
	n := &Neighbours{proc: &proc, pid: 10, ours: none}
	if text := n.Look(); text != "" {
		t.Errorf("while all is idle: %q", text)
	}
	// The time since the last look counts: others take half of it, and a twentieth of all.
	writeProc(t, dir, [4]int{50, 0, 1050, 0}, me)
	if text := n.Look(); !strings.Contains(text, "programs took 50 %") ||
		strings.Contains(text, "stole") {
		t.Errorf("with a busy neighbour: %q", text)
	}
	writeProc(t, dir, [4]int{1050, 0, 1050, 0}, me)
	if text := n.Look(); text != "" {
		t.Errorf("a second time: %q", text)
	}
}
