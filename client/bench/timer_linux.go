package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A timer waits for a point in time. Go's own timers wake an otherwise idle process up to 1 ms
// late, which is too much for a QoS target of 5 ms; a timerfd wakes it within about 50 us.
type timer struct {
	fd   int
	file *os.File
}

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &timer{fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}, nil
}

// wait returns at the given time, or with ctx's error as soon as ctx ends.
func (t *timer) wait(ctx context.Context, until time.Time) error {
	d := time.Until(until)
	if d <= 0 {
		return ctx.Err()
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = t.file.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted
			_ = t.file.SetReadDeadline(time.Time{}) // for the next wait
		}
	}()
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(t.fd, 0, &spec, nil); err != nil {
		return fmt.Errorf("set a timer: %w", err)
	}
	var expirations [8]byte
	if _, err := t.file.Read(expirations[:]); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("wait for a timer: %w", err)
	}
	return nil
}

func (t *timer) close() { _ = t.file.Close() }
