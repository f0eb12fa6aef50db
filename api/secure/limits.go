package secure

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/extproc"
	"github.com/muster-serve/muster/api/inference"
)

// Limits bound what callers other than agents of the fleet hold open at a time. Zero means no
// limit.
type Limits struct {
	// Connections bounds the connections of all servers together, from when they are accepted.
	Connections int
	// Calls bounds gRPC calls other than queries, from when their headers have arrived: a stream
	// may stay open for ever. A Watch, which gets every change of the fleet, counts as watchCalls.
	// Where clients must show who they are, those that have not share a quarter.
	Calls int
}

// watchCalls is how many calls a Watch counts as. It costs as much memory: up to 64 KiB wait for
// its client to read them.
const watchCalls = 4

// A quota bounds how many units peers hold, in total and each. A peer gets more as long as it then
// holds at most freeShare times the units that are left. So a single peer, which may be a load
// balancer with thousands of clients, can have three quarters of all units; two peers at most 3/7
// each; and for any number of peers, some units are left for the next.
type quota struct {
	limit int // 0: none

	mu   sync.Mutex
	held int
	by   map[string]int // units held, by peer; only those that hold some
}

const freeShare = 3

// takeUnits gives the peer n more units and reports true, or reports false. The caller must give
// them back.
func (q *quota) takeUnits(peer string, n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.hasRoom(peer, n) {
		return false
	}
	q.grantUnits(peer, n)
	return true
}

// hasRoom reports whether the peer may have n more units. q.mu is held.
func (q *quota) hasRoom(peer string, n int) bool {
	return q.limit == 0 || q.by[peer]+n <= freeShare*(q.limit-q.held-n+1)
}

// grantUnits gives the peer n more units. q.mu is held.
func (q *quota) grantUnits(peer string, n int) {
	if q.by == nil {
		q.by = map[string]int{}
	}
	q.held += n
	q.by[peer] += n
}

func (q *quota) returnUnits(peer string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release(peer, n)
}

// release takes n units back. q.mu is held.
func (q *quota) release(peer string, n int) {
	q.held -= n
	if q.by[peer] -= n; q.by[peer] == 0 {
		delete(q.by, peer)
	}
}

// holderOf returns the peer that an address belongs to: the host, or the /64 network in IPv6, all
// of whose addresses one host may have.
func holderOf(address net.Addr) string {
	host := hostOf(address)
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() && !ip.Is4In6() {
		network, _ := ip.WithZone("").Prefix(64) // an IPv6 address has one
		return network.String()
	}
	return host
}

// holderName is the caller as a holder of units: its name, or its address without one.
func (c caller) holderName() string {
	if c.name != "" {
		return clientHolder(c.name)
	}
	return "address " + holderOf(c.from)
}

// Shares bound how many of something callers have at a time, in total and each: a single one has
// three quarters of all at most, and whoever comes next finds some left. The methods may be called
// concurrently.
type Shares struct{ quota quota }

// NewShares returns Shares of limit in total.
func NewShares(limit int) *Shares { return &Shares{quota{limit: limit}} }

// Take gives the caller of the call with context ctx one more, until it calls done. ok is false if
// the caller has its share.
func (s *Shares) Take(ctx context.Context) (done func(), ok bool) {
	c, _ := ctx.Value(callerKey{}).(caller)
	holder := c.holderName()
	if !s.quota.takeUnits(holder, 1) {
		return nil, false
	}
	return func() { s.quota.returnUnits(holder, 1) }, true
}

var errTooManyCalls = status.Error(codes.ResourceExhausted,
	"too many calls are open: try again when some have ended, or elsewhere")

// paceRate and paceBurst bound the calls and requests a second that cost their sender nothing:
// refused ones, and those that anybody may make.
const paceRate, paceBurst = 1000, 1000

// longestPace is the longest delay of one call by pace.
const longestPace = time.Second

// paceCall delays a call that costs its sender nothing if there are too many of them. It blocks,
// and with it delays all else on the call's connection, also beyond the sender's timeout. It must
// not be used for calls that a client with a name may make.
func (g *Guard) paceCall() { time.Sleep(min(g.free.Reserve().Delay(), longestPace)) }

// Count counts a gRPC call until its context ends, or returns an error if the call exceeds Limits
// or its client's limits. The context that it returns is the call's: it also ends when the caller
// loses the right to make the call, unless that is a query. Count must be the last check of a
// server's tap: gRPC never ends the context of a call that a tap refuses after it.
func (g *Guard) Count(ctx context.Context, method string) (context.Context, error) {
	done, over := g.holdCall(ctx)
	if over != nil {
		return ctx, over.grpcStatus()
	}
	c, _ := ctx.Value(callerKey{}).(caller)
	if c.agent || method == inference.GRPCInferenceService_ModelInfer_FullMethodName ||
		method == extproc.ExternalProcessor_Process_FullMethodName { // of a query
		if done != nil {
			context.AfterFunc(ctx, done)
		}
		return ctx, nil
	}
	who, n := c.holderName(), 1
	if method == control.Control_Watch_FullMethodName {
		n = watchCalls
	}
	stranger := c.name == "" && g.config.Named() // it may make no calls but those of everybody
	took := !stranger || g.strangersCalls.takeUnits(who, n)
	if took && !g.calls.takeUnits(who, n) {
		if took = false; stranger {
			g.strangersCalls.returnUnits(who, n)
		}
	}
	if !took {
		if done != nil {
			done()
		}
		g.paceCall()
		g.observe(ReasonCalls)
		g.refusals.add(c.from, "call refused", "too many calls", errTooManyCalls)
		return ctx, errTooManyCalls
	}
	context.AfterFunc(ctx, func() {
		g.calls.returnUnits(who, n)
		if stranger {
			g.strangersCalls.returnUnits(who, n)
		}
		if done != nil {
			done()
		}
	})
	return g.cancelOnRightLoss(ctx, method), nil
}
