package harness

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// A Loop is clients that each send a query when they know the outcome of their last. A [Driver]
// sends queries at a rate instead, whatever becomes of them.
type Loop struct {
	Clients int
	For     time.Duration // queries are sent for so long
	Least   int           // how many queries each client sends at least
	// Pace is the least time from one query of a client to its next. The clients' first queries are
	// spread over it.
	Pace time.Duration
	// Send sends a query. Its client waits for so long before the next one. An error ends the
	// client.
	Send func(context.Context) (wait time.Duration, err error)
}

// Run runs the loop. It returns the times that queries took, in us, and the first error of a
// client. It ends early when ctx ends.
func (l Loop) Run(ctx context.Context) (us []float64, err error) {
	var mu sync.Mutex
	var clients sync.WaitGroup
	begin := time.Now()
	for i := range l.Clients {
		clients.Go(func() {
			var own []float64
			var failed error
			wait := l.Pace * time.Duration(i) / time.Duration(l.Clients)
			for failed == nil && (wait <= 0 || Settle(ctx, wait) == nil) &&
				(time.Since(begin) < l.For || len(own) < l.Least) {
				start := time.Now()
				wait, failed = l.Send(ctx)
				took := time.Since(start)
				wait = max(wait, l.Pace-took)
				if failed == nil {
					own = append(own, Microseconds(took))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			us, err = append(us, own...), cmp.Or(err, failed)
		})
	}
	clients.Wait()
	return us, cmp.Or(err, ctx.Err())
}

// Microseconds is d in us.
func Microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
