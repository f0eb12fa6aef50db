package stream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
)

const (
	// maxConns bounds the query connections to an agent. Queries beyond them go on the stream or
	// are calls. maxSmall is how many of them small queries use. Many small ones cost less on one
	// stream, which sends several at a time, and wait more evenly there.
	maxConns, maxSmall = 8, 2
	// spare is how long a query connection stays open that was not needed.
	spare = time.Minute
	// dialTimeout is how long a connection may take to open. Chosen: TCP sends a lost packet again
	// after 1 s and after 2 s more; queries take the stream meanwhile.
	dialTimeout = 3 * time.Second
)

// A connPool has the query connections to an agent.
type connPool struct {
	dial    func(context.Context) (*queryconn.Client, error)
	ctx     context.Context // of dialling
	running *sync.WaitGroup

	mu     sync.Mutex
	all    map[*queryconn.Client]struct{}
	free   []*queryconn.Client // the last used one last
	low    int                 // the least length of free since sweep ran
	opens  bool                // a goroutine opens one
	next   time.Time           // when the next one may be opened
	pause  time.Duration
	sweep  *time.Timer // nil: there have been no connections
	closed bool
}

// takeConn returns a connection for one query, which give or drop takes back. It returns nil if the
// query must go elsewhere, and then begins to open one more if there may be more.
func (p *connPool) takeConn(small bool) *queryconn.Client {
	most := maxConns
	if small {
		most = maxSmall
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if len(p.all)-n >= most {
		return nil
	}
	if n == 0 {
		if !p.opens && !p.closed && !time.Now().Before(p.next) {
			p.opens = true
			p.running.Go(p.open)
		}
		return nil
	}
	c := p.free[n-1]
	p.free = p.free[:n-1]
	p.low = min(p.low, n-1)
	return c
}

// giveBack takes a connection back.
func (p *connPool) giveBack(c *queryconn.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.free = append(p.free, c)
	}
}

// dropConn closes a connection.
func (p *connPool) dropConn(c *queryconn.Client) {
	p.mu.Lock()
	delete(p.all, c)
	p.mu.Unlock()
	_ = c.Close() // it has failed, or is not needed
}

// open opens a connection.
func (p *connPool) open() {
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	c, err := p.dial(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opens = false
	switch {
	case err != nil: // the queries that go elsewhere say why, if it is more than that
		p.pause = min(max(pause, 2*p.pause), maxPause)
		p.next = time.Now().Add(p.pause)
	case p.closed:
		_ = c.Close()
	default:
		p.pause = 0
		p.all[c] = struct{}{}
		p.free = append(p.free, c)
		if p.sweep == nil {
			p.sweep = time.AfterFunc(spare, p.retireIdle)
		} else if len(p.all) == 1 {
			p.sweep.Reset(spare)
		}
	}
}

// retireIdle closes the connections that were free all the time since it ran last, the least used
// ones.
func (p *connPool) retireIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.free[:p.low] {
		delete(p.all, c)
		_ = c.Close()
	}
	p.free = append(p.free[:0], p.free[p.low:]...)
	p.low = len(p.free)
	if len(p.all) > 0 && !p.closed {
		p.sweep.Reset(spare)
	}
}

// close closes all connections, and so ends their queries.
func (p *connPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	for c := range p.all {
		_ = c.Close()
	}
	clear(p.all)
	p.free, p.low = nil, 0
}

// sendQuery sends a query on a connection and waits for its answer, as a call does. answered is
// false if the connection broke before: then the query may be asked in another way.
func (p *connPool) sendQuery(ctx context.Context, c *queryconn.Client, q *oip.Request,
	reply *oip.Response,
	trailer *metadata.MD) (err error, answered bool) {
	m := &oip.StreamedQuery{Query: q, Metadata: slices.Clip(c.Metadata)}
	if err := addOutgoing(ctx, m); err != nil {
		p.giveBack(c)
		return err, true
	}
	var a oip.StreamedAnswer
	if err := c.Query(ctx, m, &a); errors.Is(err, queryconn.ErrEncode) {
		p.giveBack(c)
		return nil, false // a call says what is wrong
	} else if err != nil {
		p.dropConn(c)
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err(), true
		}
		return nil, false
	}
	p.giveBack(c)
	return takeResult(&a, reply, trailer), true
}
