package secure

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/muster-serve/muster/api/oip"
)

// HTTP lets through to next the requests that are allowed.
func (g *Guard) HTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, r := g.check(req.TLS, req.Header.Values("Authorization"), demandOfPath(req.URL.EscapedPath())); r != nil {
			g.refused(remote(req.RemoteAddr), req.Method+" "+req.URL.Path, r)
			code := http.StatusForbidden
			if r.code == codes.Unauthenticated {
				code = http.StatusUnauthorized
				w.Header().Set("WWW-Authenticate", `Bearer realm="muster"`)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write(append(oip.ErrorJSON(r.text), '\n')) // a client that is gone needs no answer
			return
		}
		next.ServeHTTP(w, req)
	})
}

// demandOfPath is what a request of the path, as it was sent, needs. It reads
// paths as http.ServeMux does: split first, unescaped then.
func demandOfPath(path string) demand {
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
		return demand{open: true}
	case at(0) != "v2":
		return demand{}
	case at(1) == "health":
		return demand{open: true}
	case at(1) == "models" && at(2) != "" && !(len(parts) == 3 && parts[2] == "stats"):
		return demand{query: true, model: parts[2]}
	case at(1) == "repository" && at(2) == "models" && at(4) == "load":
		return demand{control: Load}
	case at(1) == "repository" && at(2) == "models" && at(4) == "unload":
		return demand{control: Unload}
	}
	return demand{}
}

// remote is the address of a request's client.
type remote string

func (remote) Network() string  { return "tcp" }
func (r remote) String() string { return string(r) }

var _ net.Addr = remote("")
