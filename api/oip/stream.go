package oip

import (
	"errors"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// finalResponse is the parameter of an answer on a stream that says whether it is the query's last:
// clients of models with several answers wait for it. Here every answer is.
const finalResponse = "triton_final_response"

// An InferStream is the server's end of a ModelStreamInfer call. Recv and Send may be called by one
// goroutine each.
type InferStream struct{ grpc.ServerStream }

// Recv returns the next query, and blocks until it is there. The caller must Release the query. The
// error is io.EOF when the client sends no more. A query that is malformed or for which there was
// no room is no error: [Request.Fault] says so.
func (s InferStream) Recv() (*Request, error) {
	r := new(Request)
	if err := s.RecvMsg(r); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// Send sends an answer, and blocks until the connection takes it. The connection releases the
// answer when it has been sent; Send releases it if it returns an error.
func (s InferStream) Send(resp *Response) error {
	last := maps.Clone(resp.Parameters)
	if last == nil {
		last = map[string]any{}
	}
	last[finalResponse] = true
	resp.Parameters = last
	err := s.SendMsg(&streamResponse{Response: resp})
	if err != nil {
		resp.Release()
	}
	return err
}

// SendError sends the error of a query with the given id in place of its answer; see [ErrorText].
func (s InferStream) SendError(id, message string) error {
	return s.SendMsg(&streamResponse{
		err: ErrorText(message),
		Response: &Response{
			ID: id, Parameters: map[string]any{finalResponse: true},
		},
	})
}

// A streamResponse is a ModelStreamInferResponse.
type streamResponse struct {
	*Response
	err string
}

func (s *streamResponse) marshal() (mem.BufferSlice, error) {
	answer, err := s.Response.marshal()
	if err != nil {
		return nil, err
	}
	e := encoder{}
	e.writeText(1, s.err)
	e.buf = protowire.AppendTag(e.buf, 2, protowire.BytesType)
	e.buf = protowire.AppendVarint(e.buf, uint64(answer.Len()))
	return append(mem.BufferSlice{mem.SliceBuffer(e.buf)}, answer...), nil
}

// receiveQuery reads a query of a stream into to, whose Release then gives the bytes back that
// charge counts. If there is no room for the query, it is read without being kept, so that those
// behind it can be read, and to has the fault. A query that is not kept is not counted either.
func (r *receiver) receiveQuery(to *Request, charge *Charge) error {
	r.charge = charge
	err := r.receiveInto(to)
	if err != nil {
		charge.Only(0)
	}
	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.unread >= 0:
		to.err = refused.error
		return r.skip(refused.unread)
	case errors.As(err, &refused):
		to.err = refused.error
		return nil
	case err != nil:
		return err
	}
	to.charge = charge
	return nil
}

// skip reads n bytes and drops them.
func (r *receiver) skip(n int64) error {
	for n > 0 {
		data, err := r.from.Read(int(min(n, inflateStep)))
		if err != nil {
			return receiveError(err)
		}
		data.Free()
		n -= min(n, inflateStep)
	}
	return nil
}
