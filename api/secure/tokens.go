package secure

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
)

// tokens verifies the tokens of the access file's issuers. Its methods may be called concurrently.
type tokens struct {
	log *slog.Logger

	mu      sync.Mutex
	issuers map[string]*issuerKeys // by URL
	// known are verified tokens. A signature costs some 50 us, which a client would else pay for
	// each query.
	known map[digest]token
}

// maxTokens is how many verified tokens are kept, longestToken how many bytes a token may have:
// those of large companies with all groups of an employee have some 8 KB.
const (
	maxTokens    = 4096
	longestToken = 16 << 10
)

// clockSkew is how far the clocks of this machine and of an issuer may differ, as the libraries for
// tokens have it.
const clockSkew = time.Minute

// signatures are the algorithms with which tokens may be signed: those with a key pair. A token
// that is signed with a shared secret, or with none, is refused.
var signatures = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384,
	jose.ES512, jose.EdDSA,
}

// A token is a verified token.
type token struct {
	client  string // the client as which its owner acts
	subject string // who the owner is, for logs
	ends    time.Time
	key     string // the id of the key that has signed it
	issuer  *issuerKeys
}

// isToken reports whether a bearer's credential has the form of a JWT, which no API key has that
// this fleet has made.
func isToken(credential string) bool {
	return strings.HasPrefix(credential, "eyJ") && strings.Count(credential, ".") == 2
}

// setIssuers makes the issuers those of the access file. The keys of those that stay stay known.
func (t *tokens) setIssuers(all []Issuer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	issuers := map[string]*issuerKeys{}
	for _, i := range all {
		fresh, err := newIssuerKeys(i, t.log)
		if err != nil {
			return err
		}
		if before := t.issuers[i.URL]; before != nil {
			fresh.keys.Store(before.keys.Load())
		}
		issuers[i.URL] = fresh
	}
	t.issuers, t.known = issuers, map[digest]token{}
	return nil
}

// fetchKeys fetches the keys of issuers whose time has come, without waiting for them. It forgets
// the tokens of keys that an issuer has withdrawn.
func (t *tokens) fetchKeys(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.issuers {
		pause := keysRefresh
		if k.keys.Load() == nil {
			pause = keysRetry
		}
		k.fetchAfter(pause, now)
	}
	for sum, k := range t.known {
		if !k.isGood(now) {
			delete(t.known, sum)
		}
	}
}

// isGood reports whether a verified token has not ended, and its key has not been withdrawn.
func (t token) isGood(now time.Time) bool {
	if now.After(t.ends) {
		return false
	}
	set := t.issuer.keys.Load()
	return set != nil && (t.key == "" || len(set.Key(t.key)) > 0)
}

// tokenError says why a token is refused.
type tokenError struct {
	reason string
	// forged: no issuer has signed it. All else are faults that honest clients make.
	forged bool
	// later: the keys are not known yet, so that the token may be good a moment later.
	later bool
	text  string
}

func (e *tokenError) Error() string { return e.text }

// verify returns what a token, of that digest, says of its owner. Of a token that it has verified before, it checks
// only that it is still good.
func (t *tokens) verify(raw string, sum digest, now time.Time) (token, *tokenError) {
	t.mu.Lock()
	known, ok := t.known[sum]
	t.mu.Unlock()
	if ok && known.isGood(now) {
		return known, nil
	}
	verified, err := t.verifyNew(raw, now)
	if err != nil {
		return token{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.issuers[verified.issuer.issuer.URL] != verified.issuer { // the access file has changed
		return verified, nil
	}
	for old := range t.known { // any one
		if len(t.known) < maxTokens {
			break
		}
		delete(t.known, old)
	}
	t.known[sum] = verified
	return verified, nil
}

func (t *tokens) verifyNew(raw string, now time.Time) (token, *tokenError) {
	refuse := func(reason, format string, args ...any) (token, *tokenError) {
		return token{}, &tokenError{reason: reason, text: "token: " + fmt.Sprintf(format, args...)}
	}
	if len(raw) > longestToken {
		return refuse("token too long", "%d bytes, want at most %d", len(raw), longestToken)
	}
	parsed, err := jwt.ParseSigned(raw, signatures)
	if err != nil {
		return refuse("malformed token", "no JWT that is signed with a key pair: %v", err)
	}
	var unverified jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&unverified); err != nil {
		return refuse("malformed token", "its claims are malformed: %v", err)
	}
	t.mu.Lock()
	k := t.issuers[unverified.Issuer]
	t.mu.Unlock()
	if k == nil {
		return refuse("unknown issuer", "its issuer is %.200q, want one of those in the access file",
			unverified.Issuer)
	}
	id := parsed.Headers[0].KeyID
	keys, fault := k.find(id, now)
	if len(keys) == 0 {
		if fault != "" {
			return token{}, &tokenError{reason: "issuer's keys not known", later: true,
				text: fmt.Sprintf("token: the keys of its issuer %s are not known: %s; try again later",
					k.issuer.URL, fault)}
		}
		return token{}, &tokenError{reason: "unknown key of an issuer", forged: true,
			text: fmt.Sprintf("token: its issuer %s has no key %.100q; a new one is known within %v",
				k.issuer.URL, id, keysRetry)}
	}
	var claims jwt.Claims
	all := map[string]any{}
	var bad error
	for _, key := range keys {
		if bad = parsed.Claims(key.Key, &claims, &all); bad == nil {
			break
		}
	}
	if bad != nil {
		return token{}, &tokenError{reason: "wrong signature of a token", forged: true,
			text: fmt.Sprintf("token: no key of its issuer %s has signed it", k.issuer.URL)}
	}
	return k.issuer.readClaims(claims, all, now, token{key: id, issuer: k})
}

// readClaims checks the claims of a token with a good signature, and adds to t what they say.
func (i *Issuer) readClaims(claims jwt.Claims, all map[string]any, now time.Time, t token) (token,
	*tokenError) {
	refuse := func(reason, format string, args ...any) (token, *tokenError) {
		return token{}, &tokenError{reason: reason, text: "token: " + fmt.Sprintf(format, args...)}
	}
	if claims.Expiry == nil {
		return refuse("token without an end", "it has no expiry (exp), want one")
	}
	t.ends = claims.Expiry.Time().Add(clockSkew)
	err := claims.ValidateWithLeeway(jwt.Expected{
		Issuer: i.URL, AnyAudience: jwt.Audience{i.Audience}, Time: now,
	}, clockSkew)
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return refuse("token expired", "it expired at %s, it is %s: get a new one",
			claims.Expiry.Time().UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return refuse("token not valid yet", "it is not valid yet at %s: %v; compare the clocks of "+
			"this machine and of its issuer", now.UTC().Format(time.RFC3339), err)
	case errors.Is(err, jwt.ErrInvalidAudience):
		return refuse("token for another audience", "it is for %.200q, want the audience %q",
			[]string(claims.Audience), i.Audience)
	case err != nil:
		return refuse("invalid token", "%v", err)
	}
	name, _ := all[i.NameClaim].(string)
	if name == "" {
		return refuse("token without a name", "its claim %q, which names the client, is %.100v, want "+
			"a text", i.NameClaim, all[i.NameClaim])
	}
	if err := checkClientName(i.Prefix + name); err != nil {
		return refuse("token without a name", "its claim %q: %v", i.NameClaim, err)
	}
	t.client, t.subject = i.Prefix+name, i.Prefix+name
	groups := map[string]bool{}
	switch claim := all[i.GroupsClaim].(type) {
	case string:
		groups[claim] = true
	case []any:
		for _, g := range claim {
			if g, ok := g.(string); ok {
				groups[g] = true
			}
		}
	}
	for _, g := range i.Groups {
		if groups[g.Group] {
			t.client = g.Client
			break
		}
	}
	return t, nil
}

// tokenCaller returns the owner of a token that came from an address, or why there is none. Forged
// tokens count as wrong API keys do.
func (g *Guard) tokenCaller(raw string, from net.Addr) (caller, *refusal) {
	now, sum := time.Now(), digestOf(raw)
	if g.attempts.wrong.Load() > 0 {
		if wait := g.attempts.wait(shown{holderOf(from), sum}, now); wait > 0 {
			return caller{}, tooManyAttempts(wait)
		}
	}
	t, err := g.tokens.verify(raw, sum, now)
	switch {
	case err == nil:
		return caller{name: t.client, subject: t.subject, key: sum, token: raw}, nil
	case err.later:
		return caller{}, &refusal{code: codes.Unavailable, reason: err.reason, text: err.text,
			again: time.Second}
	case err.forged:
		if wait := g.attempts.fail(holderOf(from), sum, now); wait > 0 {
			return caller{}, tooManyAttempts(wait)
		}
	}
	return caller{}, &refusal{code: codes.Unauthenticated, reason: err.reason, text: err.text}
}

func tooManyAttempts(wait time.Duration) *refusal {
	return &refusal{
		code: codes.ResourceExhausted, reason: "too many wrong API keys",
		text: errTooManyAttempts.Error(), again: wait,
	}
}
