package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
	"github.com/muster-serve/muster/api/tensor"
)

// A far is the other end of a pool's connections.
type far struct {
	pool    *connPool
	running sync.WaitGroup
	refuses bool   // connections are refused
	hold    func() // called before each answer; nil: at once

	mu     sync.Mutex
	dialed int
	conns  map[net.Conn]bool
}

// newFar returns a far end and its pool, which the caller stops. It must be called in a bubble.
func newFar(t *testing.T) (f *far, stop func()) {
	f = &far{conns: map[net.Conn]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	d := &queryconn.Dialer{Credentials: insecure.NewCredentials(), Dial: f.dial}
	f.pool = &connPool{
		dial: d.To("agent"), ctx: ctx, running: new(sync.WaitGroup),
		all: map[*queryconn.Client]struct{}{},
	}
	return f, func() {
		cancel()
		f.pool.close()
		f.pool.running.Wait()
		f.running.Wait()
	}
}

func (f *far) dial(context.Context, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialed++
	if f.refuses {
		return nil, errors.New("refused")
	}
	near, conn := net.Pipe()
	f.conns[conn] = true
	f.running.Go(func() { f.serve(conn) })
	return near, nil
}

func (f *far) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		f.mu.Lock()
		delete(f.conns, conn)
		f.mu.Unlock()
	}()
	if _, err := io.ReadFull(conn, make([]byte, len(queryconn.Preface))); err != nil {
		return
	}
	s := queryconn.NewServer(conn, queryconn.Timeouts{Head: time.Hour, Rest: time.Hour})
	defer s.Release()
	for {
		head, err := s.Next()
		if err != nil {
			return
		}
		s.Begin(context.Background())
		var size [5]byte
		if s.ReadMessageHeader(size[:]) != nil {
			return
		}
		message, err := s.Read(int(binary.BigEndian.Uint32(size[1:])))
		if err != nil {
			return
		}
		message.Free()
		if f.hold != nil {
			f.hold()
		}
		if s.Answer(&oip.StreamedAnswer{
			Remaining: head.Timeout, HasRemaining: true, Answer: &oip.Response{Model: "m"},
		}) != nil {
			return
		}
	}
}

// open is how many connections are open.
func (f *far) open() int {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

func item() *oip.Request {
	return &oip.Request{Model: "m", Inputs: []tensor.Tensor{{
		Name: "x", DataType: tensor.Uint8, Shape: []int64{1}, Data: []byte{1},
	}}}
}

// taken takes n connections, each after the last one has been opened.
func (f *far) taken(t *testing.T, small bool, n int) (all []*queryconn.Client) {
	t.Helper()
	for range n {
		c := f.pool.takeConn(small)
		if c == nil {
			synctest.Wait()
			c = f.pool.takeConn(small)
		}
		if c == nil {
			t.Fatalf("no connection after %d", len(all))
		}
		all = append(all, c)
	}
	return all
}

// TestPoolSize: there are as many connections as queries at a time, up to a limit that is lower for
// small ones, and those that are not needed are closed.
func TestPoolSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFar(t)
		defer stop()
		small := f.taken(t, true, maxSmall)
		if c := f.pool.takeConn(true); c != nil || f.open() != maxSmall {
			t.Errorf("%d connections for small queries, and one more: %v", f.open(), c)
		}
		all := append(small, f.taken(t, false, maxConns-maxSmall)...)
		if c := f.pool.takeConn(false); c != nil || f.open() != maxConns {
			t.Errorf("%d connections, and one more: %v", f.open(), c)
		}
		for _, c := range all {
			f.pool.giveBack(c)
		}
		time.Sleep(spare + time.Second) // they were in use since the last look
		if got := f.open(); got != maxConns {
			t.Errorf("%d connections are left after the first look, want all", got)
		}
		for range 20 { // of which each needs one
			time.Sleep(spare / 10)
			f.pool.giveBack(f.taken(t, false, 1)[0])
		}
		if got := f.open(); got != 1 {
			t.Errorf("%d connections for one query at a time", got)
		}
		time.Sleep(3 * spare)
		if got := f.open(); got != 0 {
			t.Errorf("%d connections without queries", got)
		}
		if f.pool.giveBack(f.taken(t, true, 1)[0]); f.open() != 1 {
			t.Error("no connection after a pause")
		}
	})
}

// TestPoolQuery: a query is answered as a call is; one whose connection has ended has no answer,
// and one that is given up ends at once.
func TestPoolQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFar(t)
		defer stop()
		var reply oip.Response
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := f.taken(t, true, 1)[0]
		if err, answered := f.pool.sendQuery(ctx, c, item(), &reply, nil); err != nil ||
			!answered ||
			reply.Model != "m" {
			t.Errorf("got %v, %v and the answer %v", err, answered, reply.Model)
		}
		c = f.taken(t, true, 1)[0]
		f.mu.Lock()
		for conn := range f.conns {
			_ = conn.Close() // as an agent does that stops
		}
		f.mu.Unlock()
		if err, answered := f.pool.sendQuery(ctx, c, item(), &reply, nil); answered {
			t.Errorf("answered on a closed connection: %v", err)
		}
		f.hold = func() { time.Sleep(time.Minute) }
		c = f.taken(t, true, 1)[0]
		began := time.Now()
		err, answered := f.pool.sendQuery(ctx, c, item(), &reply, nil)
		if status.Code(err) != codes.DeadlineExceeded || !answered ||
			time.Since(began) > time.Second {
			t.Errorf("past the deadline: got %v, %v after %v", err, answered, time.Since(began))
		}
		if got := len(f.pool.all); got != 0 {
			t.Errorf("%d connections are left", got)
		}
		if err, answered := f.pool.sendQuery(ctx, f.taken(t, true, 1)[0], item(), &reply,
			nil); !answered ||
			status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("with a deadline in the past: got %v, %v", err, answered)
		}
		bad := item()
		bad.Inputs[0].Data = nil
		if err, answered := f.pool.sendQuery(t.Context(), f.taken(t, true, 1)[0], bad, &reply,
			nil); answered {
			t.Errorf("an answer to a query that cannot be sent, or %v", err)
		}
		for _, md := range []struct{ n, size int }{{40, 1}, {20, 4 << 10}} { // too many, too long
			ctx := t.Context()
			for range md.n {
				ctx = metadata.AppendToOutgoingContext(ctx, "x", strings.Repeat("x", md.size))
			}
			if err, answered := f.pool.sendQuery(ctx, f.taken(t, true, 1)[0], item(), &reply,
				nil); answered {
				t.Errorf("%d metadata: an answer, or %v", md.n, err)
			}
		}
		if len(f.pool.free) != 1 {
			t.Error("a connection was closed for a query that was not sent")
		}
	})
}

// TestPoolRefused: an agent that accepts no connections is asked less and less often, and a Close
// ends the queries that wait for their answers.
func TestPoolRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFar(t)
		f.refuses = true
		for range 1000 {
			if f.pool.takeConn(true) != nil {
				t.Fatal("a connection that was refused")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if f.dialed < 5 || f.dialed > 12 {
			t.Errorf("dialed %d times in 100 s", f.dialed)
		}
		f.refuses = false
		time.Sleep(maxPause)
		ended := make(chan bool)
		f.hold = func() { time.Sleep(time.Hour) }
		c := f.taken(t, true, 1)[0]
		go func() {
			_, answered := f.pool.sendQuery(t.Context(), c, item(), new(oip.Response), nil)
			ended <- answered
		}()
		synctest.Wait()
		f.pool.close()
		if answered := <-ended; answered {
			t.Error("an answer after Close")
		}
		if f.pool.takeConn(true) != nil {
			t.Error("a connection after Close")
		}
		stop()
	})
}
