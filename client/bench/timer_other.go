//go:build !linux

package bench

import (
	"context"
	"time"
)

// A timer waits for a point in time with the precision of Go's own timers.
type timer struct{}

func newTimer() (*timer, error) { return &timer{}, nil }

// wait returns at the given time, or with ctx's error as soon as ctx ends.
func (*timer) wait(ctx context.Context, until time.Time) error {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*timer) close() {}
