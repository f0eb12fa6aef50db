package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/muster-serve/muster/models/store"
)

// A flood is a server that answers with bodies that do not end, by itself, before a gigabyte.
type flood struct {
	*httptest.Server
	sent, calls atomic.Int64
	// answer writes the head and the beginning of an answer, and returns whether the flood follows.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

func newFlood(t *testing.T) *flood {
	f := &flood{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.calls.Add(1)
		if !f.answer(w, r) {
			return
		}
		chunk := []byte(strings.Repeat("<a>is not found, ", 4096))
		for f.sent.Load() < 1<<30 {
			n, err := w.Write(chunk)
			f.sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// open opens the store of a kind on the server.
func (f *flood) open(t *testing.T, kind string) *store.Store {
	t.Helper()
	host := strings.TrimPrefix(f.URL, "http://")
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_EC2_METADATA_DISABLED": "true",
		"DOCKER_CONFIG": t.TempDir(), "AZURE_STORAGE_ACCOUNT": "account",
		"AZURE_STORAGE_KEY": "a2V5", "STORAGE_EMULATOR_HOST": host,
	} {
		t.Setenv(name, value)
	}
	s, err := Open(t.Context(), map[string]string{
		"s3":     "s3://models?region=us-east-1&use_path_style=true&endpoint=" + url.QueryEscape(f.URL),
		"gs":     "gs://models",
		"azblob": "azblob://models?protocol=http&domain=" + host,
		"oci":    "oci://" + host + "/models",
	}[kind])
	if err != nil {
		t.Fatal(kind, err)
	}
	t.Cleanup(func() { _ = s.Close() }) // nothing was written
	return s
}

// sockets is what the sockets of a connection may hold that nobody reads.
const sockets = 10 << 20

// TestEndlessBodies: a server whose answers do not end, errors or not, gets rid of a few megabytes,
// whichever kind of store it plays, also when a library asks again.
func TestEndlessBodies(t *testing.T) {
	var running sync.WaitGroup
	for _, kind := range []string{"s3", "gs", "azblob", "oci"} {
		for code, most := range map[int]int64{
			http.StatusBadRequest: maxErrorBytes, http.StatusOK: maxBodyBytes,
		} {
			for _, what := range []string{"list", "manifest"} {
				f := newFlood(t)
				f.answer = func(w http.ResponseWriter, r *http.Request) bool {
					w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
					w.Header().Set("Etag", `"x"`)
					w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
					w.WriteHeader(code)
					return r.Method != http.MethodHead
				}
				s := f.open(t, kind)
				running.Go(func() {
					var err error
					if what == "list" {
						_, err = s.Index(t.Context())
					} else {
						_, _, err = s.Manifest(t.Context(), "ncf", 1)
					}
					sent, calls := f.sent.Load(), f.calls.Load()
					if err == nil || sent > calls*(most+sockets) {
						t.Errorf("%s, %s, endless answer %d: took %d bytes in %d requests, "+
							"expected at most %d in each; error %.300v", kind, what, code, sent, calls,
							most, err)
					}
				})
			}
		}
	}
	running.Wait()
}

// TestEndlessPages: a listing whose next page always exists ends.
func TestEndlessPages(t *testing.T) {
	f := newFlood(t)
	var once sync.Once
	f.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if f.calls.Load() > 2000 {
			once.Do(func() { t.Errorf("%s: more than 2000 pages", r.URL) })
			http.Error(w, "enough", http.StatusBadRequest)
			return false
		}
		next := fmt.Sprint(f.calls.Load())
		switch {
		case strings.HasPrefix(r.URL.Path, "/v2/"):
			w.Header().Set("Link", fmt.Sprintf(`<%s?last=%s>; rel="next"`, r.URL.Path, next))
			_, _ = io.WriteString(w, `{"tags": []}`)
		case r.URL.Query().Has("comp"):
			w.Header().Set("Content-Type", "application/xml")
			_, _ = io.WriteString(w, `<?xml version="1.0"?><EnumerationResults><Blobs></Blobs><NextMarker>`+
				next+`</NextMarker></EnumerationResults>`)
		case r.URL.Query().Has("list-type"):
			_, _ = io.WriteString(w, `<ListBucketResult><IsTruncated>true</IsTruncated>`+
				`<NextContinuationToken>`+next+`</NextContinuationToken></ListBucketResult>`)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind": "storage#objects", "nextPageToken": "`+next+`"}`)
		}
		return false
	}
	for _, kind := range []string{"s3", "gs", "azblob", "oci"} {
		s := f.open(t, kind)
		f.calls.Store(0)
		if _, err := s.Index(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %d pages, got %v, want an error that says so", kind, f.calls.Load(), err)
		}
	}
}
