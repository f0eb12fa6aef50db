package queryconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/inference"
)

// A Dialer opens connections for queries.
type Dialer struct {
	// Dial connects to an address.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Credentials make the connection secure. With TLS they ask for [Protocol].
	Credentials credentials.TransportCredentials
	// PerQuery has what is sent with each query, which must not depend on the query; nil: nothing.
	PerQuery credentials.PerRPCCredentials
}

// To returns the function that connects to an address, for which the server must have described
// itself as one that accepts connections for queries. It is nil if d is nil. The caller closes the
// Client.
func (d *Dialer) To(address string) func(context.Context) (*Client, error) {
	if d == nil {
		return nil
	}
	return func(ctx context.Context) (*Client, error) { return d.connect(ctx, address) }
}

func (d *Dialer) connect(ctx context.Context, address string) (*Client, error) {
	raw, err := d.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	conn, info, err := d.Credentials.ClientHandshake(ctx, address, raw)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	c := &Client{reader: reader{conn: conn}}
	if info, ok := info.(credentials.TLSInfo); !ok {
		_, err = conn.Write([]byte(Preface))
	} else if got := info.State.NegotiatedProtocol; got != Protocol {
		err = fmt.Errorf("the server speaks %q, want %q", got, Protocol)
	}
	if err == nil && d.PerQuery != nil {
		c.Metadata, err = perQuery(ctx, d.PerQuery, info, address)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// perQuery returns the metadata that gRPC would send with each call.
func perQuery(ctx context.Context, of credentials.PerRPCCredentials, info credentials.AuthInfo,
	address string) (names []string, err error) {
	ctx = credentials.NewContextWithRequestInfo(ctx, credentials.RequestInfo{
		Method: inference.GRPCInferenceService_ModelInfer_FullMethodName, AuthInfo: info,
	})
	md, err := of.GetRequestMetadata(ctx,
		"https://"+address+"/"+inference.GRPCInferenceService_ServiceDesc.ServiceName)
	for name, value := range md {
		names = append(names, name, value)
	}
	return names, err
}

// An option is a dial option that gRPC ignores.
type option struct {
	grpc.EmptyDialOption
	dialer Dialer
}

// Option returns a dial option that carries a Dialer, for clients that find it with [DialerOf].
// gRPC ignores it.
func Option(d Dialer) grpc.DialOption { return option{dialer: d} }

// DialerOf returns the Dialer of the last [Option] among the options; nil if there is none.
func DialerOf(options []grpc.DialOption) *Dialer {
	for i := len(options) - 1; i >= 0; i-- {
		if o, ok := options[i].(option); ok {
			return &o.dialer
		}
	}
	return nil
}

// TCP connects as [Dialer.Dial] does, by TCP.
func TCP(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := direct.GiveUpAfter(conn, unacknowledged); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// unacknowledged is how long a server may take to acknowledge data.
const unacknowledged = 3 * time.Second
