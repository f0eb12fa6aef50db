package secure

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
)

// A browser keeps the cookies of one agent, and sends them to any.
type browser struct {
	t       testing.TB
	tls     bool
	local   string // the address of the agent
	address string // the browser's
	cookies []*http.Cookie
}

func (b *browser) ask(g *Guard, method, path, key string) *httptest.ResponseRecorder {
	b.t.Helper()
	req := httptest.NewRequest(method, path, nil)
	req.TLS, req.RemoteAddr = nil, b.address
	if b.tls {
		req.TLS = &tls.ConnectionState{}
	}
	req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey,
		&net.TCPAddr{IP: net.ParseIP(b.local)}))
	req.Host = b.local
	for _, c := range b.cookies {
		req.AddCookie(c)
	}
	w := httptest.NewRecorder()
	g.HTTP(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if path != "/dashboard/api/login" {
			return
		}
		if method == "DELETE" {
			g.Logout(w, req)
			return
		}
		code, again, err := g.Login(w, req, key)
		if again > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(again.Seconds())))
		}
		if (err != nil) != (code >= 400) {
			b.t.Errorf("a login gets %d and %v", code, err)
		}
		w.WriteHeader(code)
	})).ServeHTTP(w, req)
	for _, c := range w.Result().Cookies() {
		b.cookies = []*http.Cookie{c}
		if c.MaxAge < 0 {
			b.cookies = nil
		}
	}
	return w
}

const (
	adsKey, feedKey = "ads-ads-ads-ads-ads", "feed-feed-feed-feed"
	loginPath       = "/dashboard/api/login"
	streamPath      = "/dashboard/api/stream"
)

// guardsOf returns guards of agents that share gossip keys.
func guardsOf(t testing.TB, n int, keys *[][]byte, refused *[]string) (all []*Guard, file string) {
	file = filepath.Join(t.TempDir(), "keys")
	writeKeys(t, file, "ads: "+adsKey+"\nfeed: "+feedKey+"\n")
	for range n {
		g, err := Open(Config{APIKeysFile: file}, Options{
			Logger:    (&logBuffer{}).logger(),
			OnRefusal: func(reason string) { *refused = append(*refused, reason) },
		})
		if err != nil {
			t.Fatal(err)
		}
		g.ShareSessions(func() [][]byte { return *keys })
		all = append(all, g)
	}
	return all, file
}

func writeKeys(t testing.TB, file, text string) {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLogin: a browser that has logged in at one agent may read at all of them, and nowhere else,
// until it logs out, the time is over, or the key of the client or of the fleet is gone.
func TestLogin(t *testing.T) {
	var refused []string
	old, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	keys := [][]byte{old}
	all, file := guardsOf(t, 2, &keys, &refused)
	a, b := all[0], all[1]
	for _, withTLS := range []bool{true, false} {
		keys = [][]byte{old}
		br := &browser{t: t, tls: withTLS, local: "127.0.0.1", address: "127.0.0.1:4000"}
		if code := br.ask(a, "GET", streamPath, "").Code; code != 401 {
			t.Fatalf("without a login: %d", code)
		}
		if w := br.ask(a, "POST", loginPath, adsKey); w.Code != 204 {
			t.Fatalf("login: %d", w.Code)
		}
		c := br.cookies[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" ||
			c.Secure != withTLS || strings.HasPrefix(c.Name, "__Host-") != withTLS ||
			c.MaxAge != 12*3600 || strings.Contains(c.Value, adsKey) {
			t.Errorf("the cookie is %v", c)
		}
		check := func(what string, g *Guard, method, path string, want int) {
			t.Helper()
			if code := br.ask(g, method, path, "").Code; code != want {
				t.Errorf("TLS %v, %s: %d, want %d", withTLS, what, code, want)
			}
		}
		check("at the agent", a, "GET", streamPath, 200)
		check("at another agent", b, "GET", streamPath, 200)
		check("beside the dashboard", a, "GET", "/v2/models/ncf", 401)
		check("beside the dashboard", a, "GET", "/dashboardapi", 401)
		keys = [][]byte{other, old}
		check("while keys change", b, "GET", streamPath, 200)
		keys = [][]byte{other}
		check("after keys have changed", b, "GET", streamPath, 401)
		keys = nil
		check("without gossip keys", a, "GET", streamPath, 401)
		br.ask(a, "POST", loginPath, adsKey)
		check("without gossip keys, at the agent", a, "GET", streamPath, 200)
		check("without gossip keys, at another", b, "GET", streamPath, 401)
		keys = [][]byte{old}
		br.ask(a, "POST", loginPath, adsKey)
		session := br.cookies[0].Value
		for i := range session {
			forged := []byte(session)
			if forged[i]++; forged[i] == ';' || forged[i] == ',' {
				continue
			}
			br.cookies = []*http.Cookie{{Name: c.Name, Value: string(forged)}}
			check("forged at "+strconv.Itoa(i), a, "GET", streamPath, 401)
		}
		br.cookies = []*http.Cookie{{Name: c.Name, Value: session}, {Name: c.Name, Value: session}}
		check("two of them", a, "GET", streamPath, 401)
		wrong := secureCookie
		if withTLS {
			wrong = plainCookie
		}
		br.cookies = []*http.Cookie{{Name: wrong, Value: session}}
		check("by the other name", a, "GET", streamPath, 401)
		br.cookies = []*http.Cookie{{Name: c.Name, Value: session}}
		check("as it was", a, "GET", streamPath, 200)
		writeKeys(t, file, "ads: another-another-key\nfeed: "+feedKey+"\n")
		future := time.Now().Add(time.Hour)
		if err := os.Chtimes(file, future, future); err != nil {
			t.Fatal(err)
		}
		a.Refresh() // a file is read once two looks find it the same
		a.Refresh()
		check("with a key that is gone", a, "GET", streamPath, 401)
		writeKeys(t, file, "ads: "+adsKey+"\nfeed: "+feedKey+"\n")
		if err := os.Chtimes(file, future, future.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		a.Refresh()
		a.Refresh()
		check("with its key again", a, "GET", streamPath, 200)
		if br.ask(a, "DELETE", loginPath, ""); len(br.cookies) != 0 {
			t.Errorf("after the logout there is %v", br.cookies)
		}
	}
}

// TestLoginEnds: a login lasts 12 h.
func TestLoginEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, refused := [][]byte{bytes.Repeat([]byte{1}, 32)}, []string{}
		all, _ := guardsOf(t, 1, &keys, &refused)
		br := &browser{t: t, tls: true, local: "10.0.0.1", address: "10.0.0.9:4000"}
		br.ask(all[0], "POST", loginPath, adsKey)
		time.Sleep(sessionTime - time.Second)
		if code := br.ask(all[0], "GET", streamPath, "").Code; code != 200 {
			t.Errorf("before its end: %d", code)
		}
		time.Sleep(2 * time.Second)
		if code := br.ask(all[0], "GET", streamPath, "").Code; code != 401 {
			t.Errorf("after its end: %d", code)
		}
	})
}

// TestLoginRefused: a key is not taken where it could be read on its way, and where there are none.
func TestLoginRefused(t *testing.T) {
	keys, refused := [][]byte(nil), []string{}
	all, _ := guardsOf(t, 1, &keys, &refused)
	open, err := Open(Config{}, Options{Logger: (&logBuffer{}).logger()})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		g     *Guard
		tls   bool
		local string
		want  int
	}{
		{all[0], true, "10.0.0.1", 204}, {all[0], false, "127.0.0.1", 204},
		{all[0], false, "::1", 204}, {all[0], false, "10.0.0.1", 403}, {
			open, true, "10.0.0.1", 403,
		},
	} {
		br := &browser{t: t, tls: tt.tls, local: tt.local, address: "10.0.0.9:4000"}
		if w := br.ask(tt.g, "POST", loginPath, adsKey); w.Code != tt.want ||
			(len(br.cookies) > 0) != (tt.want == 204) {
			t.Errorf("TLS %v at %s: %d with %v, want %d", tt.tls, tt.local, w.Code, br.cookies,
				tt.want)
		}
	}
}

// TestLoginAttempts: an address has five wrong keys a minute, all are counted, and others are not
// kept out.
func TestLoginAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, refused := [][]byte(nil), []string{}
		all, _ := guardsOf(t, 1, &keys, &refused)
		g := all[0]
		br := &browser{t: t, tls: true, local: "10.0.0.1", address: "10.0.0.9:4000"}
		for i := range 8 {
			want, key := 401, "wrong-wrong-wrong-wrong-"+strconv.Itoa(i)
			if i >= maxAttempts {
				want, key = 429, adsKey // not even the right one
			}
			br.address = "10.0.0.9:" + strconv.Itoa(4000+i)
			w := br.ask(g, "POST", loginPath, key)
			if w.Code != want || len(br.cookies) > 0 {
				t.Errorf("attempt %d: %d, want %d", i+1, w.Code, want)
			}
			if again, _ := strconv.Atoi(w.Header().Get("Retry-After")); want == 429 &&
				(again < 1 || again > 60) {
				t.Errorf("again after %d s", again)
			}
		}
		want := strings.Repeat(ReasonUnauthenticated+" ", 5) + strings.Repeat(ReasonLimit+" ", 3)
		if got := strings.Join(refused, " ") + " "; got != want {
			t.Errorf("counted %s, want %s", got, want)
		}
		br.address = "10.0.0.10:4000"
		if w := br.ask(g, "POST", loginPath, adsKey); w.Code != 204 {
			t.Errorf("another address gets %d", w.Code)
		}
		br.address = "10.0.0.9:4000"
		time.Sleep(time.Minute)
		for range 2 * maxAttempts { // those that succeed do not count
			if w := br.ask(g, "POST", loginPath, adsKey); w.Code != 204 {
				t.Errorf("a minute later: %d", w.Code)
			}
		}
		now := time.Now()
		for i := range maxAttempting + 100 {
			g.attempts.fail(strconv.Itoa(i), digest{}, now)
		}
		if n := len(g.attempts.by); n > maxAttempting {
			t.Errorf("%d addresses are kept", n)
		}
		for i := range maxAttempting + 100 {
			if kept := g.attempts.by[strconv.Itoa(i)] != nil; kept != (i >= 100) {
				t.Fatalf("address %d is kept: %v, want the latest %d", i, kept, maxAttempting)
			}
		}
		g.attempts.fail("later", digest{}, now.Add(attemptsOver))
		if n := len(g.attempts.by); n != 1 {
			t.Errorf("%d addresses are kept a minute later, want one", n)
		}
	})
}

// TestWrongKeys: an address has five wrong keys a minute, shown by gRPC, by REST and in logins.
// Then no key is looked at, but one that has been right from there before. The same wrong key again
// shows nothing, and does not count.
func TestWrongKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, refused := [][]byte(nil), []string{}
		all, file := guardsOf(t, 1, &keys, &refused)
		g := all[0]
		handler := g.HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		const address = "10.0.0.9:4000"
		byGRPC := func(address, key string) codes.Code {
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: remote(address)})
			_, err := g.enterCall(ctx, control.Control_Status_FullMethodName,
				metadata.Pairs("authorization", "Bearer "+key))
			return status.Code(err)
		}
		byREST := func(address, key string) int {
			req := httptest.NewRequest("GET", "/v2", nil)
			req.RemoteAddr = address
			req.Header.Set("Authorization", "Bearer "+key)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, req)
			if again, _ := strconv.Atoi(w.Header().Get("Retry-After")); w.Code == 429 &&
				(again < 1 || again > 60) {
				t.Errorf("again after %d s", again)
			}
			return w.Code
		}
		wrong := 0
		guess := func() string {
			wrong++
			return fmt.Sprintf("wrong-wrong-wrong-wrong-%d", wrong)
		}
		if code := byGRPC(address, feedKey); code != codes.OK {
			t.Fatalf("with a right key: %v", code)
		}
		for range 2 {
			if code := byGRPC(address, guess()); code != codes.Unauthenticated {
				t.Errorf("wrong key %d by gRPC: %v", wrong, code)
			}
			if code := byREST(address, guess()); code != 401 {
				t.Errorf("wrong key %d by REST: %d", wrong, code)
			}
		}
		br := &browser{t: t, tls: true, local: "10.0.0.1", address: address}
		if w := br.ask(g, "POST", loginPath, guess()); w.Code != 401 {
			t.Errorf("wrong key %d in a login: %d", wrong, w.Code)
		}
		for _, key := range []string{guess(), adsKey} {
			if code := byGRPC(address, key); code != codes.ResourceExhausted {
				t.Errorf("%s by gRPC after five: %v", key, code)
			}
			if code := byREST(address, key); code != 429 {
				t.Errorf("%s by REST after five: %d", key, code)
			}
			if w := br.ask(g, "POST", loginPath, key); w.Code != 429 {
				t.Errorf("%s in a login after five: %d", key, w.Code)
			}
		}
		if code := byGRPC(address, feedKey); code != codes.OK {
			t.Errorf("with a key that was right before: %v", code)
		}
		const other = "10.0.0.10:4000"
		for range 3 * maxAttempts {
			if code := byGRPC(other, "old-old-old-old-old"); code != codes.Unauthenticated {
				t.Errorf("the same wrong key again: %v", code)
			}
		}
		if code := byGRPC(other, adsKey); code != codes.OK {
			t.Errorf("beside a client with an old key: %v", code)
		}
		writeKeys(t, file, "ads: "+adsKey+"\n")
		g.Refresh()
		g.Refresh()
		if code := byGRPC(address, adsKey); code != codes.OK {
			t.Errorf("when the keys are others: %v", code)
		}
		if code := byGRPC(address, feedKey); code != codes.Unauthenticated {
			t.Errorf("with a key that was right before and no more: %v", code)
		}
	})
}

// BenchmarkLoginAttempts is of attempts from ever new addresses.
func BenchmarkLoginAttempts(b *testing.B) {
	var a attempts
	now := time.Now()
	for i := 0; b.Loop(); i++ {
		a.fail(strconv.Itoa(i), digest{}, now.Add(time.Duration(i)*time.Microsecond))
	}
}

// FuzzSession: a foreign cookie is refused, and a cookie of ours is read as it was written.
func FuzzSession(f *testing.F) {
	s := session{name: "ads", end: 1795386441, mac: bytes.Repeat([]byte{7}, 32)}
	f.Add(s.String())
	f.Add("..")
	f.Add("YWRz.1.")
	f.Fuzz(func(t *testing.T, value string) {
		if s, ok := parseSession(value); ok && (s.String() != value || checkName(s.name) != nil) {
			t.Errorf("%q reads as %+v, which is %q", value, s, s.String())
		}
	})
}
