package agent

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"time"

	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/gossip"
)

// A network is how an agent reaches the outside: sockets, except in tests in
// virtual time.
type network struct {
	// listen opens the listener of that name: "http", "grpc" or "metrics".
	listen func(name, address string) (net.Listener, error)
	// dial connects to the gRPC address of another agent.
	dial func(ctx context.Context, address string) (net.Conn, error)
	// gossip may change how gossip travels; nil: over UDP and TCP.
	gossip func(*gossip.Config)
	// metadata is where EC2's metadata service is; "" is where EC2 has it.
	metadata string
	// credentials prove to each other those who connect; nil: they do not.
	credentials credentials.TransportCredentials
}

func sockets() network {
	return network{
		listen: func(_, address string) (net.Listener, error) { return net.Listen("tcp", address) },
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
	}
}

// connect returns a connection to the agent at address. It connects when first
// used, and again, soon, whenever it broke.
func (n network) connect(address string) (*grpc.ClientConn, error) {
	proof := n.credentials
	if proof == nil {
		proof = insecure.NewCredentials()
	}
	return grpc.NewClient("passthrough:///"+address, append(oip.DialOptions(),
		grpc.WithTransportCredentials(proof),
		grpc.WithContextDialer(n.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second,
			},
			MinConnectTimeout: 3 * time.Second,
		}),
		// As in the SDK: what this is for is the timeout.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 5 * time.Minute, Timeout: 3 * time.Second,
		}),
	)...)
}
