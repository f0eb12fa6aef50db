package secure

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
)

// Limits bound what those who are no agents of the fleet hold open at a time. Zero means no limit.
type Limits struct {
	// Connections are those of all servers together, from when they are accepted.
	Connections int
	// Calls are those of gRPC that are no queries, from when their headers have arrived: a stream
	// may stay open for ever. A call that is sent all that happens (Watch) counts as watchCalls.
	Calls int
}

// watchCalls is how many other calls a Watch costs as much memory as: what its client does not
// read waits, 64 KiB of it.
const watchCalls = 4

// A quota bounds what peers hold of something, in total and each: a peer gets one more as long as
// it then holds at most freeShare times what is left. So one peer alone, which may be a
// load balancer with thousands of clients, can have three quarters of all; two at most 3/7
// each; and however many come, there is some left for the next.
type quota struct {
	limit int // 0: none

	mu   sync.Mutex
	held int
	by   map[string]int // by peer; those that hold nothing are not in it
}

const freeShare = 3

// take reports whether the peer may have n more. They are to be given back.
func (q *quota) take(peer string, n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.limit > 0 && q.by[peer]+n > freeShare*(q.limit-q.held-n+1) {
		return false
	}
	if q.by == nil {
		q.by = map[string]int{}
	}
	q.held += n
	q.by[peer] += n
	return true
}

func (q *quota) give(peer string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	if q.by[peer] -= n; q.by[peer] == 0 {
		delete(q.by, peer)
	}
}

// holderOf is whose an address is: the host, or in IPv6 the network of 64 bits, which one host may
// have all of.
func holderOf(address net.Addr) string {
	host := hostOf(address)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() && !ip.Is4In6() {
		network, _ := ip.WithZone("").Prefix(64) // an IPv6 address has one
		return network.String()
	}
	return host
}

var (
	errTooManyCalls = status.Error(codes.ResourceExhausted,
		"too many calls are open: try again when some have ended, or elsewhere")
	errTooManyConnections = errors.New("one more than may be open at a time")
)

// Limit is l, but for connections beyond Limits.Connections, which are closed at once, counted and
// logged. One that proves to be an agent's is not counted from then on.
func (g *Guard) Limit(l net.Listener) net.Listener { return limitedListener{l, g} }

type limitedListener struct {
	net.Listener
	guard *Guard
}

func (l limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, conns := holderOf(conn.RemoteAddr()), &l.guard.connections
		if conns.take(peer, 1) {
			return &countedConn{
				Conn: conn, uncount: sync.OnceFunc(func() { conns.give(peer, 1) }),
			}, nil
		}
		l.guard.observe(ReasonConnections)
		l.guard.refusals.add(conn.RemoteAddr(), "connection refused", "too many connections",
			errTooManyConnections)
		_ = conn.Close() // nobody is there to hear of an error
	}
}

// A countedConn is a connection that is counted until it is closed, or is known to be an agent's.
type countedConn struct {
	net.Conn
	uncount func() // calls after the first do nothing
}

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.uncount()
	return err
}

// CloseWrite is as that of a plainConn.
func (c *countedConn) CloseWrite() error { return closeWrite(c.Conn) }

// paceRate and paceBurst bound, a second, the calls and requests that cost their sender nothing:
// the refused, and those that anybody may make.
const paceRate, paceBurst = 1000, 1000

// longestPace is the longest that one is held up.
const longestPace = time.Second

// pace holds up a call that costs its sender nothing if there are too many of them, and with it
// what else comes by its connection; the sender's own timeout does not count. It is not for those
// that a client with a name may make.
func (g *Guard) pace() { time.Sleep(min(g.free.Reserve().Delay(), longestPace)) }

// Count counts a call by gRPC until its context ends, or refuses one that is beyond Limits, or the
// limits of its client. Nobody may refuse it after that: grpc never ends the context of a call that
// its server's tap refuses.
func (g *Guard) Count(ctx context.Context, method string) error {
	done, over := g.hold(ctx)
	if over != nil {
		return over.status()
	}
	c, _ := ctx.Value(callerKey{}).(caller)
	if c.agent || method == inference.GRPCInferenceService_ModelInfer_FullMethodName {
		if done != nil {
			context.AfterFunc(ctx, done)
		}
		return nil
	}
	who, n := "address "+holderOf(c.from), 1
	if c.name != "" {
		who = "client " + c.name
	}
	if method == control.Control_Watch_FullMethodName {
		n = watchCalls
	}
	if !g.calls.take(who, n) {
		if done != nil {
			done()
		}
		g.pace()
		g.observe(ReasonCalls)
		g.refusals.add(c.from, "call refused", "too many calls", errTooManyCalls)
		return errTooManyCalls
	}
	context.AfterFunc(ctx, func() {
		g.calls.give(who, n)
		if done != nil {
			done()
		}
	})
	return nil
}
