package lead

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
)

// TestSeriesForget: the series of a leader about a version go ten minutes after the fleet has dropped
// it, also of a leader that leads no more.
func TestSeriesForget(t *testing.T) {
	l := &Leader{metrics: newMetrics(prometheus.NewRegistry())}
	held, now := map[names.ModelKey]bool{"ncf/61": true}, time.Unix(0, 0)
	for v := range int64(61) {
		l.metrics.demandChanged(&control.Proposal{Model: "ncf", Version: v + 1, Kind: "rate"})
	}
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{0, 61}, {keepSeries - 1, 61}, {1, 1}, {keepSeries, 1}} {
		now = now.Add(tt.after)
		l.Forget(now, held)
		if got := testutil.CollectAndCount(l.metrics.demandChanges); got != tt.want {
			t.Errorf("after %v: %d series, want %d", now.Sub(time.Unix(0, 0)), got, tt.want)
		}
	}
}
