package remote

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// googleAnswers answers as Google does, with tokens that are old at once.
type googleAnswers struct{}

func (googleAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	text := `{"kind": "storage#objects"}`
	if r.URL.Host == "tokens.test" {
		text = `{"access_token": "t", "token_type": "Bearer", "expires_in": 1}`
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}, nil
}

// TestGCSTokens: a store gets tokens also after the context that it was opened with has ended, as
// for an agent, which opens it within a minute and follows it for weeks.
func TestGCSTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(file, []byte(`{"type": "authorized_user", "client_id": "c",
		"client_secret": "s", "refresh_token": "r", "token_uri": "https://tokens.test"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	real := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = real })
	http.DefaultTransport = googleAnswers{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := Open(ctx, "gs://bucket")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		if _, err := s.Index(t.Context()); err != nil {
			t.Error(err)
		}
		cancel()
	}
}
