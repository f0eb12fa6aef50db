package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestRevoke: the list has what was revoked, and goes on.
func TestRevoke(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range []string{
		"certs init", "certs issue client ads", "certs issue client ops",
		"certs issue agent node1 --out elsewhere",
	} {
		if _, _, err := execute(t, strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	revoked := func() (n int) {
		data, err := os.ReadFile("certs/ca.crl")
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return len(list.RevokedCertificateEntries)
	}
	for i, args := range []string{"", " ads", " elsewhere/node1.crt ads", " --days 7"} {
		out, _, err := execute(t, strings.Fields("certs revoke"+args)...)
		if err != nil || !strings.Contains(out, "muster agent --tls-crl certs/ca.crl") {
			t.Fatalf("%q: got %q, %v", args, out, err)
		}
		if got, want := revoked(), min(i, 2); got != want {
			t.Errorf("%q: %d are revoked, want %d", args, got, want)
		}
	}
	for args, want := range map[string]string{
		"nobody": "revoke nobody: open certs/nobody.crt", "ca": "is that of a CA",
		"certs/ca.key": "PEM of type", "--days 0": "days: 0",
	} {
		if _, _, err := execute(t, strings.Fields("certs revoke "+args)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
	if got := revoked(); got != 2 {
		t.Errorf("%d are revoked, want 2", got)
	}
	if err := os.WriteFile("certs/ca.crl", []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := execute(t, "certs", "revoke", "ops"); err == nil ||
		!strings.Contains(err.Error(), "certs/ca.crl: the list before: no revocation list") {
		t.Errorf("damaged list: got %v", err)
	}
}

// TestCerts makes a CA and certificates of it, and tries what must not work.
func TestCerts(t *testing.T) {
	t.Chdir(t.TempDir())
	must := func(want string, args ...string) {
		t.Helper()
		out, _, err := execute(t, args...)
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("%q: got %q, %v, want %q", args, out, err, want)
		}
	}
	mustNot := func(want string, args ...string) {
		t.Helper()
		if _, _, err := execute(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
	mustNot(`make one with "muster certs init"`, "certs", "issue", "client", "ads")
	must("muster certs issue agent NAME --dir certs", "certs", "init")
	must("muster agent --tls-cert certs/node1.crt --tls-key certs/node1.key --tls-ca certs/ca.crt",
		"certs", "issue", "agent", "node1", "--host", "10.0.0.7,node1.example.com")
	must("certs/ads.key: its private key", "certs", "issue", "client", "ads", "--days", "7")
	must("new/ads.crt", "certs", "issue", "client", "ads", "--out", "new")

	for _, file := range []string{
		"ca.crt", "ca.key", "node1.crt", "node1.key", "ads.crt", "ads.key",
	} {
		info, err := os.Stat("certs/" + file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v, want mode 0600", file, info.Mode(), err)
		}
	}
	caPEM, err := os.ReadFile("certs/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caPEM)
	agent, err := tls.LoadX509KeyPair("certs/node1.crt", "certs/node1.key")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"agent.muster", "node1", "localhost", "127.0.0.1", "::1", "10.0.0.7", "node1.example.com",
	} {
		if _, err := agent.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, DNSName: name,
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	client, err := tls.LoadX509KeyPair("certs/ads.crt", "certs/ads.key")
	if err != nil {
		t.Fatal(err)
	}
	if leaf := client.Leaf; leaf.Subject.CommonName != "ads" ||
		slices.Contains(leaf.DNSNames, "agent.muster") ||
		leaf.NotAfter.Sub(leaf.NotBefore).Hours() > 7*24+1 {
		t.Errorf("client: %+v", leaf)
	}

	before, err := os.ReadFile("certs/ads.key")
	if err != nil {
		t.Fatal(err)
	}
	mustNot("certs/ca.crt exists", "certs", "init")
	mustNot("certs/ads.crt exists", "certs", "issue", "client", "ads")
	mustNot("certs/node1.crt exists", "certs", "issue", "client", "node1")
	mustNot("want a valid file name", "certs", "issue", "client", "../ads")
	mustNot("other than ca", "certs", "issue", "agent", "ca")
	mustNot("name", "certs", "issue", "client", "a b")
	mustNot("days: 0, want 1 to", "certs", "issue", "client", "x", "--days", "0")
	mustNot("days: -1, want 1 to", "certs", "init", "--dir", "other", "--days", "-1")
	mustNot("accepts 1 arg", "certs", "issue", "client")
	if after, err := os.ReadFile("certs/ads.key"); err != nil || string(after) != string(before) {
		t.Errorf("the key of ads has changed: %v", err)
	}
	if err := os.Rename("certs/ads.key", "certs/ca.key"); err != nil {
		t.Fatal(err)
	}
	mustNot("private key does not match public key", "certs", "issue", "client", "x")
	if err := os.Remove("certs/ca.key"); err != nil {
		t.Fatal(err)
	}
	mustNot("the CA in certs lacks its private key", "certs", "issue", "client", "x")
	if _, err := os.Stat("certs/x.key"); err == nil {
		t.Error("a key was written without a certificate")
	}
}
