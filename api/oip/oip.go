package oip

import (
	"errors"
	"time"

	"github.com/muster-serve/muster/api/lateness"
	"github.com/muster-serve/muster/api/tensor"
)

// The errors that decoding and encoding wrap. The message says what was found and what was
// expected.
var (
	// ErrInvalid marks a message that breaks the protocol; clients get INVALID_ARGUMENT or 400.
	ErrInvalid = errors.New("invalid message")
	// ErrTooLarge marks a REST body over the limit; clients get 413.
	ErrTooLarge = errors.New("message too large")
	// ErrUnencodable marks an answer that the form in which the client asks for it cannot hold;
	// clients get INTERNAL or 500, as the answer is the model's.
	ErrUnencodable = errors.New("the answer cannot be encoded")
)

// A Request is a ModelInfer query. It is not safe for concurrent use.
type Request struct {
	Model   string
	Version string // empty: the newest version
	ID      string
	// Timeout is how long the client will wait, from the `timeout` parameter (microseconds on the
	// wire); 0 if it gave none.
	Timeout time.Duration
	// LeastAccuracy is the least accuracy of the model that is to answer, in (0, 1], from the
	// `min_accuracy` parameter; 0 if any will do.
	LeastAccuracy float64
	// Parameters holds the remaining request parameters: bool, int64,
	// uint64, float64 or string.
	Parameters map[string]any
	Inputs     []tensor.Tensor
	// Outputs names the outputs to return, in their order; empty means all outputs.
	Outputs []RequestedOutput
	// LoadShare is set by an agent that serves the client: the share of the agents that may hold a
	// model only because such clients ask for it; 0: the client has no right to have models loaded.
	LoadShare float64
	// TrialSize is set by a gateway: the batch size of a query for a model with a canary that names
	// no version, else 0. If the query has failed, Tried is the version that it was for.
	TrialSize int
	Tried     int64
	// Late is set by a gateway for a query that was late, or failed: where its time went; nil of
	// others.
	Late *lateness.Record
	// Agent is set by a gateway: who ran the query, or the part that ended last; "" if nobody did.
	Agent string
	// Answer counts the bytes of the answer in the agent that the client asks; nil: nobody does.
	Answer *Charge
	// BinaryOutputs asks for binary data of every output without a Binary of its own
	// (`binary_data_output`, REST only).
	BinaryOutputs bool
	// JSON says that the client gets outputs that it does not ask for as binary data as JSON.
	JSON bool

	err    error   // the fault that Codec has found; nil: none
	hold   *hold   // counts the readers of the inputs' memory; nil: nothing is to be freed
	charge *Charge // of a query on a stream, until Release; nil: the call has it
}

// A RequestedOutput is an output that a client asks for.
type RequestedOutput struct {
	Name string
	// Binary asks for binary data, or for JSON if false (REST only); nil means
	// Request.BinaryOutputs.
	Binary *bool
}

// Check returns the error that a server would return for the form of the query; nil if there is
// none. It wraps [ErrInvalid] and names the input.
func (r *Request) Check() error {
	if r.LeastAccuracy != 0 {
		if err := checkLeastAccuracy(minAccuracyParameter, r.LeastAccuracy); err != nil {
			return err
		}
	}
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

// Fault returns why a query that has arrived cannot be served; nil if it can. It wraps [ErrInvalid]
// if the query is malformed.
func (r *Request) Fault() error { return r.err }

// OnRelease makes Release call f once the inputs' memory has no readers: the caller has called
// Release, and every connection that the query was sent on is done with it. f may be called on
// another goroutine. f is not called for a query that was cancelled at the moment at which its
// inputs were handed to the connection: gRPC then leaves them to the garbage collector.
func (r *Request) OnRelease(f func()) { r.hold = newHold(f) }

// Bytes returns the size of the inputs in memory, in bytes.
func (r *Request) Bytes() int64 { return dataBytes(r.Inputs) }

// freeText is how many bytes of names, ids and parameters a query may have that Memory does not
// count: usual queries have a few hundred.
const freeText = 4 << 10

// Memory returns about how many bytes of memory the query keeps: the inputs, and the text beyond
// what usual queries have.
func (r *Request) Memory() int64 {
	const entry = 64 // of a map or a list, without its text
	text := len(r.Model) + len(r.Version) + len(r.ID)
	for name, value := range r.Parameters {
		s, _ := value.(string)
		text += entry + len(name) + len(s)
	}
	for i := range r.Outputs {
		text += entry + len(r.Outputs[i].Name)
	}
	for i := range r.Inputs {
		text += len(r.Inputs[i].Name)
	}
	return r.Bytes() + int64(max(0, text-freeText))
}

// Bytes returns the size of the outputs in memory, in bytes.
func (r *Response) Bytes() int64 { return dataBytes(r.Outputs) }

func dataBytes(tensors []tensor.Tensor) (n int64) {
	for i := range tensors {
		n += int64(len(tensors[i].Data))
	}
	return n
}

// Share returns a copy of r that shares the inputs' memory. The memory is freed when both have been
// released.
func (r *Request) Share() *Request {
	c := *r
	c.charge = nil
	if c.hold != nil {
		c.hold.add()
	}
	return &c
}

// Release frees the inputs' memory once no connection reads it. The caller must not use the inputs
// afterwards. Further calls do nothing. The garbage collector frees the memory of a request that is
// never released.
func (r *Request) Release() {
	r.charge.Only(0)
	r.charge = nil
	if r.hold != nil {
		r.hold.dropReader()
		r.hold = nil
	}
}

// A Response is the answer to a Request. It is not safe for concurrent use.
type Response struct {
	Model   string // as the request named it
	Version string // empty if the request named a family
	ID      string
	// Variant and VariantVersion are the model that answered a query for a family, and its version;
	// empty in other answers. They and Accuracy are parameters on the wire.
	Variant, VariantVersion string
	// Accuracy is the variant's, in (0, 1]; 0 if unknown.
	Accuracy float64
	// Emulated is whether an agent that runs no models gave the answer, or a part of it, so that
	// nobody takes its values for a model's. It is a parameter on the wire, if it is true.
	Emulated bool
	// Parameters holds the remaining parameters, as those of a Request.
	Parameters map[string]any
	Outputs    []tensor.Tensor

	hold *hold // counts the readers of the outputs' memory; nil: nothing is to be freed
}

// Output returns the output called name, and whether there is one. The data is valid until Release.
func (r *Response) Output(name string) (tensor.Tensor, bool) {
	for _, t := range r.Outputs {
		if t.Name == name {
			return t, true
		}
	}
	return tensor.Tensor{}, false
}

// OnRelease makes Release call f once the outputs' memory has no readers: the owner, or the server
// that the response was returned to, has released it, and the connection is done with it. As with
// [Request.OnRelease], there are cases in which f is not called.
func (r *Response) OnRelease(f func()) { r.hold = newHold(f) }

// AlsoOnRelease makes Release also call to, after the function of OnRelease. Only one to is
// possible, and it must be set before the response is returned to a server.
func (r *Response) AlsoOnRelease(to Released) {
	if r.hold == nil {
		r.hold = newHold(func() {})
	}
	r.hold.also = to
}

// Released is called when the outputs of a [Response] have no readers any more; see
// [Response.AlsoOnRelease].
type Released interface{ Released() }

// Release frees the memory of the outputs; see [Request.Release].
func (r *Response) Release() {
	if r.hold != nil {
		r.hold.dropReader()
		r.hold = nil
	}
}
