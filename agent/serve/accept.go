package serve

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// A patientListener is a net.Listener whose Accept does not return temporary errors: it logs the
// first and tries again, because gRPC's server would stop serving. Only closing it ends Accept with
// an error.
type patientListener struct {
	net.Listener
	log *slog.Logger
}

// Accept implements [net.Listener].
func (l patientListener) Accept() (net.Conn, error) {
	for failing := false; ; failing = true {
		conn, err := l.Listener.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			if failing && err == nil {
				l.log.Info("the server accepts gRPC connections again")
			}
			return conn, err
		}
		// for example, the process is out of file descriptors until a connection closes
		if !failing {
			l.log.Warn("the server cannot accept gRPC connections; it tries again", "error", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
