package lead

import (
	"context"
	"io"
	"sync"
)

// NewPipe returns the two ends of a stream within the process. It ends with ctx, or when the server
// calls End. The client receives every message sent before the end, and then io.EOF or the server's
// error. Send blocks until the other end receives.
func NewPipe[Up, Down any](ctx context.Context) (client *PipeClient[Up, Down],
	server *PipeServer[Up, Down]) {
	p := &pipe[Up, Down]{up: make(chan *Up), down: make(chan *Down), closed: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	return &PipeClient[Up, Down]{p}, &PipeServer[Up, Down]{p}
}

type pipe[Up, Down any] struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	up     chan *Up
	down   chan *Down
	close  sync.Once
	closed chan struct{} // closed by CloseSend
}

func (p *pipe[Up, Down]) Context() context.Context { return p.ctx }

// A PipeClient is the client's end, which implements [ClientStream].
type PipeClient[Up, Down any] struct{ *pipe[Up, Down] }

// A PipeServer is the server's end, which implements [control.Stream].
type PipeServer[Up, Down any] struct{ *pipe[Up, Down] }

func (c *PipeClient[Up, Down]) Send(m *Up) error     { return sendTo(c.ctx, c.up, m) }
func (c *PipeClient[Up, Down]) Recv() (*Down, error) { return receiveFrom(c.ctx, c.down, nil) }

// CloseSend makes the server's Recv return io.EOF. It may be called more than once, and returns
// nil.
func (c *PipeClient[Up, Down]) CloseSend() error {
	c.close.Do(func() { close(c.closed) })
	return nil
}

func (s *PipeServer[Up, Down]) Send(m *Down) error { return sendTo(s.ctx, s.down, m) }
func (s *PipeServer[Up, Down]) Recv() (*Up, error) { return receiveFrom(s.ctx, s.up, s.closed) }

// End ends the stream. The client's Recv then returns err, or io.EOF if err is nil.
func (s *PipeServer[Up, Down]) End(err error) {
	if err == nil {
		err = io.EOF
	}
	s.cancel(err)
}

func sendTo[M any](ctx context.Context, to chan<- *M, m *M) error {
	select {
	case to <- m:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func receiveFrom[M any](ctx context.Context, from <-chan *M, closed <-chan struct{}) (*M, error) {
	select {
	case m := <-from:
		return m, nil
	case <-closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
