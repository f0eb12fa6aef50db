package serve

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
)

// A failingListener fails to accept so many times, takes one connection, fails
// again, and is closed.
type failingListener struct {
	net.Listener
	steps []error // nil: a connection
}

func (l *failingListener) Accept() (net.Conn, error) {
	if len(l.steps) == 0 {
		return nil, net.ErrClosed
	}
	err := l.steps[0]
	l.steps = l.steps[1:]
	if err != nil {
		return nil, err
	}
	conn, other := net.Pipe()
	_ = other.Close()
	return conn, nil
}

func (l *failingListener) Addr() net.Addr { return &net.TCPAddr{} }
func (l *failingListener) Close() error   { return nil }

// TestAcceptErrorsAreSaidOnce: an agent without descriptors does not fill its log.
func TestAcceptErrorsAreSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps []error
		for range 100 {
			steps = append(steps, errors.New("too many open files"))
		}
		steps = append(steps, nil, errors.New("too many open files"))
		var log bytes.Buffer
		l := &failingListener{steps: steps}
		patient := patientListener{l, slog.New(slog.NewTextHandler(&log, nil))}
		if _, err := patient.Accept(); err != nil {
			t.Fatal(err)
		}
		if _, err := patient.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("of a closed listener: %v", err)
		}
		if n := strings.Count(log.String(), "too many open files"); n != 2 {
			t.Errorf("%d lines of errors, want 2:\n%s", n, log.String())
		}
	})
}
