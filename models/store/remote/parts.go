package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"
)

const (
	// minPartBytes is the size of an upload's parts, unless there would be more than maxParts.
	minPartBytes = 8 << 20
	// maxParts is below the 10,000 parts that S3 takes.
	maxParts = 9000
	// parallelParts are sent at a time, and held in memory.
	parallelParts = 4
)

// upload reads an object in parts. Invariant: no part is returned that would complete an object of
// another size than was announced, or whose reader has returned an error at its end.
type upload struct {
	key        string
	r          io.Reader
	size, read int64
	partBytes  int64
}

func newUpload(key string, size int64, r io.Reader) *upload {
	return &upload{key: key, r: r, size: size, partBytes: max(minPartBytes, size/maxParts)}
}

// isOnePart reports whether one part holds the whole object.
func (u *upload) isOnePart() bool { return u.size <= u.partBytes }

// hasEnded reports whether the last part was returned.
func (u *upload) hasEnded() bool { return u.read == u.size && u.size > 0 }

// next reads the next part into a buffer, which it makes if there is none.
func (u *upload) next(buffer []byte) ([]byte, error) {
	n := min(u.partBytes, u.size-u.read)
	if buffer == nil {
		buffer = make([]byte, n)
	}
	part := buffer[:n]
	got, err := io.ReadFull(u.r, part)
	u.read += int64(got)
	if err == nil && u.read == u.size {
		var more [1]byte
		got, err = io.ReadFull(u.r, more[:]) // the reader's own error, if what it read is wrong
		u.read += int64(got)
	}
	if err == io.EOF && u.read == u.size || err == nil && u.read < u.size {
		return part, nil
	}
	if err == nil || err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("read %d bytes to write, expected %d", u.read, u.size)
	}
	return nil, err
}

// sendAll reads all parts and has each sent, several at a time. i counts them from 0.
func (u *upload) sendAll(ctx context.Context, send func(ctx context.Context, i int,
	part []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	buffers := make(chan []byte, parallelParts)
	for range parallelParts {
		buffers <- nil
	}
	for i := 0; !u.hasEnded(); i++ {
		var buffer []byte
		select {
		case buffer = <-buffers:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), group.Wait())
		}
		part, err := u.next(buffer)
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		group.Go(func() error {
			defer func() { buffers <- part[:cap(part)] }()
			return send(ctx, i, part)
		})
	}
	return group.Wait()
}

// contentType is that of an object.
func contentType(key string) string {
	if strings.HasSuffix(key, ".json") {
		return "application/json"
	}
	return "application/octet-stream"
}

// sizeOf is the size of a whole object: the one that Content-Range says, "bytes 10-14/27", or else
// the answer's.
func sizeOf(contentRange string, length int64) int64 {
	var size int64
	if _, total, ok := strings.Cut(contentRange, "/"); ok {
		if _, err := fmt.Sscan(total, &size); err == nil {
			return size
		}
	}
	return length
}

// rangeOf is the header that asks for length bytes from offset on, or for all from there if length is
// below 0; "" for the whole object.
func rangeOf(offset, length int64) string {
	switch {
	case length > 0:
		return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
	case offset > 0:
		return fmt.Sprintf("bytes=%d-", offset)
	}
	return ""
}
