package direct

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
)

// A Reader is a connection from which gRPC reads without a buffer of its own while there is nothing
// to read.
type Reader interface {
	// ReadOnReady waits until there is something to read, and then reads up to size bytes into a
	// buffer from pool. The caller returns the buffer to pool. Without an error n is above 0.
	ReadOnReady(size int, pool mem.BufferPool) (buffer *[]byte, n int, err error)
}

// ReadOnReady calls conn's method, or if it has none does the same with a buffer that it holds
// while it waits.
func ReadOnReady(conn net.Conn, size int, pool mem.BufferPool) (*[]byte, int, error) {
	if r, ok := conn.(Reader); ok {
		return r.ReadOnReady(size, pool)
	}
	buffer := pool.Get(size)
	n, err := conn.Read(*buffer)
	if n > 0 {
		return buffer, n, nil // an error comes again
	}
	pool.Put(buffer)
	return nil, 0, err
}

// Listener returns l with connections as Conn returns them.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(conn), nil
}

// Credentials returns c, for clients, with connections as Conn returns them. Unlike a dialer of our
// own it leaves the choice of proxies and the socket's options to gRPC.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return directCredentials{c}
}

type directCredentials struct {
	credentials.TransportCredentials
}

// ClientHandshake implements [credentials.TransportCredentials].
func (w directCredentials) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	return w.TransportCredentials.ClientHandshake(ctx, authority, Conn(raw))
}

// Clone implements [credentials.TransportCredentials].
func (w directCredentials) Clone() credentials.TransportCredentials {
	return directCredentials{w.TransportCredentials.Clone()}
}
