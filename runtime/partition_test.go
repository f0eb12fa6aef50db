package runtime_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/runtime"
	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/runtime/runtimetest"
)

// whereabouts is a model that notes on how many processors the thread of each run may run, and
// which is the first of them.
type whereabouts struct {
	mu    sync.Mutex
	lanes [][2]int
}

func (m *whereabouts) Run(context.Context, []tensor.Tensor) (*runtime.Result, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	first := 0
	for !set.IsSet(first) {
		first++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lanes = append(m.lanes, [2]int{set.Count(), first})
	return &runtime.Result{}, nil
}

func (m *whereabouts) Close() error { return nil }

// processors returns n processors of this machine; it skips the test if there are fewer.
func processors(t *testing.T, n int) []int {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.CPUs) < n {
		t.Skipf("needs %d processors, this process may use %s", n, top)
	}
	var cpus []int
	for _, c := range top.CPUs[:n] {
		cpus = append(cpus, c.Number)
	}
	return cpus
}

// TestPinnedLanes: the thread of a run stays on its lane's processor, for policies that merge too.
func TestPinnedLanes(t *testing.T) {
	cpus := processors(t, 2)
	p, err := runtime.NewPartition(runtime.PartitionConfig{
		LanesConfig: runtime.LanesConfig{Lanes: 2}, CPUs: [][]int{{cpus[1]}, {cpus[0]}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &whereabouts{}
	model, err := p.Place(context.Background(), m)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 10 {
		r, err := p.Do(context.Background(), runtime.Query{
			Model: model, BatchSize: 1, Lane: n % 2, Merge: []names.MergePolicy{"",
				names.MergeDeadline}[n/5],
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := [2]int{1, cpus[1-r.Lane]}; m.lanes[n] != want {
			t.Errorf("lane %d ran on %d processors from %d on, want only %d", r.Lane, m.lanes[n][0],
				m.lanes[n][1], want[1])
		}
	}
	// The test's own thread ran the queries, and is free again.
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil || set.Count() < 2 {
		t.Errorf("afterwards: %d processors, %v", set.Count(), err)
	}
}

// TestUnpinned: what cannot be pinned is an error that names it, and lanes whose processor goes
// away run on and say so once.
func TestUnpinned(t *testing.T) {
	cpus := processors(t, 1)
	for want, cfg := range map[string]runtime.PartitionConfig{
		"lane 0: pin to processors [1000]: [1000] are not there": {CPUs: [][]int{{1000}}},
		"lane 0 has 1 processors, want 2": {
			LanesConfig: runtime.LanesConfig{Cores: 2}, CPUs: [][]int{cpus},
		},
		"2 lanes have processors, want all 1": {CPUs: [][]int{cpus, cpus}},
	} {
		if _, err := runtime.NewPartition(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	told := 0
	lanes := runtime.NewLanes(runtime.LanesConfig{
		Pins: []*isolate.Pin{new(isolate.Pin)}, // to no processor: the kernel refuses
		Unpinned: func(lane int, err error) {
			told++
			if lane != 0 || err == nil {
				t.Errorf("told of lane %d: %v", lane, err)
			}
		},
	})
	m := &whereabouts{}
	for range 3 {
		if _, err := lanes.Do(context.Background(),
			runtime.Query{Model: m, BatchSize: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if told != 1 || len(m.lanes) != 3 {
		t.Errorf("told %d times of %d runs, want once of 3", told, len(m.lanes))
	}
}

// poolThreads returns the threads of this process that may run on one processor only, and on which.
func poolThreads(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:\t"); ok {
				if list = strings.TrimSpace(list); !strings.ContainsAny(list, ",-") {
					found[f] = list
				}
			}
		}
	}
	return found
}

// TestThreadsLeaveCaller: the threads of a session run on other processors than the thread that
// calls it, also when that moves.
func TestThreadsLeaveCaller(t *testing.T) {
	cpus := processors(t, 2)
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := load(t, x, writeEmbedding(t))
	_, _, inputs := embeddingInputs(3)
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 1, 1, 0} {
		pin, err := isolate.NewPin(cpus[i : i+1])
		if err != nil {
			t.Fatal(err)
		}
		if err := pin.Enter(); err != nil {
			t.Fatal(err)
		}
		r, err := m.Run(context.Background(), inputs)
		pin.Leave()
		if err != nil {
			t.Fatal(err)
		}
		r.Release()
		others := all
		others.Clear(cpus[i])
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil {
				t.Fatal(err)
			}
			var set unix.CPUSet
			if unix.SchedGetaffinity(id, &set) == nil && set == others { // some end meanwhile
				n++
			}
		}
		if n != 2 {
			t.Errorf("called on processor %d: %d threads may run on all others, want the session's 2",
				cpus[i], n)
		}
	}
}

// TestPartitionSessions: a model has a session for each number of cores, and its threads are on the
// lane's processors. Answers are the same on all.
func TestPartitionSessions(t *testing.T) {
	cpus := processors(t, 2)
	ctx := context.Background()
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := load(t, x, writeEmbedding(t))
	_, _, inputs := embeddingInputs(300)
	want, err := m.Run(ctx, inputs)
	if err != nil {
		t.Fatal(err)
	}
	if one := poolThreads(t); len(one) > 0 {
		t.Fatalf("before: threads are pinned: %v", one)
	}
	for name, cfg := range map[string]runtime.PartitionConfig{
		"one core":     {CPUs: [][]int{cpus[:1]}},
		"two cores":    {LanesConfig: runtime.LanesConfig{Cores: 2}, CPUs: [][]int{cpus}},
		"two unpinned": {LanesConfig: runtime.LanesConfig{Cores: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := runtime.NewPartition(cfg)
			if err != nil {
				t.Fatal(err)
			}
			placedModel, err := p.Place(ctx, m)
			if err != nil {
				t.Fatal(err)
			}
			// ONNX Runtime starts one thread less than a run has, and each goes where it belongs
			// once it runs, which may be after the session is there.
			var all []string
			if cfg.Cores == 2 && cfg.CPUs != nil {
				all = append(all, fmt.Sprint(cpus[1]))
			}
			pinned := func() []string { return slices.Collect(maps.Values(poolThreads(t))) }
			for len(pinned()) < len(all) {
				time.Sleep(time.Millisecond)
			}
			if pinned := pinned(); !slices.Equal(pinned, all) {
				t.Errorf("threads are pinned to %v, want %v", pinned, all)
			}
			r, err := p.Do(ctx, runtime.Query{Model: placedModel, Inputs: inputs, BatchSize: 300})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(r.Outputs[0].Data, want.Outputs[0].Data) {
				t.Error("another answer than without a partition")
			}
			r.Release()
			for range 2 {
				if err := placedModel.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := m.Run(ctx, inputs); err != nil {
				t.Errorf("the model itself is closed: %v", err)
			}
		})
	}
}

// TestThreadsOfLoad: a session's threads have the usual priority, also if the thread that loads the
// model has a lower one.
func TestThreadsOfLoad(t *testing.T) {
	x, err := runtime.OpenONNX(runtime.Config{
		LibraryPath: runtimetest.Library(t), Provider: runtime.CPU, Cores: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	v := writeEmbedding(t)
	const low = 7
	// threads returns how many threads there are with a priority.
	threads := func(nice int) (n int) {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil {
				t.Fatal(err)
			}
			// The system call returns 20 less the nice value.
			if p, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && 20-p == nice {
				n++
			}
		}
		return n
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), low); err != nil {
			t.Error(err)
		}
		before, slow := threads(0), threads(low)
		load(t, x, v)
		if n := threads(low); n != slow {
			t.Errorf("%d threads have a low priority, %d before the load", n, slow)
		}
		if after := threads(0); after < before+2 {
			t.Errorf("%d threads with the usual priority, %d before a session of 3 threads", after,
				before)
		}
	}()
	<-done
}
