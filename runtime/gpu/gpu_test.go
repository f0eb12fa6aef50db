package gpu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/muster-serve/muster/runtime/gpu/fakenvidia"
)

// fake has this process use a fake driver in the given state.
func fake(t *testing.T, s fakenvidia.State) *fakenvidia.Driver {
	t.Helper()
	d, err := fakenvidia.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Set(s); err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakenvidia.Variable, d.State())
	unset(t)
	use(t, d.CUDA, d.NVML)
	return d
}

// unset has no CUDA_VISIBLE_DEVICES until the test ends.
func unset(t *testing.T) {
	t.Setenv(visible, "") // restores it in the end
	if err := os.Unsetenv(visible); err != nil {
		t.Fatal(err)
	}
}

// use has the package load other libraries, by their paths.
func use(t *testing.T, cuda, nvml string) {
	cudaBefore, nvmlBefore := libcuda, libnvml
	libcuda, libnvml = cuda, nvml
	forget := func() {
		management.Lock()
		defer management.Unlock()
		if management.api != nil {
			management.api.Shutdown()
		}
		management.api = nil
	}
	forget()
	t.Cleanup(func() {
		forget()
		libcuda, libnvml = cudaBefore, nvmlBefore
	})
}

const gib = 1 << 30

// card is a fake card.
func card(uuid string) fakenvidia.Card {
	return fakenvidia.Card{
		UUID: uuid, Name: "Fake H100", Memory: 80 * gib, Used: 2 * gib, Percent: 37, Celsius: 55,
		Watts: 210, Corrected: 3, Uncorrected: 1,
	}
}

func TestOpen(t *testing.T) {
	d := fake(t, fakenvidia.State{Cards: []fakenvidia.Card{card("GPU-a"), card("GPU-bc")}})
	for _, tt := range []struct{ spec, visible, uuid string }{
		{"", "", "GPU-a"}, {"0", "", "GPU-a"}, {"1", "", "GPU-bc"}, {"GPU-bc", "", "GPU-bc"},
		{"", "1,0", "GPU-bc"}, {"", "GPU-bc", "GPU-bc"}, {"0", "1", "GPU-a"},
		{"GPU-b", "", "GPU-bc"}, {"", "GPU-b,GPU-a", "GPU-bc"}, // CUDA takes shortened UUIDs
	} {
		if unset(t); tt.visible != "" {
			t.Setenv(visible, tt.visible)
		}
		c, err := Open(tt.spec, 13)
		if err != nil {
			t.Fatalf("%q with %q visible: %v", tt.spec, tt.visible, err)
		}
		if c.UUID != tt.uuid || c.Name != "Fake H100" || c.Memory != 80*gib || c.Others != 1 ||
			c.Driver != "580.95.05" {
			t.Errorf("%q with %q visible: got %+v, want %s", tt.spec, tt.visible, c, tt.uuid)
		}
		if got := os.Getenv(visible); got != tt.uuid {
			t.Errorf("%q with %q visible: CUDA sees %q, want %s", tt.spec, tt.visible, got, tt.uuid)
		}
		if free, err := c.Free(); err != nil || free != 78*gib {
			t.Errorf("got %d bytes free, %v", free, err)
		}
	}
	t.Setenv(visible, "1")
	if _, err := Open("", 0); err != nil || os.Getenv(visible) != "1" {
		t.Errorf("without CUDA: got error %v, and CUDA sees %q", err, os.Getenv(visible))
	}

	if err := d.Set(fakenvidia.State{Cards: []fakenvidia.Card{
		{UUID: "GPU-a", Name: "Fake H100", Memory: 70 * gib,
			Slices: []string{"MIG-x", "MIG-y"}}, card("GPU-b"),
	}}); err != nil {
		t.Fatal(err)
	}
	for spec, uuid := range map[string]string{
		"": "MIG-x", "MIG-y": "MIG-y", "1": "GPU-b",
	} {
		unset(t)
		c, err := Open(spec, 13)
		if err != nil || c.UUID != uuid || c.Others != 2 {
			t.Errorf("of slices, %q: got %+v, %v", spec, c, err)
		}
	}
	c, err := Open("MIG-y", 13)
	if err != nil || c.Memory != 10*gib || c.instance != 2 {
		t.Errorf("got the slice %+v, %v", c, err)
	}
}

// TestReasons: each reason for not using a card reads as whoever has to act on it needs it.
func TestReasons(t *testing.T) {
	two := []fakenvidia.Card{{UUID: "GPU-a", Name: "Fake H100", Slices: []string{"MIG-x"}},
		card("GPU-b")}
	for _, tt := range []struct {
		state fakenvidia.State
		spec  string
		want  string
	}{
		{fakenvidia.State{Driver: "470.57.02", CUDA: 11040}, "",
			"NVIDIA driver 470.57.02 supports CUDA 11.4, the library needs 13.x: install driver " +
				"580 or later"},
		{fakenvidia.State{}, "", "NVIDIA driver 580.95.05 is there but finds no GPU that this " +
			"process may use (/dev/nvidia*)"},
		{fakenvidia.State{Init: 100, Cards: two}, "GPU-b", "NVIDIA driver 580.95.05 is there but " +
			"finds no GPU that this process may use (/dev/nvidia*)"},
		{fakenvidia.State{Init: 803, Cards: two}, "GPU-b",
			"NVIDIA driver 580.95.05 cannot start: cuInit: CUDA error 803: a fake error"},
		{fakenvidia.State{Cards: two}, "GPU-c", `no GPU "GPU-c"; there are: GPU 0 (Fake H100, ` +
			`MIG-x), GPU 1 (Fake H100, GPU-b)`},
		{fakenvidia.State{Cards: []fakenvidia.Card{card("GPU-a1"), card("GPU-a2")}}, "GPU-a",
			`"GPU-a" is the beginning of several GPUs' UUIDs; there are: GPU 0 (Fake H100, GPU-a1), ` +
				`GPU 1 (Fake H100, GPU-a2)`},
		{fakenvidia.State{Cards: two}, "0", `no GPU "0"; there are: GPU 0 (Fake H100, MIG-x), ` +
			`GPU 1 (Fake H100, GPU-b); GPU 0 is split by MIG, so name one of its slices`},
	} {
		d := fake(t, tt.state)
		if _, err := Open(tt.spec, 13); err == nil || err.Error() != tt.want {
			t.Errorf("of %s: got error %v, want %s", d.Dir, err, tt.want)
		}
	}
}

// TestHidden: who sets CUDA_VISIBLE_DEVICES to nothing hides all cards, as from any program with CUDA.
func TestHidden(t *testing.T) {
	fake(t, fakenvidia.State{Cards: []fakenvidia.Card{card("GPU-a")}})
	t.Setenv(visible, "")
	for _, major := range []int{0, 13} {
		if c, err := Open("", major); err == nil || !strings.Contains(err.Error(), visible) {
			t.Errorf("for CUDA %d: got %v, error %v, want no card", major, c, err)
		}
	}
	if c, err := Open("0", 13); err != nil || c.UUID != "GPU-a" {
		t.Errorf("by its number: got %v, error %v", c, err)
	}
}

func TestNoDriver(t *testing.T) {
	use(t, "libcuda-none.so.1", "libnvidia-none.so.1")
	for major, want := range map[int]string{
		13: "no NVIDIA driver: libcuda-none.so.1 not found",
		0:  "no NVIDIA driver: libnvidia-none.so.1 not found",
	} {
		if _, err := Open("", major); !errors.Is(err, ErrNoDriver) || err.Error() != want {
			t.Errorf("for CUDA %d: got error %v, want %s", major, err, want)
		}
	}

	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(file, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	use(t, file, "libnvidia-none.so.1")
	if _, err := Open("", 13); err == nil || !strings.Contains(err.Error(), "invalid ELF header") {
		t.Errorf("of a file of zeros: got error %v", err)
	}
}

// TestWithoutNVML: a container may have the driver's libcuda alone; then CUDA chooses the card.
func TestWithoutNVML(t *testing.T) {
	fake(t, fakenvidia.State{Cards: []fakenvidia.Card{card("GPU-a")}})
	use(t, libcuda, "libnvidia-none.so.1")
	c, err := Open("", 13)
	if err != nil || c.Unwatched == nil || c.UUID != "" {
		t.Fatalf("got %+v, %v", c, err)
	}
	seen := watched(t, c)
	dead := errors.New("dead")
	c.Fail(dead)
	if s := <-seen; s.Failed != dead || s.Memory != 0 {
		t.Errorf("a card without NVML: got %+v, want no more than its failure", s)
	}
	if _, more := <-seen; more {
		t.Error("the watch goes on after the card has failed")
	}
	if _, err := c.Free(); err == nil {
		t.Error("a card without NVML has free memory")
	}
	if _, err := Open("0", 13); err == nil || !strings.Contains(err.Error(), "libnvidia-none") {
		t.Errorf("of a card by name: got error %v", err)
	}
}

// watched watches a card until it has failed or the test ends, and returns what is seen.
func watched(t *testing.T, c *Card) <-chan Status {
	seen := make(chan Status)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(seen)
		c.Watch(ctx, func(s Status) {
			select {
			case seen <- s:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return seen
}

// await returns the first status that suits.
func await(t *testing.T, seen <-chan Status, suits func(Status) bool) Status {
	t.Helper()
	timeout := time.After(time.Minute)
	var last Status
	for {
		select {
		case s, ok := <-seen:
			if !ok {
				t.Fatalf("the watch has ended with %+v", last)
			}
			if last = s; suits(s) {
				return s
			}
		case <-timeout:
			t.Fatalf("still %+v after a minute", last)
		}
	}
}

func TestWatch(t *testing.T) {
	now := card("GPU-a")
	d := fake(t, fakenvidia.State{Cards: []fakenvidia.Card{now}})
	set := func() {
		if err := d.Set(fakenvidia.State{Cards: []fakenvidia.Card{now}}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Open("", 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := watched(t, c)
	got := await(t, seen, func(Status) bool { return true })
	if got.Memory != 80*gib || got.Used != 2*gib || got.Utilization != .37 || got.Temperature != 55 ||
		got.Power != 210 || got.Corrected != 3 || got.Uncorrected != 1 || got.Slowed != nil ||
		got.Failed != nil {
		t.Errorf("got %+v", got)
	}

	now.Throttled, now.Used, now.Celsius = nvml.ClocksThrottleReasonHwThermalSlowdown|
		nvml.ClocksThrottleReasonHwSlowdown, 3*gib, 91
	set()
	got = await(t, seen, func(s Status) bool { return s.Temperature == 91 })
	if !slices.Equal(got.Slowed, []string{Heat}) || got.Used != 3*gib || got.Failed != nil {
		t.Errorf("of a hot card: got %+v", got)
	}

	now.Xid, now.Event = 63, 1 // a row of memory was remapped
	set()
	got = await(t, seen, func(s Status) bool { return s.Xids == 1 })
	if got.Xid != 63 || got.Failed != nil {
		t.Errorf("after Xid 63: got %+v", got)
	}

	now.Xid, now.Event = 79, 2
	set()
	got = await(t, seen, func(s Status) bool { return s.Xids == 2 })
	const want = "GPU 0 (Fake H100, GPU-a) failed: Xid 79: the GPU has fallen off the bus; it " +
		"needs a reset"
	if got.Failed == nil || got.Failed.Error() != want {
		t.Errorf("after Xid 79: got %+v, want %s", got, want)
	}
	if _, more := <-seen; more {
		t.Error("the watch goes on after the card has failed")
	}
}

// TestFail: who uses a card ends its watch.
func TestFail(t *testing.T) {
	fake(t, fakenvidia.State{Cards: []fakenvidia.Card{card("GPU-a")}})
	c, err := Open("", 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := watched(t, c)
	await(t, seen, func(s Status) bool { return s.Failed == nil })
	dead := errors.New("dead")
	c.Fail(dead)
	c.Fail(errors.New("as was known"))
	got := await(t, seen, func(s Status) bool { return s.Failed != nil })
	if got.Failed != dead || got.Used != 2*gib {
		t.Errorf("got %+v", got)
	}
}

// TestLost: a card that no longer answers has failed, though no event says so.
func TestLost(t *testing.T) {
	now := card("GPU-a")
	d := fake(t, fakenvidia.State{Cards: []fakenvidia.Card{now}})
	c, err := Open("", 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := watched(t, c)
	await(t, seen, func(s Status) bool { return s.Failed == nil })
	now.Lost = true
	if err := d.Set(fakenvidia.State{Cards: []fakenvidia.Card{now}}); err != nil {
		t.Fatal(err)
	}
	got := await(t, seen, func(s Status) bool { return s.Failed != nil })
	if !strings.Contains(got.Failed.Error(), "GPU is lost") {
		t.Errorf("got %v", got.Failed)
	}
}

// TestSliceEvents: a slice's fault concerns that slice, and a card's concerns all.
func TestSliceEvents(t *testing.T) {
	now := fakenvidia.Card{UUID: "GPU-a", Slices: []string{"MIG-x", "MIG-y"}}
	d := fake(t, fakenvidia.State{Cards: []fakenvidia.Card{now}})
	happen := func(xid uint64, instance int) {
		now.Xid, now.Instance = xid, instance
		now.Event++
		if err := d.Set(fakenvidia.State{Cards: []fakenvidia.Card{now}}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(spec string) <-chan Status {
		c, err := Open(spec, 0)
		if err != nil {
			t.Fatal(err)
		}
		seen := watched(t, c)
		await(t, seen, func(Status) bool { return true })
		return seen
	}
	x, y := open("MIG-x"), open("MIG-y")
	happen(31, 2)
	if got := await(t, y, func(s Status) bool { return s.Failed != nil }); got.Xid != 31 {
		t.Errorf("got %+v of the slice that failed", got)
	}
	happen(79, 0)
	if got := await(t, x, func(s Status) bool { return s.Failed != nil }); got.Xid != 79 ||
		got.Xids != 1 {
		t.Errorf("got %+v of the other slice, want the card's fault alone", got)
	}
}

func TestPreload(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "libbroken.so")
	if err := Preload([]string{path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got error %v, want one that names %s", err, path)
	}
	good := filepath.Join(dir, "libgood.so")
	if out, err := exec.Command("gcc", "-shared", "-x", "c", "/dev/null", "-o",
		good).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := Preload([]string{good}); err != nil {
		t.Error(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || !strings.Contains(string(maps), good) {
		t.Errorf("%s is not loaded: %v", good, err)
	}
}

func TestSlowedBy(t *testing.T) {
	all := slowedBy(nvml.ClocksThrottleReasonSwPowerCap |
		nvml.ClocksThrottleReasonSwThermalSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown)
	if want := []string{PowerCap, Heat, PowerBrake}; !slices.Equal(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
	if got := slowedBy(nvml.ClocksThrottleReasonHwSlowdown); !slices.Equal(got,
		[]string{Hardware}) {
		t.Errorf("got %v", got)
	}
	if got := slowedBy(nvml.ClocksThrottleReasonGpuIdle); got != nil {
		t.Errorf("an idle card is slowed by %v", got)
	}
}
