package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/direct"
	"github.com/muster-serve/muster/api/queryconn"
)

// A ClientConfig says how a client authenticates itself, and which servers it trusts. The zero
// value means neither encryption nor a name.
type ClientConfig struct {
	// CAFile is the path of a PEM file with the certificates of the servers' CA. Empty means the
	// system's CAs, or no TLS if CertFile is empty too.
	CAFile string
	// CertFile and KeyFile are the paths of the client's certificate and private key, in PEM; both
	// or neither.
	CertFile, KeyFile string
	// CRLFile is the path of a PEM file with revocation lists of the CA in CAFile; empty means
	// none.
	CRLFile string
	// APIKey is sent with every call; empty means none.
	APIKey string
	// Insecure allows sending the API key to other machines unencrypted.
	Insecure bool
}

// TLS reports whether c encrypts.
func (c ClientConfig) TLS() bool { return c.CAFile != "" || c.CertFile != "" }

// DialOptions reads the files and returns the options for client.WithDialOptions, or why the files
// cannot be used. Later connections read the files again if they have changed; faults are then
// logged to log.
//
// The client trusts a server whose certificate is from the CA and has the dialled name or IP
// address, or [AgentName].
func (c ClientConfig) DialOptions(log *slog.Logger) ([]grpc.DialOption, error) {
	if err := validatePair(c.CertFile, c.KeyFile); err != nil {
		return nil, err
	}
	if c.CRLFile != "" && c.CAFile == "" {
		return nil, fmt.Errorf("tls-crl: %q without tls-ca, want the CA that has signed it",
			c.CRLFile)
	}
	if err := checkKey(c.APIKey); err != nil {
		return nil, fmt.Errorf("api-key: %w", err)
	}
	proof, queryProof := insecure.NewCredentials(), insecure.NewCredentials()
	if c.TLS() {
		id, err := identityFiles{
			cert: c.CertFile, key: c.KeyFile, ca: c.CAFile, crl: c.CRLFile,
		}.watch()
		if err != nil {
			return nil, err
		}
		current := func() *identity { return id.currentValue(log) }
		proof = clientCredentials{identity: current}
		queryProof = clientCredentials{identity: current, queries: true}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(direct.Credentials(proof))}
	queries := queryconn.Dialer{Dial: queryconn.TCP, Credentials: direct.Credentials(queryProof)}
	if c.APIKey != "" {
		key := callKey{c.APIKey, c.Insecure}
		options = append(options, grpc.WithPerRPCCredentials(key))
		queries.PerQuery = key
	}
	return append(options, queryconn.Option(queries)), nil
}

// PeerCredentials returns the credentials of connections to other agents. With a certificate they
// use TLS and trust only agents of the same fleet.
func (g *Guard) PeerCredentials() credentials.TransportCredentials {
	if !g.config.TLS() {
		return insecure.NewCredentials()
	}
	return clientCredentials{identity: g.identity.get, agents: true, open: &g.open}
}

// PeerQueryCredentials is PeerCredentials for connections for queries ([queryconn]).
func (g *Guard) PeerQueryCredentials() credentials.TransportCredentials {
	c, ok := g.PeerCredentials().(clientCredentials)
	if !ok {
		return insecure.NewCredentials()
	}
	c.queries = true
	return c
}

// clientCredentials are the credentials of a client's connections.
type clientCredentials struct {
	identity func() *identity
	agents   bool   // only agents are trusted
	queries  bool   // the connection is for queries
	open     *peers // gets the open connections; nil: none does
}

func (c clientCredentials) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	id := c.identity()
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	asked := false
	config := &tls.Config{
		ServerName:   host,
		MinVersion:   tls.VersionTLS12,
		CipherSuites: cipherSuites,
		// VerifyConnection does the verification, because an agent may have another name than the
		// dialled one.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return id.verifyServer(state, host, c.agents)
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			if id.cert == nil {
				return new(tls.Certificate), nil // none
			}
			return id.cert, nil
		},
	}
	if c.queries {
		config.NextProtos = []string{queryconn.Protocol}
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
	if err == nil && asked {
		conn = refusable{conn}
	}
	if err != nil || c.open == nil {
		return conn, info, err
	}
	chains, err := id.serverChains(info.(credentials.TLSInfo).State)
	if err != nil { // it has expired just now
		return nil, nil, errors.Join(err, conn.Close())
	}
	return c.open.addConnection(conn, chains, c.identity), info, nil
}

// A refusable is a client's connection to a server that has asked for a certificate. With TLS 1.3
// the server refuses it after the client's handshake, and closes the connection.
type refusable struct{ net.Conn }

// Write returns the server's reason, if it has given one, rather than that the connection is
// closed.
func (r refusable) Write(p []byte) (int, error) {
	n, err := r.Conn.Write(p)
	if err == nil {
		return n, nil
	}
	_ = r.SetReadDeadline(time.Now().Add(time.Second)) // the reason came before the end
	var alert *net.OpError
	if _, said := r.Read(make([]byte, 1)); errors.As(said, &alert) && alert.Op == "remote error" {
		err = said
	}
	return n, err
}

func (clientCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("secure: credentials of a client")
}

func (clientCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c clientCredentials) Clone() credentials.TransportCredentials { return c }
func (clientCredentials) OverrideServerName(string) error           { return nil }

// A callKey adds an API key to each call.
type callKey struct {
	key      string
	insecure bool
}

// GetRequestMetadata implements [credentials.PerRPCCredentials]. It returns an error where the key
// would cross a network unencrypted.
func (k callKey) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	if err := credentials.CheckSecurityLevel(info.AuthInfo,
		credentials.PrivacyAndIntegrity); err != nil && !k.insecure && !isLocal(uri) {
		return nil, status.Error(codes.Unauthenticated,
			"the API key is not sent unencrypted to another machine: want tls-ca, or insecure")
	}
	return map[string]string{"authorization": "Bearer " + k.key}, nil
}

// isLocal reports whether the called server, by gRPC's URI of the service, is on this machine.
func isLocal(uri []string) bool {
	if len(uri) != 1 {
		return false
	}
	u, err := url.Parse(uri[0])
	return err == nil && Loopback(net.JoinHostPort(u.Hostname(), "0"))
}

// RequireTransportSecurity implements [credentials.PerRPCCredentials]. It is false because
// GetRequestMetadata checks each connection itself.
func (callKey) RequireTransportSecurity() bool { return false }
