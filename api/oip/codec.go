package oip

import (
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec is the gRPC codec "proto" for [Request] and [Response], and for [StreamedQuery] and
// [StreamedAnswer] with one of them. Decoding copies each tensor once,
// from gRPC's receive buffers to pooled memory aligned to 64 bytes; encoding sends tensors from
// their own memory without a copy. It passes any other message to gRPC's own codec. It has to be
// forced on the server ([ServerOptions]) and on the client ([DialOptions]). It may be used
// concurrently.
//
// Unmarshal returns no error for a malformed Request, because gRPC would report it as INTERNAL: the
// handler refuses it instead ([RegisterServer]).
type Codec struct{}

// ordinary is gRPC's codec, for the generated messages.
var ordinary = encoding.GetCodecV2(grpcproto.Name)

// An Encoded is a message with its encoding, to send one message to many receivers. Neither
// may be changed: the connections of all receivers read Wire, for as long as each needs it.
type Encoded struct {
	proto.Message
	Wire []byte // the message in its wire form
}

// A Wire is a message in its wire form, to send a message whose encoding has been looked at before:
// gRPC ends a whole stream with a message that it cannot encode. It belongs to the connection,
// which frees it.
type Wire mem.BufferSlice

// Encode returns m with its encoding. The caller must not change m afterwards.
func Encode(m proto.Message) (Encoded, error) {
	wire, err := proto.Marshal(m)
	return Encoded{m, wire}, err
}

// Name implements [encoding.CodecV2]. It is the ordinary codec's, because the wire format is the
// same.
func (Codec) Name() string { return grpcproto.Name }

// Marshal implements [encoding.CodecV2]. The connection holds a reference to the memory of a
// Request's inputs while it needs them (see [Request.OnRelease]). A Response belongs to the
// connection from here on, which releases it when it has been sent.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *Request:
		return v.marshal()
	case *Response:
		defer v.Release()
		return v.marshal()
	case *streamResponse:
		defer v.Release()
		return v.marshal()
	case *StreamedQuery:
		return v.marshal()
	case *StreamedAnswer:
		if v.Answer != nil {
			defer v.Answer.Release()
		}
		return v.marshal()
	case Wire:
		return mem.BufferSlice(v), nil
	case Encoded:
		// not from a pool, so freeing it does nothing
		return mem.BufferSlice{mem.SliceBuffer(v.Wire)}, nil
	}
	return ordinary.Marshal(v)
}

// Unmarshal implements [encoding.CodecV2]. If v is a Request or Response, it first releases the
// memory that v held.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Request:
		v.err = v.unmarshal(data)
		return nil
	case *Response:
		return v.unmarshal(data)
	case *StreamedQuery:
		return v.unmarshal(data)
	case *StreamedAnswer:
		return v.unmarshal(data)
	}
	return ordinary.Unmarshal(data, v)
}
