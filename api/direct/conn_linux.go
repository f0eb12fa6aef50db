//go:build !race

package direct

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// most is the largest number of bytes that a call reads or writes without the scheduler's
// knowledge.
const most = 64 << 10

// Conn returns conn, whose small reads and writes cost less than before if it is a TCP connection.
func Conn(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil { // it is closed
		return conn
	}
	c := &direct{TCPConn: tcp, raw: raw}
	// made once, so that no call allocates
	c.reading.do, c.reading.by = c.reading.read, raw.Read
	c.writing.do, c.writing.by = c.writing.write, raw.Write
	return c
}

// A direct is a TCP connection. Its methods are those of [net.TCPConn] and may be called
// concurrently.
type direct struct {
	*net.TCPConn
	raw              syscall.RawConn
	reading, writing transfer
}

// A transfer is a read or a write. One goroutine at a time transfers in each direction, as with
// net.TCPConn.
type transfer struct {
	do func(fd uintptr) (done bool)
	by func(do func(fd uintptr) (done bool)) error // calls do whenever the socket may be ready

	mu   sync.Mutex
	b    []byte
	n    int // bytes of b that were read or written
	fail syscall.Errno
	// ReadOnReady reads size bytes into a buffer from pool; pool is nil in other calls.
	pool   mem.BufferPool
	size   int
	buffer *[]byte
}

// ReadBuffer is the size of the read buffer that gRPC's server should have with these connections,
// in bytes. They hold a buffer only while it has bytes that gRPC has not taken.
const ReadBuffer = most

// SyscallConn implements [syscall.Conn].
func (c *direct) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// Read implements [net.Conn].
func (c *direct) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return c.TCPConn.Read(b)
	}
	n, err := c.reading.run(b[:min(len(b), most)])
	if err != nil {
		return n, c.asNetError("read", err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// ReadOnReady implements [Reader].
func (c *direct) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	t := &c.reading
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pool, t.size = pool, min(size, most)
	n, err := t.runLocked(nil)
	buffer := t.buffer
	t.pool, t.buffer = nil, nil
	if n > 0 {
		return buffer, n, nil
	}
	if buffer != nil {
		pool.Put(buffer)
	}
	if err != nil {
		return nil, 0, c.asNetError("read", err)
	}
	return nil, 0, io.EOF
}

// Write implements [net.Conn].
func (c *direct) Write(b []byte) (int, error) {
	if len(b) == 0 || len(b) > most {
		// Writes may not be mixed: while a write waits, TCPConn makes all others wait, too.
		return c.TCPConn.Write(b)
	}
	n, err := c.writing.run(b)
	if err != nil {
		return n, c.asNetError("write", err)
	}
	return n, nil
}

// run transfers b, and returns how many bytes were read or written.
func (t *transfer) run(b []byte) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runLocked(b)
}

func (t *transfer) runLocked(b []byte) (n int, err error) {
	t.b, t.n, t.fail = b, 0, 0
	err = t.by(t.do)
	t.b = nil
	if err == nil && t.fail != 0 {
		err = t.fail
	}
	return t.n, err
}

// read reads once, if something is there or the other end has closed.
func (t *transfer) read(fd uintptr) (done bool) {
	if t.pool != nil {
		t.buffer = t.pool.Get(t.size)
		t.b = *t.buffer
	}
	for {
		n, _, err := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&t.b[0])),
			uintptr(len(t.b)))
		switch err {
		case 0:
			t.n = int(n)
			return true
		case syscall.EAGAIN:
			if t.pool != nil {
				t.pool.Put(t.buffer)
				t.buffer, t.b = nil, nil
			}
			return false
		case syscall.EINTR:
			continue
		}
		t.fail = err
		return true
	}
}

// write writes what the socket takes, and reports whether that was the rest of t.b.
func (t *transfer) write(fd uintptr) (done bool) {
	for {
		rest := t.b[t.n:]
		n, _, err := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&rest[0])),
			uintptr(len(rest)))
		switch err {
		case 0:
			if t.n += int(n); t.n == len(t.b) {
				return true
			}
			if n == 0 { // never of a TCP connection
				err = syscall.EIO
				break
			}
			continue
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
			continue
		}
		t.fail = err
		return true
	}
}

// asNetError returns the error that net.TCPConn would return.
func (c *direct) asNetError(op string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && err == error(errno) {
		return &net.OpError{
			Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(),
			Err: os.NewSyscallError(op, errno),
		}
	}
	var waited *net.OpError
	if errors.As(err, &waited) {
		same := *waited
		same.Op = op
		return &same
	}
	return err
}
