package queryconn

import (
	"context"
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/oip"
)

// A Client is the client's end of a connection, made by a [Dialer]. One goroutine at a time calls
// its methods, except Close.
type Client struct {
	reader
	// Metadata has what the metadata of each query must begin with, names and values in turn.
	Metadata []string
}

// Close closes the connection, which ends a query.
func (c *Client) Close() error { return c.conn.Close() }

// ErrEncode is the error of a query that cannot be sent because of what is in it.
var ErrEncode = errors.New("encode a query")

// Query sends a query, and reads the answer into a, which then has an answer or an error. After an
// error of its own that is not [ErrEncode] the caller closes the Client; if ctx has ended, that is
// why.
func (c *Client) Query(ctx context.Context, q *oip.StreamedQuery, a *oip.StreamedAnswer) error {
	if err := q.CheckMetadata(); err != nil {
		return fmt.Errorf("%w: %w", ErrEncode, err)
	}
	message, err := encode(q.Query)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrEncode, err)
	}
	head := *q
	head.Query = nil
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // which ends reads and writes
	err = write(c.conn, func(b []byte) ([]byte, error) { return head.AppendHead(b), nil }, message)
	message.Free()
	if err == nil {
		err = c.readAnswer(a)
	}
	if !stop() && (err == nil || errors.Is(err, ErrEncode)) { // the connection is closed
		if a.Answer != nil {
			a.Answer.Release()
		}
		err = context.Cause(ctx)
	}
	c.release()
	return err
}

// readAnswer reads an answer.
func (c *Client) readAnswer(a *oip.StreamedAnswer) error {
	head, err := c.readHead("the head of an answer")
	if err != nil {
		return err
	}
	if err := a.DecodeHead(head); err != nil || a.Error != nil {
		return err
	}
	n, err := c.readLength("an answer", math.MaxInt32)
	if err != nil {
		return toUnexpectedEOF(err)
	}
	var message mem.BufferSlice
	if n > 0 && n <= c.countBuffered() {
		message = mem.BufferSlice{c.takeBuffered(n)}
	} else {
		pool := oip.Buffers
		b := pool.Get(n)
		message = mem.BufferSlice{mem.NewBuffer(b, pool)}
		if err := c.readFull(*b); err != nil {
			message.Free()
			return toUnexpectedEOF(err)
		}
	}
	defer message.Free()
	if c.countBuffered() > 0 {
		return fmt.Errorf("%d bytes after an answer", c.countBuffered())
	}
	a.Answer = new(oip.Response)
	return oip.Codec{}.Unmarshal(message, a.Answer)
}
