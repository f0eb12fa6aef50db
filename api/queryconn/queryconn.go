package queryconn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/oip"
)

const (
	// Protocol is the ALPN name of the protocol.
	Protocol = "muster-query/1"
	// Preface is what a client sends first on a connection without TLS. HTTP/2 begins otherwise,
	// and with as many bytes or more.
	Preface = "MUSTER-Q"
	// largestHead bounds what precedes a query or an answer, in bytes.
	largestHead = 64 << 10
	// bufferSize is how many bytes are read at a time, and the most that are copied so that one
	// write sends them.
	bufferSize = 64 << 10
	// waitingSize is how many are read at a time with TLS.
	waitingSize = 4 << 10
)

// past is a deadline that makes reads and writes return.
var past = time.Unix(1, 0)

// A reader reads one end of a connection.
type reader struct {
	conn    net.Conn
	buffer  mem.Buffer // what was read and not taken; nil: nothing
	scratch []byte     // of the last head
}

// countBuffered is how many bytes can be taken without reading.
func (r *reader) countBuffered() int {
	if r.buffer == nil {
		return 0
	}
	return r.buffer.Len()
}

// fill waits for bytes, and reads them. Nothing may be buffered.
func (r *reader) fill() error {
	size := bufferSize
	if _, ok := r.conn.(direct.Reader); !ok { // it holds the buffer while it waits
		size = waitingSize
	}
	b, n, err := direct.ReadOnReady(r.conn, size, oip.Buffers)
	if err != nil {
		return err
	}
	*b = (*b)[:n]
	r.buffer = mem.NewBuffer(b, oip.Buffers)
	return nil
}

// takeBuffered takes at most n bytes of the buffer, without a copy. There must be some.
func (r *reader) takeBuffered(n int) mem.Buffer {
	b := r.buffer
	if r.buffer = nil; n < b.Len() {
		b, r.buffer = mem.SplitUnsafe(b, n)
	}
	return b
}

// readFull reads len(b) bytes into b, large parts of it straight from the connection.
func (r *reader) readFull(b []byte) error {
	for len(b) > 0 {
		n, err := 0, error(nil)
		switch {
		case r.buffer != nil:
			n, r.buffer = mem.ReadUnsafe(b, r.buffer)
		case len(b) < bufferSize/4:
			err = r.fill()
		default:
			if n, err = r.conn.Read(b); n > 0 {
				err = nil // it comes again
			}
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// readLength reads a length, at most `most`.
func (r *reader) readLength(what string, most int) (int, error) {
	var b [4]byte
	if err := r.readFull(b[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b[:])
	if uint64(n) > uint64(most) {
		return 0, fmt.Errorf("%s of %d bytes, want at most %d", what, n, most)
	}
	return int(n), nil
}

// readHead reads what precedes a query or an answer, which is valid until the next call.
func (r *reader) readHead(what string) ([]byte, error) {
	n, err := r.readLength(what, largestHead)
	if err != nil {
		return nil, err
	}
	if n > cap(r.scratch) {
		r.scratch = make([]byte, n)
	}
	b := r.scratch[:n]
	return b, r.readFull(b)
}

// release returns the memory of what was not taken.
func (r *reader) release() {
	if r.buffer != nil {
		r.buffer.Free()
		r.buffer = nil
	}
}

func toUnexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// write sends a head and then, if there is a message, its length and itself. It does not free the
// message. Of what cannot be sent it sends nothing, and the error wraps ErrEncode.
func write(conn net.Conn, appendHead func([]byte) ([]byte, error), message mem.BufferSlice) error {
	buffer := oip.Buffers.Get(bufferSize)
	defer oip.Buffers.Put(buffer)
	out, err := appendHead(append((*buffer)[:0], 0, 0, 0, 0))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEncode, err)
	}
	if n := len(out) - 4; n > largestHead {
		return fmt.Errorf("%w: a head of %d bytes, want at most %d", ErrEncode, n, largestHead)
	}
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	if message != nil {
		n := message.Len()
		if n > math.MaxInt32 {
			return fmt.Errorf("%w: a message of %d bytes, want at most %d", ErrEncode, n,
				math.MaxInt32)
		}
		out = binary.BigEndian.AppendUint32(out, uint32(n))
		if len(out)+n > bufferSize/2 {
			return writeParts(conn, out, message)
		}
		for _, b := range message {
			out = append(out, b.ReadOnlyData()...)
		}
	}
	_, err = conn.Write(out)
	return err
}

// writeParts sends a large message without copying it.
func writeParts(conn net.Conn, out []byte, message mem.BufferSlice) error {
	parts := make(net.Buffers, 0, 1+len(message))
	parts = append(parts, out)
	for _, b := range message {
		parts = append(parts, b.ReadOnlyData())
	}
	_, err := parts.WriteTo(conn)
	return err
}

// encode returns the message's wire form. That of an empty message is not nil.
func encode(message any) (mem.BufferSlice, error) {
	b, err := oip.Codec{}.Marshal(message)
	if b == nil && err == nil {
		b = mem.BufferSlice{}
	}
	return b, err
}
