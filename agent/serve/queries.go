package serve

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/runtime"
)

// maxCarried is how many queries of one Queries stream run at a time, or have an answer that the
// connection has not taken; further ones are not read from the connection. It is what one
// connection may have of calls.
const maxCarried = streamsPerConnection

// Queries answers the queries of a stream, each as soon as it has an answer. Each is served as a
// ModelInfer call is. The stream ends when the client sends no more and all is answered, or when
// the agent stops: it then answers what it has received.
//
// It owns a goroutine that receives, which ends soon after Queries returns, and one for each query.
func (s controlService) Queries(stream control.Control_QueriesServer) error {
	if err := stream.SendHeader(nil); err != nil { // the client waits for it
		return err
	}
	header, _ := metadata.FromIncomingContext(stream.Context())
	c := &queryStream{
		header:  header,
		service: service{s.Server}, stream: stream, cancels: map[uint64]context.CancelFunc{},
		room: make(chan struct{}, maxCarried),
	}
	ended := make(chan error, 1)
	go func() { ended <- c.receiveQueries() }()
	var err error
	select {
	case err = <-ended:
	case <-s.config.Closing.Done():
		err = runtime.ErrDraining
	}
	c.mu.Lock()
	c.closed = true
	if !errors.Is(err, io.EOF) && !errors.Is(err, runtime.ErrDraining) {
		for _, cancel := range c.cancels { // nobody will read their answers
			cancel()
		}
	}
	c.mu.Unlock()
	c.running.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// A queryStream is a Queries stream.
type queryStream struct {
	service service
	stream  grpc.ServerStream
	running sync.WaitGroup // queries
	room    chan struct{}  // has an element for each query whose answer is not sent
	header  metadata.MD    // the stream's

	sending sync.Mutex // held while an answer is sent

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc // of the queries that run
	closed  bool                          // no further query begins
}

// receiveQueries begins the queries that the client sends, until the stream ends.
func (c *queryStream) receiveQueries() error {
	for {
		q := new(oip.StreamedQuery)
		if err := c.stream.RecvMsg(q); err != nil {
			return err
		}
		arrival := time.Now() // its client counts its wait for room, too
		c.mu.Lock()
		cancel, known := c.cancels[q.ID]
		c.mu.Unlock()
		switch {
		case q.Cancel:
			if known {
				cancel()
			}
			continue
		case q.Query == nil:
			return outcome.Invalid("message %d of the stream has no query", q.ID)
		case known:
			q.Query.Release()
			return outcome.Invalid("two queries of the stream have the id %d", q.ID)
		}
		select {
		case c.room <- struct{}{}:
		case <-c.stream.Context().Done():
			q.Query.Release()
			return c.stream.Context().Err()
		}
		c.beginQuery(q, arrival)
	}
}

// beginQuery serves a query on a goroutine of its own. It drops the query if the stream has closed.
func (c *queryStream) beginQuery(q *oip.StreamedQuery, arrival time.Time) {
	r := &streamQuery{id: q.ID}
	r.receipt = receipt{server: c.service.Server, arrival: arrival, received: true}
	r.header = q.Header()
	ctx := c.stream.Context()
	if q.Timeout > 0 {
		ctx, r.cancel = context.WithDeadline(ctx, r.arrival.Add(q.Timeout))
	} else {
		ctx, r.cancel = context.WithCancel(ctx)
	}
	ctx = metadata.NewIncomingContext(ctx, r.header)
	r.Context = grpc.NewContextWithServerTransportStream(ctx, &r.transport)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		r.cancel()
		q.Query.Release()
		return
	}
	c.cancels[q.ID] = r.cancel
	c.running.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.running.Done()
		c.answerQuery(r, q.Query)
	}()
}

// A streamQuery is a query of a Queries stream, and its context.
type streamQuery struct {
	receipt
	id        uint64
	transport localTransport
}

// answerQuery serves a query, and sends its answer.
func (c *queryStream) answerQuery(r *streamQuery, req *oip.Request) {
	a := &oip.StreamedAnswer{ID: r.id}
	var err error
	if a.Answer, err = c.service.answerStreamed(r, req, c.header); err != nil {
		a.Answer, a.Error = nil, status.Convert(outcome.GRPC(err)).Proto()
	}
	a.Remaining, a.HasRemaining = control.RemainingOf(r.transport.trailer)
	a.Spent, a.Lanes = control.SpentBytes(r.transport.trailer)
	c.mu.Lock()
	delete(c.cancels, r.id)
	c.mu.Unlock()
	r.cancel()
	c.sending.Lock()
	err = c.stream.SendMsg(a)
	c.sending.Unlock()
	// Not before it is sent: else a client that reads no answers could have any number of them
	// wait.
	<-c.room
	if err != nil && a.Answer != nil { // the stream has broken
		a.Answer.Release()
	}
}

// answerStreamed answers one query, with what a ModelInfer call would do before and after. It owns
// req; the caller must release the response. header is the stream's.
func (s service) answerStreamed(r *streamQuery, req *oip.Request,
	header metadata.MD) (resp *oip.Response,
	err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, s.panicError(control.Control_Queries_FullMethodName, p)
		}
	}()
	attempt := isAttempt(r)
	refuse := func(err error) (*oip.Response, error) {
		req.Release()
		if attempt {
			s.config.Worker.CutOff(r, r.header[control.AttemptHeader][0], r.arrival)
		} else {
			s.countRefusedEarly(r, "", "", err)
		}
		return nil, err
	}
	if err := req.Fault(); err != nil {
		return refuse(status.Error(codes.InvalidArgument, err.Error()))
	}
	r.Context, err = s.config.Guard.Again(r.Context,
		inference.GRPCInferenceService_ModelInfer_FullMethodName, header)
	if err == nil {
		err = Callers{s.config.Guard}.MayQuery(r, req.Model)
	}
	if err != nil {
		return refuse(err)
	}
	err = s.intake.checkRoom(r)
	if err == nil {
		err = s.countQuery(r, r.header)
	}
	charge := oip.NewCharge(r, &s.intake)
	defer charge.Only(0)
	if err == nil {
		err = charge.AtLeast(req.Memory())
	}
	if err == nil { // as a call of its client's limit
		r.Context, err = s.config.Guard.Count(r.Context,
			inference.GRPCInferenceService_ModelInfer_FullMethodName)
	}
	if err != nil {
		if attempt {
			err = asRefused(err)
		}
		return refuse(err)
	}
	return s.ModelInfer(r, req)
}
