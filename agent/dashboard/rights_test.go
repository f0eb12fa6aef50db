package dashboard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/muster-serve/muster/api/secure"
)

// approving approves a proposal.
func approving(t *testing.T, h http.Handler, path, body string, header ...string) *http.Response {
	t.Helper()
	req := httptest.NewRequest("POST", path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

// TestRights asks for everything as clients with different rights: one sees what it may, and
// nothing of models that it may not query.
func TestRights(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keys := write("keys", "all: all-all-all-all-all\nsome: some-some-some-some\n"+
		"watch: watch-watch-watch-watch\n")
	access := write("access", "clients: {all: {models: ['*'], control: [events, plan, fleet]}, "+
		"some: {models: [ncf]}, watch: {models: ['*'], control: [events]}}\n")
	synctest.Test(t, func(t *testing.T) {
		guard, err := secure.Open(secure.Config{APIKeysFile: keys, AccessFile: access},
			secure.Options{Logger: quietLog})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, "a")
		defer w.end()
		w.lead(1, "a", "")
		d := w.agents["a"].guarded(guard)
		defer w.beats("a")()
		for _, tt := range []struct {
			key                                    string
			stream, events, plan, ours, secret, in int
		}{
			{"", 401, 401, 401, 401, 401, 0},
			{"wrong-wrong-wrong-wrong", 401, 401, 401, 401, 401, 0},
			{"all-all-all-all-all", 200, 200, 200, 200, 200, 1},
			{"some-some-some-some", 200, 403, 403, 200, 403, 1},
			{"watch-watch-watch-watch", 200, 200, 403, 200, 200, 1},
		} {
			header := []string{"Authorization", "Bearer " + tt.key}
			if tt.key == "" {
				header = nil
			}
			for path, want := range map[string]int{
				"": 200, "index.html": 200, "api/session": 200, "api/events": tt.events,
				"api/plan": tt.plan, "api/fleet": tt.plan, "api/profiles?model=ncf": tt.ours,
				"api/profiles?model=secret": tt.secret, "api/why": tt.stream,
				"api/why?model=ncf": tt.ours, "api/why?model=secret": tt.secret,
			} {
				r := get(t, d, Path+path, header...)
				if r.StatusCode != want {
					t.Errorf("%q gets %d of %s, want %d", tt.key, r.StatusCode, path, want)
				}
				if r.Header.Get("Content-Security-Policy") != policy && r.StatusCode != 401 {
					t.Errorf("%s has no policy", path)
				}
			}
			for body, want := range map[string]int{`{"approve": "7"}`: tt.plan, "7": 400,
				`{"approve": 7}`: 400, `{"approve": "7"}` + strings.Repeat(" ", 300): 400} {
				if tt.plan != 200 {
					want = tt.plan
				}
				if r := approving(t, d, Path+"api/fleet", body, header...); r.StatusCode != want {
					t.Errorf("%q gets %d of approving by %.20s, want %d", tt.key, r.StatusCode,
						body,
						want)
				}
			}
			var session struct {
				In  bool
				May map[string]bool
			}
			if err := json.NewDecoder(get(t, d, Path+"api/session", header...).Body).Decode(
				&session); err != nil {
				t.Fatal(err)
			}
			if session.In != (tt.in == 1) || session.May["events"] != (tt.events == 200) ||
				session.May["plan"] != (tt.plan == 200) ||
				session.May["fleet"] != (tt.plan == 200) {
				t.Errorf("%q is told that it may %+v", tt.key, session)
			}
			v := look(t, d, header...)
			if v.status != tt.stream {
				t.Errorf("%q gets %d of the stream, want %d", tt.key, v.status, tt.stream)
			}
			if v.status == http.StatusOK {
				checkSeen(t, tt.key, v, tt.secret == 200, tt.events == 200, w)
			}
			v.close()
		}
	})
}

// checkSeen checks that the stream tells of events and of the model "secret" as it should.
func checkSeen(t *testing.T, key string, v *viewer, secret, mayEvents bool, w *world) {
	fleet := v.next("fleet")
	text, err := json.Marshal(fleet.data)
	if err != nil {
		t.Fatal(err)
	}
	models := fleet.data["models"].([]any)
	if bytes.Contains(text, []byte("secret")) != secret || secret != (len(models) == 2) {
		t.Errorf("%q is told of the fleet %s", key, text)
	}
	w.agents["a"].happens("something")
	seen := 0
	for range 3 {
		beat := v.next("beat")
		seen += len(events(beat))
		want := 1
		if secret {
			want = 2
		}
		if n := len(beat.data["models"].([]any)); n != want {
			t.Errorf("%q is told of %d models, want %d", key, n, want)
		}
		if n := len(beat.data["heat"].([]any)); n != want {
			t.Errorf("%q is told where %d models run, want %d", key, n, want)
		}
		if n := len(beat.data["shots"].([]any)); n != want {
			t.Errorf("%q is told of %d decisions, want %d", key, n, want)
		}
		for i, m := range beat.data["lanes"].(map[string]any)["model"].([]any) {
			if m := m.(float64); m != 0 && (!secret || i%2 == 0) && m != -1 || int(m) >= want {
				t.Errorf("%q is told that lane %d runs model %v", key, i, m)
			}
		}
	}
	if (seen > 0) != mayEvents {
		t.Errorf("%q is told of %d events", key, seen)
	}
}

// TestLoginPage: bodies that are none are told so, and a page without keys says why there is no
// login.
func TestLoginPage(t *testing.T) {
	d := newWorld(t, "a").agents["a"].page()
	for body, want := range map[string]int{
		"": 400, "{}": 400, `{"key": ""}`: 400, `{"key": 3}`: 400, `{"key": "x", "more": 1}`: 400,
		`{"key": "x"} {}`: 400, `{"key": "` + strings.Repeat("x", maxLogin) + `"}`: 400,
		`{"key": "some-some-some-some"}`: 403,
	} {
		req := httptest.NewRequest("POST", Path+"api/login", strings.NewReader(body))
		w := httptest.NewRecorder()
		d.ServeHTTP(w, req)
		if w.Code != want || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%.40s: %d %s, want %d", body, w.Code, w.Body, want)
		}
	}
}
