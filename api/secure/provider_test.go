package secure

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// TestOIDCProvider: the tokens of a real provider, oidc-provider, are good, by RSA and by elliptic
// curves, and no longer when it has other keys. `make oidc` runs it.
func TestOIDCProvider(t *testing.T) {
	folder := os.Getenv("OIDC_PROVIDER")
	if folder == "" {
		t.Skip("without OIDC_PROVIDER, the folder with oidc-provider; `make oidc` sets it")
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	issuer := fmt.Sprintf("http://127.0.0.1:%d", port)
	stop := startProvider(t, folder, port, jose.JSONWebKey{Key: rsaKey, KeyID: "rsa", Algorithm: "RS256",
		Use: "sig"})
	g, err := openWithAccess(t, fmt.Sprintf(`clients:
  ads: {models: [wnd]}
  "oidc:batch": {models: [ncf]}
issuers:
  %s: {audience: "urn:muster", groups: {ads-team: ads}}
`, issuer))
	if err != nil {
		t.Fatal(err)
	}
	k := g.tokens.issuers[issuer]
	k.fetch()
	server := httptest.NewServer(g.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, g.Identity(r.Context()))
	})))
	defer server.Close()
	query := func(model, token string) (code int, answer string) {
		t.Helper()
		req, _ := http.NewRequest("POST", server.URL+"/v2/models/"+model+"/infer", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	check := func(model, token string, code int, want string) {
		t.Helper()
		if got, answer := query(model, token); got != code || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %d %s", model, got, answer, code, want)
		}
	}
	own, group := getToken(t, issuer, "urn:muster", ""), getToken(t, issuer, "urn:muster", "ads-team")
	check("ncf", own, http.StatusOK, "client oidc:batch")
	check("wnd", own, http.StatusForbidden, "may not query")
	check("wnd", group, http.StatusOK, "client ads")
	check("ncf", group, http.StatusForbidden, "may not query")
	check("ncf", getToken(t, issuer, "urn:other", ""), http.StatusUnauthorized, "want the audience")

	stop()
	k.fetch() // the keys of before hold
	check("ncf", own, http.StatusOK, "client oidc:batch")
	startProvider(t, folder, port, jose.JSONWebKey{Key: ecKey, KeyID: "ec", Algorithm: "ES256",
		Use: "sig"})
	fresh := getToken(t, issuer, "urn:muster", "")
	k.fetch()
	check("ncf", fresh, http.StatusOK, "client oidc:batch")
	check("ncf", own, http.StatusUnauthorized, "has no key")
}

// startProvider starts the provider with a key, and waits until it listens.
func startProvider(t *testing.T, folder string, port int, key jose.JSONWebKey) (stop func()) {
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "../../scripts/test/oidc/provider.mjs", folder, strconv.Itoa(port),
		string(keys))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		stopped = true
	}
	t.Cleanup(stop)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "listening" {
			return stop
		}
	}
	t.Fatal("the provider has ended")
	return nil
}

// getToken gets an access token for a resource.
func getToken(t *testing.T, issuer, resource, scope string) string {
	form := url.Values{"grant_type": {"client_credentials"}, "resource": {resource}}
	if scope != "" {
		form.Set("scope", scope)
	}
	req, _ := http.NewRequest("POST", issuer+"/token", strings.NewReader(form.Encode()))
	req.SetBasicAuth("batch", "secret")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
		Error string `json:"error_description"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || !isToken(answer.Token) {
		t.Fatalf("%s: %v, token %q: %s", resp.Status, err, answer.Token, answer.Error)
	}
	return answer.Token
}
