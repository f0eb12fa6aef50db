package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An agent answers queries as calls and on streams, each with its inputs.
type agent struct {
	oip.Server // the rest is not called
	control.UnimplementedControlServer
	none   bool                                           // it has no Queries
	answer func(context.Context, *oip.Request) error      // before the answer; nil: at once
	accept func() error                                   // before a stream is accepted; nil: it is
	read   func(context.Context)                          // before each message of a stream is read
	calls  atomic.Int64                                   // queries that came as calls
	queued atomic.Int64                                   // that came on a stream
	given  atomic.Int64                                   // that were given up
	broken chan struct{}                                  // ends the streams, one for each value
	asked  func(metadata.MD, time.Duration, *oip.Request) // sees each query
}

func (a *agent) ModelInfer(ctx context.Context, q *oip.Request) (*oip.Response, error) {
	a.calls.Add(1)
	md, _ := metadata.FromIncomingContext(ctx)
	deadline, _ := ctx.Deadline()
	if err := grpc.SetTrailer(ctx, control.RemainingTrailer(7)); err != nil {
		return nil, err
	}
	return a.run(ctx, md, time.Until(deadline), q)
}

func (a *agent) run(ctx context.Context, md metadata.MD, left time.Duration,
	q *oip.Request) (*oip.Response, error) {
	defer q.Release()
	if a.asked != nil {
		a.asked(md, left, q)
	}
	if a.answer != nil {
		if err := a.answer(ctx, q); err != nil {
			return nil, err
		}
	}
	return &oip.Response{
		Model: q.Model, ID: q.ID, Outputs: []tensor.Tensor{{
			Name: "y", DataType: tensor.FP32, Shape: q.Inputs[0].Shape,
			Data: slices.Clone(q.Inputs[0].Data),
		}},
	}, nil
}

func (a *agent) Queries(s control.Control_QueriesServer) error {
	if a.none {
		return status.Error(codes.Unimplemented, "no Queries here")
	}
	if a.accept != nil {
		if err := a.accept(); err != nil {
			return err
		}
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	cancels := map[uint64]context.CancelFunc{}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(s.Context())
	closed := false
	defer running.Wait()
	defer func() { mu.Lock(); closed = true; mu.Unlock() }()
	defer cancel()
	receive := func() error {
		for {
			if a.read != nil {
				a.read(ctx)
			}
			q := new(oip.StreamedQuery)
			if err := s.RecvMsg(q); err != nil {
				return err
			}
			if q.Cancel {
				a.given.Add(1)
				mu.Lock()
				if cancel := cancels[q.ID]; cancel != nil {
					cancel()
				}
				mu.Unlock()
				continue
			}
			a.queued.Add(1)
			ctx, cancel := context.WithCancel(ctx)
			if q.Timeout > 0 {
				ctx, cancel = context.WithTimeout(ctx, q.Timeout)
			}
			mu.Lock()
			cancels[q.ID] = cancel
			mu.Unlock()
			md := metadata.Pairs(q.Metadata...)
			mu.Lock()
			if closed {
				mu.Unlock()
				cancel()
				return nil
			}
			running.Add(1)
			mu.Unlock()
			go func() {
				defer running.Done()
				defer cancel()
				resp, err := a.run(ctx, md, q.Timeout, q.Query)
				m := &oip.StreamedAnswer{ID: q.ID, Answer: resp, Remaining: 7, HasRemaining: true}
				if err != nil {
					m.Error = status.Convert(err).Proto()
				}
				mu.Lock()
				defer mu.Unlock()
				delete(cancels, q.ID)
				_ = s.SendMsg(m) // the client sees the stream end
			}()
		}
	}
	go func() { ended <- receive() }()
	select {
	case err := <-ended:
		return err
	case <-a.broken:
		return status.Error(codes.Unavailable, "broken on purpose")
	}
}

// A pair is an agent in memory and a Conn to it.
type pair struct {
	*Conn
	agent *agent
	last  *atomic.Pointer[net.Conn] // the newest connection
}

// newPair starts an agent. It must be called in a synctest bubble, and the caller calls stop.
func newPair(t *testing.T, a *agent) (p pair, stop func()) {
	t.Helper()
	a.broken = make(chan struct{})
	lis := bufconn.Listen(1 << 20)
	server := grpc.NewServer(oip.ServerOptions(32 << 20)...)
	oip.RegisterServer(server, a)
	control.RegisterControlServer(server, a)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(lis) }()
	p = pair{agent: a, last: new(atomic.Pointer[net.Conn])}
	conn, err := grpc.NewClient("passthrough:///agent", append(oip.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := lis.DialContext(ctx)
			if err == nil {
				p.last.Store(&c)
			}
			return c, err
		}))...)
	if err != nil {
		t.Fatal(err)
	}
	p.Conn = New(conn, nil)
	return p, func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		<-served
	}
}

// query is a query of n floats, the first of which is id.
func query(id, n int) *oip.Request {
	x := make([]float32, n)
	x[0] = float32(id)
	in, err := tensor.Of("x", x, int64(n))
	if err != nil {
		panic(err)
	}
	return &oip.Request{Model: "m", ID: fmt.Sprint(id), Inputs: []tensor.Tensor{in}}
}

// infer sends a query, and checks the answer.
func (p pair) infer(ctx context.Context, id, n int, options ...grpc.CallOption) error {
	var resp oip.Response
	err := p.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, query(id, n),
		&resp, options...)
	if err != nil {
		return err
	}
	defer resp.Release()
	y, err := tensor.Values[float32](resp.Outputs[0])
	if err != nil || len(y) != n || y[0] != float32(id) || resp.ID != fmt.Sprint(id) {
		return fmt.Errorf("query %d of %d got the answer %q of %d, %v", id, n, resp.ID, len(y), err)
	}
	return nil
}

// open sends calls until a stream is open.
func (p pair) open(t *testing.T) {
	t.Helper()
	for range 10 {
		if err := p.infer(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause)
		synctest.Wait()
	}
	if p.agent.queued.Load() == 0 {
		t.Fatal("no stream was opened")
	}
}

// idle checks that nothing is left of the queries.
func (p pair) idle(t *testing.T) {
	t.Helper()
	synctest.Wait()
	p.mu.Lock()
	s := p.Conn.open
	p.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) > 0 || s.unsent.Held() != 0 {
		t.Errorf("%d queries wait and %d bytes are unsent, want none", len(s.calls),
			s.unsent.Held())
	}
}

// TestAnyOrder sends queries of all sizes at the same time, of which some are cancelled, some have
// deadlines that pass, some fail, and all are answered in any order, while streams and connections
// break. Each must have its own outcome.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { anyOrder(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func anyOrder(t *testing.T, r *rand.Rand) {
	breaks := r.IntN(2) == 0
	a := &agent{answer: func(ctx context.Context, q *oip.Request) error {
		var id int
		_, _ = fmt.Sscan(q.ID, &id) // it is a number
		select {
		case <-time.After(time.Duration(id*7919%50) * time.Millisecond):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		if id%11 == 3 {
			return oip.Explain(status.New(codes.ResourceExhausted, "full"), "overloaded",
				time.Second).Err()
		}
		return nil
	}}
	p, stop := newPair(t, a)
	defer stop()
	p.open(t)
	var all sync.WaitGroup
	for id := 10; id < 400; id++ {
		n := 1 + r.IntN(100)
		if r.IntN(10) == 0 {
			n = 1 + r.IntN(10_000)
		}
		ctx, cancel := context.WithCancel(t.Context())
		switch r.IntN(4) {
		case 0:
			time.AfterFunc(time.Duration(r.IntN(50))*time.Millisecond, cancel)
		case 1:
			ctx, cancel = context.WithTimeout(ctx, time.Duration(1+r.IntN(60))*time.Millisecond)
		}
		all.Go(func() {
			defer cancel()
			err := p.infer(ctx, id, n)
			switch code := status.Code(err); {
			case err == nil && id%11 != 3:
			case code == codes.ResourceExhausted && id%11 == 3:
				if oip.RetryAfter(status.Convert(err)) != time.Second {
					t.Errorf("query %d: the error %v has lost its details", id, err)
				}
			case code == codes.Canceled && errors.Is(ctx.Err(), context.Canceled):
			case code == codes.DeadlineExceeded &&
				errors.Is(context.Cause(ctx), context.DeadlineExceeded):
			case code == codes.DeadlineExceeded: // the agent's end of the deadline passed first
				if _, ok := ctx.Deadline(); !ok {
					t.Errorf("query %d: %v without a deadline", id, err)
				}
			case (code == codes.Unavailable || code == codes.Canceled) && breaks:
			default:
				t.Errorf("query %d: %v", id, err)
			}
		})
		time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
		if breaks && r.IntN(60) == 0 {
			if r.IntN(2) == 0 {
				select {
				case a.broken <- struct{}{}:
				default: // there is no stream
				}
			} else {
				_ = (*p.last.Load()).Close() // it may be broken already
			}
		}
	}
	all.Wait()
	p.idle(t)
	if a.queued.Load() < 100 && !breaks || a.queued.Load() < 12 || a.calls.Load() == 0 {
		t.Errorf("%d queries on streams and %d calls, want both", a.queued.Load(), a.calls.Load())
	}
}

// TestSameAsCall checks that an agent sees the same of a query on a stream as of a call, and the
// caller the same trailer.
func TestSameAsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type seen struct {
			left   time.Duration
			values map[string]string
		}
		var got []seen
		a := &agent{}
		p, stop := newPair(t, a)
		defer stop()
		p.open(t)
		a.asked = func(md metadata.MD, left time.Duration, _ *oip.Request) {
			s := seen{left.Round(time.Millisecond), map[string]string{}}
			for _, name := range []string{control.AttemptHeader, "traceparent", "muster-who-bin"} {
				s.values[name] = fmt.Sprintf("%q", md[name])
			}
			got = append(got, s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, control.AttemptHeader, "1/2/3/4/5/6",
			"traceparent", "a", "traceparent", "b", "muster-who-bin", "\x00\xff")
		streamed := a.queued.Load()
		for range 2 {
			var trailer metadata.MD
			if err := p.infer(ctx, 5, 10, grpc.Trailer(&trailer)); err != nil {
				t.Fatal(err)
			}
			if said, ok := control.RemainingOf(trailer); said != 7 || !ok {
				t.Errorf("the trailer %v says %d, want 7", trailer, said)
			}
			p.offered = false
		}
		if a.queued.Load() != streamed+1 || len(got) != 2 {
			t.Fatalf("%d queries of two came on the stream", a.queued.Load()-streamed)
		}
		if got[0].left != got[1].left || !maps.Equal(got[0].values, got[1].values) {
			t.Errorf("on a stream %v, in a call %v", got[0], got[1])
		}
	})
}

// TestCancelled checks that an agent learns that nobody waits for a query.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{}
		p, stop := newPair(t, a)
		defer stop()
		p.open(t)
		ended := make(chan error, 1)
		a.answer = func(ctx context.Context, _ *oip.Request) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := p.infer(ctx, 5, 10); status.Code(err) != codes.Canceled {
			t.Errorf("got %v, want Canceled", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) || a.given.Load() != 1 {
			t.Errorf("the agent's context ended with %v, after %d messages", err, a.given.Load())
		}
		p.idle(t)
	})
}

// TestWithoutStream checks that queries are calls where the agent has no streams, refuses them or
// does not accept them, where a query or its answer is large, and where too many wait; and that an
// agent that refuses streams is not asked for one with each query.
func TestWithoutStream(t *testing.T) {
	t.Run("not offered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			a := &agent{none: true}
			a.accept = func() error { asked++; return nil }
			p, stop := newPair(t, a)
			defer stop()
			for range 20 {
				if err := p.infer(t.Context(), 1, 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * pause)
			}
			if a.calls.Load() != 20 {
				t.Errorf("%d calls, want 20", a.calls.Load())
			}
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			a := &agent{accept: func() error {
				asked++
				return status.Error(codes.ResourceExhausted, "too many calls")
			}}
			p, stop := newPair(t, a)
			defer stop()
			for range 600 {
				if err := p.infer(t.Context(), 1, 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(pause)
			}
			synctest.Wait()
			if a.queued.Load() != 0 || asked < 2 || asked > 12 {
				t.Errorf("asked for %d streams in a minute, of which %d queries came, want few, 0",
					asked, a.queued.Load())
			}
		})
	})
	t.Run("never accepted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			forever := make(chan struct{})
			a := &agent{accept: func() error { <-forever; return errors.New("too late") }}
			p, stop := newPair(t, a)
			defer stop()
			defer close(forever)
			for range 20 {
				if err := p.infer(t.Context(), 1, 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * pause)
			}
		})
	})
	t.Run("large", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := &agent{}
			p, stop := newPair(t, a)
			defer stop()
			p.open(t)
			before := a.queued.Load()
			if err := p.infer(t.Context(), 1, largest/4+1); err != nil {
				t.Fatal(err)
			}
			if a.queued.Load() != before {
				t.Error("a large query went on the stream")
			}
			p.mu.Lock()
			p.Conn.open.large["m"] = true // as after a large answer
			p.mu.Unlock()
			if err := p.infer(t.Context(), 1, 1); err != nil {
				t.Fatal(err)
			}
			if a.queued.Load() != before {
				t.Error("a query with a large answer went on the stream")
			}
		})
	})
	t.Run("too many", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := &agent{}
			p, stop := newPair(t, a)
			defer stop()
			p.open(t)
			before, calls := a.queued.Load(), a.calls.Load()
			goOn := make(chan struct{})
			a.answer = func(context.Context, *oip.Request) error { <-goOn; return nil }
			var all sync.WaitGroup
			for id := range maxWaiting + 50 {
				all.Go(func() {
					if err := p.infer(t.Context(), id, 1); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			if s, c := a.queued.Load()-before, a.calls.Load()-calls; s != maxWaiting || c != 50 {
				t.Errorf("%d queries on the stream and %d calls, want %d and 50", s, c, maxWaiting)
			}
			close(goOn)
			all.Wait()
			p.idle(t)
		})
	})
}

// TestNotForStreams checks that a query that either end would end a stream with is a call, which
// says what is wrong with it or has its answer, and that the queries on the stream have theirs.
func TestNotForStreams(t *testing.T) {
	many := func(ctx context.Context) context.Context {
		for range 40 {
			ctx = metadata.AppendToOutgoingContext(ctx, "name", "value")
		}
		return ctx
	}
	for _, tt := range []struct {
		name    string
		spoil   func(*oip.Request)
		context func(context.Context) context.Context
		code    codes.Code
	}{
		{"parameter of an unknown type", func(q *oip.Request) {
			q.Parameters = map[string]any{"x": 5}
		}, nil, codes.Internal},
		{"wrong shape", func(q *oip.Request) {
			q.Inputs[0].Shape = []int64{7}
		}, nil, codes.Internal},
		{"many metadata", nil, many, codes.OK},
		{"long texts", func(q *oip.Request) {
			text := strings.Repeat("x", 40<<10)
			q.Parameters = map[string]any{"x": text, "y": text}
		}, nil, codes.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &agent{}
				p, stop := newPair(t, a)
				defer stop()
				p.open(t)
				goOn := make(chan struct{})
				a.answer = func(ctx context.Context, q *oip.Request) error {
					if q.ID == "2" {
						select {
						case <-goOn:
						case <-ctx.Done():
						}
					}
					return nil
				}
				other := make(chan error)
				go func() { other <- p.infer(t.Context(), 2, 1) }()
				synctest.Wait()
				before := a.queued.Load()
				ctx, q := t.Context(), query(3, 1)
				if tt.context != nil {
					ctx = tt.context(ctx)
				}
				if tt.spoil != nil {
					tt.spoil(q)
				}
				var resp oip.Response
				if err := p.Invoke(ctx, inference.GRPCInferenceService_ModelInfer_FullMethodName, q,
					&resp); status.Code(err) != tt.code {
					t.Errorf("got %v, want %v", err, tt.code)
				}
				resp.Release()
				close(goOn)
				if err := <-other; err != nil {
					t.Errorf("a query on the stream: %v", err)
				}
				if n := a.queued.Load() - before; n != 0 {
					t.Errorf("%d of one query came on the stream", n)
				}
				p.idle(t)
			})
		})
	}
}

// TestNotRead checks that nobody waits for a stream that the agent does not read: queries go as
// calls then, which end.
func TestNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{}
		p, stop := newPair(t, a)
		defer stop()
		p.open(t)
		goOn := make(chan struct{})
		a.read = func(ctx context.Context) {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
		}
		if err := p.infer(t.Context(), 1, 1); err != nil { // the one that is read already
			t.Fatal(err)
		}
		// 10 MB, beyond all windows and buffers of the stream, of queries that nobody waits for
		var all sync.WaitGroup
		calls := a.calls.Load()
		for id := range 1000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			all.Go(func() {
				defer cancel()
				err := p.infer(ctx, id, 2500)
				if err != nil && status.Code(err) != codes.DeadlineExceeded {
					t.Error(err)
				}
			})
			if id%100 == 99 {
				all.Wait()
			}
		}
		if a.calls.Load() == calls {
			t.Error("no query went as a call")
		}
		close(goOn)
		if err := p.infer(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
		p.idle(t)
	})
}

// TestRetire checks that a stream without queries ends, and that the next query opens another.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{}
		p, stop := newPair(t, a)
		defer stop()
		for range 2 {
			p.open(t)
			time.Sleep(3 * retire)
			synctest.Wait()
			p.mu.Lock()
			if p.Conn.open != nil || p.opens {
				t.Error("a stream without queries has not ended")
			}
			p.mu.Unlock()
			a.queued.Store(0)
		}
	})
}
