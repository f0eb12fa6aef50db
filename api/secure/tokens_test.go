package secure

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
)

// A testIssuer is an OpenID Connect provider.
type testIssuer struct {
	*httptest.Server
	mu   sync.Mutex
	keys []jose.JSONWebKey // private
	down bool
}

func startIssuer(t *testing.T) *testIssuer {
	i := &testIssuer{}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		if r.URL.Path == "/keys" {
			var set jose.JSONWebKeySet
			for _, k := range i.keys {
				set.Keys = append(set.Keys, k.Public())
			}
			_ = json.NewEncoder(w).Encode(set)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	}))
	t.Cleanup(i.Close)
	i.addKey(t, "k1")
	return i
}

func (i *testIssuer) addKey(t *testing.T, id string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256", Use: "sig"})
}

// sign returns a token that the newest key has signed.
func (i *testIssuer) sign(t *testing.T, claims map[string]any) string {
	key := i.keys[len(i.keys)-1]
	return signToken(t, jose.SigningKey{Algorithm: jose.ES256, Key: key}, claims)
}

func signToken(t *testing.T, key jose.SigningKey, claims map[string]any) string {
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// openWithAccess opens a Guard with an access file.
func openWithAccess(t *testing.T, access string) (*Guard, error) {
	path := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(path, []byte(access), 0o600); err != nil {
		t.Fatal(err)
	}
	return Open(Config{AccessFile: path}, Options{Logger: slog.New(slog.DiscardHandler)})
}

func openWithIssuer(t *testing.T, i *testIssuer) *Guard {
	g, err := openWithAccess(t, fmt.Sprintf(`clients:
  ads: {models: [wnd]}
  "oidc:alice": {models: [ncf]}
issuers:
  %s: {audience: muster, groups: {ads-team: ads}}
`, i.URL))
	if err != nil {
		t.Fatal(err)
	}
	g.tokens.issuers[i.URL].fetch()
	return g
}

func claimsOf(i *testIssuer, with map[string]any) map[string]any {
	claims := map[string]any{"iss": i.URL, "aud": []string{"other", "muster"}, "sub": "alice",
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for k, v := range with {
		if claims[k] = v; v == nil {
			delete(claims, k)
		}
	}
	return claims
}

func (g *Guard) callerOfToken(token string) (caller, *refusal) {
	return g.authenticateCaller(nil, []string{"Bearer " + token}, login{}, remote("10.0.0.1:5"))
}

func TestTokenNamesClient(t *testing.T) {
	i := startIssuer(t)
	g := openWithIssuer(t, i)
	for _, test := range []struct {
		with         map[string]any
		name, logged string
	}{
		{nil, "oidc:alice", "oidc:alice (token)"},
		{map[string]any{"aud": "muster"}, "oidc:alice", "oidc:alice (token)"},
		{map[string]any{"groups": []string{"x", "ads-team"}}, "ads", "ads (token of oidc:alice)"},
		{map[string]any{"groups": "ads-team"}, "ads", "ads (token of oidc:alice)"},
		{map[string]any{"groups": []any{1, nil}}, "oidc:alice", "oidc:alice (token)"},
		// within the skew of clocks
		{map[string]any{"exp": time.Now().Add(-clockSkew / 2).Unix()}, "oidc:alice",
			"oidc:alice (token)"},
		// no issuer can name a client of another credential
		{map[string]any{"sub": "ads"}, "oidc:ads", "oidc:ads (token)"},
	} {
		for range 2 { // the second time it is known
			c, r := g.callerOfToken(i.sign(t, claimsOf(i, test.with)))
			if r != nil || c.name != test.name || c.String() != test.logged {
				t.Errorf("claims %v: %q, %q, %v, want %q, %q", test.with, c.name, c, r, test.name,
					test.logged)
			}
		}
	}
	c, _ := g.callerOfToken(i.sign(t, claimsOf(i, nil)))
	if r := g.checkRights(c, requiredRights{query: true, model: "ncf"}); r != nil {
		t.Error(r)
	}
	if r := g.checkRights(c, requiredRights{query: true, model: "wnd"}); r == nil {
		t.Error("alice may query wnd")
	}
}

func TestTokenRefused(t *testing.T) {
	i := startIssuer(t)
	g := openWithIssuer(t, i)
	good := i.sign(t, claimsOf(i, nil))
	parts := strings.Split(good, ".")
	other := startIssuer(t)
	public, err := json.Marshal(i.keys[0].Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		token, want string
	}{
		"expired": {i.sign(t, claimsOf(i, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})),
			"expired at"},
		"without an end": {i.sign(t, claimsOf(i, map[string]any{"exp": nil})), "no expiry"},
		"not yet valid": {i.sign(t, claimsOf(i, map[string]any{
			"nbf": time.Now().Add(time.Hour).Unix()})), "compare the clocks"},
		"issued in the future": {i.sign(t, claimsOf(i, map[string]any{
			"iat": time.Now().Add(time.Hour).Unix()})), "compare the clocks"},
		"of another audience": {i.sign(t, claimsOf(i, map[string]any{"aud": "other"})),
			`want the audience "muster"`},
		"without an audience":   {i.sign(t, claimsOf(i, map[string]any{"aud": nil})), "audience"},
		"of another issuer":     {other.sign(t, claimsOf(other, nil)), "want one of those"},
		"without a name":        {i.sign(t, claimsOf(i, map[string]any{"sub": nil})), `claim "sub"`},
		"with a bad name":       {i.sign(t, claimsOf(i, map[string]any{"sub": "a\nb"})), `'\n'`},
		"with a number as name": {i.sign(t, claimsOf(i, map[string]any{"sub": 5})), "malformed"},
		"of another's key":      {other.sign(t, claimsOf(i, nil)), "no key of its issuer"},
		"changed": {parts[0] + "." + strings.Split(i.sign(t, claimsOf(i,
			map[string]any{"sub": "bob"})), ".")[1] + "." + parts[2], "no key of its issuer"},
		"without a signature": {"eyJhbGciOiJub25lIn0." + parts[1] + ".", "no JWT"},
		// the public key as a shared secret
		"with a shared secret": {signToken(t, jose.SigningKey{Algorithm: jose.HS256, Key: public},
			claimsOf(i, nil)), "no JWT"},
		"too long": {"eyJ" + strings.Repeat("a", longestToken) + "..", "want at most"},
		"rubbish":  {"eyJ..", "no JWT"},
	} {
		c, r := g.callerOfToken(test.token)
		if r == nil {
			t.Errorf("%s: taken for %v", name, c)
		} else if r.code != codes.Unauthenticated || !strings.Contains(r.text, test.want) {
			t.Errorf("%s: %v %q, want %q", name, r.code, r.text, test.want)
		}
	}
}

// A new key is fetched when the first token of it comes, but not once for each token of an unknown
// key; a key that is withdrawn makes its tokens bad, those that were good before too.
func TestTokenKeysRotate(t *testing.T) {
	i := startIssuer(t)
	g := openWithIssuer(t, i)
	k := g.tokens.issuers[i.URL]
	old := i.sign(t, claimsOf(i, nil))
	c, r := g.callerOfToken(old)
	if r != nil {
		t.Fatal(r)
	}
	i.addKey(t, "k2")
	fresh := i.sign(t, claimsOf(i, nil))
	k.mu.Lock()
	k.busy = true // so that nothing fetches beside the test
	k.mu.Unlock()
	if _, r := g.callerOfToken(fresh); r == nil || !strings.Contains(r.text, `no key "k2"`) {
		t.Fatalf("a key that is not known yet: %v", r)
	}
	k.fetch()
	for _, token := range []string{old, fresh} {
		if _, r := g.callerOfToken(token); r != nil {
			t.Fatal(r)
		}
	}
	if r := g.stillRefusal(c, requiredRights{query: true, model: "ncf"}); r != nil {
		t.Fatal(r)
	}
	i.keys = i.keys[1:]
	k.fetch()
	if _, r := g.callerOfToken(old); r == nil {
		t.Error("a token of a withdrawn key is good")
	}
	if r := g.stillRefusal(c, requiredRights{query: true, model: "ncf"}); r == nil {
		t.Error("a call goes on whose token's key is withdrawn")
	}
	// A fetch begins at most once in keysRetry.
	now := time.Now()
	k.busy, k.begun = false, now
	k.fetchAfter(keysRetry, now.Add(keysRetry-1))
	if k.busy {
		t.Error("a fetch began too early")
	}
}

func TestTokenOfIssuerThatIsDown(t *testing.T) {
	i := startIssuer(t)
	i.down = true
	g := openWithIssuer(t, i)
	k := g.tokens.issuers[i.URL]
	_, r := g.callerOfToken(i.sign(t, claimsOf(i, nil)))
	if r == nil || r.code != codes.Unavailable || r.again <= 0 ||
		!strings.Contains(r.text, "502 Bad Gateway") {
		t.Fatalf("%+v, want UNAVAILABLE that names the fault", r)
	}
	i.mu.Lock()
	i.down = false
	i.mu.Unlock()
	k.fetch()
	if _, r := g.callerOfToken(i.sign(t, claimsOf(i, nil))); r != nil {
		t.Fatal(r)
	}
	i.mu.Lock()
	i.down = true
	i.mu.Unlock()
	k.fetch() // the keys of before stay in force
	if _, r := g.callerOfToken(i.sign(t, claimsOf(i, nil))); r != nil {
		t.Fatal(r)
	}
}

// Verified tokens are forgotten at their end, and at most maxTokens are kept.
func TestTokensKept(t *testing.T) {
	i := startIssuer(t)
	g := openWithIssuer(t, i)
	now := time.Now()
	token := i.sign(t, claimsOf(i, map[string]any{"exp": now.Add(time.Minute).Unix()}))
	if _, err := g.tokens.verify(token, digestOf(token), now); err != nil {
		t.Fatal(err)
	}
	if _, err := g.tokens.verify(token, digestOf(token), now.Add(time.Minute+clockSkew+time.Second)); err == nil {
		t.Error("a verified token has no end")
	}
	g.tokens.fetchKeys(now.Add(time.Hour))
	if n := len(g.tokens.known); n != 0 {
		t.Errorf("%d ended tokens are kept", n)
	}
	for n := range maxTokens {
		g.tokens.known[digestOf(fmt.Sprint(n))] = g.tokens.known[digestOf("")]
	}
	if _, err := g.tokens.verify(token, digestOf(token), now); err != nil {
		t.Fatal(err)
	}
	if n := len(g.tokens.known); n > maxTokens {
		t.Errorf("%d tokens are kept, want at most %d", n, maxTokens)
	}
}

// A workload is known by the ID of SPIFFE in its certificate once the access file has it; access
// files of before go by the common name.
func TestSPIFFENamesClient(t *testing.T) {
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "ads"},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/ns/ads"}}}
	state := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
	for access, want := range map[string]string{
		"clients:\n  ads: {models: [wnd]}\n":                             "ads",
		"clients:\n  \"spiffe://example.org/ns/ads\": {models: [wnd]}\n": "spiffe://example.org/ns/ads",
	} {
		g, err := openWithAccess(t, access+"issuers:\n  https://a: {audience: a}\n")
		if err != nil {
			t.Fatal(err)
		}
		c, r := g.authenticateCaller(state, nil, login{}, remote("10.0.0.1:5"))
		if r != nil || c.name != want {
			t.Errorf("%s: %q, %v, want %q", access, c.name, r, want)
		}
	}
}

func TestParseIssuers(t *testing.T) {
	const clients = "clients:\n  ads: {models: [wnd]}\n"
	for access, want := range map[string]string{
		clients + "issuers:\n  http://login.example.com: {audience: a}\n": "want an https URL",
		clients + "issuers:\n  https://a: {}\n":                           "no audience",
		clients + "issuers:\n  https://a: {audience: a, groups: {g: x}}\n": `group "g" acts as client ` +
			`"x", want one of those in clients`,
		clients + "issuers:\n  https://a: {audience: a, group: {}}\n": `unknown key "group"`,
		clients + "issuers:\n  https://a: {audience: a, ca: /none}\n": "/none",
		clients: "want one: without it no client has a name",
	} {
		if _, err := openWithAccess(t, access); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", access, err, want)
		}
	}
	if _, err := openWithAccess(t, "clients:\n  \"spiffe://example.org/ads\": {models: [wnd]}\n"+
		"issuers:\n  https://a: {audience: a, prefix: \"\"}\n"); err != nil {
		t.Error(err)
	}
}
