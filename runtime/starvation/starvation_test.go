package starvation

import (
	"fmt"
	"testing"
	"testing/fstest"
	"time"
)

const ms = time.Millisecond

// TestLost: what a process did not get is what others got of its CPUs, and its quota.
func TestLost(t *testing.T) {
	for _, c := range []struct {
		name string
		of   Totals // in a second
		cpus int
		want Lost
	}{
		{"idle", Totals{}, 1, Lost{}},
		{"alone", Totals{Ran: 900 * ms}, 1, Lost{}},
		{"its own threads wait for each other", Totals{Ran: 1000 * ms, Waited: 3000 * ms}, 1, Lost{}},
		{"a hog", Totals{Ran: 500 * ms, Waited: 500 * ms}, 1, Lost{CPU: .5}},
		{"eight hogs", Totals{Ran: 100 * ms, Waited: 900 * ms}, 1, Lost{CPU: .9}},
		{"hogs and threads", Totals{Ran: 500 * ms, Waited: 1500 * ms}, 1, Lost{CPU: .5}},
		{"a hog on one of four", Totals{Ran: 500 * ms, Waited: 500 * ms}, 4, Lost{CPU: .5}},
		{"half a quota, counted as waiting", Totals{
			Ran: 500 * ms, Waited: 500 * ms, Throttled: 500 * ms,
		}, 1, Lost{Throttled: .5}},
		{"half a quota, not counted as waiting", Totals{Ran: 500 * ms, Throttled: 500 * ms}, 1,
			Lost{Throttled: .5}},
		{"a quota of two of four", Totals{Ran: 2000 * ms, Throttled: 2000 * ms}, 4,
			Lost{Throttled: .5}},
		{"faults", Totals{Ran: 100 * ms, MajorFaults: 7}, 1, Lost{MajorFaults: 7}},
	} {
		before := Totals{At: time.Unix(1, 0)}
		c.of.At = time.Unix(2, 0)
		got := c.of.Since(&before, c.cpus)
		if diff := max(got.CPU-c.want.CPU, c.want.CPU-got.CPU, got.Throttled-c.want.Throttled,
			c.want.Throttled-got.Throttled); diff > 1e-9 || got.MajorFaults != c.want.MajorFaults {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestBetween: a time is looked at by the samples around it, of the files that the kernel has.
func TestBetween(t *testing.T) {
	root := fstest.MapFS{}
	m := New(root, 1)
	second := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	var ran, waited, throttled time.Duration
	faults := 0
	for s := range 3 * kept {
		slow := s > 2*kept+20 && s <= 2*kept+30
		ran += 100 * ms
		if slow {
			waited += 300 * ms
			throttled += 20 * ms
			faults++
		}
		half := func(d time.Duration) int64 { return int64(d / 2) }
		for thread := range 2 {
			root[fmt.Sprintf("proc/self/task/%d/schedstat", 7+thread)] = &fstest.MapFile{
				Data: fmt.Appendf(nil, "%d %d 17\n", half(ran), half(waited)),
			}
		}
		root["proc/self/stat"] = &fstest.MapFile{
			Data: fmt.Appendf(nil, "7 (a (b) c) S 1 1 1 0 -1 0 5 0 %d 0 1 1\n", faults),
		}
		root["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("0::/a/b\n")}
		root["sys/fs/cgroup/a/cpu.stat"] = &fstest.MapFile{
			Data: fmt.Appendf(nil, "usage_usec 1\nthrottled_usec %d\n", throttled.Microseconds()),
		}
		m.Sample(second(s))
	}
	for _, c := range []struct {
		name     string
		from, to time.Time
		want     string
	}{
		{"long before", second(0), second(1), "0.00 0.00 0"},
		{"before", second(2*kept + 5), second(2*kept + 15), "0.00 0.00 0"},
		{"within", second(2*kept + 22), second(2*kept + 25), "0.73 0.02 3"},
		{"less than a sample", second(2*kept + 23).Add(300 * ms), second(2*kept + 23).Add(400 * ms),
			"0.73 0.02 1"},
		{"half", second(2*kept + 10), second(2*kept + 30), "0.59 0.01 10"},
		{"after", second(2*kept + 40), second(4 * kept), "0.00 0.00 0"},
	} {
		lost := m.Between(c.from, c.to)
		if got := fmt.Sprintf("%.2f %.2f %d", lost.CPU, lost.Throttled, lost.MajorFaults); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if got := New(fstest.MapFS{}, 1).Between(second(0), second(1)); got != (Lost{}) {
		t.Errorf("without samples: %+v", got)
	}
}

// TestTouch: samples are wanted with the first query after a while, and not with each.
func TestTouch(t *testing.T) {
	m := New(fstest.MapFS{}, 1)
	woken := func() bool {
		select {
		case <-m.wake:
			return true
		default:
			return false
		}
	}
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {ms, false}, {time.Second, false}, {time.Second, false}, {time.Minute, true}} {
		now = now.Add(c.after)
		m.Touch(now)
		if got := woken(); got != c.want {
			t.Errorf("a query after %v: woken %v, want %v", c.after, got, c.want)
		}
	}
}

// TestCPUOf: a process lacks no more CPU time than its threads have waited for: one that sleeps most
// of the time is not late for the little that it waits when it wakes.
func TestCPUOf(t *testing.T) {
	start := time.Unix(100, 0)
	before := Totals{At: start}
	for _, c := range []struct {
		name string
		now  Totals
		want time.Duration // of a run of 100 ms
	}{
		{"computing", Totals{
			At: start.Add(200 * time.Millisecond), Ran: 100 * time.Millisecond,
			Waited: 100 * time.Millisecond,
		}, 50 * time.Millisecond},
		{"asleep", Totals{
			At: start.Add(200 * time.Millisecond), Ran: time.Millisecond, Waited: 4 * time.Millisecond,
		}, 4 * time.Millisecond},
	} {
		lost := c.now.Since(&before, 2)
		if got := lost.CPUOf(100 * time.Millisecond); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
