package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/client/stream"
)

const (
	// metadataTimeout is how long a server may take to return its metadata. Chosen: servers answer
	// in milliseconds, and a lost packet or two are sent again within it.
	metadataTimeout = 3 * time.Second
	// viewSilence is how long a watched agent may send no view before another is watched; agents
	// send one each second.
	viewSilence = 3 * time.Second
	// rediscover is the least time between the starts of two rounds over all servers. Chosen: a
	// server that is back serves a fifth of a second later, and a client of dead servers dials each
	// five times a second.
	rediscover = 200 * time.Millisecond
)

// A discovery finds the fleet to which a client's servers belong, and follows it. It watches the
// view of one agent, or of another if that one fails; it gives each view to a gateway, and keeps a
// connection to every member.
//
// A discovery has these goroutines, all of which have ended when close returns: one that follows
// the fleet, and one for each member's connection.
type discovery struct {
	c       *Client
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	gateway atomic.Pointer[Gateway]     // nil: no fleet is known
	peers   atomic.Pointer[[]*peer]     // the members' connections
	byName  atomic.Pointer[peersByName] // the same, by the member's name
	ready   atomic.Int32                // peers with a connection
}

type peersByName map[string]*peer

// A peer is a member of the fleet and the connection to it.
type peer struct {
	server
	cancel context.CancelFunc
	// failed says that the last try to connect has failed.
	failed atomic.Bool
}

func (c *Client) startDiscovery() *discovery {
	d := &discovery{c: c}
	d.peers.Store(&[]*peer{})
	d.byName.Store(&peersByName{})
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.running.Go(d.run)
	return d
}

func (d *discovery) close() {
	d.cancel()
	// The goroutine that follows the fleet closes a gateway that it makes after this.
	if g := d.gateway.Load(); g != nil {
		g.Close()
	}
	d.running.Wait()
	for _, p := range *d.peers.Load() {
		p.conn.Close()
	}
}

// fleetGateway returns the fleet's gateway, if there is a connection to a member and the fleet has
// at least two. It returns nil if queries go to the client's servers.
func (d *discovery) fleetGateway() *Gateway {
	if d == nil || d.ready.Load() == 0 || len(*d.peers.Load()) < 2 {
		return nil
	}
	return d.gateway.Load()
}

// peersOf returns the connections to all members.
func (d *discovery) peersOf() []*peer {
	if d == nil {
		return nil
	}
	return *d.peers.Load()
}

// run follows the fleet until ctx ends, or until every server has answered that it belongs to none.
func (d *discovery) run() {
	for first := 0; d.ctx.Err() == nil; {
		started := time.Now()
		servers := slices.Clone(d.c.servers)
		for _, p := range d.peersOf() {
			servers = append(servers, p.server)
		}
		plain := 0
		for i := range servers {
			at := (first + i) % len(servers)
			fleet, err := d.watch(servers[at].conn.ClientConn)
			if d.ctx.Err() != nil {
				return
			}
			if fleet { // the stream broke: go on with the next server, members included
				first = at + 1
				break
			}
			if err == nil {
				plain++
			}
		}
		if plain == len(servers) {
			return
		}
		wait := time.NewTimer(max(0, addJitter(rediscover)-time.Since(started)))
		select {
		case <-wait.C:
		case <-d.ctx.Done():
		}
		wait.Stop()
	}
}

// watch follows the server's view of its fleet until the stream ends. fleet reports whether a view
// came. If none came and there is no error, the server belongs to no fleet.
func (d *discovery) watch(conn *grpc.ClientConn) (fleet bool, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, metadataTimeout)
	defer cancel()
	metadata := new(inference.ServerMetadataResponse)
	err = conn.Invoke(ctx, inference.GRPCInferenceService_ServerMetadata_FullMethodName,
		&inference.ServerMetadataRequest{}, metadata)
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	if err != nil || !slices.Contains(metadata.GetExtensions(), FleetExtension) {
		return false, err
	}
	ctx, cancel = context.WithCancel(d.ctx)
	defer cancel()
	silent := time.AfterFunc(viewSilence, cancel)
	defer silent.Stop()
	views, err := control.NewControlClient(conn).Watch(ctx, &control.WatchRequest{Changes: true})
	if err != nil {
		return false, err
	}
	var watched control.ViewBuilder
	for {
		v, err := views.Recv()
		if err != nil {
			return fleet, err
		}
		silent.Reset(viewSilence)
		changed, err := watched.Take(v)
		if err != nil {
			return fleet, err
		}
		fleet = true
		if changed {
			if err := d.applyView(watched.View()); err != nil {
				return fleet, err
			}
		}
		d.gateway.Load().SetLoads(v.GetLoads())
	}
}

// applyView takes a new view: it connects to new members, drops those that left, and passes the
// view to the gateway.
func (d *discovery) applyView(v *control.View) error {
	known, now := *d.byName.Load(), peersByName{}
	var peers []*peer
	for _, m := range v.GetMembers() {
		p := known[m.GetName()]
		if p == nil || p.address != m.GetAddress() {
			var err error
			if p, err = d.connect(m); err != nil {
				continue // the address is not valid; other members may be reachable
			}
		}
		now[m.GetName()] = p
		peers = append(peers, p)
	}
	d.byName.Store(&now)
	d.peers.Store(&peers)
	for name, p := range known {
		if now[name] != p {
			p.cancel()
			p.conn.Close()
		}
	}
	g := d.gateway.Load()
	if g == nil {
		id := rand.Uint64() | 1
		var err error
		if g, err = NewGateway(GatewayConfig{ID: id, Transport: Remote{Dial: d.dial}}); err != nil {
			return err
		}
	}
	g.SetView(v)
	if d.gateway.Store(g); d.ctx.Err() != nil {
		g.Close() // close may have run before the gateway was stored
	}
	return nil
}

// connect opens the connection to a member, and starts the goroutine that keeps it.
func (d *discovery) connect(m *control.Member) (*peer, error) {
	conn, err := grpc.NewClient(m.GetAddress(), d.c.dial...)
	if err != nil {
		return nil, err
	}
	p := &peer{server: server{
		m.GetAddress(), stream.New(conn, d.c.queries.To(m.GetAddress())),
	}}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(d.ctx)
	d.running.Go(func() { d.keepConnected(ctx, p) })
	return p, nil
}

// keepConnected keeps a peer connected, and counts it in ready while it is, until ctx ends.
func (d *discovery) keepConnected(ctx context.Context, p *peer) {
	ready := false
	defer func() {
		if ready {
			d.ready.Add(-1)
		}
	}()
	for {
		state := p.conn.GetState()
		switch state {
		case connectivity.Ready:
			p.failed.Store(false)
		case connectivity.TransientFailure:
			p.failed.Store(true)
		case connectivity.Idle:
			p.conn.Connect()
		case connectivity.Shutdown:
			return
		}
		if now := state == connectivity.Ready; now != ready {
			if ready = now; ready {
				d.ready.Add(1)
			} else {
				d.ready.Add(-1)
			}
		}
		if !p.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// dial returns the gateway's connection to a member. It fails at once if the last try to connect
// failed, because a call would wait for the next try.
func (d *discovery) dial(to *control.Member) (grpc.ClientConnInterface, error) {
	p := (*d.byName.Load())[to.GetName()]
	if p == nil || p.failed.Load() && p.conn.GetState() != connectivity.Ready {
		return nil, status.Errorf(codes.Unavailable, "agent %q cannot be reached at %s",
			to.GetName(), to.GetAddress())
	}
	return p.conn, nil
}
