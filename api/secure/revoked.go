package secure

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

// crlType is the PEM type of a revocation list.
const crlType = "X509 CRL"

// revocationLists is the set of certificates that a file of revocation lists (RFC 5280, section 5)
// revokes. A nil set is empty. It is never changed.
type revocationLists struct {
	serials map[serial]bool
	end     time.Time // when the first of the lists should have been renewed
}

// A serial identifies a certificate: its issuer's encoded name, and its serial number.
type serial struct{ issuer, number string }

func serialOf(issuer []byte, number *big.Int) serial {
	return serial{
		string(issuer), number.String(),
	}
}

// readRevoked reads a file with one or more revocation lists, each of which one of the CAs must
// have signed.
func readRevoked(path string, cas []*x509.Certificate) (*revocationLists, error) {
	data, err := readFile("tls-crl", path)
	if err != nil {
		return nil, err
	}
	lists, err := parseLists(data)
	if err != nil {
		return nil, fmt.Errorf("tls-crl: %s: %w", path, err)
	}
	r := &revocationLists{serials: map[serial]bool{}}
	for i, list := range lists {
		if err := checkList(list, cas); err != nil {
			return nil, fmt.Errorf("tls-crl: %s: list %d: %w", path, i+1, err)
		}
		for _, entry := range list.RevokedCertificateEntries {
			r.serials[serialOf(list.RawIssuer, entry.SerialNumber)] = true
		}
		if end := list.NextUpdate; !end.IsZero() && (r.end.IsZero() || end.Before(r.end)) {
			r.end = end
		}
	}
	return r, nil
}

// parseLists parses one or more revocation lists in PEM. An incomplete block is an error.
func parseLists(data []byte) (lists []*x509.RevocationList, err error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			if bytes.Contains(data, []byte("-----BEGIN")) {
				return nil, fmt.Errorf("list %d is cut off or damaged", len(lists)+1)
			}
			break
		}
		if block.Type != crlType {
			return nil, fmt.Errorf("PEM of type %q, want %s alone", block.Type, crlType)
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("list %d: %w", len(lists)+1, err)
		}
		lists, data = append(lists, list), rest
	}
	if len(lists) == 0 {
		return nil, errors.New("no revocation list in PEM")
	}
	return lists, nil
}

// checkList returns an error unless one of the CAs has signed the list, and it has no extension
// that would change its meaning.
func checkList(list *x509.RevocationList, cas []*x509.Certificate) error {
	for _, extension := range list.Extensions {
		if extension.Critical {
			return fmt.Errorf("it has the critical extension %v, want a full list of one CA",
				extension.Id)
		}
	}
	err := fmt.Errorf("it is of %q, which is none of the CAs in tls-ca and tls-client-ca",
		list.Issuer.CommonName)
	for _, ca := range cas {
		if !bytes.Equal(ca.RawSubject, list.RawIssuer) {
			continue
		}
		if err = list.CheckSignatureFrom(ca); err == nil {
			return nil
		}
	}
	return err
}

// A revokedError is the error of a revoked certificate.
type revokedError struct{ cert *x509.Certificate }

func (e *revokedError) Error() string {
	return fmt.Sprintf("the certificate of %q with the serial number %x is revoked",
		certificateName(e.cert), e.cert.SerialNumber)
}

// check returns an error if every chain contains a revoked certificate.
func (r *revocationLists) check(chains [][]*x509.Certificate) error {
	var err error
	for _, chain := range chains {
		bad := r.firstRevoked(chain)
		if bad == nil {
			return nil
		}
		err = &revokedError{bad}
	}
	return err
}

// firstRevoked returns the first revoked certificate of the chain; nil if none is.
func (r *revocationLists) firstRevoked(chain []*x509.Certificate) *x509.Certificate {
	if r == nil {
		return nil
	}
	for _, cert := range chain {
		if r.serials[serialOf(cert.RawIssuer, cert.SerialNumber)] {
			return cert
		}
	}
	return nil
}

// listFault returns a fault of the lists that does not prevent their use; nil if there is none.
// Expired lists stay in use, because a forgotten renewal would otherwise stop the fleet.
func (r *revocationLists) listFault(now time.Time) error {
	if r == nil || r.end.IsZero() || now.Before(r.end) {
		return nil
	}
	return fmt.Errorf(
		"a revocation list should have been renewed by %s: what it revokes stays revoked, what "+
			"was revoked since is believed", r.end.UTC().Format(time.RFC3339))
}

// Revoke returns a revocation list of the CA, in PEM: the certificates of the list before, in PEM,
// if it is not empty, and certs. The list should be renewed after life.
func (ca *CA) Revoke(before []byte, certs []*x509.Certificate, now time.Time,
	life time.Duration) ([]byte, error) {
	template := &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: now.Add(-backdated), NextUpdate: now.Add(life),
	}
	known := map[serial]bool{}
	if len(before) > 0 {
		lists, err := parseLists(before)
		if err != nil {
			return nil, fmt.Errorf("the list before: %w", err)
		}
		if len(lists) != 1 {
			return nil, fmt.Errorf("the list before: %d lists, want one", len(lists))
		}
		if err := checkList(lists[0], []*x509.Certificate{ca.cert}); err != nil {
			return nil, fmt.Errorf("the list before: %w", err)
		}
		if before := lists[0].Number; before != nil { // other programs need not number lists
			template.Number.Add(before, big.NewInt(1))
		}
		template.RevokedCertificateEntries = lists[0].RevokedCertificateEntries
		for _, entry := range template.RevokedCertificateEntries {
			known[serialOf(ca.cert.RawSubject, entry.SerialNumber)] = true
		}
	}
	for _, cert := range certs {
		if err := cert.CheckSignatureFrom(ca.cert); err != nil {
			return nil, fmt.Errorf("the certificate of %q is not of this CA: %w",
				certificateName(cert), err)
		}
		if cert.IsCA {
			return nil, fmt.Errorf(
				"the certificate of %q is that of a CA, want an agent's or a client's",
				certificateName(cert))
		}
		if id := serialOf(cert.RawIssuer, cert.SerialNumber); !known[id] {
			known[id] = true
			template.RevokedCertificateEntries = append(template.RevokedCertificateEntries,
				x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: now})
		}
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, ca.cert, ca.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: crlType, Bytes: der}), nil
}

// ParseCertificates parses one or more certificates in PEM; anything else in data is an error.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) { return parseCertificates(data) }

// peers holds open connections, with the certificates of their other ends. The zero value is ready
// to use.
type peers struct {
	mu    sync.Mutex
	conns map[*peerConn]bool
}

// A peerConn is a connection that is closed when the certificate of its other end is revoked.
type peerConn struct {
	net.Conn
	peers  *peers
	chains [][]*x509.Certificate
}

// addConnection registers a connection, so that it is closed when its certificate is revoked. It
// returns a connection without a certificate unchanged.
func (p *peers) addConnection(conn net.Conn, chains [][]*x509.Certificate,
	now func() *identity) net.Conn {
	if len(chains) == 0 {
		return conn
	}
	c := &peerConn{conn, p, chains}
	p.mu.Lock()
	if p.conns == nil {
		p.conns = map[*peerConn]bool{}
	}
	p.conns[c] = true
	p.mu.Unlock()
	if now().revoked.check(chains) != nil { // revoked since the handshake
		_ = c.Close()
	}
	return c
}

// Close implements [net.Conn].
func (c *peerConn) Close() error {
	c.peers.mu.Lock()
	delete(c.peers.conns, c)
	c.peers.mu.Unlock()
	return c.Conn.Close()
}

// endRevoked closes the connections with revoked certificates, and returns the names of their
// owners.
func (p *peers) endRevoked(r *revocationLists) (names []string) {
	if r == nil {
		return nil
	}
	var ended []*peerConn
	p.mu.Lock()
	for c := range p.conns {
		if r.check(c.chains) != nil {
			ended = append(ended, c)
			names = append(names, certificateName(c.chains[0][0]))
		}
	}
	p.mu.Unlock()
	for _, c := range ended {
		_ = c.Close()
	}
	return names
}
