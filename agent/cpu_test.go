package agent

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestCPUWatch: an agent whose threads wait for a processor for long says so, and no more once they
// do not; one that is idle, busy alone, or whose threads end, says nothing.
func TestCPUWatch(t *testing.T) {
	const s = time.Second
	type minute struct {
		ran, waited time.Duration // in each look
		want        float64       // at its end
	}
	for _, tt := range []struct {
		name    string
		minutes []minute
		told    int
	}{
		{"alone", []minute{{10 * s, s / 2, 0}, {10 * s, s, 0}}, 0},
		{"idle", []minute{{s / 10, s / 5, 0}}, 0},
		{"beside others", []minute{{5 * s, 5 * s, .5}, {5 * s, 6 * s, .5}, {9 * s, s, 0}}, 2},
		{"worse", []minute{{6 * s, 4 * s, .4}, {2 * s, 8 * s, .8}}, 0},
		{"between", []minute{{5 * s, 5 * s, .5}, {15 * s, 5 * s, .25}}, 0},
	} {
		var log strings.Builder
		w := &cpuWatch{log: slog.New(slog.NewTextHandler(&log, nil))}
		var at threadTimes
		told := 0
		w.noteTimes(at)
		for i, m := range tt.minutes {
			for range cpuLooks {
				at.ran, at.waited = at.ran+m.ran, at.waited+m.waited
				if w.noteTimes(at) {
					told++
				}
			}
			if got := w.share(); got < m.want-.16 || got > m.want+.16 || got > 0 != (m.want > 0) {
				t.Errorf("%s: after minute %d the fleet is told %.2f, want %.2f", tt.name, i+1, got,
					m.want)
			}
		}
		if told < tt.told || tt.told == 0 && tt.minutes[0].want == 0 && told > 0 {
			t.Errorf("%s: told %d times", tt.name, told)
		}
		if got := strings.Contains(log.String(), "lacks CPU"); got != (told > 0) {
			t.Errorf("%s: the log has %q", tt.name, log.String())
		}
	}
	w := &cpuWatch{log: slog.New(slog.DiscardHandler)}
	for i := range 20 { // each time, threads end
		if w.noteTimes(threadTimes{time.Duration(20-i) * s, time.Duration(20-i) * s}) {
			t.Fatal("told of threads that ended")
		}
	}
}
