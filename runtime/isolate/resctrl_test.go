package isolate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/muster-serve/muster/runtime/isolate"
	"github.com/muster-serve/muster/runtime/isolate/resctrltest"
)

func nobody(int) bool { return false }

// TestIsolators holds the fake's and the real machine's Isolator to one contract.
func TestIsolators(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		testIsolator(t, func() isolate.Isolator {
			r, err := isolate.OpenResctrl(resctrltest.New(), nobody)
			if err != nil {
				t.Fatal(err)
			}
			return r
		})
	})
	t.Run("real", func(t *testing.T) {
		if os.Getenv("MUSTER_TEST_RESCTRL") != "1" {
			t.Skip("changes the machine's cache: set MUSTER_TEST_RESCTRL=1 to run it")
		}
		r := isolate.Open()
		defer r.Close()
		if why := r.Limits().Why; why != "" {
			t.Skip(why)
		}
		testIsolator(t, isolate.Open)
	})
}

func testIsolator(t *testing.T, open func() isolate.Isolator) {
	top, err := isolate.Read()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	a, b := []int{top.CPUs[0].Number}, []int{top.CPUs[len(top.CPUs)-1].Number}
	if a[0] == b[0] {
		t.Skip("needs two processors")
	}
	r := open()
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	limits := r.Limits()
	least, rest := limits.LeastWays, limits.Ways-limits.LeastWays
	if least < 1 || rest < least || limits.Groups < 2 || limits.Why != "" {
		t.Fatalf("got %+v", limits)
	}
	good := func(groups ...isolate.Group) {
		t.Helper()
		if err := r.Apply(ctx, groups); err != nil {
			t.Errorf("%v: %v", groups, err)
		}
	}
	bad := func(want string, groups ...isolate.Group) {
		t.Helper()
		if err := r.Apply(ctx, groups); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", groups, err, want)
		}
	}
	group := func(name string, cpus []int, ways int) isolate.Group {
		return isolate.Group{Name: name, CPUs: cpus, Ways: ways}
	}
	good(group("rm2", a, least), group("wnd", b, rest))
	good(group("rm2", a, rest), group("wnd", b, least)) // ways change hands
	good(group("rm2", b, rest), group("wnd", a, least)) // processors do
	if bytes, ok := r.Bandwidth("rm2"); !ok && bytes != 0 {
		t.Errorf("no bandwidth, but %d bytes", bytes)
	}
	if _, ok := r.Bandwidth("other"); ok {
		t.Error("a group that does not exist has a bandwidth")
	}
	bad("is in the groups rm2 and wnd", group("rm2", a, least), group("wnd", a, least))
	bad(fmt.Sprintf("want %d ways, and the cache has %d", limits.Ways+1, limits.Ways),
		group("rm2", a, limits.Ways+1))
	bad("-1 ways", group("rm2", a, -1))
	bad("has no processors", group("rm2", nil, least))
	bad(`two groups have the name "rm2"`, group("rm2", a, least), group("rm2", b, least))
	if least > 1 {
		bad(fmt.Sprintf("%d ways, want at least %d", least-1, least), group("rm2", a, least-1))
	}
	bad("give group rm2 the processors", group("rm2", []int{1000}, least))
	var many []isolate.Group
	for n := range limits.Groups + 1 {
		many = append(many, group(fmt.Sprint(n), []int{n}, least))
	}
	bad(fmt.Sprintf("classes for %d", limits.Groups), many...)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := r.Apply(ended, []isolate.Group{group("x", a, least)}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	good(group("rm2", a, 0), group("wnd", b, least)) // one shares what the other leaves
	good()
}

// TestResctrlState: what the kernel holds after each call.
func TestResctrlState(t *testing.T) {
	ctx := context.Background()
	k := resctrltest.New()
	k.Groups["muster-1-1"] = &resctrltest.Group{Masks: map[int]uint64{0: 3}} // of a dead process
	k.Groups["muster-2-1"] = &resctrltest.Group{Masks: map[int]uint64{0: 3}} // of a living one
	k.Groups["other"] = &resctrltest.Group{Masks: map[int]uint64{0: 3}}
	k.Classes = 6
	r, err := isolate.OpenResctrl(k, func(pid int) bool { return pid == 2 })
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(k.Groups)); !slices.Equal(got,
		[]string{"", "muster-2-1", "other"}) {
		t.Errorf("after Open: groups %q", got)
	}
	state := func() string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(k.Groups)) {
			g := k.Groups[name]
			fmt.Fprintf(&b, "%x:%s ", g.Masks[0], isolate.FormatCPUs(g.CPUs))
		}
		return b.String()
	}
	const others = " 3: 3: " // the living process's and the other one
	apply := func(want string, groups ...isolate.Group) {
		t.Helper()
		if err := r.Apply(ctx, groups); err != nil {
			t.Fatal(err)
		}
		if got := state(); got != want {
			t.Errorf("%v: got %q, want %q", groups, got, want)
		}
	}
	pair := []isolate.Group{
		{Name: "rm2", CPUs: []int{0, 1, 2}, Ways: 4}, {Name: "wnd", CPUs: []int{5, 3, 4}, Ways: 5},
	}
	mine := fmt.Sprintf("muster-%d-", os.Getpid())
	if strings.Compare(mine, "muster-2-1") < 0 { // the order of state
		apply("600:6-7 f:0-2 1f0:3-5"+others, pair...)
	} else {
		apply("600:6-7 3: f:0-2 1f0:3-5 3: ", pair...)
	}
	if bytes, ok := r.Bandwidth("rm2"); !ok || bytes != 0 {
		t.Errorf("got %d, %v", bytes, ok)
	}
	for name, g := range k.Groups {
		if strings.HasPrefix(name, mine) {
			g.Bytes = 123
		}
	}
	if bytes, ok := r.Bandwidth("wnd"); !ok || bytes != 123 {
		t.Errorf("got %d, %v", bytes, ok)
	}
	k.Counts = false
	if _, ok := r.Bandwidth("wnd"); ok {
		t.Error("the machine does not count, and there is a bandwidth")
	}
	writes := k.Writes
	if err := r.Apply(ctx, pair); err != nil || k.Writes != writes {
		t.Errorf("the same again: %v, %d writes", err, k.Writes-writes)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "7ff:0-7"+others {
		t.Errorf("after Close: got %q", got)
	}
}

// TestResctrlAllOrNothing: whichever change fails, the groups are as before, or as wanted.
func TestResctrlAllOrNothing(t *testing.T) {
	before := []isolate.Group{
		{Name: "rm2", CPUs: []int{0, 1}, Ways: 4}, {Name: "wnd", CPUs: []int{2, 3}, Ways: 4},
	}
	after := []isolate.Group{
		{Name: "ncf", CPUs: []int{0, 2}, Ways: 6}, {Name: "wnd", CPUs: []int{1, 3}, Ways: 2},
	}
	text := func(k *resctrltest.Kernel) string {
		var all []string
		for _, g := range k.Groups {
			all = append(all, fmt.Sprintf("%x:%s", g.Masks[0], isolate.FormatCPUs(g.CPUs)))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	for fails := range 20 {
		k := resctrltest.New()
		r, err := isolate.OpenResctrl(k, nobody)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Apply(context.Background(), before); err != nil {
			t.Fatal(err)
		}
		was := text(k)
		f := &failing{Kernel: k, at: k.Writes + 1 + fails}
		isolate.SetFiles(r, f)
		err = r.Apply(context.Background(), after)
		switch {
		case err == nil:
			if want := "3f:0,2 700:4-7 c0:1,3"; fails == 0 || f.failed || text(k) != want {
				t.Errorf("after %d failures: %s, want %s", fails, text(k), want)
			}
			return
		case !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "resource is busy"):
			t.Errorf("failure %d: %v", fails, err)
		}
		if got := text(k); got != was {
			t.Errorf("failure %d (%v): got %s, want %s", fails, err, got, was)
		}
	}
	t.Error("the change never went through")
}

// failing is a Kernel whose at-th change is refused as busy.
type failing struct {
	*resctrltest.Kernel
	at     int
	failed bool
}

func (f *failing) busy() {
	if f.Writes+1 == f.at {
		f.Busy, f.failed = 1, true
	}
}

func (f *failing) WriteFile(name string, data []byte) error {
	f.busy()
	return f.Kernel.WriteFile(name, data)
}

func (f *failing) Mkdir(name string) error { f.busy(); return f.Kernel.Mkdir(name) }

func (f *failing) Rmdir(name string) error { f.busy(); return f.Kernel.Rmdir(name) }

// TestKernel: the fake refuses what the kernel refuses.
func TestKernel(t *testing.T) {
	k := resctrltest.New()
	for _, name := range []string{"a", "b"} {
		if err := k.Mkdir(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, text, want string }{
		{"a/schemata", "L3:0=5\n", "non-consecutive"},
		{"a/schemata", "L3:0=1\n", "at least 2 bits"},
		{"a/schemata", "L3:0=1800\n", "out of range"},
		{"a/schemata", "L3:0=0\n", "out of range"},
		{"a/schemata", "L3:1=3\n", "unknown L3 domain"},
		{"a/schemata", "L2:0=3\n", "unknown or unsupported"},
		{"a/schemata", "L3:0=3", "no newline"},
		{"a/schemata", "L3:0=3\n", ""},
		{"a/cpus_list", "0-1\n", ""},
		{"b/cpus_list", "1\n", "CPU 1 is in group a"},
		{"b/cpus_list", "8\n", "only assign online"},
		{"b/cpus_list", "x\n", "bad CPU list"},
	} {
		err := k.WriteFile(c.name, []byte(c.text))
		status, _ := k.ReadFile("info/last_cmd_status")
		if (err == nil) != (c.want == "") || !strings.Contains(string(status), c.want) {
			t.Errorf("%s %q: got %v, %q, want %q", c.name, c.text, err, status, c.want)
		}
	}
	if err := k.Mkdir("c"); err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir("d"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a fifth class: got %v", err)
	}
	if len(k.Groups["a"].CPUs) != 2 || len(k.Groups[""].CPUs) != 6 {
		t.Errorf("got %v and %v", k.Groups["a"].CPUs, k.Groups[""].CPUs)
	}
}

// TestResctrlRefused: why a machine's cache cannot be divided.
func TestResctrlRefused(t *testing.T) {
	for want, change := range map[string]func(*resctrltest.Kernel){
		"cannot divide its last-level cache":    func(k *resctrltest.Kernel) { k.Mask = 0 },
		"no rights to write to /sys/fs/resctrl": func(k *resctrltest.Kernel) { k.ReadOnly = true },
		"no class of service is free":           func(k *resctrltest.Kernel) { k.Classes = 1 },
		"resource is busy":                      func(k *resctrltest.Kernel) { k.Busy = 1 },
	} {
		k := resctrltest.New()
		change(k)
		if _, err := isolate.OpenResctrl(k, nobody); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	r := isolate.Open()
	defer r.Close()
	if r.Limits().Why == "" {
		t.Skip("this machine's cache can be divided")
	}
	shared := []isolate.Group{{Name: "rm2", CPUs: []int{0}}}
	if err := r.Apply(context.Background(), shared); err != nil {
		t.Errorf("a group that shares the cache: %v", err)
	}
	shared[0].Ways = 3
	if err := r.Apply(context.Background(), shared); err == nil ||
		!strings.Contains(err.Error(),
			"group rm2 wants 3 ways of the cache, which cannot be divided") {
		t.Errorf("got %v", err)
	}
}

// TestResctrlAny: any groups that pass the check are taken by the kernel, from any others.
func TestResctrlAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := resctrltest.New()
		r, err := isolate.OpenResctrl(k, nobody)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			cpus := rapid.Permutation(k.CPUs).Draw(t, "cpus")
			var groups []isolate.Group
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(
				[]string{"a", "b", "c", "d"}), 0, 3, rapid.ID).Draw(t, "names") {
				n := rapid.IntRange(1, 2).Draw(t, "processors")
				groups = append(groups, isolate.Group{
					Name: name, CPUs: cpus[:n],
					Ways: rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "ways"),
				})
				cpus = cpus[n:]
			}
			if err := r.Apply(context.Background(), groups); err != nil {
				t.Fatal(err)
			}
		}
	})
}
