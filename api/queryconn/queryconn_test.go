package queryconn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// query is a query with one input of n bytes.
func query(n int) *oip.Request {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	return &oip.Request{Model: "m", ID: "7", Inputs: []tensor.Tensor{{
		Name: "x", DataType: tensor.Uint8, Shape: []int64{1, int64(n)}, Data: data,
	}}}
}

// read reads a query from its length on.
func read(s *Server) (*oip.Request, error) {
	var header [5]byte
	if err := s.ReadMessageHeader(header[:]); err != nil {
		return nil, err
	}
	data, err := s.Read(int(binary.BigEndian.Uint32(header[1:])))
	if err != nil {
		return nil, err
	}
	defer data.Free()
	q := new(oip.Request)
	if err := (oip.Codec{}).Unmarshal(data, q); err != nil {
		return nil, err
	}
	return q, q.Fault()
}

// pair returns both ends of a TCP connection. The server's goes to serve.
func pair(t *testing.T, timeouts Timeouts, serve func(*Server)) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := direct.Listener(l).Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		first := make([]byte, len(Preface))
		if _, err := io.ReadFull(conn, first); err != nil || string(first) != Preface {
			t.Errorf("began with %q and error %v", first, err)
			return
		}
		s := NewServer(conn, timeouts)
		defer s.Release()
		serve(s)
	}()
	d := &Dialer{Dial: TCP, Credentials: direct.Credentials(insecure.NewCredentials())}
	c, err := d.To(l.Addr().String())(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = l.Close()
		<-ended
	})
	return c
}

var patient = Timeouts{Head: time.Minute, Rest: time.Minute}

// TestQueries: queries and answers of all sizes arrive as they were sent, one after another, also
// after an error, and after a query that the server has not read.
func TestQueries(t *testing.T) {
	c := pair(t, patient, func(s *Server) {
		for {
			head, err := s.Next()
			if err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				return
			}
			if phase, _ := s.Phase(); phase != Arriving {
				t.Errorf("phase %v while a query arrives", phase)
			}
			s.Begin(t.Context())
			a := &oip.StreamedAnswer{Remaining: head.Timeout, HasRemaining: head.Timeout > 0}
			if md := head.Header(); len(md.Get("refuse")) == 0 {
				q, err := read(s)
				if err != nil {
					t.Error(err)
					return
				}
				if phase, _ := s.Phase(); phase != Answering {
					t.Errorf("phase %v while a query has no answer", phase)
				}
				a.Answer = &oip.Response{Model: q.Model, ID: q.ID, Outputs: slices.Clone(q.Inputs)}
				a.Answer.OnRelease(q.Release)
			} else {
				a.Error = status.New(codes.ResourceExhausted, md.Get("refuse")[0]).Proto()
			}
			if err := s.Answer(a); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for _, size := range []int{
		0, 1, 100, bufferSize/2 - 100, bufferSize / 2, bufferSize, bufferSize + 1, 5 << 20, 3,
	} {
		for _, refuse := range []bool{false, true, false} {
			q := query(size)
			m := &oip.StreamedQuery{Query: q, Timeout: time.Duration(size)}
			if refuse {
				m.Metadata = []string{"refuse", "full"}
			}
			var a oip.StreamedAnswer
			if err := c.Query(t.Context(), m, &a); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if a.HasRemaining != (size > 0) || a.Remaining != time.Duration(size) {
				t.Errorf("%d bytes: remaining %v, %v", size, a.Remaining, a.HasRemaining)
			}
			if refuse {
				if a.Answer != nil || a.Error.GetMessage() != "full" {
					t.Errorf("%d bytes, refused: got %v, %v", size, a.Answer, a.Error)
				}
				continue
			}
			if a.Error != nil || a.Answer.ID != "7" ||
				!bytes.Equal(a.Answer.Outputs[0].Data, q.Inputs[0].Data) {
				t.Errorf("%d bytes: got another answer, or %v", size, a.Error)
			}
			a.Answer.Release()
		}
	}
}

// TestGivenUp: a query that is given up closes the connection, of which the server can tell while the
// query has no answer.
func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := pair(t, patient, func(s *Server) {
		if _, err := s.Next(); err != nil {
			t.Error(err)
			return
		}
		s.Begin(t.Context())
		if _, err := read(s); err != nil {
			t.Error(err)
			return
		}
		conn := s.conn.(syscall.Conn)
		if direct.Ended(conn) {
			t.Error("ended before the query is given up")
		}
		cancel()
		for runtime.GOOS == "linux" && !direct.Ended(conn) {
			time.Sleep(time.Millisecond)
		}
		if _, err := s.Next(); err != io.EOF {
			t.Errorf("after the client's end: %v", err)
		}
	})
	var a oip.StreamedAnswer
	if err := c.Query(ctx, &oip.StreamedQuery{Query: query(10)}, &a); err == nil {
		t.Error("an answer to a query that was given up")
	}
}

// TestSlowQuery: a query that does not arrive ends with its context, a head with the time for it, and
// no query can follow.
func TestSlowQuery(t *testing.T) {
	t.Run("query", func(t *testing.T) {
		done := make(chan error, 2)
		c := pair(t, patient, func(s *Server) {
			if _, err := s.Next(); err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			s.Begin(ctx)
			_, err := read(s)
			done <- err
			if err := s.Answer(&oip.StreamedAnswer{
				Error: status.New(codes.DeadlineExceeded, "slow").Proto(),
			}); err != nil {
				t.Error(err)
			}
			_, err = s.Next()
			done <- err
		})
		send(t, c, head(0), []byte{0, 0, 0, 9, 1, 2})
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("reading ended with %v", err)
		}
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the next query: %v", err)
		}
	})
	for name, sent := range map[string][]byte{
		"head":          {0, 0, 0, 9, 1},
		"length":        {0, 0},
		"rest":          append(head(0), 0, 0, 0, 9, 1, 2),
		"no length yet": head(0),
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			c := pair(t, Timeouts{Head: 10 * time.Millisecond, Rest: 10 * time.Millisecond},
				func(s *Server) {
					_, err := s.Next()
					if err == nil { // answered before it was read
						if err := s.Answer(&oip.StreamedAnswer{}); err != nil {
							t.Error(err)
						}
						_, err = s.Next()
					}
					done <- err
				})
			send(t, c, sent)
			if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v, want the end of the time", err)
			}
		})
	}
}

// head is a head of n bytes of metadata.
func head(n int) []byte {
	q := oip.StreamedQuery{Timeout: time.Second, Metadata: []string{"a", strings.Repeat("b", n)}}
	b := q.AppendHead(make([]byte, 4))
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func send(t *testing.T, c *Client, all ...[]byte) {
	t.Helper()
	for _, b := range all {
		if _, err := c.conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBadHeads: a head that is too large or no head ends the connection with an error that says why.
func TestBadHeads(t *testing.T) {
	for _, tt := range []struct {
		want string
		sent []byte
	}{
		{"the head of a query of 65563 bytes, want at most 65536", head(65550)},
		{"the head of a query of 1195725856 bytes", []byte("GET / HTTP/1.1\r\n\r\n")},
		{"decode StreamedQuery", []byte{0, 0, 0, 2, 255, 255}},
		{"a query in its head", []byte{0, 0, 0, 2, 5<<3 | 2, 0}},
		{"a name without its value", []byte{0, 0, 0, 3, 4<<3 | 2, 1, 'a'}},
	} {
		done := make(chan error, 1)
		c := pair(t, patient, func(s *Server) {
			_, err := s.Next()
			done <- err
		})
		send(t, c, tt.sent)
		if err := <-done; err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want an error with %q", err, tt.want)
		}
	}
}

// TestBadAnswers: what a server may not send is an error of the client.
func TestBadAnswers(t *testing.T) {
	for _, tt := range []struct {
		want string
		sent []byte
	}{
		{"EOF", nil},
		{"unexpected EOF", []byte{0, 0, 0, 0, 0, 0, 0, 9, 1}},
		{"the head of an answer of 1213486160 bytes", []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		{"decode StreamedAnswer", []byte{0, 0, 0, 2, 255, 255}},
		{"2 bytes after an answer", []byte{0, 0, 0, 0, 0, 0, 0, 3, 1<<3 | 2, 1, 'm', 8, 9}},
	} {
		c := pair(t, patient, func(s *Server) {
			if _, err := s.Next(); err != nil {
				t.Error(err)
			}
			s.Begin(t.Context())
			if _, err := read(s); err != nil {
				t.Error(err)
			}
			if _, err := s.conn.Write(tt.sent); err != nil {
				t.Error(err)
			}
		})
		var a oip.StreamedAnswer
		err := c.Query(t.Context(), &oip.StreamedQuery{Query: query(10)}, &a)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want an error with %q", err, tt.want)
		}
	}
}

// A memory is a connection of which the other end has sent bytes, and then closed it.
type memory struct {
	net.Conn
	sent io.Reader
}

func (m memory) Read(b []byte) (int, error)      { return m.sent.Read(b) }
func (m memory) Write(b []byte) (int, error)     { return len(b), nil }
func (m memory) SetReadDeadline(time.Time) error { return nil }

// FuzzServer: whatever a client sends, the server reads queries and then an end or an error, and
// takes no more memory than was announced by what has come.
func FuzzServer(f *testing.F) {
	message, err := oip.Codec{}.Marshal(query(40))
	if err != nil {
		f.Fatal(err)
	}
	good := head(3)
	good = binary.BigEndian.AppendUint32(good, uint32(message.Len()))
	good = append(good, message.Materialize()...)
	f.Add(good, uint(1000))
	f.Add(append(slices.Clone(good), good...), uint(3))
	f.Add([]byte{0, 0, 0, 0, 255, 255, 255, 255}, uint(1))
	f.Fuzz(func(t *testing.T, sent []byte, step uint) {
		s := NewServer(memory{sent: &slowly{sent, int(step%1000) + 1}}, patient)
		defer s.Release()
		for i := 0; ; i++ {
			if i > len(sent)/8 {
				t.Fatalf("%d queries of %d bytes", i, len(sent))
			}
			if _, err := s.Next(); err != nil {
				return
			}
			s.Begin(t.Context())
			if i%3 < 2 { // the others are refused before they are read
				var header [5]byte
				if err := s.ReadMessageHeader(header[:]); err != nil {
					return
				}
				n := binary.BigEndian.Uint32(header[1:])
				if n > math.MaxInt32 {
					t.Fatalf("a query of %d bytes", n)
				}
				if n > 1<<20 {
					return
				}
				data, err := s.Read(int(n))
				if err != nil {
					return
				}
				q := new(oip.Request)
				_ = oip.Codec{}.Unmarshal(data, q)
				data.Free()
				q.Release()
			}
			if err := s.Answer(&oip.StreamedAnswer{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A slowly reads at most step bytes at a time.
type slowly struct {
	rest []byte
	step int
}

func (s *slowly) Read(b []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), s.step)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// BenchmarkQueries measures a query and its answer on loopback, without a run.
func BenchmarkQueries(b *testing.B) {
	for _, size := range []int{100, 580 << 10, 8 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			benchmarkQueries(b, size)
		})
	}
}

func benchmarkQueries(b *testing.B, size int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	into := make([]byte, size+100)
	go func() {
		conn, err := direct.Listener(l).Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, len(Preface))); err != nil {
			return
		}
		s := NewServer(conn, patient)
		for {
			if _, err := s.Next(); err != nil {
				return
			}
			s.Begin(context.Background())
			var header [5]byte
			if s.ReadMessageHeader(header[:]) != nil ||
				s.ReadInto(into[:binary.BigEndian.Uint32(header[1:])]) != nil ||
				s.Answer(&oip.StreamedAnswer{Answer: &oip.Response{Model: "m"}}) != nil {
				return
			}
		}
	}()
	d := &Dialer{Dial: TCP, Credentials: direct.Credentials(insecure.NewCredentials())}
	c, err := d.To(l.Addr().String())(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	q := query(size)
	for b.Loop() {
		var a oip.StreamedAnswer
		if err := c.Query(b.Context(), &oip.StreamedQuery{Query: q}, &a); err != nil {
			b.Fatal(err)
		}
		a.Answer.Release()
	}
}

// TestSending: a connection does not count as idle while an answer is sent, or a server that stops
// would close it.
func TestSending(t *testing.T) {
	client, conn := net.Pipe()
	s := NewServer(conn, Timeouts{})
	answered := make(chan error)
	go func() {
		answered <- s.Answer(&oip.StreamedAnswer{Answer: &oip.Response{
			Model: "m", Outputs: []tensor.Tensor{{
				Name: "y", DataType: tensor.Uint8, Shape: []int64{1 << 20}, Data: make([]byte, 1<<20),
			}},
		}})
		_ = conn.Close()
	}()
	if _, err := io.ReadFull(client, make([]byte, 1)); err != nil { // the rest waits for the client
		t.Fatal(err)
	}
	if phase, _ := s.Phase(); phase != Sending {
		t.Errorf("phase %d within an answer, want %d", phase, Sending)
	}
	go func() { _, _ = io.Copy(io.Discard, client) }()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if phase, _ := s.Phase(); phase != Idle {
		t.Errorf("phase %d after an answer, want %d", phase, Idle)
	}
}
