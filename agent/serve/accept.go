package serve

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// A patientListener accepts connections until it is closed, whatever happens meanwhile.
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
				l.log.Info("gRPC connections are accepted again")
			}
			return conn, err
		}
		if !failing { // out of descriptors, say: others may close some
			l.log.Warn("no gRPC connection can be accepted for now", "error", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
