package dashboard

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func get(t *testing.T, h http.Handler, path string, header ...string) *http.Response {
	t.Helper()
	req := httptest.NewRequest("GET", path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

// TestFilesHaveTheirHeaders asks for every embedded file: browsers must neither guess its type nor
// run what is not a file of ours, and need not load it twice.
func TestFilesHaveTheirHeaders(t *testing.T) {
	d := newWorld(t, "a").agents["a"].page()
	for name, f := range thePage().files {
		r := get(t, d, Path+name)
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", name, r.Status)
		}
		for header, want := range map[string]string{
			"Content-Type": f.kind, "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
		} {
			if got := r.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
		csp := r.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self'; ") ||
			strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
			t.Errorf("%s: Content-Security-Policy is %q", name, csp)
		}
		r = get(t, d, Path+name, "If-None-Match", r.Header.Get("ETag"))
		if r.StatusCode != http.StatusNotModified {
			t.Errorf("%s, again: %s, want not modified", name, r.Status)
		}
	}
	for path, want := range map[string]int{
		"/dashboard": http.StatusMovedPermanently, "/dashboard/none.js": http.StatusNotFound,
		"/dashboard/api/none":                http.StatusNotFound,
		"/dashboard/../dashboard/index.html": http.StatusTemporaryRedirect,
	} {
		r := get(t, d, path)
		if r.StatusCode != want && !(want == http.StatusTemporaryRedirect &&
			r.StatusCode == http.StatusMovedPermanently) {
			t.Errorf("%s: %s, want %d", path, r.Status, want)
		}
		if r.Header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s has no Content-Security-Policy", path)
		}
	}
}
