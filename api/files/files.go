// Package files reads files that others write, in folders where they may put anything: it opens
// regular files alone, reads no more than is wanted, and does not wait for a file system that has
// stopped to answer.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// ErrNotRegular is returned for a path that is not a regular file. Reading a FIFO or a device may
// block or never end.
var ErrNotRegular = errors.New("not a regular file")

// Open opens a regular file for reading and returns its info. The caller closes it. Any other kind
// of file gives an error, without blocking, that wraps ErrNotRegular.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// MaxDocumentBytes is the largest file of settings, keys or other text that a person writes. The
// largest that Muster itself writes for people takes less than a MiB.
const MaxDocumentBytes = 16 << 20

// Read returns the contents of a regular file of at most maxBytes. It blocks as Open does.
func Read(path string, maxBytes int64) ([]byte, error) {
	f, info, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(data)) > maxBytes {
		err = fmt.Errorf("read %s: it has %d bytes, expected at most %d", path,
			max(info.Size(), int64(len(data))), maxBytes)
	}
	return data, err
}

// abandonAfter is how long Do waits for a call after the end of its context: most calls then end
// soon, and what they leave behind is known to be gone.
const abandonAfter = 2 * time.Second

// Calls bounds the calls of a file system that may hang, each of which keeps a thread that nothing
// can end. The zero value allows none.
type Calls chan struct{}

// NewCalls returns the bound of n calls at a time.
func NewCalls(n int) Calls { return make(Calls, n) }

// Do runs a call of a file system and returns what it returns. If the call has not ended 2 s after
// ctx, Do returns without it: a network file system whose server is away blocks the caller for ever,
// and not even a signal ends that. The call then ends later, or never; what it returns is given to
// drop, unless that is nil or the call has failed. So the call must not write to what the caller
// reads afterwards.
func Do[T any](ctx context.Context, calls Calls, call func() (T, error), drop func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	select {
	case calls <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("%d calls of the file system have not ended: %w", cap(calls),
			context.Cause(ctx))
	}
	ended, abandoned := make(chan result), make(chan struct{})
	go func() {
		value, err := call()
		<-calls
		select {
		case ended <- result{value, err}:
		case <-abandoned:
			if err == nil && drop != nil {
				drop(value)
			}
		}
	}()
	var timeout <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case r := <-ended:
			return r.value, r.err
		case <-done:
			done = nil
			timer := time.NewTimer(abandonAfter)
			defer timer.Stop()
			timeout = timer.C
		case <-timeout:
			close(abandoned)
			return none, fmt.Errorf("the file system does not answer: %w", context.Cause(ctx))
		}
	}
}
