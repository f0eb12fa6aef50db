package direct_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/muster-serve/muster/api/direct"
)

// connected returns the two ends of a TCP connection as Go has them.
func connected(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if here, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// TestConn holds a Conn to what x/net's suite wants of a net.Conn: that what is sent arrives,
// deadlines that are past, to come and moved, calls at a time, and Close beside them.
func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (here, there net.Conn, stop func(), err error) {
		a, b := connected(t)
		return direct.Conn(a), direct.Conn(b), func() { a.Close(); b.Close() }, nil
	})
}

// A ready is a connection that is read as gRPC does.
type ready struct {
	net.Conn
	pool *pool
}

func (r ready) Read(b []byte) (int, error) {
	buffer, n, err := direct.ReadOnReady(r.Conn, len(b), r.pool)
	if buffer != nil {
		copy(b, (*buffer)[:n])
		r.pool.Put(buffer)
	}
	return n, err
}

// A pool counts the buffers that are out.
type pool struct{ out atomic.Int64 }

func (p *pool) Get(n int) *[]byte {
	p.out.Add(1)
	b := make([]byte, n)
	return &b
}

func (p *pool) Put(*[]byte) { p.out.Add(-1) }

// TestReadOnReady does with ReadOnReady what TestConn does with Read. No buffer is lost.
func TestReadOnReady(t *testing.T) {
	var p pool
	nettest.TestConn(t, func() (here, there net.Conn, stop func(), err error) {
		a, b := connected(t)
		return ready{direct.Conn(a), &p}, ready{direct.Conn(b), &p},
			func() { a.Close(); b.Close() }, nil
	})
	if n := p.out.Load(); n != 0 {
		t.Errorf("%d buffers have not been put back", n)
	}
}

// Writes that a Conn makes itself and those that it leaves to Go do not mix, whether or not the
// socket has room for them.
func TestWritesOfAllSizes(t *testing.T) {
	a, b := connected(t)
	here, there := direct.Conn(a), direct.Conn(b)
	sizes := []int{1, 700, 64 << 10, 64<<10 + 1, 1 << 20, 5}
	const each = 20
	var all sync.WaitGroup
	for i, size := range sizes {
		all.Go(func() {
			for range each {
				n, err := here.Write(bytes.Repeat([]byte{byte(i)}, size))
				if n != size || err != nil {
					t.Errorf("a write of %d bytes: %d, %v", size, n, err)
				}
			}
		})
	}
	go func() { all.Wait(); here.Close() }()
	got, err := io.ReadAll(there)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[byte]int{}
	for len(got) > 0 {
		i := got[0]
		size := sizes[i]
		if len(got) < size || bytes.Count(got[:size], []byte{i}) != size {
			t.Fatalf("a write of %d bytes has come apart", size)
		}
		seen[i]++
		got = got[size:]
	}
	for i, size := range sizes {
		if seen[byte(i)] != each {
			t.Errorf("%d writes of %d bytes, want %d", seen[byte(i)], size, each)
		}
	}
}

// The errors of a Conn are those of the connection itself, to the letter but for ports.
func TestErrors(t *testing.T) {
	buffer := make([]byte, 10)
	for what, provoke := range map[string]func(here, there net.Conn) error{
		"the other end has closed": func(here, there net.Conn) error {
			there.Close()
			_, err := here.Read(buffer)
			return err
		},
		"read too late": func(here, _ net.Conn) error {
			_ = here.SetDeadline(time.Unix(1, 0))
			_, err := here.Read(buffer)
			return err
		},
		"written too late": func(here, _ net.Conn) error {
			_ = here.SetDeadline(time.Unix(1, 0))
			_, err := here.Write(buffer)
			return err
		},
		"read after Close": func(here, _ net.Conn) error {
			here.Close()
			_, err := here.Read(buffer)
			return err
		},
		"written after Close": func(here, _ net.Conn) error {
			here.Close()
			_, err := here.Write(buffer)
			return err
		},
		"read of a connection that was reset": func(here, there net.Conn) error {
			reset(t, there)
			_, err := here.Read(buffer)
			return err
		},
		"written to a connection that was reset": func(here, there net.Conn) error {
			reset(t, there)
			_, _ = here.Read(buffer) // waits for it
			_, err := here.Write(buffer)
			return err
		},
	} {
		text := func(conn func(net.Conn) net.Conn) (string, error) {
			a, b := connected(t)
			here := conn(a)
			names := strings.NewReplacer(a.LocalAddr().String(), "here", a.RemoteAddr().String(),
				"there")
			err := provoke(here, b)
			if err == nil {
				t.Fatalf("%s: no error", what)
			}
			return names.Replace(err.Error()), err
		}
		want, itself := text(func(c net.Conn) net.Conn { return c })
		got, err := text(direct.Conn)
		if got != want {
			t.Errorf("%s: got the error %q, want %q", what, got, want)
		}
		for _, kind := range []error{
			io.EOF, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET, syscall.EPIPE,
		} {
			if errors.Is(err, kind) != errors.Is(itself, kind) {
				t.Errorf("%s: %v is %v: %t, want %t", what, err, kind, errors.Is(err, kind),
					errors.Is(itself, kind))
			}
		}
	}
}

// reset closes a connection so that its other end is told that it was reset.
func reset(t *testing.T, conn net.Conn) {
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// A message that is sent and read allocates nothing.
func TestAllocations(t *testing.T) {
	a, b := connected(t)
	here, there := direct.Conn(a), direct.Conn(b)
	message, buffer := []byte("how are you?"), make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := here.Write(message); err != nil {
			t.Fatal(err)
		}
		if n, err := there.Read(buffer); err != nil || !bytes.Equal(buffer[:n], message) {
			t.Fatalf("got %q, %v", buffer[:n], err)
		}
	}); n > 0 {
		t.Errorf("%.0f allocations", n)
	}
}

// Credentials and Listener give connections of package direct, and what is no TCP connection stays
// as it is.
func TestConnOfPipe(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if direct.Conn(a) != a {
		t.Error("a pipe is wrapped")
	}
}
