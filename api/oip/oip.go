package oip

import (
	"errors"
	"time"

	"github.com/muster-serve/muster/api/tensor"
)

// Errors that decoding and encoding wrap; the message says what was found and
// what was expected.
var (
	// ErrInvalid marks a message that breaks the protocol: INVALID_ARGUMENT,
	// 400.
	ErrInvalid = errors.New("invalid message")
	// ErrTooLarge marks a body over the limit: 413.
	ErrTooLarge = errors.New("message too large")
)

// A Request is a ModelInfer query.
type Request struct {
	Model   string
	Version string // empty: the model's version policy chooses
	ID      string
	// Timeout is how long the client will wait, from the `timeout` parameter
	// (microseconds); 0 where it gave none.
	Timeout time.Duration
	// Parameters holds the remaining request parameters: bool, int64,
	// uint64, float64 or string.
	Parameters map[string]any
	Inputs     []tensor.Tensor
	// Outputs names the outputs to return, in that order; empty means all.
	Outputs []RequestedOutput
	// BinaryOutputs asks the REST form to return in binary every output
	// that does not say otherwise (`binary_data_output`).
	BinaryOutputs bool

	err  error // what Codec found wrong
	hold *hold // the memory of the inputs; nil where nobody waits for it
}

// A RequestedOutput is an output a client asked for.
type RequestedOutput struct {
	Name string
	// Binary asks for the binary tensor extension (REST only); nil leaves it
	// to Request.BinaryOutputs.
	Binary *bool
}

// Check reports what is wrong with the form of a query that is to be sent, as
// the server would: an [ErrInvalid] that names the input.
func (r *Request) Check() error {
	if err := checkNames(r.Inputs, "input"); err != nil {
		return err
	}
	for i := range r.Inputs {
		if err := checkData(&r.Inputs[i]); err != nil {
			return invalidf("input %q: %v", r.Inputs[i].Name, err)
		}
	}
	return nil
}

// OnRelease has f called when the inputs are no longer read by anybody: the
// caller has called Release, and every connection the query was sent on is done
// with it. It is not called for a query that was cancelled at the moment its
// inputs were handed to the connection: grpc drops them then, to be collected.
func (r *Request) OnRelease(f func()) { r.hold = newHold(f) }

// Bytes is how many bytes the inputs have: what the query takes of memory.
func (r *Request) Bytes() int64 { return dataBytes(r.Inputs) }

// Bytes is how many bytes the outputs have.
func (r *Response) Bytes() int64 { return dataBytes(r.Outputs) }

func dataBytes(tensors []tensor.Tensor) (n int64) {
	for i := range tensors {
		n += int64(len(tensors[i].Data))
	}
	return n
}

// Share returns a copy of r that shares the memory of the inputs, which is
// given back when both have been released.
func (r *Request) Share() *Request {
	c := *r
	if c.hold != nil {
		c.hold.add()
	}
	return &c
}

// Release gives back the memory of the inputs; they must not be used
// afterwards. Calling it again does nothing. A request that is never released
// is left to the garbage collector.
func (r *Request) Release() {
	if r.hold != nil {
		r.hold.drop()
		r.hold = nil
	}
}

// A Response is the answer to a Request.
type Response struct {
	Model      string
	Version    string
	ID         string
	Parameters map[string]any
	Outputs    []tensor.Tensor

	hold *hold // the memory of the outputs; nil where nobody waits for it
}

// Output is the output called name.
func (r *Response) Output(name string) (tensor.Tensor, bool) {
	for _, t := range r.Outputs {
		if t.Name == name {
			return t, true
		}
	}
	return tensor.Tensor{}, false
}

// OnRelease has f called when the outputs are no longer read by anybody: the
// response has been released, by its owner or by the server that it was
// returned to, and the connection is done with it. As with
// [Request.OnRelease], there are answers it is not called for.
func (r *Response) OnRelease(f func()) { r.hold = newHold(f) }

// AlsoOnRelease has to told after what is called already. It is for one alone, before the response
// is given to a server.
func (r *Response) AlsoOnRelease(to Released) {
	if r.hold == nil {
		r.hold = newHold(func() {})
	}
	r.hold.also = to
}

// Released is told that the outputs of a [Response] are no longer read by anybody.
type Released interface{ Released() }

// Release gives back the memory of the outputs; see [Request.Release].
func (r *Response) Release() {
	if r.hold != nil {
		r.hold.drop()
		r.hold = nil
	}
}
