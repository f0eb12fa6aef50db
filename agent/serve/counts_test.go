package serve

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/agent/worker"
	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/runtime"
)

// TestCountsForget: the series of a version go all together once the fleet has not held it and this
// agent has not served it for a while, those of queries without a version with the model. Of many
// versions of a model that go, the last ones' stay.
func TestCountsForget(t *testing.T) {
	gateway, err := client.NewGateway(client.GatewayConfig{ID: 1, Transport: client.Remote{}})
	if err != nil {
		t.Fatal(err)
	}
	defer gateway.Close()
	registry, now := prometheus.NewRegistry(), time.Unix(0, 0)
	c := NewCounts(registry, CountsConfig{Gateway: gateway})
	held, serves, known := map[names.ModelKey]bool{}, map[worker.VersionKey]bool{}, true
	forget := func(after time.Duration) {
		now = now.Add(after)
		c.Forget(now, held, func(string) bool { return known },
			func(key worker.VersionKey) bool { return serves[key] })
	}
	series := func(version string) (n int) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, x := range family.GetMetric() {
				for _, l := range x.GetLabel() {
					if l.GetName() == "version" && l.GetValue() == version {
						n++
					}
				}
			}
		}
		return n
	}
	const each = 1 + 1 + 4 // arrivals, seconds, and failures: of an overload, and another
	for _, v := range []int64{0, 1, 2, 3} {
		c.Arrived("ncf", v)
		c.Failed("ncf", v, errors.New("some"), 0, 0, 0)
	}
	c.Failed("", 0, errors.New("some"), 0, 0, 0)
	held["ncf/1"], serves[worker.VersionKey{Model: "ncf", Version: 2}] = true, true
	forget(0)
	forget(10*time.Minute - 1)
	for version, want := range map[string]int{"": 2 * each, "1": each, "2": each, "3": each} {
		if got := series(version); got != want {
			t.Errorf("before its time %d series of version %q are left, want %d", got, version, want)
		}
	}
	forget(1)
	if series("1") != each || series("2") != each || series("3") != 0 {
		t.Errorf("there are %d series of what the fleet holds, %d of what is served, %d of what is "+
			"gone; want %d, %[4]d and 0", series("1"), series("2"), series("3"), each)
	}
	known = false
	forget(0)
	forget(10 * time.Minute)
	if got := series(""); got != each {
		t.Errorf("of queries without a version there are %d series once nobody knows the model, "+
			"want %d: those without a model", got, each)
	}
	for v := range int64(60) {
		c.Arrived("ncf", v+10)
		forget(time.Second)
	}
	left := 0
	for v := range int64(60) {
		left += series(fmt.Sprint(v + 10))
	}
	if want := 3 * (each - 1); left != want {
		t.Errorf("after 60 more versions within a minute there are %d series of them, want %d, those "+
			"of 3", left, want)
	}
}

// waits is a worker whose lanes queries would wait for with this cause.
type waits lateness.Cause

func (w waits) CauseOfWait(time.Time) lateness.Cause { return lateness.Cause(w) }

// TestExplainRefusal: a refusal for want of room is counted for what takes the time of the lanes; for
// want of memory only if the lanes have room; and if another agent or the leader has refused the
// query, for the lanes.
func TestExplainRefusal(t *testing.T) {
	lanes := &runtime.OverloadedError{}
	bytes := fmt.Errorf("not read: %w", &noRoomError{lanes})
	for _, c := range []struct {
		busy lateness.Cause
		err  error
		want client.Missed
	}{
		{lateness.Lane, lanes, client.Missed{Cause: lateness.Lane}},
		{lateness.CPU, lanes, client.Missed{Cause: lateness.CPU, Agent: "vm-1"}},
		{lateness.Throttled, bytes, client.Missed{Cause: lateness.Throttled, Agent: "vm-1"}},
		{"", bytes, client.Missed{Cause: lateness.Memory, Agent: "vm-1"}},
		{"", lanes, client.Missed{Cause: lateness.Lane}},
		{lateness.CPU, errors.New("refused elsewhere"), client.Missed{Cause: lateness.Lane}},
	} {
		counts := &QueryCounters{config: CountsConfig{Name: "vm-1", Worker: waits(c.busy)}}
		got := client.Missed{Cause: lateness.Lane}
		if counts.explainRefusal(&got, c.err); got != c.want {
			t.Errorf("%q, %v: got %+v, want %+v", c.busy, c.err, got, c.want)
		}
	}
}
