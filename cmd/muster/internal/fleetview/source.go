package fleetview

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/client"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// A Source asks one agent of the fleet for its state, and others in turn
// when that one does not answer. It is for one caller at a time.
type Source struct {
	options   []grpc.DialOption
	servers   []string
	addresses []string // gRPC addresses of all agents known; Ask asks the first one
	conn      *grpc.ClientConn
	members   []string // names of the fleet's members when it was last asked
	left      string   // why Ask went on to the present agent; "" if it is the first
}

const (
	// askTimeout is how long an agent may take to answer. It is longer than an agent waits for a
	// leader that does not answer.
	askTimeout = 3 * time.Second
	// maxAsked is how many agents one Ask tries before it fails.
	maxAsked = 4
)

// NewSource returns a source that asks the servers, and the agents that these know. servers are
// gRPC addresses, host:port; there must be at least one. It opens no connection yet.
func NewSource(servers []string, options ...grpc.DialOption) *Source {
	return &Source{options: options, servers: servers, addresses: slices.Clone(servers)}
}

// Ask returns the state of the fleet, with texts that are safe to print. It blocks for at most 3 s
// for each of at most four agents.
func (f *Source) Ask(ctx context.Context) (*control.FleetStatus, error) {
	var first error // of the agent that answered the Ask before
	for range min(maxAsked, len(f.addresses)) {
		s, err := f.askFirst(ctx)
		if err == nil {
			if first != nil {
				f.left = first.Error()
			}
			f.setAddresses(s)
			return s, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
		f.Close()
		f.addresses = append(f.addresses[1:], f.addresses[0])
	}
	return nil, first
}

// askFirst asks the agent at the first address.
func (f *Source) askFirst(ctx context.Context) (*control.FleetStatus, error) {
	address := f.addresses[0]
	if f.conn == nil {
		conn, err := grpc.NewClient(address, f.options...)
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", address, err)
		}
		f.conn = conn
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := control.NewControlClient(f.conn).Status(ctx, &control.StatusRequest{})
	switch status.Code(err) {
	case codes.OK:
		terminal.SanitizeFields(s)
		return s, nil
	case codes.Unimplemented:
		return nil, fmt.Errorf("%s cannot report on a fleet: it is not a Muster agent", address)
	case codes.Unavailable:
		return nil, fmt.Errorf("%s %w: %s", address, errUnreachable, client.Reason(err))
	case codes.DeadlineExceeded:
		return nil, fmt.Errorf("%s has not answered within %v", address, askTimeout)
	}
	return nil, fmt.Errorf("%s: %s", address, client.Reason(err))
}

// setAddresses sets the addresses that Ask can use to the user's servers and the members in s. The
// agent that answered stays first.
func (f *Source) setAddresses(s *control.FleetStatus) {
	f.members = memberNames(s)
	known := slices.Clone(f.servers)
	for _, m := range s.GetView().GetMembers() {
		known = append(known, m.GetAddress())
	}
	asked := f.addresses[0]
	f.addresses = slices.DeleteFunc(f.addresses,
		func(a string) bool { return a != asked && !slices.Contains(known, a) })
	for _, a := range known {
		if a != "" && !slices.Contains(f.addresses, a) {
			f.addresses = append(f.addresses, a)
		}
	}
}

// memberNames returns the names of the fleet's members.
func memberNames(s *control.FleetStatus) (names []string) {
	for _, m := range s.GetView().GetMembers() {
		names = append(names, m.GetName())
	}
	return names
}

// lastLine returns the text of the last line: the address that is asked, and why it is no
// longer the one before.
func (f *Source) lastLine(interval time.Duration) string {
	note := fmt.Sprintf("q quits; asks %s every %v", f.addresses[0], interval)
	if f.left != "" {
		note += ", since " + terminal.Plain(f.left)
	}
	return note
}

// Close closes the connection. Ask may still be called; it opens a new one.
func (f *Source) Close() {
	if f.conn != nil {
		f.conn.Close()
		f.conn = nil
	}
}
