package secure

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// revoke writes a list with the certificates in the files, and what is in it already,
// as of age ago.
func (p *pki) revoke(list string, age, life time.Duration, files ...string) string {
	p.t.Helper()
	var certs []*x509.Certificate
	for _, file := range files {
		found, err := readCertificates("test", p.path(file))
		if err != nil {
			p.t.Fatal(err)
		}
		certs = append(certs, found...)
	}
	before, err := os.ReadFile(p.path(list))
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	data, err := p.ca.Revoke(before, certs, time.Now().Add(-age), life)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.write(list, string(data), 0o644)
}

func (p *peers) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// TestRevoked: certificates that are revoked are not believed, of clients, of agents and of
// servers, from the moment that the list is read: on new connections, and on those that are open.
func TestRevoked(t *testing.T) {
	p := newPKI(t)
	p.issue("ads", Order{Name: "ads"}, 0)
	p.issue("ops", Order{Name: "ops"}, 0)
	p.issue("other-agent", Order{Name: "a2", Agent: true}, 0)
	config := p.agent()
	config.AccessFile = p.write("access", "clients: {ads: {models: ['*']}, ops: {models: ['*']}}\n",
		0o600)
	config.CRLFile = p.revoke("list", 0, time.Hour)
	s := serve(t, config, true)
	otherConfig := config
	otherConfig.CertFile, otherConfig.KeyFile = p.path("other-agent.crt"), p.path("other-agent.key")
	other, _ := openGuard(t, otherConfig)

	ads, ops, agent := s.as(p.client("ads")), s.as(p.client("ops")), s.dial("10.0.0.7:8001",
		peerOf(other))
	checkCalls(t, ads, codes.OK, "ncf")
	checkCalls(t, ops, codes.OK, "ncf")
	checkCalls(t, agent, codes.OK, "describe")
	if n := s.open.count(); n != 3 {
		t.Errorf("%d connections with certificates are open, want 3", n)
	}
	withREST := func(file string) int {
		id, err := identityFiles{
			cert: p.path(file + ".crt"), key: p.path(file + ".key"), ca: p.path("ca.crt"),
		}.read()
		if err != nil {
			t.Fatal(err)
		}
		leaf := id.cert.Leaf
		chains, err := leaf.Verify(x509.VerifyOptions{
			Roots: id.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest("GET", "https://x/v2/models/ncf", nil)
		req.TLS.PeerCertificates, req.TLS.VerifiedChains = chains[0], chains
		w := httptest.NewRecorder()
		s.HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, req)
		return w.Code
	}
	if got := withREST("ads"); got != http.StatusOK {
		t.Errorf("REST: got %d", got)
	}

	p.revoke("list", 0, time.Hour, "ads.crt", "other-agent.crt")
	lookTwice(s)
	if n := s.open.count(); n != 1 {
		t.Errorf("%d connections are open, want 1: that of ops", n)
	}
	if log := s.log.String(); !strings.Contains(log,
		"connections ended: their certificates are revoked") {
		t.Errorf("not in the log:\n%s", log)
	}
	checkCalls(t, ads, codes.Unavailable, "ncf")
	checkCalls(t, agent, codes.Unavailable, "describe")
	checkCalls(t, ops, codes.OK, "ncf")
	if got := withREST("ads"); got != http.StatusUnauthorized {
		t.Errorf("REST on a connection that was open: got %d", got)
	}
	if got := withREST("ops"); got != http.StatusOK {
		t.Errorf("REST of one that is not revoked: got %d", got)
	}
	if log := s.log.String(); !strings.Contains(log, `reason="certificate revoked"`) {
		t.Errorf("not in the log:\n%s", log)
	}

	// The agents' and the clients' side: a server that is revoked.
	checkCalls(t, s.as(p.client("ops")), codes.OK, "ncf")
	p.revoke("list", 0, time.Hour, "agent.crt")
	client := p.client("ops")
	client.CRLFile = p.path("list")
	checkCalls(t, s.as(client), codes.Unavailable, "ncf")
	p.issue("third", Order{Name: "a3", Agent: true}, 0)
	otherConfig.CertFile, otherConfig.KeyFile = p.path("third.crt"), p.path("third.key")
	otherConfig.CRLFile = p.revoke("later", 0, time.Hour)
	third, _ := openGuard(t, otherConfig)
	believing := s.dial("10.0.0.8:8001", peerOf(third))
	checkCalls(t, believing, codes.OK, "describe")
	if n := third.open.count(); n != 1 {
		t.Errorf("%d connections to other agents, want 1", n)
	}
	p.revoke("later", 0, time.Hour, "agent.crt")
	third.Refresh()
	third.Refresh()
	if n := third.open.count(); n != 0 {
		t.Errorf("%d connections to revoked agents, want 0", n)
	}
	checkCalls(t, believing, codes.Unavailable, "describe")
}

// TestRevocationLists: which lists count, and which do not.
func TestRevocationLists(t *testing.T) {
	p, stranger := newPKI(t), newPKI(t)
	p.issue("ads", Order{Name: "ads"}, 0)
	config := p.agent()
	config.ClientCAFile = config.CAFile

	// One that is out of date counts, and is told.
	config.CRLFile = p.revoke("old", 48*time.Hour, 24*time.Hour, "ads.crt")
	s := serve(t, config, true)
	checkCalls(t, s.as(p.client("ads")), codes.Unavailable, "ncf")
	p.issue("ops", Order{Name: "ops"}, 0)
	checkCalls(t, s.as(p.client("ops")), codes.OK, "ncf")
	if log := s.log.String(); !strings.Contains(log, "a revocation list is out of date") ||
		time.Since(s.RevocationEnd()).Round(time.Hour) != 24*time.Hour {
		t.Errorf("ended %v:\n%s", s.RevocationEnd(), log)
	}

	good, err := os.ReadFile(p.revoke("good", 0, time.Hour, "ads.crt"))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(stranger.revoke("list", 0, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	delta, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(2), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour),
		ExtraExtensions: []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 27}, Critical: true, Value: []byte{2, 1, 1}},
		},
	}, p.ca.cert, p.ca.key)
	if err != nil {
		t.Fatal(err)
	}
	forged, _ := pem.Decode(good)
	forged.Bytes[len(forged.Bytes)-1] ^= 1
	ca, err := os.ReadFile(config.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, list, want string }{
		{"none", "", "no revocation list in PEM"},
		{"cut", string(good[:len(good)/2]), "list 1 is cut off or damaged"},
		{"second cut", string(good) + string(good[:len(good)/2]), "list 2 is cut off or damaged"},
		{"certificate", string(ca), `PEM of type "CERTIFICATE", want X509 CRL alone`},
		{"no DER", string(pem.EncodeToMemory(&pem.Block{Type: crlType, Bytes: []byte("x")})),
			"list 1: "},
		{"of another CA", string(good) + string(foreign),
			"list 2: x509: ECDSA verification failure"},
		{"forged", string(pem.EncodeToMemory(forged)), "list 1: x509: "},
		{"not all of it", string(pem.EncodeToMemory(&pem.Block{Type: crlType, Bytes: delta})),
			"critical extension 2.5.29.27"},
	} {
		bad := config
		bad.CRLFile = p.write("bad", tt.list, 0o644)
		if _, err := Open(bad, Options{Logger: new(logBuffer).logger()}); err == nil ||
			!strings.Contains(err.Error(), tt.want) ||
			!strings.Contains(err.Error(), "tls-crl: "+bad.CRLFile) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	for _, c := range []Config{{CRLFile: "x"}, {CRLFile: "x", CertFile: "c", KeyFile: "k"}} {
		if err := c.Validate(); err == nil ||
			!strings.Contains(err.Error(), `tls-crl: "x" without tls-ca`) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	if _, err := (ClientConfig{CRLFile: "x"}).DialOptions(new(logBuffer).logger()); err == nil ||
		!strings.Contains(err.Error(), `tls-crl: "x" without tls-ca`) {
		t.Errorf("client: got %v", err)
	}
	config.CRLFile = p.revoke("own", 0, time.Hour, "agent.crt")
	if _, log := openGuard(t, config); !strings.Contains(log.String(),
		`nobody will believe it: the certificate of \"a1\" with the serial number `) {
		t.Errorf("the own certificate is revoked, and nobody says so:\n%s", log)
	}
	if _, err := p.ca.Revoke(foreign, nil, time.Now(), time.Hour); err == nil ||
		!strings.Contains(err.Error(), "the list before: ") {
		t.Errorf("another CA's list goes on: got %v", err)
	}
	stranger.issue("x", Order{Name: "x"}, 0)
	for file, want := range map[string]string{
		stranger.path("x.crt"): `the certificate of "x" is not of this CA`,
		config.CAFile:          "is that of a CA",
	} {
		certs, err := readCertificates("test", file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.ca.Revoke(nil, certs, time.Now(), time.Hour); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("revoke %s: got %v, want %q", file, err, want)
		}
	}
}

// TestRevokedCA: once the fleet's CA has revoked the certificate that it gave to the clients' CA,
// no certificate of the clients' CA is an agent's, though clients are still believed.
func TestRevokedCA(t *testing.T) {
	number := int64(0)
	issue := func(name string, names []string, ca bool, key *ecdsa.PrivateKey,
		issuer *x509.Certificate, by *ecdsa.PrivateKey) *x509.Certificate {
		t.Helper()
		number++
		template := &x509.Certificate{
			SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: name},
			DNSNames: names, NotBefore: time.Now().Add(-time.Hour),
			NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true,
		}
		if issuer == nil {
			issuer = template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	var keys [3]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	fleet := issue("fleet", nil, true, keys[0], nil, keys[0])
	clients := issue("clients", nil, true, keys[1], nil, keys[1])
	given := issue("clients", nil, true, keys[1], fleet, keys[0])
	leaf := issue("mallory", []string{AgentName}, false, keys[2], clients, keys[1])
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots:         poolOf([]*x509.Certificate{fleet, clients}),
		Intermediates: poolOf([]*x509.Certificate{given}),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil || len(chains) != 2 {
		t.Fatalf("got %d chains, %v, want 2", len(chains), err)
	}
	id := &identity{
		clusterCA: []*x509.Certificate{fleet},
		revoked: &revocationLists{serials: map[serial]bool{
			serialOf(given.RawIssuer, given.SerialNumber): true,
		}},
	}
	c, err := id.callerOf(tls.ConnectionState{VerifiedChains: chains})
	if err != nil || c.name != "mallory" || c.agent {
		t.Errorf("the caller is %+v, %v, want a client called mallory", c, err)
	}
}

// TestRevokeUnnumbered: a list that another program has made without a number can be gone on with.
func TestRevokeUnnumbered(t *testing.T) {
	p := newPKI(t)
	p.issue("ads", Order{Name: "ads"}, 0)
	gone := []pkix.RevokedCertificate{{
		SerialNumber: big.NewInt(7), RevocationTime: time.Now(),
	}}
	//lint:ignore SA1019 nothing else makes such a list
	der, err := p.ca.cert.CreateCRL(rand.Reader, p.ca.key, gone, time.Now(),
		time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	certs, err := readCertificates("test", p.path("ads.crt"))
	if err != nil {
		t.Fatal(err)
	}
	before := pem.EncodeToMemory(&pem.Block{Type: crlType, Bytes: der})
	data, err := p.ca.Revoke(before, certs, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := parseLists(data)
	if err != nil || len(lists) != 1 || len(lists[0].RevokedCertificateEntries) != 2 ||
		lists[0].Number.Sign() < 1 {
		t.Errorf("got %v, %v, want one list with a number, of two certificates", lists, err)
	}
}
