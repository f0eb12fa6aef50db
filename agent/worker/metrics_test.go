package worker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-serve/muster/models"
)

// TestMetricsForget: the series of a version go all together, a while after it last served; its
// state stays as long as it is on disk.
func TestMetricsForget(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	now := time.Unix(0, 0)
	series := func(version string) (n int) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, x := range family.GetMetric() {
				for _, l := range x.GetLabel() {
					if l.GetName() == "version" && l.GetValue() == version &&
						strings.HasPrefix(family.GetName(), "muster_") {
						n++
					}
				}
			}
		}
		return n
	}
	state := func(version int64, s models.VersionState, gone bool) {
		e := models.VersionEvent{
			Status: models.Status{Model: "ncf", Version: version, State: s}, Gone: gone,
		}
		if s == models.Ready {
			e.LoadTime = time.Second
			m.loadDuration.WithLabelValues("ncf", fmt.Sprint(version)).Observe(1)
			m.warmUpDuration.WithLabelValues("ncf", fmt.Sprint(version)).Observe(1)
			m.qosTarget.WithLabelValues("ncf", fmt.Sprint(version)).Set(1)
			m.versionMetrics("ncf", version, time.Second).countAnswered(1, 1)
		}
		m.observeEvent(e)
	}
	forget := func(after time.Duration) {
		now = now.Add(after)
		m.dropGone(now)
	}
	for _, v := range []int64{1, 2, 3} {
		state(v, models.Loading, false)
		state(v, models.Ready, false)
	}
	all := series("1")
	state(1, models.Unavailable, true)
	state(2, models.Unavailable, false)
	const states = 4 // which a version that is gone has no more
	forget(0)
	forget(keepSeries - 1)
	if series("1") != all-states || series("2") != all || series("3") != all {
		t.Errorf("before their time %d, %d and %d series are left of %d", series("1"), series("2"),
			series("3"), all)
	}
	forget(1)
	if series("1") != 0 || series("2") != 5 || series("3") != all {
		t.Errorf(
			"there are %d series of what is removed, %d of what is not served, %d of what is; "+
				"want 0, 5 and %d",
			series("1"), series("2"), series("3"), all)
	}
	state(2, models.Loading, false)
	state(2, models.Ready, false)
	forget(keepSeries)
	if series("2") != all || counterValue(m.versionMetrics("ncf", 2, time.Second).queries) != 1 {
		t.Errorf("served again it has %d series of %d", series("2"), all)
	}
	const times = 60
	for v := range int64(times) {
		state(v+10, models.Ready, false)
		state(v+10, models.Unavailable, true)
		forget(time.Second)
	}
	left := 0
	for v := range int64(times) {
		left += series(fmt.Sprint(v + 10))
	}
	if want := keepVersions * (all - states); left != want {
		t.Errorf("after %d more versions within a minute there are %d series of them, want %d, those of "+
			"%d", times, left, want, keepVersions)
	}
	forget(keepSeries)
	if len(m.versions) != 2 || len(m.states) != 2 {
		t.Errorf("after %d more versions came and went %d are counted, %d have a state, want 2",
			times,
			len(m.versions), len(m.states))
	}
}
