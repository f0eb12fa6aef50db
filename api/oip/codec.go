package oip

import (
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Codec is the gRPC codec "proto" for [Request] and [Response]. Decoding
// copies each tensor once, from grpc's receive buffers to pooled memory aligned
// to 64 bytes; encoding sends tensors from where they lie. Any other message is
// left to the ordinary codec. It has to be forced on the server
// ([ServerOptions]) and on the client ([DialOptions]).
//
// A malformed Request is no error of Unmarshal, which grpc would report as an
// internal one: the handler refuses it ([RegisterServer]).
type Codec struct{}

// ordinary is the codec for the generated messages.
var ordinary = encoding.GetCodecV2(grpcproto.Name)

// An Encoded is a message that is sent to many and encoded once. It must not change: the
// transports of all receivers read Wire, each as long as it needs.
type Encoded struct {
	proto.Message
	Wire []byte // the message in its wire form
}

// Encode makes an Encoded of m.
func Encode(m proto.Message) (Encoded, error) {
	wire, err := proto.Marshal(m)
	return Encoded{m, wire}, err
}

// Name is that of the ordinary codec, whose wire format this is.
func (Codec) Name() string { return grpcproto.Name }

// Marshal encodes v. The transport holds the data of a Request's inputs while
// it needs them (see [Request.OnRelease]). A Response belongs to the transport
// from here on and is released when it has been sent.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *Request:
		return v.marshal()
	case *Response:
		defer v.Release()
		return v.marshal()
	case Encoded:
		return mem.BufferSlice{mem.SliceBuffer(v.Wire)}, nil // of no pool: to free it does nothing
	}
	return ordinary.Marshal(v)
}

// Unmarshal decodes data into v, releasing what a Request or Response held
// before.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Request:
		v.err = v.unmarshal(data)
		return nil
	case *Response:
		return v.unmarshal(data)
	}
	return ordinary.Unmarshal(data, v)
}
