package secure

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/muster-serve/muster/api/oip"
)

// HTTP returns a handler that passes allowed requests to next, and answers the others with an
// error.
func (g *Guard) HTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := g.ofForeignPage(req)
		var c caller
		d := demandOfPath(req.URL.EscapedPath())
		if r == nil {
			c, r = g.checkHTTP(req, d)
		}
		if r != nil || d.open {
			g.paceCall()
		}
		if r == nil {
			c.from = remote(req.RemoteAddr)
			raw, _ := req.Context().Value(rawKey{}).(*countedConn)
			g.shownBy(c, raw, c.from)
			ctx := context.WithValue(req.Context(), callerKey{}, c)
			if c.name != "" && strings.HasPrefix(req.URL.Path, dashboardAPI) { // some are streams
				var cancel context.CancelCauseFunc
				ctx, cancel = context.WithCancelCause(ctx)
				defer g.followRights(c, d, func(r *refusal) { cancel(r) })()
			}
			g.serveCounted(next, w, req.WithContext(ctx))
			return
		}
		g.noteRefusal(remote(req.RemoteAddr), req.Method+" "+req.URL.Path, r)
		code := http.StatusForbidden
		switch r.code {
		case codes.Unauthenticated:
			code = http.StatusUnauthorized
			w.Header().Set("WWW-Authenticate", `Bearer realm="muster"`)
		case codes.Unavailable:
			code = http.StatusServiceUnavailable
			w.Header().Set("Retry-After", retryAfter(r.again))
		case codes.ResourceExhausted:
			code = http.StatusTooManyRequests
			w.Header().Set("Retry-After", retryAfter(r.again))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(append(oip.ErrorJSON(r.text), '\n')) // fails only if the client has gone
	})
}

type rawKey struct{}

// ConnContext is for an HTTP server's field ConnContext: a request's context then has its
// connection, which counts for the client that the request shows.
func (g *Guard) ConnContext(ctx context.Context, conn net.Conn) context.Context {
	if raw := countedOf(conn); raw != nil {
		return context.WithValue(ctx, rawKey{}, raw)
	}
	return ctx
}

// dashboardAPI is what the paths begin with that a browser asks for that has logged in.
const dashboardAPI = "/dashboard/api/"

// checkHTTP is check of a request.
func (g *Guard) checkHTTP(req *http.Request, d requiredRights) (caller, *refusal) {
	by := login{}
	if strings.HasPrefix(req.URL.Path, dashboardAPI) {
		by, _ = g.sessionClient(req)
	}
	return g.check(req.TLS, req.Header.Values("Authorization"), by, remote(req.RemoteAddr), d)
}

// serveCounted passes a request to next, unless its client has too many open calls.
func (g *Guard) serveCounted(next http.Handler, w http.ResponseWriter, req *http.Request) {
	done, over := g.holdCall(req.Context())
	if over != nil {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", retryAfter(over.RetryAfter))
		w.WriteHeader(http.StatusTooManyRequests)
		// fails only if the client has gone
		_, _ = w.Write(append(oip.ErrorJSON(over.text), '\n'))
		return
	}
	if done != nil {
		defer done()
	}
	next.ServeHTTP(w, req)
}

// retryAfter is the header's value, in whole seconds.
func retryAfter(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// ofForeignPage returns a refusal for a request that a web page of another origin makes the user's
// browser send: one that changes something, or one to a host name that the page's owner has made
// resolve to this machine (DNS rebinding), which makes it the same origin for the browser.
func (g *Guard) ofForeignPage(req *http.Request) *refusal {
	if err := g.origins.Check(req); err != nil {
		return &refusal{
			code: codes.PermissionDenied, reason: "of another origin",
			text: "a web page of another origin may not ask for this: " + err.Error(),
		}
	}
	if host := hostname(req.Host); !g.isOwnHost(req, host) {
		return &refusal{
			code: codes.PermissionDenied, reason: "of another host",
			text: fmt.Sprintf("host %.100q, want localhost, the machine's name or an address: on "+
				"loopback without TLS no other is answered", host),
		}
	}
	return nil
}

// isOwnHost reports whether a request may have this Host. Only servers on loopback without TLS
// check it: the network restricts access to other addresses, and with TLS the client checks the
// name in the certificate.
func (g *Guard) isOwnHost(req *http.Request, host string) bool {
	if req.TLS != nil || !onLoopback(req) {
		return true
	}
	return host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		host == g.hostname || net.ParseIP(host) != nil
}

// onLoopback reports whether a request came to an address of loopback.
func onLoopback(req *http.Request) bool {
	local, _ := req.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return local != nil && local.IP.IsLoopback()
}

// hostname returns the name or address in a Host header, in lower case.
func hostname(hostport string) string {
	host := hostport
	if name, _, err := net.SplitHostPort(hostport); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// demandOfPath returns the rights that a request of the path needs. path is as sent; it is parsed
// as http.ServeMux does, first split and then unescaped.
func demandOfPath(path string) requiredRights {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, p := range parts {
		if plain, err := url.PathUnescape(p); err == nil {
			parts[i] = plain
		}
	}
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	switch {
	case len(parts) == 1 && (parts[0] == "livez" || parts[0] == "readyz"):
		return requiredRights{open: true}
	case at(0) == "dashboard" && at(1) == "api":
		return requiredRights{open: len(parts) == 3 && (at(2) == "session" || at(2) == "login")}
	case at(0) == "dashboard":
		return requiredRights{open: true} // files that are the same everywhere
	case at(0) != "v2":
		return requiredRights{}
	case at(1) == "health", len(parts) == 2 && parts[1] == "openapi.json":
		return requiredRights{open: true}
	case at(1) == "models" && at(2) != "" && !(len(parts) == 3 && parts[2] == "stats"):
		return requiredRights{query: true, model: parts[2]}
	case at(1) == "repository" && at(2) == "models" && at(4) == "load":
		return requiredRights{control: Load}
	case at(1) == "repository" && at(2) == "models" && at(4) == "unload":
		return requiredRights{control: Unload}
	}
	return requiredRights{}
}

// remote is the address of a request's client.
type remote string

func (remote) Network() string  { return "tcp" }
func (r remote) String() string { return string(r) }

var _ net.Addr = remote("")
