package queryconn

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/muster-serve/muster/api/oip"
)

// A Server is the server's end of a connection. One goroutine at a time calls its methods, except
// Phase. For each query it calls Next, Begin, the methods with which gRPC's servers read a message,
// and Answer.
type Server struct {
	reader
	timeouts Timeouts
	ctx      context.Context // of the query
	asked    bool            // there has been a query
	begun    bool            // the query's length has been read
	unread   int             // bytes of the query that have not been read
	broken   error           // why no query can follow; nil: one can

	mu    sync.Mutex
	since time.Time
	phase Phase
}

// Timeouts bound how long a client may take to send something, from when the server begins to read
// it on.
type Timeouts struct {
	Head time.Duration // what precedes a query; from its first byte on
	Rest time.Duration // the rest of a query that was answered before it was read
}

// A Phase is what a connection is at.
type Phase uint8

// The phases of a connection, in turn.
const (
	Idle      Phase = iota // no query has begun
	Arriving               // a query has not been read to its end
	Answering              // a query that was read has no answer
	Sending                // an answer is being sent
)

// NewServer returns the server's end of conn, which belongs to the caller.
func NewServer(conn net.Conn, timeouts Timeouts) *Server {
	return &Server{reader: reader{conn: conn}, timeouts: timeouts, since: time.Now()}
}

// Next waits for the next query, and returns what precedes it. It first reads what has not been
// read of the query before. After an error the caller closes the connection: io.EOF means that the
// client has closed it between two queries.
func (s *Server) Next() (*oip.StreamedQuery, error) {
	if err := s.skip(); err != nil {
		return nil, err
	}
	s.asked, s.begun, s.unread = true, false, 0
	if s.countBuffered() == 0 {
		if err := s.fill(); err != nil {
			return nil, err
		}
	}
	s.enterPhase(Arriving)
	var head []byte
	read := func() (err error) {
		head, err = s.readHead("the head of a query")
		return err
	}
	err := error(nil)
	if n := s.countBuffered(); n >= 4 &&
		n-4 >= int(binary.BigEndian.Uint32(s.buffer.ReadOnlyData())) {
		err = read()
	} else {
		err = s.readWithin(s.timeouts.Head, read)
	}
	if err != nil {
		return nil, toUnexpectedEOF(err)
	}
	q := new(oip.StreamedQuery)
	return q, q.DecodeHead(head)
}

// readWithin calls read, which must not take longer.
func (s *Server) readWithin(longest time.Duration, read func() error) error {
	if err := s.conn.SetReadDeadline(time.Now().Add(longest)); err != nil {
		return err
	}
	if err := read(); err != nil {
		return err
	}
	return s.conn.SetReadDeadline(time.Time{})
}

// enterPhase notes that a phase begins.
func (s *Server) enterPhase(p Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.phase = time.Now(), p
}

// Phase returns what the connection is at, and since when.
func (s *Server) Phase() (p Phase, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase, s.since
}

// skip reads what has not been read of the query.
func (s *Server) skip() error {
	if !s.asked || s.broken != nil || s.begun && s.unread == 0 {
		return s.broken
	}
	return toUnexpectedEOF(s.readWithin(s.timeouts.Rest, func() error {
		if !s.begun {
			n, err := s.readLength("a query", math.MaxInt32)
			if err != nil {
				return err
			}
			s.unread = n
		}
		for s.unread > 0 {
			if s.countBuffered() == 0 {
				if err := s.fill(); err != nil {
					return err
				}
			}
			b := s.takeBuffered(s.unread)
			s.unread -= b.Len()
			b.Free()
		}
		return nil
	}))
}

// Begin sets the context of the query. When that ends, reading the query ends with an error, and no
// query can follow.
func (s *Server) Begin(ctx context.Context) { s.ctx = ctx }

// ReadMessageHeader reads the query's length into header, in gRPC's form of five bytes. It returns
// io.EOF when that has been read.
func (s *Server) ReadMessageHeader(header []byte) error {
	if s.begun {
		return io.EOF
	}
	n := 0
	if err := s.wait(4, func() (err error) {
		n, err = s.readLength("a query", math.MaxInt32)
		return err
	}); err != nil {
		return err
	}
	s.begun, s.unread = true, n
	s.noteBytes(0)
	header[0] = 0
	binary.BigEndian.PutUint32(header[1:], uint32(n))
	return nil
}

// Read returns the next n bytes of the query.
func (s *Server) Read(n int) (mem.BufferSlice, error) {
	var parts mem.BufferSlice
	if s.buffer != nil && n > 0 {
		b := s.takeBuffered(n)
		parts = append(parts, b)
		n -= b.Len()
		s.noteBytes(b.Len())
	}
	if n == 0 {
		return parts, nil
	}
	pool := oip.Buffers
	b := pool.Get(n)
	parts = append(parts, mem.NewBuffer(b, pool))
	if err := s.ReadInto(*b); err != nil {
		parts.Free()
		return nil, err
	}
	return parts, nil
}

// ReadInto reads the next bytes of the query into b.
func (s *Server) ReadInto(b []byte) error {
	if err := s.wait(len(b), func() error { return s.readFull(b) }); err != nil {
		return err
	}
	s.noteBytes(len(b))
	return nil
}

// noteBytes notes that n bytes of the query were read.
func (s *Server) noteBytes(n int) {
	if s.unread -= n; s.unread == 0 {
		s.enterPhase(Answering)
	}
}

// RecvCompress is the last of gRPC's methods: queries are not compressed.
func (s *Server) RecvCompress() string { return "" }

// wait calls read, which reads n bytes and ends with the query's context.
func (s *Server) wait(n int, read func() error) error {
	if n <= s.countBuffered() {
		return read()
	}
	stop := context.AfterFunc(s.ctx, func() { _ = s.conn.SetReadDeadline(past) })
	err := toUnexpectedEOF(read())
	if !stop() {
		err = context.Cause(s.ctx)
	}
	if err != nil {
		s.broken = err
	}
	return err
}

// Answer sends the answer to the query, which it releases, or the error. It returns an error if the
// connection has broken.
func (s *Server) Answer(a *oip.StreamedAnswer) error {
	var message mem.BufferSlice
	head := *a
	if a.Answer != nil {
		var err error
		if message, err = encode(a.Answer); err != nil {
			return fmt.Errorf("encode an answer: %w", err)
		}
		defer message.Free()
		head.Answer = nil
	}
	s.enterPhase(Sending)
	if err := write(s.conn, head.AppendHead, message); err != nil {
		return err
	}
	s.enterPhase(Idle)
	return nil
}

// Release returns the memory of what was read and not used. It is the last call.
func (s *Server) Release() { s.release() }
