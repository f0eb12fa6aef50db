package secure

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file lets a browser log in with an API key, for the dashboard. The browser gets a cookie
// with the client's name, signed with a secret that all agents of the fleet derive from the gossip
// key, so each of them accepts it. It is good for paths under /dashboard/api/ alone, for
// [sessionTime], and while the API key is in the agent's file.

const (
	// sessionTime is how long a login lasts.
	sessionTime = 12 * time.Hour
	// LongestKey is the longest API key that a login takes, in bytes.
	LongestKey = 1024
)

// The cookie's name with TLS and without. Browsers take the first one only from a server that has
// TLS, and for all of its paths.
const secureCookie, plainCookie = "__Host-muster", "muster"

// cookieSecrets are the secrets that sign cookies, the first one new ones.
func (g *Guard) cookieSecrets() [][]byte { return g.fleetSecrets("muster dashboard") }

// fleetSecrets are the secrets that agents of the fleet share for a purpose, one for each gossip key,
// the first one for what is new; without keys it is one that this process alone has.
func (g *Guard) fleetSecrets(purpose string) (all [][]byte) {
	if g.sessionKeys != nil {
		for _, key := range g.sessionKeys() {
			if secret, err := hkdf.Key(sha256.New, key, nil, purpose,
				sha256.Size); err == nil { // it is of an allowed length
				all = append(all, secret)
			}
		}
	}
	if len(all) == 0 {
		all = append(all, g.ownSecret())
	}
	return all
}

// newSecret returns a function that returns the same random secret each time.
func newSecret() func() []byte {
	return sync.OnceValue(func() []byte {
		secret := make([]byte, sha256.Size)
		_, _ = rand.Read(secret) // never fails
		return secret
	})
}

// A session is what a cookie says.
type session struct {
	name string
	end  int64 // Unix seconds
	mac  []byte
}

// parseSession reads a cookie's value; ok is false if it is none. What it says is not checked.
func parseSession(value string) (s session, ok bool) {
	parts := strings.Split(value, ".")
	if len(parts) != 3 || len(value) > 4*longestName {
		return session{}, false
	}
	name, err := base64.RawURLEncoding.Strict().DecodeString(parts[0])
	if err != nil || checkName(string(name)) != nil {
		return session{}, false
	}
	end, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || strconv.FormatInt(end, 10) != parts[1] {
		return session{}, false
	}
	mac, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(mac) != sha256.Size {
		return session{}, false
	}
	return session{string(name), end, mac}, true
}

func (s session) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(s.name)) + "." +
		strconv.FormatInt(s.end, 10) + "." + base64.RawURLEncoding.EncodeToString(s.mac)
}

// sign returns the session's signature. It covers the API key, so that a login ends with the key.
func (s session) sign(secret []byte, key digest) []byte {
	h := hmac.New(sha256.New, secret)
	fmt.Fprintf(h, "session\x00%s\x00%d\x00", s.name, s.end) // a hash takes everything
	h.Write(key[:])
	return h.Sum(nil)
}

// cookieName is the name of the cookie that a request may have.
func cookieName(req *http.Request) string {
	if req.TLS != nil {
		return secureCookie
	}
	return plainCookie
}

// A login is a client that has logged in, and the API key with which it has.
type login struct {
	name string // "": none
	key  digest
}

// sessionClient returns the client that has logged in by the request's browser; ok is false if none
// has.
func (g *Guard) sessionClient(req *http.Request) (_ login, ok bool) {
	keys := g.keys.get()
	cookies := req.CookiesNamed(cookieName(req))
	if keys == nil || len(cookies) != 1 {
		return login{}, false
	}
	s, ok := parseSession(cookies[0].Value)
	left := time.Until(time.Unix(s.end, 0))
	if !ok || left <= 0 || left > sessionTime+time.Minute {
		return login{}, false
	}
	for _, secret := range g.cookieSecrets() {
		for _, key := range keys.digests[s.name] {
			if hmac.Equal(s.mac, s.sign(secret, key)) {
				return login{s.name, key}, true
			}
		}
	}
	return login{}, false
}

// LoginRefused returns why a browser cannot log in by this request's connection; "" if it can.
func (g *Guard) LoginRefused(req *http.Request) string {
	switch {
	case g.keys.get() == nil && g.config.Named():
		return "no API keys are set: use a client certificate"
	case g.keys.get() == nil:
		return "nobody is asked for a key"
	case req.TLS == nil && !onLoopback(req):
		return "without TLS a key can be read on its way: a login is refused off loopback"
	}
	return ""
}

// Session returns the name of the client that a request is of, "" if it has none, whether the
// request may read what every client may, and its context with the caller.
func (g *Guard) Session(req *http.Request) (ctx context.Context, name string, in bool) {
	c, r := g.checkHTTP(req, requiredRights{})
	if r != nil {
		return req.Context(), "", false
	}
	return context.WithValue(req.Context(), callerKey{}, c), c.name, true
}

// Login answers a request to log in with an API key: it sets the cookie, or returns an error with
// the HTTP status and, where that may help, after how long to try again.
func (g *Guard) Login(w http.ResponseWriter, req *http.Request, key string) (code int,
	again time.Duration, err error) {
	if why := g.LoginRefused(req); why != "" {
		return http.StatusForbidden, 0, fmt.Errorf("no login: %s", why)
	}
	from := remote(req.RemoteAddr)
	if len(key) > LongestKey { // it is none
		key = key[:LongestKey]
	}
	name, sum, r := g.ownerOf(key, from)
	if r != nil {
		g.noteRefusal(from, "login", r)
		if r.again > 0 {
			return http.StatusTooManyRequests, r.again, r
		}
		return http.StatusUnauthorized, 0, r
	}
	raw, _ := req.Context().Value(rawKey{}).(*countedConn)
	g.shownBy(caller{name: name, apiKey: true, key: sum}, raw, from)
	s := session{name: name, end: time.Now().Add(sessionTime).Unix()}
	s.mac = s.sign(g.cookieSecrets()[0], sum)
	g.log.Info("logged in to the dashboard", "who", name, "from", req.RemoteAddr)
	http.SetCookie(w, sessionCookie(req, s.String(), int(sessionTime.Seconds())))
	return http.StatusNoContent, 0, nil
}

// Logout removes the cookie of a request's browser.
func (g *Guard) Logout(w http.ResponseWriter, req *http.Request) {
	http.SetCookie(w, sessionCookie(req, "", -1))
}

func sessionCookie(req *http.Request, value string, seconds int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(req), Value: value, Path: "/", MaxAge: seconds, HttpOnly: true,
		Secure: req.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}
