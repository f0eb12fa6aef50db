package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/muster-serve/muster/api/tensor"
	"github.com/muster-serve/muster/models"
)

// A front serves gRPC on a listener with a limit on the size of messages that
// follows from the models. grpc fixes the limit when a server is made; so a
// higher one takes a new server, which gets the connections from then on, while
// the old one finishes its calls and has its clients connect anew, as they do
// by themselves.
//
// Its goroutines are Serve, one for each server, and one that ends an old
// server; stop ends them all and waits.
type front struct {
	listener  net.Listener
	newServer func(largestMessage int64) *grpc.Server
	log       *slog.Logger

	running sync.WaitGroup // servers

	mu      sync.Mutex
	limit   int64          // of the current server
	conns   *handoff       // to the current server
	servers []*grpc.Server // the current one last; all but it are ending
	stopped bool
}

func newFront(l net.Listener, limit int64, newServer func(int64) *grpc.Server, log *slog.Logger) *front {
	f := &front{listener: l, newServer: newServer, log: log}
	f.allow(limit)
	return f
}

// allow has messages of n bytes accepted, if they are not yet.
func (f *front) allow(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n <= f.limit || f.stopped {
		return
	}
	f.limit = n
	server, conns := f.newServer(n), newHandoff(f.listener.Addr())
	if len(f.servers) > 0 {
		old := f.servers[len(f.servers)-1]
		f.running.Go(func() {
			old.GracefulStop()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.servers = slices.DeleteFunc(f.servers, func(s *grpc.Server) bool { return s == old })
		})
	}
	f.servers, f.conns = append(f.servers, server), conns
	f.running.Go(func() {
		if err := server.Serve(conns); err != nil { // only if stop came first
			f.log.Debug("gRPC server ended", "error", err)
		}
	})
}

// Serve accepts connections until the listener is closed.
func (f *front) Serve() error {
	failing := false
	for {
		conn, err := f.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // out of descriptors, say: others may close some
			if !failing {
				f.log.Warn("no gRPC connection can be accepted for now", "error", err)
			}
			failing = true
			time.Sleep(100 * time.Millisecond)
		default:
			if failing {
				f.log.Info("gRPC connections are accepted again")
			}
			failing = false
			f.give(conn)
		}
	}
}

// give hands a connection to the current server.
func (f *front) give(conn net.Conn) {
	for {
		f.mu.Lock()
		conns, stopped := f.conns, f.stopped
		f.mu.Unlock()
		if stopped {
			_ = conn.Close() // nobody is there to hear of an error
			return
		}
		if conns.give(conn) {
			return
		}
	}
}

// stop lets calls in progress finish until ctx ends, and then ends them. It
// returns ctx's error if it had to.
func (f *front) stop(ctx context.Context) error {
	f.mu.Lock()
	f.stopped = true
	servers := slices.Clone(f.servers)
	f.mu.Unlock()
	_ = f.listener.Close() // closing twice is harmless

	ended := make(chan struct{})
	go func() {
		servers[len(servers)-1].GracefulStop() // the others are ending already
		f.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		for _, s := range servers {
			s.Stop()
		}
		<-ended
		return ctx.Err()
	}
}

// A handoff is a listener that is given its connections.
type handoff struct {
	address net.Addr
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func newHandoff(address net.Addr) *handoff {
	return &handoff{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give reports whether it was accepted.
func (h *handoff) give(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.closed:
		return false
	}
}

func (h *handoff) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handoff) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *handoff) Addr() net.Addr { return h.address }

// leastLimit is the size of a message that every agent accepts, whatever its models: what
// agents tell each other has its room in it.
const leastLimit = 1 << 20

// envelope is what a query may have beside its tensors' elements, in bytes.
const envelope = 64 << 10

// What an element of a tensor may take on the wire, in bytes.
const (
	protobufElement = 10 // a negative integer as varint
	jsonElement     = 26 // a float64 with sign, exponent and comma
)

// largestQuery is how many bytes a query of a model with such inputs may have on
// a wire that takes up to perElement bytes an element: it follows from the largest batch.
// Where a query may choose other dimensions too, or sends strings, or would
// need more, it is limit.
func largestQuery(inputs []models.Port, largestBatchSize int, perElement, limit int64) int64 {
	total := int64(envelope)
	for _, p := range inputs {
		elements := int64(largestBatchSize)
		for _, d := range p.Shape[min(1, len(p.Shape)):] {
			if d == models.Dynamic || d > 0 && elements > limit/d {
				return limit
			}
			elements *= d
		}
		if p.DataType == tensor.Bytes || elements > limit/perElement {
			return limit
		}
		total += elements * perElement
	}
	return min(total, limit)
}
