package secure

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/inference"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/api/queryconn"
)

// ServerOptions returns options that make a gRPC server use TLS, if there is a certificate, and
// refuse calls that the caller may not make. [Guard.Tap] refuses earlier and at less cost, where it
// can. Connections for queries ([queryconn]) go to queries, which owns them and is called on a
// goroutine of each; nil: there are none.
func (g *Guard) ServerOptions(
	queries func(net.Conn, credentials.AuthInfo)) []grpc.ServerOption {
	// A connection with TLS holds its buffer as long as it is open. gRPC reads larger frames
	// without it.
	readBuffer := 4 << 10
	if !g.config.TLS() {
		readBuffer = direct.ReadBuffer
	}
	return []grpc.ServerOption{
		grpc.ReadBufferSize(readBuffer),
		grpc.Creds(serverCredentials{g, queries}),
		grpc.ChainUnaryInterceptor(g.Unary),
		grpc.ChainStreamInterceptor(g.interceptStream),
	}
}

// serverCredentials are the credentials of a server's connections.
type serverCredentials struct {
	guard   *Guard
	queries func(net.Conn, credentials.AuthInfo) // nil: there are no connections for queries
}

func (s serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	s.guard.silent.addConnection(raw)
	if !s.guard.config.TLS() {
		conn := plainNewcomer{&newcomer{Conn: s.guard.refuseTLS(raw), raw: raw, guard: s.guard}}
		return s.dispatchConnection(conn, authInfo{
			credentials.TLSInfo{
				CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity},
			}, false, conn, countedOf(raw), new(atomic.Uint64),
		}, func() (forQueries bool, err error) { return conn.readPreface(queryconn.Preface) })
	}
	p := http2
	if s.queries != nil {
		p = http2OrQueries
	}
	conn, err := s.guard.performHandshake(raw, p)
	if err != nil {
		s.guard.silent.removeConnection(raw)
		return nil, nil, err
	}
	state := conn.ConnectionState()
	s.guard.provenBy(raw, state)
	known := s.guard.open.addConnection(conn, state.VerifiedChains, s.guard.identity.get)
	taken := &newcomer{Conn: known, raw: raw, guard: s.guard}
	return s.dispatchConnection(taken, authInfo{credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, true, taken, countedOf(raw), new(atomic.Uint64)}, func() (forQueries bool, err error) {
		return state.NegotiatedProtocol == queryconn.Protocol, nil
	})
}

// dispatchConnection returns a connection for gRPC, or passes one for queries on. When more than
// half of the connections that may be open are, it closes one for queries: its client can do
// without, and without gRPC it could not.
func (s serverCredentials) dispatchConnection(conn net.Conn, info authInfo,
	forQueries func() (bool, error)) (net.Conn, credentials.AuthInfo, error) {
	if s.queries == nil {
		return conn, info, nil
	}
	switch is, err := forQueries(); {
	case err != nil:
		_ = conn.Close() // gRPC, which knows only the raw connection, logs err
		return nil, nil, err
	case is && s.guard.connections.isCrowded():
		_ = conn.Close() // the client sends its queries as calls
		return nil, nil, credentials.ErrConnDispatched
	case is:
		go s.queries(conn, info)
		return nil, nil, credentials.ErrConnDispatched
	}
	return conn, info, nil
}

// authInfo is the authentication state of a connection.
type authInfo struct {
	credentials.TLSInfo
	tls  bool // the connection uses TLS; otherwise TLSInfo is empty
	conn net.Conn
	raw  *countedConn // nil: the connection does not count
	mark *atomic.Uint64
}

func (i authInfo) AuthType() string {
	if !i.tls {
		return "insecure"
	}
	return i.TLSInfo.AuthType()
}

// Mark is a number that the server keeps with the connection of the gRPC call with context ctx, 0
// at first. It is nil if the call did not come by a connection.
func Mark(ctx context.Context) *atomic.Uint64 {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			return info.mark
		}
	}
	return nil
}

// CloseConnection closes the connection of the gRPC call with context ctx, and so ends all calls on
// it.
func CloseConnection(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			_ = info.conn.Close() // it may be closed already
		}
	}
}

func (serverCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	return nil, nil, errors.New("secure: credentials of a server")
}

func (s serverCredentials) Info() credentials.ProtocolInfo {
	if !s.guard.config.TLS() {
		return credentials.ProtocolInfo{SecurityProtocol: "insecure"}
	}
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (s serverCredentials) Clone() credentials.TransportCredentials { return s }
func (serverCredentials) OverrideServerName(string) error           { return nil }

// demandOf returns the rights that a call of the method needs. Unlisted methods of the control
// service, and those of the dashboard's, are for agents; other unlisted methods are for every
// caller with a name.
func demandOf(method string) requiredRights {
	switch method {
	case healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName,
		healthpb.Health_List_FullMethodName,
		inference.GRPCInferenceService_ServerLive_FullMethodName,
		inference.GRPCInferenceService_ServerReady_FullMethodName:
		return requiredRights{open: true}
	case inference.GRPCInferenceService_RepositoryModelLoad_FullMethodName:
		return requiredRights{control: Load}
	case inference.GRPCInferenceService_RepositoryModelUnload_FullMethodName:
		return requiredRights{control: Unload}
	case control.Control_Drain_FullMethodName:
		return requiredRights{control: Drain}
	case control.Control_Demand_FullMethodName:
		return requiredRights{control: Plan}
	case control.Control_Fleet_FullMethodName: // to change what is rented, a client asks what is
		return requiredRights{control: Plan, or: Fleet}
	case control.Control_RotateKeys_FullMethodName, control.Control_ListKeys_FullMethodName:
		return requiredRights{control: Rotate}
	case control.Control_Events_FullMethodName:
		return requiredRights{control: Events}
	case control.Control_Place_FullMethodName, control.Control_SetFleet_FullMethodName,
		control.Control_SetRelease_FullMethodName:
		return requiredRights{control: Fleet}
	case control.Control_Watch_FullMethodName, control.Control_Match_FullMethodName,
		control.Control_Probe_FullMethodName, control.Control_Queries_FullMethodName,
		control.Control_Status_FullMethodName, control.Control_Release_FullMethodName:
		return requiredRights{} // SDKs make these
	}
	if strings.HasPrefix(method, "/"+control.Control_ServiceDesc.ServiceName+"/") ||
		strings.HasPrefix(method, "/"+control.Dashboard_ServiceDesc.ServiceName+"/") {
		return requiredRights{agent: true}
	}
	return requiredRights{}
}

// modelOf returns the model that a message is about; ok is false if it is about none.
func modelOf(message any) (model string, ok bool) {
	switch m := message.(type) {
	case *oip.Request:
		return m.Model, true
	case *inference.ModelInferRequest:
		return m.GetModelName(), true
	case *inference.ModelMetadataRequest:
		return m.GetName(), true
	case *inference.ModelConfigRequest:
		return m.GetName(), true
	case *inference.ModelReadyRequest:
		return m.GetName(), true
	case *inference.ModelStatisticsRequest:
		// "" means all models, whose names the index shows too
		return m.GetName(), m.GetName() != ""
	}
	return "", false
}

type callerKey struct{}

// whoHeader names the client for whom an agent calls another agent. It is ignored in calls of
// anybody but agents.
const whoHeader = "muster-who-bin"

// longestWho is the longest value of whoHeader, in bytes.
const longestWho = 2 * longestName

// Who returns the caller of the call with context ctx: its name and whether that is from a
// certificate or an API key, and its address. For a call that an agent makes on behalf of a client
// ([ForCaller]), the name is that of both. Each result is "" if it is not known.
func Who(ctx context.Context) (who, from string) {
	c, ok := ctx.Value(callerKey{}).(caller)
	if !ok {
		return "", ""
	}
	who = c.String()
	if said := metadata.ValueFromIncomingContext(ctx, whoHeader); c.agent && len(said) == 1 &&
		said[0] != "" {
		who = said[0][:min(len(said[0]), longestWho)] + " through " + who
	}
	if c.from != nil {
		from = c.from.String()
	}
	return who, from
}

// ForCaller returns a context for calls to other agents that tells them the client on whose behalf
// this agent calls: the caller of the call with context ctx.
func ForCaller(ctx context.Context) context.Context {
	if who, _ := Who(ctx); who != "" {
		return metadata.AppendToOutgoingContext(ctx, whoHeader, who)
	}
	return ctx
}

// Tap is for a gRPC server's tap. It returns an error for a call that must be refused, as far as
// that can be decided before the call's message is read, and otherwise a context that holds the
// caller. The tap must call [Guard.Count] after all other checks that may refuse the call.
func (g *Guard) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	return g.enterCall(ctx, info.FullMethodName, info.Header)
}

// enterCall returns an error if the caller may not call the method at all, and otherwise a context
// that holds the caller.
func (g *Guard) enterCall(ctx context.Context, method string, header metadata.MD) (context.Context,
	error) {
	var state *tls.ConnectionState
	var raw *countedConn
	p, _ := peer.FromContext(ctx)
	if p != nil {
		if info, ok := p.AuthInfo.(authInfo); ok {
			if raw = info.raw; info.tls {
				state = &info.State
			}
		}
	}
	d := demandOf(method)
	c, r := g.check(state, header.Get("authorization"), login{}, addressOf(p), d)
	if r != nil || d.open {
		g.paceCall()
	}
	if r != nil {
		g.noteRefusal(addressOf(p), method, r)
		return ctx, r
	}
	c.from = addressOf(p)
	g.shownBy(c, raw, c.from)
	return context.WithValue(ctx, callerKey{}, c), nil
}

// Again checks the caller of a stream anew, for one of several calls that the stream carries, as
// Tap would check a call of the method: what the caller may do, and whether its API key is known,
// may have changed. header is the stream's. It returns a context for the call.
func (g *Guard) Again(ctx context.Context, method string, header metadata.MD) (context.Context,
	error) {
	return g.enterCall(ctx, method, header)
}

// enterUnchecked is enter for a call that Tap has not checked; it accepts one that Tap has. It
// copies the header only if it must.
func (g *Guard) enterUnchecked(ctx context.Context, method string) (context.Context, error) {
	if _, ok := ctx.Value(callerKey{}).(caller); ok {
		return ctx, nil
	}
	header, _ := metadata.FromIncomingContext(ctx)
	return g.enterCall(ctx, method, header)
}

func addressOf(p *peer.Peer) net.Addr {
	if p == nil {
		return nil
	}
	return p.Addr
}

// Unary is the interceptor of a gRPC server's calls. It refuses those that the caller may not make.
func (g *Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	ctx, err := g.enterUnchecked(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if model, ok := modelOf(req); ok && !demandOf(info.FullMethod).open {
		if r := g.checkRights(ctx.Value(callerKey{}).(caller),
			requiredRights{query: true, model: model}); r != nil {
			p, _ := peer.FromContext(ctx)
			g.noteRefusal(addressOf(p), info.FullMethod, r)
			return nil, r
		}
	}
	resp, err := handle(ctx, req)
	if err != nil {
		return nil, cmp.Or(endingRefusal(ctx), err)
	}
	return resp, nil
}

func (g *Guard) interceptStream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo,
	handle grpc.StreamHandler) error {
	if _, err := g.enterUnchecked(s.Context(), info.FullMethod); err != nil {
		return err
	}
	err := handle(srv, s)
	return cmp.Or(endingRefusal(s.Context()), err)
}
