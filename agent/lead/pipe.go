package lead

import (
	"context"
	"io"
	"sync"
)

// NewPipe returns the two ends of a stream within the process. It ends with
// ctx, or when the server ends it: with nil in order, so that the client
// receives io.EOF, or with an error that the client receives. What was sent
// before is received before.
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
	closed chan struct{} // the client sends no more
}

func (p *pipe[Up, Down]) Context() context.Context { return p.ctx }

// A PipeClient is the end of the one who opened the stream.
type PipeClient[Up, Down any] struct{ *pipe[Up, Down] }

// A PipeServer is the end of the one who serves it.
type PipeServer[Up, Down any] struct{ *pipe[Up, Down] }

func (c *PipeClient[Up, Down]) Send(m *Up) error     { return sendTo(c.ctx, c.up, m) }
func (c *PipeClient[Up, Down]) Recv() (*Down, error) { return receiveFrom(c.ctx, c.down, nil) }

// CloseSend tells the server that nothing more comes.
func (c *PipeClient[Up, Down]) CloseSend() error {
	c.close.Do(func() { close(c.closed) })
	return nil
}

func (s *PipeServer[Up, Down]) Send(m *Down) error { return sendTo(s.ctx, s.down, m) }
func (s *PipeServer[Up, Down]) Recv() (*Up, error) { return receiveFrom(s.ctx, s.up, s.closed) }

// End ends the stream; err is what the client receives, io.EOF if nil.
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
