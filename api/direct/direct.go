package direct

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

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
	return wrapped{c}
}

type wrapped struct {
	credentials.TransportCredentials
}

// ClientHandshake implements [credentials.TransportCredentials].
func (w wrapped) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	return w.TransportCredentials.ClientHandshake(ctx, authority, Conn(raw))
}

// Clone implements [credentials.TransportCredentials].
func (w wrapped) Clone() credentials.TransportCredentials {
	return wrapped{w.TransportCredentials.Clone()}
}
