package oip

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A StreamedQuery is the message of that name of package control, which carries a query on a stream
// of several: the codec encodes it as it does a Request. Either Cancel is set, or Query.
type StreamedQuery struct {
	ID       uint64
	Cancel   bool
	Timeout  time.Duration // until the deadline; 0: there is none
	Metadata []string      // names and values in turn
	// Query is nil in a message received that has none. It belongs to the sender, or to the
	// receiver of the message.
	Query *Request
	// Outbox counts the message while the connection holds it; nil: nobody counts. Only senders
	// have one.
	Outbox *Outbox
}

// A StreamedAnswer is the message of that name of package control. Either Error is set, or Answer.
type StreamedAnswer struct {
	ID    uint64
	Error *spb.Status
	// Answer is nil in a message received that has none. The connection releases that of a message
	// sent.
	Answer *Response
	// Remaining is the worker's remaining time, and HasRemaining whether the answer tells it.
	Remaining    time.Duration
	HasRemaining bool
	// Spent is where the query's time at the worker went, in the form of package lateness; nil if
	// the answer does not tell it.
	Spent []byte
	// Load is the agent's load report, an OrcaLoadReport in the form of the trailer
	// endpoint-load-metrics-bin; empty if the answer has none.
	Load string
	// Lanes is where the time of the worker's last runs went, in the form of Spent; nil if the answer
	// does not tell it.
	Lanes []byte
}

// maxSpent bounds the bytes of StreamedAnswer's Spent and Lanes: some dozen numbers.
const maxSpent = 512

// maxLoad bounds the bytes of StreamedAnswer's Load: some numbers, and names of types of lanes.
const maxLoad = 4 << 10

// maxMetadata bounds the names and values of a query on a stream.
const maxMetadata = 64

// An Outbox counts the bytes of messages that a connection has not sent yet. The zero value is
// ready for use. Its methods may be called concurrently.
type Outbox struct{ held atomic.Int64 }

// Take counts n bytes if no more than most are then counted, and reports whether it has.
func (o *Outbox) Take(n, most int64) bool {
	if o.held.Add(n) <= most {
		return true
	}
	o.held.Add(-n)
	return false
}

// Give takes n bytes back that Take has counted, for a message that is not sent.
func (o *Outbox) Give(n int64) { o.held.Add(-n) }

// Held returns the bytes that are counted.
func (o *Outbox) Held() int64 { return o.held.Load() }

// An envelope is the memory of the fields before a query. gRPC says by Put that it is done with it,
// which it does not of fewer bytes than envelopeSize.
type envelope struct {
	buf    []byte
	bytes  int64
	outbox *Outbox
}

const envelopeSize = 1536

var envelopes = sync.Pool{New: func() any { return &envelope{buf: make([]byte, 0, envelopeSize)} }}

// Get makes an envelope a mem.BufferPool; gRPC takes no buffer from it.
func (e *envelope) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put is called when the connection has sent the buffer.
func (e *envelope) Put(*[]byte) {
	outbox, bytes := e.outbox, e.bytes
	e.outbox = nil
	e.buf = e.buf[:0]
	envelopes.Put(e)
	if outbox != nil {
		outbox.Give(bytes)
	}
}

// Size returns about how many bytes the message has, which is what Outbox counts.
func (q *StreamedQuery) Size() int64 {
	n := int64(envelopeSize)
	if q.Query != nil {
		n += q.Query.Bytes()
	}
	return n
}

// CheckMetadata returns an error if no receiver would take so many metadata.
func (q *StreamedQuery) CheckMetadata() error {
	if n := len(q.Metadata); n > maxMetadata {
		return invalidf("%d names and values of metadata, want at most %d", n, maxMetadata)
	}
	return nil
}

func (q *StreamedQuery) marshal() (mem.BufferSlice, error) {
	if err := q.CheckMetadata(); err != nil {
		return nil, err
	}
	var query mem.BufferSlice
	if q.Query != nil {
		var err error
		if query, err = q.Query.marshal(); err != nil {
			return nil, err
		}
	}
	e := envelopes.Get().(*envelope)
	e.bytes, e.outbox = q.Size(), q.Outbox
	b := encoder{buf: q.AppendHead(e.buf[:0])}
	if q.Query != nil {
		b.writeLength(5, query.Len())
	}
	e.buf = b.buf // grown, if the metadata are long
	return append(mem.BufferSlice{mem.NewBuffer(&e.buf, e)}, query...), nil
}

// Header returns the metadata as gRPC has those of a call.
func (q *StreamedQuery) Header() metadata.MD {
	md := make(metadata.MD, len(q.Metadata)/2)
	for i := 0; i+1 < len(q.Metadata); i += 2 {
		md[q.Metadata[i]] = append(md[q.Metadata[i]], q.Metadata[i+1])
	}
	return md
}

// AppendHead appends the message without its query to b.
func (q *StreamedQuery) AppendHead(b []byte) []byte {
	e := encoder{buf: b}
	if q.ID != 0 {
		e.writeVarint(1, q.ID)
	}
	if q.Cancel {
		e.writeVarint(2, 1)
	}
	if q.Timeout > 0 {
		e.writeVarint(3, uint64(q.Timeout))
	}
	for _, s := range q.Metadata {
		e.buf = protowire.AppendTag(e.buf, 4, protowire.BytesType)
		e.buf = protowire.AppendString(e.buf, s)
	}
	return e.buf
}

// DecodeHead decodes a message without a query, which is what AppendHead appends.
func (q *StreamedQuery) DecodeHead(head []byte) error {
	if err := q.unmarshal(mem.BufferSlice{mem.SliceBuffer(head)}); err != nil {
		return err
	}
	if q.Query != nil {
		q.Query.Release()
		q.Query = nil
		return invalidf("decode StreamedQuery: a query in its head")
	}
	return nil
}

// writeLength appends the tag and the length of a field whose n bytes follow.
func (e *encoder) writeLength(num protowire.Number, n int) {
	e.buf = protowire.AppendTag(e.buf, num, protowire.BytesType)
	e.buf = protowire.AppendVarint(e.buf, uint64(n))
}

// unmarshal decodes a message. A query in it that is malformed has the fault ([Request.Fault]). An
// error is of the message itself, whose stream cannot go on.
func (q *StreamedQuery) unmarshal(data mem.BufferSlice) error {
	*q = StreamedQuery{}
	c := newCursor(data)
	err := eachField(&c, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		var n uint64
		switch {
		case num <= 3 && typ == protowire.VarintType:
			n, err = c.readVarint()
			switch num {
			case 1:
				q.ID = n
			case 2:
				q.Cancel = n != 0
			case 3:
				q.Timeout = time.Duration(min(n, math.MaxInt64))
			}
		case num == 4 && typ == protowire.BytesType:
			if len(q.Metadata) == maxMetadata {
				return true, fmt.Errorf("more than %d metadata", maxMetadata)
			}
			var s cursor
			if s, err = c.readMessage(); err == nil {
				b := make([]byte, s.bytesLeft())
				s.copyTo(b)
				q.Metadata = append(q.Metadata, string(b))
			}
		case num == 5 && typ == protowire.BytesType:
			if q.Query != nil {
				return true, errors.New("two queries")
			}
			var of cursor
			if of, err = c.readMessage(); err == nil {
				q.Query = new(Request)
				q.Query.err = q.Query.decodeFrom(of, nil)
			}
		default:
			return false, nil
		}
		return true, err
	})
	if err == nil && len(q.Metadata)%2 != 0 {
		err = errors.New("metadata: a name without its value")
	}
	if err != nil {
		if q.Query != nil {
			q.Query.Release()
			q.Query = nil
		}
		return invalidf("decode StreamedQuery: %v", err)
	}
	return nil
}

func (a *StreamedAnswer) marshal() (mem.BufferSlice, error) {
	e := encoder{}
	var err error
	if e.buf, err = a.AppendHead(make([]byte, 0, 64)); err != nil {
		return nil, err
	}
	if a.Answer == nil {
		return mem.BufferSlice{mem.SliceBuffer(e.buf)}, nil
	}
	answer, err := a.Answer.marshal()
	if err != nil {
		return nil, err
	}
	e.writeLength(3, answer.Len())
	return append(mem.BufferSlice{mem.SliceBuffer(e.buf)}, answer...), nil
}

// AppendHead appends the message without its answer to b.
func (a *StreamedAnswer) AppendHead(b []byte) ([]byte, error) {
	e := encoder{buf: b}
	if a.ID != 0 {
		e.writeVarint(1, a.ID)
	}
	if a.Error != nil {
		status, err := proto.Marshal(a.Error)
		if err != nil {
			return b, err
		}
		e.writeLength(2, len(status))
		e.buf = append(e.buf, status...)
	}
	if a.HasRemaining {
		e.writeVarint(4, uint64(max(0, a.Remaining)))
	}
	if len(a.Spent) > 0 {
		e.writeLength(40, len(a.Spent))
		e.buf = append(e.buf, a.Spent...)
	}
	if a.Load != "" {
		e.writeLength(41, len(a.Load))
		e.buf = append(e.buf, a.Load...)
	}
	if len(a.Lanes) > 0 {
		e.writeLength(42, len(a.Lanes))
		e.buf = append(e.buf, a.Lanes...)
	}
	return e.buf, nil
}

// DecodeHead decodes a message without an answer, which is what AppendHead appends.
func (a *StreamedAnswer) DecodeHead(head []byte) error {
	if err := a.unmarshal(mem.BufferSlice{mem.SliceBuffer(head)}); err != nil {
		return err
	}
	if a.Answer != nil {
		a.Answer.Release()
		a.Answer = nil
		return invalidf("decode StreamedAnswer: an answer in its head")
	}
	return nil
}

func (a *StreamedAnswer) unmarshal(data mem.BufferSlice) error {
	*a = StreamedAnswer{}
	c := newCursor(data)
	err := eachField(&c, func(num protowire.Number, typ protowire.Type) (known bool, err error) {
		var n uint64
		var of cursor
		switch {
		case num == 1 && typ == protowire.VarintType:
			a.ID, err = c.readVarint()
		case num == 2 && typ == protowire.BytesType:
			if of, err = c.readMessage(); err == nil {
				b := make([]byte, of.bytesLeft())
				of.copyTo(b)
				a.Error = new(spb.Status)
				err = proto.Unmarshal(b, a.Error)
			}
		case num == 3 && typ == protowire.BytesType:
			if a.Answer != nil {
				return true, errors.New("two answers")
			}
			if of, err = c.readMessage(); err == nil {
				a.Answer = new(Response)
				err = a.Answer.decodeFrom(of)
			}
		case num == 4 && typ == protowire.VarintType:
			n, err = c.readVarint()
			a.Remaining, a.HasRemaining = time.Duration(min(n, math.MaxInt64)), true
		case num == 40 && typ == protowire.BytesType:
			if of, err = c.readMessage(); err == nil && of.bytesLeft() <= maxSpent {
				a.Spent = make([]byte, of.bytesLeft())
				of.copyTo(a.Spent)
			}
		case num == 41 && typ == protowire.BytesType:
			if of, err = c.readMessage(); err == nil && of.bytesLeft() <= maxLoad {
				b := make([]byte, of.bytesLeft())
				of.copyTo(b)
				a.Load = string(b)
			}
		case num == 42 && typ == protowire.BytesType:
			if of, err = c.readMessage(); err == nil && of.bytesLeft() <= maxSpent {
				a.Lanes = make([]byte, of.bytesLeft())
				of.copyTo(a.Lanes)
			}
		default:
			return false, nil
		}
		return true, err
	})
	if err != nil {
		if a.Answer != nil {
			a.Answer.Release()
			a.Answer = nil
		}
		return invalidf("decode StreamedAnswer: %v", err)
	}
	return nil
}
