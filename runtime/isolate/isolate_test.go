package isolate

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// machine returns the files of a machine: packages with caches, cores and threads in each.
func machine(packages, caches, cores, threads int) fstest.MapFS {
	files := fstest.MapFS{}
	write := func(name string, value any) {
		files[name] = &fstest.MapFile{Data: fmt.Appendln(nil, value)}
	}
	all := packages * caches * cores
	nodes := map[int][]int{}
	for n := range all * threads {
		core := n % all // as x86 counts: second threads come after all first ones
		p := core / (caches * cores)
		var shared, siblings []int
		for o := range all * threads {
			if o%all/cores == core/cores {
				shared = append(shared, o)
			}
			if o%all == core {
				siblings = append(siblings, o)
			}
		}
		at := fmt.Sprintf("sys/devices/system/cpu/cpu%d", n)
		write(at+"/topology/core_id", core%(caches*cores))
		write(at+"/topology/physical_package_id", p)
		write(at+"/cache/index0/level", 1)
		write(at+"/cache/index0/shared_cpu_list", FormatCPUs(siblings))
		write(at+"/cache/index3/level", 3)
		write(at+"/cache/index3/shared_cpu_list", FormatCPUs(shared))
		nodes[p] = append(nodes[p], n)
	}
	for node, cpus := range nodes {
		write(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", node), FormatCPUs(cpus))
	}
	write("sys/devices/system/cpu/online", fmt.Sprintf("0-%d", all*threads-1))
	return files
}

func every(int) bool { return true }

func TestTopology(t *testing.T) {
	files := machine(2, 2, 2, 2) // cores 0-7, second threads 8-15
	top, err := read(files, every)
	if err != nil {
		t.Fatal(err)
	}
	if len(top.CPUs) != 16 || top.Quota != 0 {
		t.Fatalf("got %+v", top)
	}
	for at, want := range map[int]CPU{
		0:  {Number: 0, Core: 0, Package: 0, Cache: 0, Node: 0},
		1:  {Number: 8, Core: 0, Package: 0, Cache: 0, Node: 0},
		6:  {Number: 3, Core: 3, Package: 0, Cache: 2, Node: 0},
		8:  {Number: 4, Core: 0, Package: 1, Cache: 4, Node: 1},
		15: {Number: 15, Core: 3, Package: 1, Cache: 6, Node: 1},
	} {
		if top.CPUs[at] != want {
			t.Errorf("processor %d in order: got %+v, want %+v", at, top.CPUs[at], want)
		}
	}

	// Processor 9 is offline, and the cpuset leaves 0-3 and 8-11.
	files["sys/devices/system/cpu/online"] = &fstest.MapFile{Data: []byte("0-8,10-15\n")}
	top, err = read(files, func(n int) bool { return n%8 < 4 })
	if err != nil {
		t.Fatal(err)
	}
	if got := top.String(); got != "processors 0-3,8,10-11" {
		t.Errorf("got %s", got)
	}
	if _, err := read(files, func(int) bool { return false }); err == nil {
		t.Error("no processor is allowed: got no error")
	}
}

// TestBareMachine: machines that tell nothing but which processors are online, as some containers.
func TestBareMachine(t *testing.T) {
	files := fstest.MapFS{
		"sys/devices/system/cpu/online": {Data: []byte("0-1\n")},
	}
	top, err := read(files, every)
	want := []CPU{{Number: 0, Core: 0}, {Number: 1, Core: 1}}
	if err != nil || !slices.Equal(top.CPUs, want) {
		t.Errorf("got %+v, %v", top, err)
	}
	files["sys/devices/system/cpu/online"] = &fstest.MapFile{Data: []byte("0-x\n")}
	if _, err := read(files, every); err == nil ||
		!strings.Contains(err.Error(), `/sys/devices/system/cpu/online: processors "0-x"`) {
		t.Errorf("got %v", err)
	}
}

// TestCores: lanes share what a quota is worth, and at least one core.
func TestCores(t *testing.T) {
	for _, c := range []struct {
		processors int
		quota      float64
		want       int
		why        string
	}{
		{4, 0, 4, "the processors"},
		{4, 4, 4, "the processors"},
		{4, 8, 4, "the processors"},
		{4, 3.5, 3, "the CPU quota of its cgroup, 3.5 of 4 processors"},
		{4, 1, 1, "the CPU quota of its cgroup, 1 of 4 processors"},
		{2, .5, 1, "the CPU quota of its cgroup, 0.5 of 2 processors"},
	} {
		got, why := coresOf(c.processors, c.quota)
		if got != c.want || !strings.HasPrefix(why, c.why) {
			t.Errorf("%d processors, a quota of %g: got %d by %q, want %d by %q", c.processors,
				c.quota, got, why, c.want, c.why)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{
		"": nil, "3": {3}, "0-2,8": {0, 1, 2, 8}, "4,1-2,2": {1, 2, 4},
	} {
		got, err := ParseCPUs(list)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"a", "1-", "2-1", "-1", "0-1024", "1,,2", "1 "} {
		if got, err := ParseCPUs(list); err == nil || !strings.Contains(err.Error(), list) {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOfDistinct(rapid.IntRange(0, 100), rapid.ID).Draw(t, "cpus")
		slices.Sort(cpus)
		if got, err := ParseCPUs(FormatCPUs(cpus)); err != nil || !slices.Equal(got, cpus) {
			t.Fatalf("%q: got %v, %v", FormatCPUs(cpus), got, err)
		}
	})
}

func TestAssign(t *testing.T) {
	smt, err := read(machine(1, 2, 4, 2), every) // caches 0-3,8-11 and 4-7,12-15
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		partitions []Want
		want       [][][]int
	}{
		"one lane of two cores has both threads of a core": {
			[]Want{{Lanes: 1, Cores: 2}}, [][][]int{{{0, 8}}},
		},
		"two odd partitions share no core": {
			[]Want{{Lanes: 1, Cores: 1}, {Lanes: 3, Cores: 1}},
			[][][]int{{{2}}, {{0}, {8}, {1}}},
		},
		"the second goes to the other cache": {
			[]Want{{Lanes: 2, Cores: 2}, {Lanes: 3, Cores: 2}},
			[][][]int{{{4, 12}, {5, 13}}, {{0, 8}, {1, 9}, {2, 10}}},
		},
		"more than one cache has": {
			[]Want{{Lanes: 5, Cores: 2}}, [][][]int{{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}}},
		},
		"cores of two caches rather than one that another has": {
			[]Want{{Lanes: 6, Cores: 1}, {Lanes: 5, Cores: 1}, {Lanes: 3, Cores: 1}},
			[][][]int{
				{{0}, {8}, {1}, {9}, {2}, {10}}, {{4}, {12}, {5}, {13}, {6}}, {{3}, {11}, {7}},
			},
		},
		"cores are shared where there is no other way": {
			[]Want{{Lanes: 15, Cores: 1}, {Lanes: 1, Cores: 1}},
			[][][]int{
				{{0}, {8}, {1}, {9}, {2}, {10}, {3}, {11}, {4}, {12}, {5}, {13}, {6}, {14}, {7}},
				{{15}},
			},
		},
	} {
		got, err := smt.Assign(c.partitions)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.want)
		}
	}
	limited := *smt
	limited.Quota = 3.5
	for want, c := range map[string]struct {
		*Topology
		partitions []Want
	}{
		"wants 17 cores, and this process may use 16: processors 0-15": {
			smt, []Want{{Lanes: 8, Cores: 2}, {Lanes: 1, Cores: 1}},
		},
		"wants 4 cores, and the cgroup's limit is the time of 3.5": {
			&limited, []Want{{Lanes: 4, Cores: 1}},
		},
		"partition 2 has 0 lanes of 1 cores": {smt, []Want{{Lanes: 1, Cores: 1}, {Cores: 1}}},
	} {
		if got, err := c.Assign(c.partitions); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v, want %q", got, err, want)
		}
	}
}

// TestAssignAny: whatever fits gets as many processors as it wants, each once, and partitions share
// cores only if they must.
func TestAssignAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string, most int) int { return rapid.IntRange(1, most).Draw(t, what) }
		threads := draw("threads", 2)
		top, err := read(machine(draw("packages", 2), draw("caches", 3), draw("cores", 4), threads),
			every)
		if err != nil {
			t.Fatal(err)
		}
		var partitions []Want
		left, cores := len(top.CPUs), len(top.CPUs)/threads
		for range draw("partitions", 3) {
			w := Want{Lanes: draw("lanes", 4), Cores: draw("cores a lane", 3)}
			if w.countCPUs() > left {
				break
			}
			left -= w.countCPUs()
			cores -= (w.countCPUs() + threads - 1) / threads
			partitions = append(partitions, w)
		}
		got, err := top.Assign(partitions)
		if err != nil {
			t.Fatal(err)
		}
		type place struct{ pkg, core int }
		user := map[place]int{}
		seen := map[int]bool{}
		for i, lanes := range got {
			if len(lanes) != partitions[i].Lanes {
				t.Fatalf("%v: got %v", partitions, got)
			}
			for _, cpus := range lanes {
				if len(cpus) != partitions[i].Cores {
					t.Fatalf("%v: got %v", partitions, got)
				}
				for _, n := range cpus {
					if seen[n] {
						t.Fatalf("processor %d twice: %v", n, got)
					}
					seen[n] = true
					at := slices.IndexFunc(top.CPUs, func(c CPU) bool { return c.Number == n })
					if at < 0 {
						t.Fatalf("processor %d does not exist: %v", n, got)
					}
					on := place{top.CPUs[at].Package, top.CPUs[at].Core}
					if other, ok := user[on]; ok && other != i && cores >= 0 {
						t.Fatalf("partitions %d and %d share a core, though there are enough: %v",
							other+1, i+1, got)
					}
					user[on] = i
				}
			}
		}
	})
}

// TestPin: on the real machine, the thread of a goroutine stays on the processor and is free again
// afterwards.
func TestPin(t *testing.T) {
	top, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	allowed := func() *unix.CPUSet {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		return &set
	}
	before := allowed()
	for _, c := range top.CPUs {
		pin, err := NewPin([]int{c.Number})
		if err != nil {
			t.Fatal(err)
		}
		if err := pin.Enter(); err != nil {
			t.Fatal(err)
		}
		if now := allowed(); now.Count() != 1 || !now.IsSet(c.Number) {
			t.Errorf("pinned to %d: may run on %d processors", c.Number, now.Count())
		}
		if cpu := currentCPU(); cpu != c.Number {
			t.Errorf("pinned to %d: runs on %d", c.Number, cpu)
		}
		pin.Leave()
		if now := allowed(); *now != *before {
			t.Errorf("after Leave: may run on %d processors, before on %d", now.Count(),
				before.Count())
		}
	}
	_, err = NewPin([]int{top.CPUs[0].Number, 999})
	if err == nil || !strings.Contains(err.Error(), "[999] are not there") {
		t.Errorf("a processor that does not exist: got %v", err)
	}
	if _, err := NewPin(nil); err == nil {
		t.Error("no processors: got no error")
	}
}

// TestApart: threads that compute leave the processor of one that begins to, and may run everywhere
// when they have ended, on whichever goroutine that is said.
func TestApart(t *testing.T) {
	top, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	a := NewApart()
	if len(top.CPUs) < 2 {
		if a != nil {
			t.Error("there is nothing to choose with one processor")
		}
		a.Leave(a.Enter())
		t.Skip("needs two processors")
	}
	// onThread has f called on another thread, which only calls can end.
	onThread := func() (call func(f func()), end func()) {
		calls, done := make(chan func()), make(chan struct{})
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			for f := range calls {
				f()
				done <- struct{}{}
			}
		}()
		return func(f func()) { calls <- f; <-done }, func() { close(calls) }
	}
	may := func(thread int) (set unix.CPUSet) {
		if err := unix.SchedGetaffinity(thread, &set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	all := may(0)

	callFirst, endFirst := onThread()
	defer endFirst()
	callSecond, endSecond := onThread()
	defer endSecond()
	var first int
	callFirst(func() { first = a.Enter() })
	if got := may(first); got != all {
		t.Errorf("alone: may run on %d processors, want %d", got.Count(), all.Count())
	}
	for _, i := range []int{0, 1, 1} {
		cpu := top.CPUs[i].Number
		pin, err := NewPin([]int{cpu})
		if err != nil {
			t.Fatal(err)
		}
		others := all
		others.Clear(cpu)
		callSecond(func() {
			if err := pin.Enter(); err != nil {
				t.Error(err)
			}
			second := a.Enter()
			if got := may(first); got != others {
				t.Errorf("beside one on %d: may run there (%t), or not on all others", cpu,
					got.IsSet(cpu))
			}
			a.Leave(second)
			pin.Leave()
		})
	}
	a.Leave(first)
	if got := may(first); got != all {
		t.Errorf("afterwards: may run on %d processors, want %d", got.Count(), all.Count())
	}
}

// TestPinUnplugged: a processor that goes away while a Pin to it exists gives an error, and the
// goroutine goes on.
func TestPinUnplugged(t *testing.T) {
	pin := &Pin{cpus: []int{maxCPUs - 1}}
	pin.mask.Set(maxCPUs - 1)
	if err := pin.Enter(); err == nil || !strings.Contains(err.Error(), "[1023]") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkPin is what pinning costs a run: two system calls, and the way to another processor if
// the thread was elsewhere.
func BenchmarkPin(b *testing.B) {
	top, err := Read()
	if err != nil {
		b.Fatal(err)
	}
	var pins []*Pin
	for _, c := range top.CPUs {
		pin, err := NewPin([]int{c.Number})
		if err != nil {
			b.Fatal(err)
		}
		pins = append(pins, pin)
	}
	enter := func(p *Pin) {
		if err := p.Enter(); err != nil {
			b.Fatal(err)
		}
		p.Leave()
	}
	b.Run("same", func(b *testing.B) {
		for b.Loop() {
			enter(pins[0])
		}
	})
	b.Run("other", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			enter(pins[n%len(pins)])
		}
	})
}
