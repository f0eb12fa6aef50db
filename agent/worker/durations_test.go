package worker

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/runtime"
)

// TestDurations: however queries ran, the sum of the execution times of a lane's is how long they
// kept it busy, and none of their time is lost.
func TestDurations(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		result    runtime.Result
		queue     time.Duration
		execution time.Duration
	}{
		"alone": {runtime.Result{Queue: 3 * ms, Execution: 8 * ms, Queries: 1}, 3 * ms, 8 * ms},
		"in a run of others": {
			runtime.Result{Queue: 3 * ms, Execution: 8 * ms, Queries: 2, Joined: true}, 11 * ms, 0,
		},
		"on one of two cores": {
			runtime.Result{Queue: 3 * ms, Execution: 8 * ms, Queries: 1, Divided: 2}, 7 * ms,
			4 * ms,
		},
	} {
		var got control.Completed
		setDurations(&got, executedRun{result: &c.result, resp: &oip.Response{}})
		if got.QueueNs != int64(c.queue) || got.ExecutionNs != int64(c.execution) ||
			got.Divided != (c.result.Divided > 0) {
			t.Errorf("%s: queue %d, execution %d, divided %v, want %v and %v", name, got.QueueNs,
				got.ExecutionNs, got.Divided, c.queue, c.execution)
		}
	}
}
