package oip

import (
	"bufio"
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

// An Intake bounds the bytes of queries and answers in memory, and counts them before they are
// read. Its methods are called concurrently and must not block.
type Intake interface {
	// Take counts n more bytes of the call with context ctx, which has had bytes already, until
	// Give; or it returns the error that the client gets.
	Take(ctx context.Context, n, had int64) error
	Give(ctx context.Context, n int64)
}

// A Patience is an [Intake] that bounds how long a query on a stream may take to arrive, for as
// long as its bytes are counted.
type Patience interface {
	// Arriving is called when a query of the call with context ctx begins to arrive, and arrived
	// when all of it has, or when it will not.
	Arriving(ctx context.Context) (arrived func())
}

// A Charge is the number of bytes that an intake counts for one query or one answer. The methods of
// a nil Charge do nothing. It is not safe for concurrent use.
type Charge struct {
	ctx    context.Context
	intake Intake
	held   int64
}

// NewCharge returns a charge of 0 bytes for the call with context ctx.
func NewCharge(ctx context.Context, intake Intake) *Charge {
	return &Charge{
		ctx: ctx, intake: intake,
	}
}

// AtLeast raises the charge to n bytes if it is less, or returns the intake's error.
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

// More raises the charge by n bytes, or returns the intake's error.
func (c *Charge) More(n int64) error {
	if c == nil {
		return nil
	}
	return c.AtLeast(c.held + n)
}

// Only lowers the charge to n bytes if it is more.
func (c *Charge) Only(n int64) {
	if c == nil || n >= c.held {
		return
	}
	c.intake.Give(c.ctx, c.held-n)
	c.held = n
}

// A compressed message may grow to maxInflation times its size, and to freeInflation bytes in any
// case. gzip's own limit is 1032 times, for a repeated byte; usual contents grow tenfold.
const (
	maxInflation  = 100
	freeInflation = 1 << 20
)

// An Inflater is a reader of decompressed data. It returns an error when the data exceeds the
// limits above. It reads the compressed data to their end, where nothing may follow: net/http
// notices only then that a client has gone, and zlib's reader stops before.
type Inflater struct {
	compressed countingReader
	source     *bufio.Reader // of compressed
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

// NewInflater returns a reader of the decompressed bytes of r; open returns the decompressor, such
// as gzip.NewReader.
func NewInflater[R io.Reader](r io.Reader, open func(io.Reader) (R, error)) (*Inflater, error) {
	f := &Inflater{compressed: countingReader{Reader: r}}
	f.source = bufio.NewReader(&f.compressed)
	plain, err := open(f.source)
	f.plain = plain
	return f, err
}

func (f *Inflater) Read(b []byte) (int, error) {
	n, err := f.plain.Read(b)
	if f.inflated += int64(n); f.inflated > max(freeInflation, maxInflation*f.compressed.read) {
		return 0, fmt.Errorf("%w: %d compressed bytes have become more than %d times as many",
			ErrTooLarge, f.compressed.read, maxInflation)
	}
	if err == io.EOF {
		if _, err = f.source.Peek(1); err == nil {
			err = invalidf("bytes after the compressed data")
		}
	}
	return n, err
}

// arrival is the incoming stream of gRPC's server. gRPC reads a message as a whole, and so would
// allocate its memory before anybody could count it. These methods of its streams avoid that.
type arrival interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
}

// A placer is an arrival that can read bytes straight to where they belong. Its error at an end
// within them is io.ErrUnexpectedEOF.
type placer interface {
	ReadInto(b []byte) error
}

// A receiver reads the messages of one call, each of at most `most` bytes.
type receiver struct {
	from   arrival
	most   int64
	charge *Charge // nil: the bytes are not counted
	own    Charge  // the charge of a query
	header [5]byte // of the current message
	// begins is called when a message begins to arrive, and what it returns when it has; nil:
	// nobody is told.
	begins func() (arrived func())
	// decode is the method receiveOnly, stored so that it is not allocated for each query.
	decode func(m any) error
}

// receivers pools receivers, so that a query allocates none.
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

// done clears the charge, and returns the receiver to the pool.
func (r *receiver) done() {
	r.charge.Only(0)
	r.from, r.charge, r.own = nil, nil, Charge{}
	receivers.Put(r)
}

// readMessageHeader reads the header of a message, and returns the message's length after it has
// counted it. At the end of the stream it returns io.EOF.
func (r *receiver) readMessageHeader() (int, error) {
	if err := r.from.ReadMessageHeader(r.header[:]); err != nil {
		return 0, receiveError(err)
	}
	n := int64(binary.BigEndian.Uint32(r.header[1:]))
	if n > r.most {
		return 0, &refusal{status.Errorf(codes.ResourceExhausted,
			"a message of %d bytes, want at most %d", n, r.most), n}
	}
	if err := r.charge.AtLeast(n); err != nil {
		return 0, &refusal{err, n}
	}
	return int(n), nil
}

// receiveMessage reads one message, and decompresses it if needed. It counts the bytes before it
// reads them. At the end of the stream it returns io.EOF.
func (r *receiver) receiveMessage() (mem.BufferSlice, error) {
	n, err := r.readMessageHeader()
	if err != nil {
		return nil, err
	}
	return r.receiveRest(n)
}

// receiveRest reads the n bytes after the header of a message.
func (r *receiver) receiveRest(n int) (mem.BufferSlice, error) {
	if r.begins != nil {
		defer r.begins()()
	}
	data, err := readPart(r.from, n)
	if err != nil {
		return nil, err
	}
	flag := r.header[0]
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
	plain, err := inflate(data, r.most, r.charge)
	if err != nil {
		return nil, &refusal{err, -1}
	}
	return plain, nil
}

// readPart reads the next n bytes of a message.
func readPart(from arrival, n int) (mem.BufferSlice, error) {
	data, err := from.Read(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, receiveError(err)
	}
	return data, nil
}

// pieceSize is how many bytes of a large query are decoded at a time, while the next ones arrive.
// The buffers are then still in the CPU's cache, and arriving bytes use them again.
const pieceSize = 64 << 10

// An incomingPieces is a message that is decoded while it arrives.
type incomingPieces struct {
	from   arrival
	charge *Charge // of the message, and of what is made of it
	unread int     // bytes that have not been read
	step   int     // how many of them to read at a time
	err    error   // of reading
	piece  mem.BufferSlice
	keeps  bool            // piece is needed until the end
	kept   mem.BufferSlice // earlier ones that are
}

// next returns the next piece, nil after an error and at the end.
func (in *incomingPieces) next() mem.BufferSlice {
	if in.keeps {
		in.kept = append(in.kept, in.piece...)
	} else {
		in.piece.Free()
	}
	in.piece, in.keeps = in.read(in.step), false
	return in.piece
}

// keepPiece keeps the current piece until the end, and returns the next n bytes, which it keeps as
// well.
func (in *incomingPieces) keepPiece(n int) (mem.BufferSlice, error) {
	in.keeps = true
	more := in.read(n)
	in.kept = append(in.kept, more...)
	return more, in.err
}

// readInto reads the next bytes, which have not been read, into b. It reports false, and reads
// nothing, if they cannot be read so.
func (in *incomingPieces) readInto(b []byte) bool {
	from, ok := in.from.(placer)
	if !ok || len(b) > in.unread || in.err != nil {
		return false
	}
	in.unread -= len(b)
	if err := from.ReadInto(b); err != nil {
		in.err = receiveError(err)
	}
	return true
}

func (in *incomingPieces) read(n int) mem.BufferSlice {
	if n = min(n, in.unread); n <= 0 || in.err != nil {
		return nil
	}
	data, err := readPart(in.from, n)
	in.unread -= n
	in.err = err
	return data
}

// endReading frees the pieces, reads what has not been read, and returns the error of reading.
func (in *incomingPieces) endReading() error {
	in.keeps = false
	for in.next() != nil {
	}
	in.kept.Free()
	return in.err
}

// A refusal is the error of a message that is at fault, on a connection that is not. unread is how
// many bytes of it have not been read.
type refusal struct {
	error
	unread int64
}

// Unwrap returns the error itself.
func (r *refusal) Unwrap() error { return r.error }

// GRPCStatus makes the error that of the call.
func (r *refusal) GRPCStatus() *status.Status { return status.Convert(r.error) }

// inflateStep is how many bytes are decompressed at a time.
const inflateStep = 32 << 10

// inflate returns the gzip data decompressed, or an error beyond largest bytes.
func inflate(data mem.BufferSlice, largest int64, charge *Charge) (plain mem.BufferSlice,
	err error) {
	compressed := int64(data.Len())
	r := data.Reader()
	defer func() {
		_ = r.Close() // reads memory only
		if err != nil {
			plain.Free()
			plain = nil
		}
	}()
	from, err := NewInflater(r, gzip.NewReader)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "decompress: %v", err)
	}
	pool := Buffers
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

// receiveError returns an error of reading as gRPC itself would report it.
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
	// the connection has broken: no client receives this
	return status.Error(codes.Unavailable, err.Error())
}

// receiveOnly reads the only message of a call into m. A [Request] then holds the memory, which
// charge counts. A second message is an error.
func (r *receiver) receiveOnly(m any) error {
	if err := r.receiveInto(m); err == io.EOF {
		return status.Error(codes.Internal, "a call without a message")
	} else if err != nil {
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

// receiveInto reads one message into m. It decodes a large query while it arrives.
func (r *receiver) receiveInto(m any) error {
	n, err := r.readMessageHeader()
	if err != nil {
		return err
	}
	if q, ok := m.(*Request); ok && n > pieceSize && r.header[0] == 0 {
		if r.begins != nil {
			defer r.begins()()
		}
		in := &incomingPieces{from: r.from, charge: r.charge, unread: n, step: pieceSize}
		err := q.decodeFrom(cursor{left: n, from: in}, r.charge)
		if broken := in.endReading(); broken != nil {
			q.Release()
			return broken
		}
		return q.faultOf(err, r.charge)
	}
	data, err := r.receiveRest(n)
	if err != nil {
		return err
	}
	return unmarshal(data, m, r.charge)
}

// faultOf makes err, of decoding the query, the query's fault or returns it.
func (r *Request) faultOf(err error, charge *Charge) error {
	if errors.Is(err, ErrInvalid) {
		r.err = err
	} else if err != nil {
		return &refusal{err, 0}
	}
	charge.Only(r.Memory())
	return nil
}

// unmarshal decodes data into m, and frees data.
func unmarshal(data mem.BufferSlice, m any, charge *Charge) error {
	defer data.Free()
	if r, ok := m.(*Request); ok {
		return r.faultOf(r.decode(data, charge), charge)
	}
	if q, ok := m.(*StreamedQuery); ok {
		if err := q.unmarshal(data); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		return nil
	}
	if err := ordinary.Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "unmarshal: %v", err)
	}
	return nil
}

// Bounded returns a registrar that registers services with to, with bounds on their messages:
// largest returns the most bytes of a message for a method, by its full name, when a call is made.
// intake counts the bytes of a query from when its length is known, also while it is decompressed,
// until it is answered. The bounds apply only to calls of a grpc.Server.
func Bounded(to grpc.ServiceRegistrar, largest func(method string) int64,
	intake Intake) grpc.ServiceRegistrar {
	return boundedReader{to, largest, intake}
}

type boundedReader struct {
	grpc.ServiceRegistrar
	largest func(method string) int64
	intake  Intake
}

// RegisterService implements [grpc.ServiceRegistrar].
func (b boundedReader) RegisterService(desc *grpc.ServiceDesc, service any) {
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
				s = &boundedStream{
					s, receiver{from: from, most: b.largest(method)}, many, b.intake,
				}
			}
			return handle(service, s)
		}
	}
	b.ServiceRegistrar.RegisterService(&d, service)
}

// A boundedStream is a stream whose messages are bounded.
type boundedStream struct {
	grpc.ServerStream
	receiver receiver
	many     bool   // the client may send several
	intake   Intake // counts the bytes of queries
}

func (s *boundedStream) RecvMsg(m any) error {
	if !s.many {
		return s.receiver.receiveOnly(m)
	}
	if query, ok := m.(*Request); ok {
		if p, ok := s.intake.(Patience); ok && s.receiver.begins == nil {
			s.receiver.begins = func() func() { return p.Arriving(s.Context()) }
		}
		return s.receiver.receiveQuery(query, NewCharge(s.Context(), s.intake))
	}
	data, err := s.receiver.receiveMessage()
	if err != nil {
		return err
	}
	return unmarshal(data, m, nil)
}
