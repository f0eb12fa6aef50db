package secure

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseKeys(t *testing.T) {
	digest := sha256.Sum256([]byte("feed-feed-feed-feed"))
	hashed := hex.EncodeToString(digest[:])
	for _, tt := range []struct {
		name, file string
		want       string // client of the key feed-feed-feed-feed, or of the error
	}{
		{"plain", "# keys\n\n  feed : feed-feed-feed-feed  \r\nads: ads-ads-ads-ads-ads", "feed"},
		{"hashed", "feed: sha256:" + hashed, "feed"},
		{"two of one client", "feed: first-first-first\nfeed: feed-feed-feed-feed\n", "feed"},
		{"none", "", ""},
		{"no colon", "ads: ads-ads-ads-ads-ads\nfeed feed-feed-feed-feed",
			"keys:2: want a line of `name: key`"},
		{"no name", ": feed-feed-feed-feed", "keys:1: name of 0 characters, want 1 to 128"},
		{"long name", strings.Repeat("x", 129) + ": feed-feed-feed-feed", "name of 129 characters"},
		{"bad name", "f*d: feed-feed-feed-feed", `'*'`},
		{"blank in the name", "fe ed: feed-feed-feed-feed", `' '`},
		{"short", "feed: feed", `keys:1: the key of "feed" has 4 characters, want 16 or more`},
		{"empty", "feed:", `keys:1: the key of "feed" has 0 characters`},
		{"blank in the key", "feed: feed-feed feed-feed",
			`has the character ' ', want visible ASCII`},
		{"bad hash", "feed: sha256:" + hashed[1:],
			`keys:1: the SHA-256 of the key of "feed" has 63 characters, want 64`},
		{"no hash", "feed: sha256:" + strings.Repeat("x", 64), "hexadecimal"},
		{"key twice", "feed: feed-feed-feed-feed\nads: sha256:" + hashed,
			`keys:2: the key of "ads" is that of line 1 too`},
		{"all faults", "feed\nads\n", "keys:2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			keys, err := ParseKeys("keys", []byte(tt.file))
			got := ""
			if err != nil {
				got = err.Error()
				if !strings.Contains(got, tt.want) || tt.want == "" {
					t.Errorf("got %q, want %q in it", got, tt.want)
				}
				if strings.Contains(got, "feed-feed") {
					t.Errorf("the error shows a key: %q", got)
				}
				return
			}
			if got, _ = keys.ownerOf(digestOf("feed-feed-feed-feed")); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			for _, wrong := range []string{
				"", "feed-feed-feed-fee", "feed-feed-feed-feed ", "sha256:" + hashed, hashed,
			} {
				if name, ok := keys.ownerOf(digestOf(wrong)); ok {
					t.Errorf("%q is taken for the key of %q", wrong, name)
				}
			}
		})
	}
}

func TestParseAccess(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"empty", "", "access: empty"},
		{"comments", "# nothing\n", "access: empty"},
		{"no clients", "{}", "access: no clients"},
		{"unknown key", "client: {}", `access:1: unknown key "client", want clients`},
		{"list", "- a\n", "access:1: want `clients:`"},
		{"clients that are a list", "clients: [a]", "access:1: want lines of"},
		{"grant that is a list", "clients:\n  ads: [ncf]\n", "access:2: want {models"},
		{"unknown right", "clients:\n  ads: {model: [ncf]}\n",
			`access:2: unknown key "model", want models, control, load_share or limits`},
		{"load_share of more than all", "clients:\n  ads: {load_share: 1.5}\n",
			`access:2: client "ads": load_share: "1.5", want a number above 0, at most 1`},
		{"load_share that is no number", "clients:\n  ads: {load_share: [1]}\n",
			`access:2: client "ads": load_share: "", want a number above 0, at most 1`},
		{"unknown control", "clients:\n  ads: {control: [reboot]}\n",
			`access:2: control call "reboot", want one of ["load" "unload" "drain" "plan" "keys" ` +
				`"events" "metrics" "fleet"]`},
		{"models that are a word", "clients:\n  ads: {models: ncf}\n",
			"access:2: want a list of models"},
		{"models that are lists", "clients:\n  ads: {models: [[ncf]]}\n",
			"want the name of one of the models"},
		{"client twice", "clients:\n  ads: {}\n  ads: {}\n",
			`access:3: "ads" is set twice, first at line 2`},
		{"bad name", "clients:\n  'a*': {}\n", `name "a*"`},
		{"no YAML", "clients: a: b\n", "access: "},
		{"two documents", "clients: {}\n---\nclients: {}\n", "more than one document"},
		{"all faults", "x: 1\nclients:\n  ads: 1\n", "access:3"},
		{"later format", "x: 1\nrequires: 99\nclients: none\n",
			"access:2: requires format 99, but this version of Muster knows formats up to "},
		{"no format", "requires: x\nclients: {}\n", `access:1: requires: got "x", want the number`},
		{"nothing but a format", "requires: 1\n", "access: no clients"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseAccess("access", []byte(tt.file)); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
	a, err := ParseAccess("access",
		[]byte("clients:\n  ads: {models: [ncf, wnd], control: [load]}\n  ops:\n    control: "+
			"[drain]\n  '*': {models: ['*']}\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, client := range []string{"ads", "ops", "somebody"} {
		for _, model := range []string{"ncf", "rm2"} {
			got += fmt.Sprintf("%s %s %v\n", client, model, a.MayQuery(client, model))
		}
		for _, call := range controls {
			got += fmt.Sprintf("%s %s %v\n", client, call, a.MayControl(client, call))
		}
	}
	want := `ads ncf true
ads rm2 false
ads load true
ads unload false
ads drain false
ads plan false
ads keys false
ads events false
ads metrics false
ads fleet false
ops ncf false
ops rm2 false
ops load false
ops unload false
ops drain true
ops plan false
ops keys false
ops events false
ops metrics false
ops fleet false
somebody ncf true
somebody rm2 true
somebody load false
somebody unload false
somebody drain false
somebody plan false
somebody keys false
somebody events false
somebody metrics false
somebody fleet false
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestDefaultAccess is what its comment says.
func TestDefaultAccess(t *testing.T) {
	written, err := ParseAccess("comment",
		[]byte("clients:\n  admin: {models: [\"*\"], control: [load, unload, drain, plan, keys, "+
			"events, metrics, fleet]}\n  \"*\": {models: [\"*\"]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, client := range []string{"admin", "ads"} {
		if got, want := DefaultAccess().MayQuery(client, "ncf"), written.MayQuery(client,
			"ncf"); got != want {
			t.Errorf("%s may query: %v, want %v", client, got, want)
		}
		for _, call := range controls {
			if got, want := DefaultAccess().MayControl(client, call), written.MayControl(client,
				call); got != want {
				t.Errorf("%s may %s: %v, want %v", client, call, got, want)
			}
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		config Config
		want   string // "": no fault
	}{
		{Config{}, ""},
		{Config{CertFile: "c", KeyFile: "k"}, ""},
		{Config{
			CertFile: "c", KeyFile: "k", CAFile: "a", RequireClientCert: true, AccessFile: "x",
			APIKeysFile: "y",
		}, ""},
		{Config{APIKeysFile: "y", AccessFile: "x"}, ""},
		{Config{CertFile: "c"}, "tls-key: empty"},
		{Config{KeyFile: "k"}, "tls-cert: empty"},
		{Config{CAFile: "a"}, `tls-ca: "a" without tls-cert`},
		{Config{ClientCAFile: "a"}, `tls-client-ca: "a" without tls-cert`},
		{Config{CertFile: "c", KeyFile: "k", RequireClientCert: true}, "require-client-cert"},
	} {
		err := tt.config.Validate()
		if tt.want == "" && err != nil ||
			tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: got %v, want %q", tt.config, err, tt.want)
		}
	}
}

// TestBadFiles: an agent does not start with files that cannot be used.
func TestBadFiles(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	good := p.agent()
	other.issue("agent", Order{Name: "x", Agent: true}, 0)
	cert, err := os.ReadFile(good.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(good.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*Config)) Config {
		c := good
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name   string
		config Config
		want   string
	}{
		{"no certificate file", with(func(c *Config) { c.CertFile = p.path("none") }),
			"tls-cert: "},
		{"no key file", with(func(c *Config) { c.KeyFile = p.path("none") }), "tls-key: "},
		{"no CA file", with(func(c *Config) { c.CAFile = p.path("none") }), "tls-ca: "},
		{"directory", with(func(c *Config) { c.CAFile = p.dir }), "no regular file"},
		{"another's key", with(func(c *Config) { c.KeyFile = other.path("agent.key") }),
			"private key does not match public key"},
		{"key open to the world",
			with(func(c *Config) { c.KeyFile = p.write("open.key", string(key), 0o604) }),
			"open.key has mode 0604, want 0600"},
		{"cut certificate",
			with(func(c *Config) {
				c.CertFile = p.write("cut.crt", string(cert[:len(cert)-40]), 0o600)
			}), "certificate 1 is cut off or damaged"},
		{"second certificate cut",
			with(func(c *Config) {
				c.CAFile = p.write("two.crt", string(cert)+string(cert[:99]), 0o600)
			}), "certificate 2 is cut off or damaged"},
		{"key as CA", with(func(c *Config) { c.CAFile = good.KeyFile }),
			`PEM of type "PRIVATE KEY"`},
		{"text as CA", with(func(c *Config) { c.CAFile = p.write("text", "hello", 0o600) }),
			"no certificate in PEM"},
		{"no DER", with(func(c *Config) {
			c.CAFile = p.write("der",
				string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})),
				0o600)
		}), "certificate 1: "},
		{"client CA", with(func(c *Config) { c.ClientCAFile = p.path("none") }), "tls-client-ca: "},
		{"keys open to the world",
			Config{APIKeysFile: p.write("keys", "a: aaaaaaaaaaaaaaaaaaa\n", 0o644)},
			"keys has mode 0644, want 0600, or 0640 for a group"},
		{"bad keys", Config{APIKeysFile: p.write("bad", "a\n", 0o640)}, "bad:1: want"},
		{"bad access", with(func(c *Config) { c.AccessFile = p.write("access", "a: 1\n", 0o644) }),
			"access:1: unknown key"},
		{"huge",
			with(func(c *Config) {
				c.CAFile = p.write("huge", strings.Repeat("x", largestFile+1), 0o600)
			}), "want at most"},
		{"bad config", Config{CertFile: "x"}, "tls-key: empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Open(tt.config, Options{Logger: new(logBuffer).logger()}); err == nil ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
	for _, c := range []ClientConfig{{CAFile: "none"}, {CertFile: "x"}, {APIKey: "a b"}} {
		if _, err := c.DialOptions(new(logBuffer).logger()); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

// TestAdvice tells the owner of a certificate what will go wrong with it.
func TestAdvice(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	year := 365 * 24 * time.Hour
	ca, caPEM, _, err := NewCA("long", time.Now(), 2*year)
	if err != nil {
		t.Fatal(err)
	}
	p.ca = ca
	p.write("ca.crt", string(caPEM), 0o600)
	p.issue("good", Order{Name: "a1", Agent: true, Life: year}, 0)
	p.issue("old", Order{Name: "a1", Agent: true, Life: time.Hour}, 2*time.Hour)
	p.issue("future", Order{Name: "a1", Agent: true, Life: year}, -3*time.Hour)
	p.issue("short", Order{Name: "a1", Agent: true, Life: time.Hour}, 0)
	p.issue("client", Order{Name: "ads", Life: year}, 0)
	for _, tt := range []struct{ file, ca, want string }{
		{"good", p.path("ca.crt"), ""},
		{"good", "", ""},
		{"good", other.path("ca.crt"), "unknown authority"},
		{"old", "", "has expired on"},
		{"old", "", "clock, which says"},
		{"future", "", "does not hold before"},
		{"future", "", "clock, which says"},
		{"short", "", "expires on"},
		{"client", p.path("ca.crt"), AgentName},
	} {
		_, log := openGuard(t, Config{
			CertFile: p.path(tt.file + ".crt"), KeyFile: p.path(tt.file + ".key"), CAFile: tt.ca,
		})
		if got := log.String(); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s with CA %q: got %q, want %q", tt.file, tt.ca, got, tt.want)
		}
	}
}

// TestAdviceComesInTime has an agent run until its certificate ends soon: it says so though the
// certificate was good when it began.
func TestAdviceComesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPKI(t)
		ca, _, _, err := NewCA("long", time.Now(), 2*soon)
		if err != nil {
			t.Fatal(err)
		}
		p.ca = ca
		p.issue("agent", Order{Name: "a1", Agent: true, Life: soon + time.Hour}, 0)
		g, log := openGuard(t, Config{CertFile: p.path("agent.crt"), KeyFile: p.path("agent.key")})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.Run(ctx)
		time.Sleep(adviseAgain - time.Second)
		if got := log.String(); got != "" {
			t.Errorf("got %q, want nothing yet", got)
		}
		time.Sleep(2 * time.Second)
		if got := log.String(); strings.Count(got, "expires on") != 1 {
			t.Errorf("got %q, want once that the certificate expires", got)
		}
	})
}

func TestIssue(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ca, caPEM, caKey, err := NewCA("fleet", now, 1000*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ReadCA(caPEM, caKey); err != nil || !again.cert.Equal(ca.cert) {
		t.Errorf("read back: %v", err)
	}
	issue := func(o Order) *x509.Certificate {
		t.Helper()
		certPEM, keyPEM, err := ca.Issue(o, now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCA(certPEM, keyPEM); err == nil {
			t.Error("a certificate that was issued passes for a CA")
		}
		block, _ := pem.Decode(certPEM)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	agent := issue(Order{
		Name: "a1", Agent: true,
		Hosts: []string{"db.example.com", "10.0.0.1", "::1", "10.0.0.1", "db.example.com"},
		Life:  time.Hour,
	})
	if got := fmt.Sprint(agent.DNSNames, agent.IPAddresses, agent.NotBefore,
		agent.NotAfter); got != "[agent.muster db.example.com] [10.0.0.1 ::1] 2026-01-02 "+
		"02:59:05 +0000 UTC 2026-01-02 04:04:05 +0000 UTC" {
		t.Errorf("got %s", got)
	}
	client := issue(Order{Name: "ads", Life: 2000 * time.Hour})
	if got := fmt.Sprint(client.DNSNames, client.ExtKeyUsage,
		client.NotAfter.Equal(ca.cert.NotAfter)); got != fmt.Sprint([]string{},
		[]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, true) {
		t.Errorf("got %s", got)
	}
	for _, o := range []Order{
		{}, {Name: "a b"}, {Name: "a", Hosts: []string{"x"}}, {
			Name: "a", Agent: true, Hosts: []string{"*"},
		},
	} {
		if _, _, err := ca.Issue(o, now); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	if _, _, err := ca.Issue(Order{Name: "a", Life: time.Hour},
		now.Add(1001*time.Hour)); err == nil ||
		!strings.Contains(err.Error(), "expired on 2026-02-12") {
		t.Errorf("of a CA that has expired: got %v", err)
	}
}

// TestCertificateName: the common name, or else the first DNS name, or URI.
func TestCertificateName(t *testing.T) {
	c := &x509.Certificate{}
	if got := certificateName(c); got != "" {
		t.Errorf("got %q", got)
	}
	c.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/ads"}}
	if got := certificateName(c); got != "spiffe://example.org/ads" {
		t.Errorf("got %q", got)
	}
	c.DNSNames = []string{"ads.example.com", "b"}
	if got := certificateName(c); got != "ads.example.com" {
		t.Errorf("got %q", got)
	}
	c.Subject.CommonName = "ads"
	if got := certificateName(c); got != "ads" {
		t.Errorf("got %q", got)
	}
}

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "127.9.9.9:0": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false,
		"example.com:1": false, "nonsense": false,
	} {
		if got := Loopback(address); got != want {
			t.Errorf("%s: got %v", address, got)
		}
	}
}

// TestRefusalsAreNoFlood: one line a peer and reason in ten minutes, ten lines a
// minute in all, and what was left out is counted.
func TestRefusalsAreNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		r := refusals{log: log.logger()}
		from := func(i int) net.Addr {
			return &net.TCPAddr{
				IP: net.IPv4(10, 0, byte(i>>8), byte(i)), Port: i,
			}
		}
		lines := func() int { return strings.Count(log.String(), "\n") }
		for range 1000 {
			r.add(from(1), "call refused", "no credentials", errors.New("x"))
		}
		if lines() != 1 {
			t.Errorf("one peer: %d lines, want 1", lines())
		}
		for i := range 3 * maxPeers {
			r.add(from(i), "call refused", "no credentials", errors.New("x"))
		}
		if lines() != linesAMinute {
			t.Errorf("many peers: %d lines, want %d", lines(), linesAMinute)
		}
		if len(r.said) > maxPeers {
			t.Errorf("%d peers are remembered, want at most %d", len(r.said), maxPeers)
		}
		time.Sleep(sayAgain)
		r.add(from(1), "call refused", "no credentials", errors.New("x"))
		// All but ten of the many, and peer 1 had been logged.
		if got := log.String(); lines() != linesAMinute+1 ||
			!strings.Contains(got, "peer=10.0.0.1 reason=\"no credentials\" error=x times=") ||
			!strings.Contains(got, "others_not_logged=") {
			t.Errorf("ten minutes later: %s", got)
		}
		r.add(nil, "call refused", "other", errors.New("x"))
		// All of them are one event.
		before := lines()
		r.logSum()
		r.logSum()
		if got := log.String(); lines() != before+1 ||
			!strings.Contains(got,
				fmt.Sprintf(`refused=%d reasons="no credentials: %d, other: 1" event=refused`,
					1002+3*maxPeers, 1001+3*maxPeers)) {
			t.Errorf("summed up: %s", got[len(got)-300:])
		}
		if strings.Count(log.String(), "event=") != 1 {
			t.Errorf("more than one event:\n%s", log)
		}
	})
}

func FuzzParseKeys(f *testing.F) {
	f.Add(
		[]byte(
			"# keys\nfeed: feed-feed-feed-feed\nads: " +
				"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := ParseKeys("keys", data)
		if (keys == nil) == (err == nil) {
			t.Fatalf("got %v and %v", keys, err)
		}
		if err != nil {
			return
		}
		for _, name := range keys.clients {
			if checkName(name) != nil {
				t.Fatalf("name %q", name)
			}
		}
		if name, ok := keys.ownerOf(digestOf("")); ok {
			t.Fatalf("the empty key is that of %q", name)
		}
	})
}

func FuzzParseAccess(f *testing.F) {
	f.Add(
		[]byte("clients:\n  ads: {models: [ncf, wnd], control: [load]}\n  '*': {models: ['*']}\n"))
	f.Add([]byte("clients: &a\n  ads: *a\n"))
	f.Add(
		[]byte("clients: {ads: {limits: {queries_per_second: 2e2, burst: 400, bytes_per_second: " +
			"50MB, streams: 16}}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ParseAccess("access", data)
		if (a == nil) == (err == nil) {
			t.Fatalf("got %v and %v", a, err)
		}
		if err != nil {
			return
		}
		for name := range a.clients {
			if name != Anyone && checkName(name) != nil {
				t.Fatalf("name %q", name)
			}
		}
		if a.MayControl("nobody", Control("reboot")) {
			t.Fatal("a control call that does not exist is allowed")
		}
	})
}

func FuzzParseCertificates(f *testing.F) {
	_, cert, _, err := NewCA("fleet", time.Now(), time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cert)
	f.Add(cert[:len(cert)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		if certs, err := parseCertificates(data); (len(certs) == 0) == (err == nil) {
			t.Fatalf("got %d certificates and %v", len(certs), err)
		}
	})
}

// TestTickets: a ticket is good at every agent that has the key with which it was signed, and with no
// other content or signature.
func TestTickets(t *testing.T) {
	keyed := func(keys ...string) *Guard {
		return &Guard{sessionKeys: func() (all [][]byte) {
			for _, k := range keys {
				all = append(all, []byte(k))
			}
			return all
		}, ownSecret: newSecret()}
	}
	const old, next = "0123456789abcdef", "fedcba9876543210"
	ticket := keyed(old).SignTicket([]byte("lane 3"))
	for name, g := range map[string]*Guard{"same key": keyed(old), "rotating": keyed(next, old)} {
		if got, err := g.OpenTicket(ticket); err != nil || string(got) != "lane 3" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	open := keyed()
	if got, err := keyed().OpenTicket(open.SignTicket([]byte("x"))); err != nil || string(got) != "x" {
		t.Errorf("without keys: %q, %v", got, err)
	}
	for name, bad := range map[string]string{
		"another key": keyed(next).SignTicket([]byte("lane 3")), "no key": open.SignTicket([]byte("x")),
		"no signature": strings.Split(ticket, ".")[0], "empty": "", "dot": ".", "longer": ticket + "A",
		"other content": keyed(old).SignTicket([]byte("lane 4"))[:8] + ticket[8:],
	} {
		if got, err := keyed(old).OpenTicket(bad); !errors.Is(err, ErrForeignTicket) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
