package control

import (
	"context"

	"github.com/muster-serve/muster/api/names"
)

// A Stream is one end of a two-way stream of messages, over gRPC or in process. One goroutine may
// call Send while another calls Recv; two goroutines may not call the same method at once. Both
// block until the message is handed over or the stream ends. The receiver owns a message once it is
// sent: the sender must not touch it again.
type Stream[Out, In any] interface {
	Send(*Out) error
	// Recv returns io.EOF when the other end has ended the stream in order.
	Recv() (*In, error)
	// Context ends with the stream.
	Context() context.Context
}

// Elections take part in the elections of leaders, whose messages come and go on Link streams. The
// methods may be called concurrently.
type Elections interface {
	// Linked notes that the agent called from has opened a Link to this agent. Until closed is
	// called, the election's messages to that agent go through send, which must not block. inOrder
	// tells closed whether the agent has ended the Link in order; otherwise it broke. Only the
	// first call of closed counts.
	Linked(from names.AgentName, send func(*Election)) (closed func(inOrder bool))
	// Elect handles an election message that came on such a Link. When it returns, the leadership
	// that this agent follows reflects the message.
	Elect(*Election)
}
