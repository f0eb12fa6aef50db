package oip

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/inference"
)

// An Intake bounds the bytes of queries and answers, from before they are read. Its methods are
// called concurrently.
type Intake interface {
	// Take counts n bytes of the call that ctx is of, which has had had of them, until Give; or it
	// refuses them with the error that the client gets.
	Take(ctx context.Context, n, had int64) error
	Give(ctx context.Context, n int64)
}

// A Charge is what one query, or one answer, has of an intake. A nil one counts nothing. It is not
// safe for concurrent use.
type Charge struct {
	ctx    context.Context
	intake Intake
	held   int64
}

// NewCharge returns one that has nothing yet, of the call that ctx is of.
func NewCharge(ctx context.Context, intake Intake) *Charge {
	return &Charge{
		ctx: ctx, intake: intake,
	}
}

// AtLeast takes what is missing to n bytes.
func (c *Charge) AtLeast(n int64) error {
	if c == nil || n <= c.held {
		return nil
	}
	if err := c.intake.Take(c.ctx, n-c.held, c.held); err != nil {
		return err
	}
	c.held = n
	return nil
}

// More takes n bytes more.
func (c *Charge) More(n int64) error {
	if c == nil {
		return nil
	}
	return c.AtLeast(c.held + n)
}

// Only gives back what is more than n bytes.
func (c *Charge) Only(n int64) {
	if c == nil || n >= c.held {
		return
	}
	c.intake.Give(c.ctx, c.held-n)
	c.held = n
}

// Compressed messages may grow by mostInflation times, and to freeInflation bytes in any case.
// gzip's limit is 1032, where a text repeats a byte; what people compress grows tenfold.
const (
	mostInflation = 100
	freeInflation = 1 << 20
)

// An Inflater reads what decompression makes of a message, and refuses one that grows beyond
// measure.
type Inflater struct {
	compressed countingReader
	plain      io.Reader
	inflated   int64
}

type countingReader struct {
	io.Reader
	read int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.read += int64(n)
	return n, err
}

// NewInflater returns a reader of what open makes of the compressed bytes of r.
func NewInflater[R io.Reader](r io.Reader, open func(io.Reader) (R, error)) (*Inflater, error) {
	f := &Inflater{compressed: countingReader{Reader: r}}
	plain, err := open(&f.compressed)
	f.plain = plain
	return f, err
}

func (f *Inflater) Read(b []byte) (int, error) {
	n, err := f.plain.Read(b)
	if f.inflated += int64(n); f.inflated > max(freeInflation, mostInflation*f.compressed.read) {
		return 0, fmt.Errorf("%w: %d compressed bytes have become more than %d times as many",
			ErrTooLarge, f.compressed.read, mostInflation)
	}
	return n, err
}

// arrival is a message on its way in, as grpc's server has it. grpc reads a message as a whole, and
// so would have memory taken by its sender before anybody could count it; its streams have these
// methods for that.
type arrival interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
}

// A receiver reads the messages of one call, each of at most most bytes.
type receiver struct {
	from   arrival
	most   int64
	charge *Charge // nil: what arrives is not counted
	own    Charge  // what charge points to, for a query
	header [5]byte // of the message that is being read
	// decode is receiveOnly, as grpc passes it on.
	decode func(m any) error
}

// receivers are those that no call has: a query needs one, and allocates none.
var receivers = sync.Pool{New: func() any {
	r := new(receiver)
	r.decode = r.receiveOnly
	return r
}}

func newReceiver(from arrival, most int64) *receiver {
	r := receivers.Get().(*receiver)
	r.from, r.most = from, most
	return r
}

// done ends what newReceiver began. It gives back what the charge has.
func (r *receiver) done() {
	r.charge.Only(0)
	r.from, r.charge, r.own = nil, nil, Charge{}
	receivers.Put(r)
}

// receive reads one message, compressed or not, counted before its bytes are read. At the end of
// the stream it returns io.EOF.
func (r *receiver) receive() (mem.BufferSlice, error) {
	if err := r.from.ReadMessageHeader(r.header[:]); err != nil {
		return nil, receiveError(err)
	}
	flag, n := r.header[0], int64(binary.BigEndian.Uint32(r.header[1:]))
	if n > r.most {
		return nil, status.Errorf(codes.ResourceExhausted, "a message of %d bytes, want at most %d",
			n, r.most)
	}
	if err := r.charge.AtLeast(n); err != nil {
		return nil, err
	}
	data, err := r.from.Read(int(n))
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, receiveError(err)
	}
	compression := r.from.RecvCompress()
	switch named := compression != "" && compression != encoding.Identity; {
	case flag == 0:
		return data, nil
	case flag != 1:
		data.Free()
		return nil, status.Errorf(codes.Internal,
			"the first byte of a message is %d, want 0 or, if it is compressed, 1", flag)
	case !named:
		data.Free()
		return nil, status.Error(codes.Internal,
			"a compressed message without the header grpc-encoding")
	case compression != "gzip":
		data.Free()
		return nil, status.Errorf(codes.Unimplemented, "grpc-encoding %q, want gzip or none",
			compression)
	}
	defer data.Free()
	return inflate(data, r.most, r.charge)
}

// inflateStep is how much is inflated at a time, in bytes.
const inflateStep = 32 << 10

// inflate is what gzip made data of, at most largest bytes.
func inflate(data mem.BufferSlice, largest int64, charge *Charge) (plain mem.BufferSlice,
	err error) {
	compressed := int64(data.Len())
	r := data.Reader()
	defer func() {
		_ = r.Close() // it is in memory
		if err != nil {
			plain.Free()
			plain = nil
		}
	}()
	from, err := NewInflater(r, gzip.NewReader)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "decompress: %v", err)
	}
	pool := mem.DefaultBufferPool()
	for have := int64(0); ; {
		if err := charge.AtLeast(compressed + have + inflateStep); err != nil {
			return plain, err
		}
		step := pool.Get(inflateStep)
		n, err := 0, error(nil)
		for more := 0; n < inflateStep && err == nil; n += more {
			more, err = from.Read((*step)[n:])
		}
		have += int64(n)
		*step = (*step)[:n]
		plain = append(plain, mem.NewBuffer(step, pool))
		switch {
		case have > largest:
			return plain, status.Errorf(codes.ResourceExhausted,
				"a message of more than %d bytes, decompressed", largest)
		case err == io.EOF:
			return plain, nil
		case errors.Is(err, ErrTooLarge):
			return plain, status.Error(codes.ResourceExhausted, err.Error())
		case err != nil:
			return plain, status.Errorf(codes.Internal, "decompress: %v", err)
		}
	}
}

// receiveError is an error of reading as grpc would answer with it.
func receiveError(err error) error {
	if err == io.EOF {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, "the stream ends within a message")
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error()) // the connection's: nobody gets it
}

// receiveOnly reads the one message of a call into m, which then has its memory: a [Request]'s
// charge is for that. The client must send no other.
func (r *receiver) receiveOnly(m any) error {
	data, err := r.receive()
	if err == io.EOF {
		return status.Error(codes.Internal, "a call without a message")
	}
	if err != nil {
		return err
	}
	if err := unmarshal(data, m, r.charge); err != nil {
		return err
	}
	switch err := r.from.ReadMessageHeader(r.header[:]); {
	case err == nil:
		return status.Error(codes.Internal, "more than one message in a call that takes one")
	case err != io.EOF:
		return receiveError(err)
	}
	return nil
}

// unmarshal decodes and frees data.
func unmarshal(data mem.BufferSlice, m any, charge *Charge) error {
	defer data.Free()
	if r, ok := m.(*Request); ok {
		if err := r.decode(data, charge); errors.Is(err, ErrInvalid) {
			r.err = err
		} else if err != nil {
			return err
		}
		charge.Only(r.Bytes())
		return nil
	}
	if err := ordinary.Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "unmarshal: %v", err)
	}
	return nil
}

// Bounded registers services at to whose methods take messages of at most so many bytes as largest
// says when a call is made, whose argument is the method's full name. Queries are counted by the
// intake from when their length is known, and while they are decompressed, until they are answered.
// It matters only to calls by a grpc.Server.
func Bounded(to grpc.ServiceRegistrar, largest func(method string) int64,
	intake Intake) grpc.ServiceRegistrar {
	return bounded{to, largest, intake}
}

type bounded struct {
	grpc.ServiceRegistrar
	largest func(method string) int64
	intake  Intake
}

// RegisterService implements [grpc.ServiceRegistrar].
func (b bounded) RegisterService(desc *grpc.ServiceDesc, service any) {
	d := *desc
	d.Methods, d.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range d.Methods {
		method := "/" + d.ServiceName + "/" + d.Methods[i].MethodName
		handle := d.Methods[i].Handler
		query := method == inference.GRPCInferenceService_ModelInfer_FullMethodName
		d.Methods[i].Handler = func(service any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			if from, ok := grpc.ServerTransportStreamFromContext(ctx).(arrival); ok {
				r := newReceiver(from, b.largest(method))
				defer r.done()
				if query {
					r.own = Charge{ctx: ctx, intake: b.intake}
					r.charge = &r.own
				}
				decode = r.decode
			}
			return handle(service, ctx, decode, interceptor)
		}
	}
	for i := range d.Streams {
		stream, method := &d.Streams[i], "/"+d.ServiceName+"/"+d.Streams[i].StreamName
		handle, many := stream.Handler, stream.ClientStreams
		stream.Handler = func(service any, s grpc.ServerStream) error {
			if from, ok := grpc.ServerTransportStreamFromContext(s.Context()).(arrival); ok {
				s = &boundedStream{s, receiver{from: from, most: b.largest(method)}, many}
			}
			return handle(service, s)
		}
	}
	b.ServiceRegistrar.RegisterService(&d, service)
}

// A boundedStream takes small messages only.
type boundedStream struct {
	grpc.ServerStream
	receiver receiver
	many     bool // the client may send several
}

func (s *boundedStream) RecvMsg(m any) error {
	if !s.many {
		return s.receiver.receiveOnly(m)
	}
	data, err := s.receiver.receive()
	if err != nil {
		return err
	}
	return unmarshal(data, m, nil)
}
