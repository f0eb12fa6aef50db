package secure

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// AgentName is a DNS name that every agent's certificate has, whatever its machine is called. By it
// agents recognize each other, and clients recognize an agent whose certificate does not have the
// dialled address.
const AgentName = "agent.muster"

// An identity holds a process's own certificate, and the CAs whose certificates it trusts. It is
// never changed.
type identity struct {
	cert      *tls.Certificate // nil: none
	clusterCA []*x509.Certificate
	clientCA  []*x509.Certificate // all CAs of clients, clusterCA included
	roots     *x509.CertPool      // of clusterCA; nil, which means the system's, without any
	clients   *x509.CertPool      // of clientCA; nil if there are none
	revoked   *revocationLists    // nil: none
}

// identityFiles are the paths of an identity's files; "" for none.
type identityFiles struct{ cert, key, ca, clientCA, crl string }

func (f identityFiles) watch() (*watchedFiles[*identity], error) {
	return watch("certificates", f.read, f.cert, f.key, f.ca, f.clientCA, f.crl)
}

// read reads and checks the files.
func (f identityFiles) read() (*identity, error) {
	id := &identity{}
	if f.cert != "" {
		var err error
		if id.cert, err = readPair(f.cert, f.key); err != nil {
			return nil, err
		}
	}
	if f.ca != "" {
		var err error
		if id.clusterCA, err = readCertificates("tls-ca", f.ca); err != nil {
			return nil, err
		}
		id.roots = poolOf(id.clusterCA)
	}
	id.clientCA = id.clusterCA
	if f.clientCA != "" {
		more, err := readCertificates("tls-client-ca", f.clientCA)
		if err != nil {
			return nil, err
		}
		id.clientCA = slices.Concat(id.clusterCA, more)
	}
	if len(id.clientCA) > 0 {
		id.clients = poolOf(id.clientCA)
	}
	if f.crl != "" {
		var err error
		if id.revoked, err = readRevoked(f.crl, id.clientCA); err != nil {
			return nil, err
		}
	}
	return id, nil
}

func readPair(certFile, keyFile string) (*tls.Certificate, error) {
	certPEM, err := readFile("tls-cert", certFile)
	if err != nil {
		return nil, err
	}
	if _, err := parseCertificates(certPEM); err != nil {
		return nil, fmt.Errorf("tls-cert: %s: %w", certFile, err)
	}
	keyPEM, err := ReadSecret("tls-key", keyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("tls-cert %s with tls-key %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}

func readCertificates(what, path string) ([]*x509.Certificate, error) {
	data, err := readFile(what, path)
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", what, path, err)
	}
	return certs, nil
}

// parseCertificates parses one or more certificates in PEM. An incomplete block is an error.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		rest := data
		if block, data = pem.Decode(data); block == nil {
			if bytes.Contains(rest, []byte("-----BEGIN")) {
				return nil, fmt.Errorf("certificate %d is cut off or damaged", len(certs)+1)
			}
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM of type %q, want CERTIFICATE alone", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return certs, nil
}

func poolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// verifyServer checks the certificate of a server at host. If agent is set it must be an agent's;
// otherwise one with the name host will do too.
func (id *identity) verifyServer(state tls.ConnectionState, host string, agent bool) error {
	leaf := state.PeerCertificates[0] // crypto/tls guarantees at least one
	chains, err := id.serverChains(state)
	if err == nil {
		err = id.revoked.check(chains)
	}
	if err != nil {
		return &tls.CertificateVerificationError{
			UnverifiedCertificates: state.PeerCertificates, Err: doubtClock(err),
		}
	}
	if slices.Contains(leaf.DNSNames, AgentName) {
		return nil
	}
	if agent {
		return fmt.Errorf(
			"tls: the certificate of %q does not have the name %q, want that of an agent of this "+
				"cluster", leaf.Subject.CommonName, AgentName)
	}
	return leaf.VerifyHostname(host)
}

// serverChains returns the chains from a server's certificate to a trusted CA.
func (id *identity) serverChains(state tls.ConnectionState) ([][]*x509.Certificate, error) {
	return state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: id.roots, Intermediates: poolOf(state.PeerCertificates[1:]),
	})
}

// outOfDate reports whether err says that a certificate is not valid at this time, and whether its
// validity has begun.
func outOfDate(err error) (begun, is bool) {
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		return false, false
	}
	return !time.Now().Before(invalid.Cert.NotBefore), true
}

// doubtClock adds to the error of a certificate that is not valid now that this machine's clock may
// be wrong.
func doubtClock(err error) error {
	if _, is := outOfDate(err); is {
		return fmt.Errorf(
			"%w: renew it, or set the clock of this machine or of the one that issued it", err)
	}
	return err
}

// A caller identifies the caller of a call.
type caller struct {
	name   string // "": not known
	agent  bool   // it is an agent of this fleet
	apiKey bool   // the name is from an API key, not from a certificate
	key    digest // that API key, or the token
	// token is the token that the name is from; "": it is from another credential. subject is whom
	// it names; name is another where its owner acts for a group.
	token, subject string
	spiffeID       string // of the certificate; "": it has none
	// stranger: the caller had to show credentials and has shown none that are good. It is let in
	// because anybody may make the call.
	stranger bool
	open     bool // anybody may make the call, so it counts for no limit of the client
	from     net.Addr
}

// String describes the caller for logs; "" if it has no name.
func (c caller) String() string {
	switch {
	case c.agent:
		return c.name + " (agent)"
	case c.apiKey:
		return c.name + " (API key)"
	case c.token != "" && c.subject != c.name:
		return c.name + " (token of " + c.subject + ")"
	case c.token != "":
		return c.name + " (token)"
	case c.name != "":
		return c.name + " (certificate)"
	}
	return ""
}

// callerOf returns the owner of a connection's certificate, which the handshake has verified.
func (id *identity) callerOf(state tls.ConnectionState) (caller, error) {
	if len(state.VerifiedChains) == 0 {
		return caller{}, nil
	}
	if err := id.revoked.check(state.VerifiedChains); err != nil {
		return caller{}, err
	}
	chain := state.VerifiedChains[0]
	leaf := chain[0]
	c := caller{name: certificateName(leaf)}
	if len(leaf.URIs) == 1 && leaf.URIs[0].Scheme == "spiffe" { // X509-SVID, section 2
		c.spiffeID = leaf.URIs[0].String()
	}
	c.agent = slices.Contains(leaf.DNSNames, AgentName) &&
		slices.ContainsFunc(state.VerifiedChains, func(chain []*x509.Certificate) bool {
			return slices.ContainsFunc(id.clusterCA, chain[len(chain)-1].Equal) &&
				id.revoked.firstRevoked(chain) == nil
		})
	if c.name == "" && !c.agent {
		return caller{}, errors.New("certificate without a name, want a common name, a DNS name " +
			"or a URI")
	}
	return c, nil
}

// certificateName returns the name of a certificate's owner; "" if it has none.
func certificateName(cert *x509.Certificate) string {
	switch {
	case cert.Subject.CommonName != "":
		return cert.Subject.CommonName
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	}
	return ""
}

// soon is how long before a certificate expires the agent warns of it.
const soon = 14 * 24 * time.Hour

// certificateFault returns a fault of an agent's own certificate that does not prevent its use; nil
// if there is none.
func (id *identity) certificateFault(now time.Time) error {
	if id.cert == nil {
		return nil
	}
	leaf := id.cert.Leaf
	const clock = "nobody will believe it, unless this machine's clock, which says %s, is wrong"
	switch {
	case id.revoked.firstRevoked([]*x509.Certificate{leaf}) != nil:
		return fmt.Errorf("nobody will believe it: %w", &revokedError{leaf})
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate of %q does not hold before %s: "+clock,
			certificateName(leaf), leaf.NotBefore.UTC().Format(time.RFC3339),
			now.UTC().Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate of %q has expired on %s: "+clock, certificateName(leaf),
			leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.Add(soon).After(leaf.NotAfter):
		return fmt.Errorf("the certificate of %q expires on %s", certificateName(leaf),
			leaf.NotAfter.UTC().Format(time.RFC3339))
	case id.roots == nil:
		return nil // the agent has no fleet's certificate
	}
	between := x509.NewCertPool()
	for _, der := range id.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil { // it has been parsed before
			between.AddCert(c)
		}
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: id.roots, Intermediates: between, DNSName: AgentName, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err == nil {
		_, err = leaf.Verify(x509.VerifyOptions{
			Roots: id.roots, Intermediates: between, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
	}
	if err != nil {
		return fmt.Errorf("other agents will not believe the certificate of %q: %w",
			certificateName(leaf), err)
	}
	return nil
}
