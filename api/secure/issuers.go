package secure

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// An Issuer is an OpenID Connect provider whose tokens (JWTs) identify clients, as an access file
// names it.
type Issuer struct {
	URL      string // as the claim "iss" has it
	Audience string // the claim "aud" must have it
	// NameClaim is the claim that names the client, Prefix what stands before that name: no issuer
	// can then give a client the name of another credential's.
	NameClaim, Prefix string
	GroupsClaim       string
	// Groups are the groups whose members act as one client of the access file, in the file's
	// order. The first of a token's groups counts.
	Groups []GroupClient
	CAFile string // the CA of the issuer's server; "": one of the system's
}

// A GroupClient is the client of the access file as which the members of a group act.
type GroupClient struct{ Group, Client string }

const (
	// keysRefresh is how often an issuer's keys are fetched again. Issuers publish a new key some
	// time before they sign with it, mostly a day.
	keysRefresh = 5 * time.Minute
	// keysRetry is how long after a fetch began the next begins, at the earliest: tokens with
	// unknown keys do not make an agent flood an issuer.
	keysRetry = 10 * time.Second
	// fetchTimeout bounds a fetch, largestKeys the bytes of each of its two answers, and maxKeys
	// the keys. Issuers have two to five, of at most 1 KB.
	fetchTimeout = 10 * time.Second
	largestKeys  = 1 << 20
	maxKeys      = 64
)

// issuerKeys has the keys with which an issuer signs its tokens. Its methods may be called
// concurrently and do not block.
type issuerKeys struct {
	issuer Issuer
	log    *slog.Logger
	client *http.Client
	keys   atomic.Pointer[jose.JSONWebKeySet] // nil: not fetched yet

	mu    sync.Mutex
	begun time.Time // when the last fetch began; zero: none has
	busy  bool      // a fetch is under way
	fault string    // why the last fetch failed; "" if it did not
}

func newIssuerKeys(i Issuer, log *slog.Logger) (*issuerKeys, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if i.CAFile != "" {
		certs, err := readCertificates("access: issuer "+i.URL+": ca", i.CAFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: poolOf(certs), MinVersion: tls.VersionTLS12}
	}
	return &issuerKeys{issuer: i, log: log, client: &http.Client{
		Transport: transport, Timeout: fetchTimeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 3 {
				return errors.New("more than 3 redirects")
			}
			return checkIssuerURL(req.URL.String())
		},
	}}, nil
}

// checkIssuerURL returns an error unless a URL is one from which keys can be trusted.
func checkIssuerURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return err
	case u.Scheme == "https" && u.Host != "":
		return nil
	case u.Scheme == "http" && Loopback(u.Host+":80"), u.Scheme == "http" && Loopback(u.Host):
		return nil
	}
	return fmt.Errorf("%.200q, want an https URL, or http on loopback: whoever can change the keys "+
		"on their way can be anybody", s)
}

// find returns the keys of that id, or all if the id is "". If there is none, it has the keys
// fetched again; fault then says why they are not known, "" if they are.
func (k *issuerKeys) find(id string, now time.Time) (found []jose.JSONWebKey, fault string) {
	if set := k.keys.Load(); set != nil {
		if id == "" {
			return set.Keys, ""
		}
		if found = set.Key(id); len(found) > 0 {
			return found, ""
		}
	}
	k.fetchAfter(keysRetry, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.keys.Load() != nil:
		return nil, ""
	case k.fault != "":
		return nil, k.fault
	}
	return nil, "they are being fetched"
}

// fetchAfter begins a fetch if the last one began this long ago, and has ended.
func (k *issuerKeys) fetchAfter(pause time.Duration, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy || !k.begun.IsZero() && now.Sub(k.begun) < pause {
		return
	}
	k.busy, k.begun = true, now
	go k.fetch()
}

// fetch fetches the keys.
func (k *issuerKeys) fetch() {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	set, err := k.fetchSet(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy = false
	if err != nil {
		if err.Error() != k.fault {
			k.log.Warn("cannot fetch the keys of an issuer of tokens; those fetched before stay in "+
				"force", "issuer", k.issuer.URL, "error", err, "event", "files")
		}
		k.fault = err.Error()
		return
	}
	if k.keys.Swap(set) == nil || k.fault != "" {
		k.log.Info("fetched the keys of an issuer of tokens", "issuer", k.issuer.URL, "keys",
			len(set.Keys), "event", "files")
	}
	k.fault = ""
}

// fetchSet fetches the discovery document, and the keys that it names (OpenID Connect Discovery
// 1.0, section 4).
func (k *issuerKeys) fetchSet(ctx context.Context) (*jose.JSONWebKeySet, error) {
	var found struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	address := strings.TrimSuffix(k.issuer.URL, "/") + "/.well-known/openid-configuration"
	if err := k.get(ctx, address, &found); err != nil {
		return nil, err
	}
	if found.Issuer != k.issuer.URL {
		return nil, fmt.Errorf("%s names the issuer %.200q, want %q as the access file has it", address,
			found.Issuer, k.issuer.URL)
	}
	if err := checkIssuerURL(found.Keys); err != nil {
		return nil, fmt.Errorf("%s: jwks_uri: %w", address, err)
	}
	set := &jose.JSONWebKeySet{}
	if err := k.get(ctx, found.Keys, set); err != nil {
		return nil, err
	}
	usable := set.Keys[:0]
	for _, key := range set.Keys {
		if key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			usable = append(usable, key)
		}
	}
	if set.Keys = usable; len(usable) == 0 || len(usable) > maxKeys {
		return nil, fmt.Errorf("%s has %d public keys for signatures, want 1 to %d", found.Keys,
			len(usable), maxKeys)
	}
	return set, nil
}

// get reads a JSON document.
func (k *issuerKeys) get(ctx context.Context, address string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s, want 200", address, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, largestKeys+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", address, err)
	case len(data) > largestKeys:
		return fmt.Errorf("%s answers more than %d bytes", address, largestKeys)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}
