package plugin

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A stdio is a connection of two pipes. Deadlines hold where the system has them for pipes; gRPC
// uses them only to close a connection sooner.
type stdio struct {
	in     *os.File
	reader io.Reader // of in, with what was read ahead; nil: in itself
	out    *os.File
	once   sync.Once
}

func (c *stdio) Read(b []byte) (int, error) {
	if c.reader != nil {
		return c.reader.Read(b)
	}
	return c.in.Read(b)
}

func (c *stdio) Write(b []byte) (int, error) { return c.out.Write(b) }

func (c *stdio) Close() (err error) {
	c.once.Do(func() { err = errors.Join(c.out.Close(), c.in.Close()) })
	return err
}

type stdioAddress struct{}

func (stdioAddress) Network() string { return "stdio" }
func (stdioAddress) String() string  { return "stdio" }

func (c *stdio) LocalAddr() net.Addr  { return stdioAddress{} }
func (c *stdio) RemoteAddr() net.Addr { return stdioAddress{} }

func (c *stdio) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *stdio) SetReadDeadline(t time.Time) error  { return c.in.SetReadDeadline(t) }
func (c *stdio) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }
