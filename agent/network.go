package agent

import (
	"context"
	"net"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"time"

	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
	"github.com/muster-serve/muster/gossip"
)

// A Network opens the connections and listeners of an agent: sockets, except in tests that run in
// virtual time.
type Network struct {
	// Listen opens the listener called name: "http", "grpc" or "metrics".
	Listen func(name, address string) (net.Listener, error)
	// Dial connects to the gRPC address of another agent.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Gossip may replace the transport in gossip's configuration; nil: UDP and TCP.
	Gossip func(*gossip.Config)
	// Metadata is the URL of EC2's metadata service; "" is EC2's usual one.
	Metadata string
	// MetadataClient asks the metadata service; nil: by HTTP.
	MetadataClient imds.HTTPClient
	// Credentials authenticate both ends of a connection between agents, and queryCredentials those
	// of a connection for queries; nil: connections are neither encrypted nor authenticated. Run
	// sets them.
	Credentials, queryCredentials credentials.TransportCredentials
}

// newTCPNetwork is the network of an agent outside tests: TCP.
func newTCPNetwork() Network {
	return Network{
		Listen: func(name, address string) (net.Listener, error) {
			l, err := net.Listen("tcp", address)
			if err != nil || name != "grpc" {
				return l, err
			}
			return direct.Listener(l), nil
		},
		Dial: queryconn.TCP,
	}
}

// Connect returns a gRPC connection to the agent at address. It does not block: the connection is
// dialled at its first call, and dialled again, after at most about a second, when it has broken.
// The caller closes it.
func (n Network) Connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, append(oip.DialOptions(),
		grpc.WithTransportCredentials(proof(n.Credentials)),
		grpc.WithContextDialer(n.Dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: time.Second,
			},
			MinConnectTimeout: 3 * time.Second,
		}),
		// As in package client: it is here for Timeout, which also bounds how long sent data may
		// stay unacknowledged.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 5 * time.Minute, Timeout: 3 * time.Second,
		}),
	)...)
}

// queryDialer returns what opens connections for queries to other agents.
func (n Network) queryDialer() *queryconn.Dialer {
	return &queryconn.Dialer{Dial: n.Dial, Credentials: proof(n.queryCredentials)}
}

func proof(given credentials.TransportCredentials) credentials.TransportCredentials {
	if given == nil {
		given = insecure.NewCredentials()
	}
	return direct.Credentials(given)
}
