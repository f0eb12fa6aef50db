package modelstore

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

const (
	// While there are queries, files come and go at 1/lessRate of the permitted rate. Chosen:
	// queries keep nearly all of the network, and a model still comes, in minutes where it took
	// seconds.
	lessRate = 16
	// While there are queries, checksums and the reading and writing of files take one part in
	// 1+rest of one core's time. Chosen: 1.6 % of a core slows queries by less than latencies vary,
	// and reads a gigabyte in about a minute. The clock measures it, so on a machine where others
	// use the cores too, it is less.
	rest = 63
)

// A pacer bounds the bytes a second of all transfers in one direction, and lets queries go first.
// What it bounds is short, for queries wait for it: threads of lower priority would not help, since
// one that holds what a garbage collection waits for makes all of the process wait.
type pacer struct {
	limit *rate.Limiter // nil: no bound
	less  float64       // bytes a second while there are queries; 0: no bound
	pause func(ctx context.Context, d time.Duration) error
	// of size 1: one file waits at a time, so that the bounds hold for all of them
	turn chan struct{}
}

func newTransferPacer(c *Config) *pacer {
	p := &pacer{pause: c.Pause, turn: make(chan struct{}, 1)}
	if n := c.BytesPerSecond; n > 0 {
		p.limit, p.less = rate.NewLimiter(rate.Limit(n), 1<<20), float64(n)/lessRate
	}
	return p
}

// wait blocks until n bytes more may come or go, of which the work took the given time.
func (p *pacer) wait(ctx context.Context, n int, took time.Duration) error {
	if p.limit != nil {
		if err := p.limit.WaitN(ctx, n); err != nil {
			return err
		}
	}
	if p.pause == nil {
		return ctx.Err()
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	d := rest * took
	if p.less > 0 {
		d = max(d, time.Duration(float64(n)/p.less*float64(time.Second)))
	}
	return p.pause(ctx, d)
}
