package harness

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLoop: clients keep their pace, wait when they are told to, and send the least number also
// when the time is over; an error ends its client only.
func TestLoop(t *testing.T) {
	for _, c := range []struct {
		name          string
		loop          Loop
		takes, wait   time.Duration
		failAt        int32
		want, wantAll int
	}{
		{name: "no pause", loop: Loop{Clients: 2, For: time.Second},
			takes: 100 * time.Millisecond, want: 20},
		{name: "pace", loop: Loop{Clients: 2, For: time.Second, Pace: 250 * time.Millisecond},
			takes: 100 * time.Millisecond, want: 8},
		{name: "told to wait", loop: Loop{Clients: 1, For: time.Second, Pace: time.Millisecond},
			takes: 100 * time.Millisecond, wait: 400 * time.Millisecond, want: 2},
		{name: "least", loop: Loop{Clients: 2, Least: 3}, takes: time.Second, want: 6},
		{name: "an error", loop: Loop{Clients: 2, For: time.Second},
			takes: 100 * time.Millisecond, failAt: 5, want: 12},
	} {
		synctest.Test(t, func(t *testing.T) {
			failure := errors.New("no answer")
			var sent atomic.Int32
			c.loop.Send = func(ctx context.Context) (time.Duration, error) {
				n := sent.Add(1)
				time.Sleep(c.takes)
				if n == c.failAt {
					return 0, failure
				}
				return c.wait, nil
			}
			us, err := c.loop.Run(t.Context())
			if len(us) != c.want || (err != nil) != (c.failAt > 0) {
				t.Errorf("%s: %d queries and %v, want %d", c.name, len(us), err, c.want)
			}
			if len(us) > 0 && us[0] != Microseconds(c.takes) {
				t.Errorf("%s: a query took %v us, want %v", c.name, us[0], c.takes)
			}
		})
	}
}
