package secure

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// backdated is how long before now a certificate's validity begins, for machines whose clocks are
// behind.
const backdated = 5 * time.Minute

// A CA issues certificates with ECDSA P-256 keys. It may be used concurrently.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA makes a CA whose own certificate is valid for life from now. It returns the CA, and its
// certificate and private key in PEM.
func NewCA(name string, now time.Time, life time.Duration) (ca *CA, certPEM, keyPEM []byte,
	err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdated),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it issues no other CA
	}
	certPEM, err = sign(template, template, key.Public(), key)
	if err != nil {
		return nil, nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, nil, err
	}
	ca, err = ReadCA(certPEM, keyPEM)
	return ca, certPEM, keyPEM, err
}

// ReadCA returns the CA with the certificate and key that NewCA returned.
func ReadCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	if !pair.Leaf.IsCA {
		return nil, fmt.Errorf("the certificate of %q is not that of a CA",
			pair.Leaf.Subject.CommonName)
	}
	return &CA{cert: pair.Leaf, key: pair.PrivateKey.(crypto.Signer)}, nil
}

// An Order describes a certificate to issue.
type Order struct {
	// Name is the common name.
	Name string
	// Agent asks for an agent's certificate: with the DNS name [AgentName], valid for servers and
	// clients. Otherwise the certificate is a client's.
	Agent bool
	// Hosts are the DNS names and IP addresses by which clients reach the agent.
	Hosts []string
	// Life is how long the certificate is valid from now, > 0. It never outlives the CA's own.
	Life time.Duration
}

// Issue returns a new certificate and its private key, in PEM.
func (ca *CA) Issue(order Order, now time.Time) (certPEM, keyPEM []byte, err error) {
	if err := checkName(order.Name); err != nil {
		return nil, nil, err
	}
	if len(order.Hosts) > 0 && !order.Agent {
		return nil, nil, errors.New("hosts are for the certificate of an agent")
	}
	if !now.Before(ca.cert.NotAfter) {
		return nil, nil, fmt.Errorf("the CA's certificate has expired on %s",
			ca.cert.NotAfter.Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: order.Name},
		NotBefore:   now.Add(-backdated),
		NotAfter:    now.Add(order.Life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	if order.Agent {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{AgentName}
		for _, host := range order.Hosts {
			ip := net.ParseIP(host)
			switch {
			case ip != nil && !slices.ContainsFunc(template.IPAddresses, ip.Equal):
				template.IPAddresses = append(template.IPAddresses, ip)
			case ip == nil && !slices.Contains(template.DNSNames, host):
				if err := checkName(host); err != nil {
					return nil, nil, fmt.Errorf("host: %w", err)
				}
				template.DNSNames = append(template.DNSNames, host)
			}
		}
	}
	if certPEM, err = sign(template, ca.cert, key.Public(), ca.key); err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return certPEM, keyPEM, err
}

// sign returns the certificate that template describes, in PEM.
func sign(template, issuer *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte,
	error) {
	// CreateCertificate draws the serial number.
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, public, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
