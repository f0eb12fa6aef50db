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
	addresses []string // all that are known, of gRPC; the first one is asked
	conn      *grpc.ClientConn
	left      string // why the agent before this one is no longer asked; "" if there was none
}

const (
	// askTimeout is how long one agent has to answer: longer than it waits for a
	// leader that does not.
	askTimeout = 3 * time.Second
	// mostAsked agents are asked before there is no answer.
	mostAsked = 4
)

// NewSource makes a source of servers, host:port, of which there is at least one; options are how
// they are dialled.
func NewSource(servers []string, options ...grpc.DialOption) *Source {
	return &Source{options: options, servers: servers, addresses: slices.Clone(servers)}
}

// Ask returns the state of the fleet.
func (f *Source) Ask(ctx context.Context) (*control.FleetStatus, error) {
	var first error // of the agent that was asked so far
	for range min(mostAsked, len(f.addresses)) {
		s, err := f.askFirst(ctx)
		if err == nil {
			if first != nil {
				f.left = first.Error()
			}
			f.learn(s)
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

// askFirst asks the first address.
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
		terminal.PlainMessage(s)
		return s, nil
	case codes.Unimplemented:
		return nil, fmt.Errorf(
			"%s tells nothing of a fleet: it is no agent of Muster, or of an older version",
			address)
	case codes.Unavailable:
		return nil, fmt.Errorf("%s cannot be reached: %s", address, client.Reason(err))
	case codes.DeadlineExceeded:
		return nil, fmt.Errorf("%s has not answered within %v", address, askTimeout)
	}
	return nil, fmt.Errorf("%s: %s", address, client.Reason(err))
}

// learn keeps the addresses of the members, so that each of them can be asked,
// and the servers that the user gave.
func (f *Source) learn(s *control.FleetStatus) {
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

// note says who is asked, and why if it is not the one that was asked before.
func (f *Source) note(interval time.Duration) string {
	note := fmt.Sprintf("q quits; asks %s every %v", f.addresses[0], interval)
	if f.left != "" {
		note += ", since " + terminal.Plain(f.left)
	}
	return note
}

// Close ends the connection; Ask opens one again.
func (f *Source) Close() {
	if f.conn != nil {
		f.conn.Close()
		f.conn = nil
	}
}
