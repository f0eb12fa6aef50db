package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// googleBucket is a bucket of Google Cloud Storage, by its JSON API. The few requests that a store
// needs stand here, because Google's library brings gRPC's xDS, Envoy's protocols and an exporter
// of metrics: 219 packages that take an eighth of a build. S3's protocol, which Google's servers
// speak too, knows no "unless it exists" there.
//
// https://docs.cloud.google.com/storage/docs/json_api/v1
type googleBucket struct {
	client *http.Client
	base   string // such as https://storage.googleapis.com
	bucket string
}

func openGoogle(ctx context.Context, u *url.URL) (*googleBucket, error) {
	var params google.CredentialsParams
	params.Scopes = []string{"https://www.googleapis.com/auth/cloud-platform"}
	anonymous := false
	overHTTP := func(string) error { return errors.New("buckets of Google are read over HTTP alone") }
	err := parseParameters(u.Query(), map[string]func(string) error{
		"access_id": func(value string) error {
			anonymous = anonymous || value == "-"
			return nil
		},
		"anonymous": func(value string) error {
			on, err := strconv.ParseBool(value)
			anonymous = anonymous || on
			return err
		},
		"grpc": overHTTP, "zonal": overHTTP,
		"universe_domain": func(value string) error { params.UniverseDomain = value; return nil },
	})
	if err != nil {
		return nil, err
	}
	transport := http.RoundTripper(boundedReader(http.DefaultTransport.RoundTrip))
	domain := cmp.Or(params.UniverseDomain, "googleapis.com")
	emulator := os.Getenv("STORAGE_EMULATOR_HOST")
	if !anonymous && emulator == "" {
		creds, err := google.FindDefaultCredentialsWithParams(ctx, params)
		if err != nil {
			return nil, err
		}
		if its, err := creds.GetUniverseDomain(); err == nil {
			domain = cmp.Or(its, domain)
		}
		transport = &oauth2.Transport{Base: transport, Source: creds.TokenSource}
	}
	b := &googleBucket{
		bucket: u.Host, base: "https://storage." + domain,
		// Whoever follows a redirect would send the token there.
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}
	if emulator != "" {
		b.base = strings.TrimSuffix(emulator, "/")
		if !strings.Contains(b.base, "://") {
			b.base = "http://" + b.base
		}
	}
	return b, nil
}

// objectsURL is the address of the bucket's objects, below a folder of the server.
func (b *googleBucket) objectsURL(folder string, q url.Values) string {
	return b.base + folder + "/storage/v1/b/" + url.PathEscape(b.bucket) + "/o?" + q.Encode()
}

// objectURL is the address of an object.
func (b *googleBucket) objectURL(key string, q url.Values) string {
	return b.base + "/storage/v1/b/" + url.PathEscape(b.bucket) + "/o/" + url.PathEscape(key) +
		"?" +
		q.Encode()
}

// maxAttempts and firstPause are what Google's library takes, but for the number of attempts: it
// has no bound there.
const (
	maxAttempts = 5
	firstPause  = time.Second
)

// send sends a request, and sends it again while the answer, or that there is none, may be
// otherwise then. The error is a statusError if the answer has none of the statuses that are
// expected.
func (b *googleBucket) send(ctx context.Context, method, address string, header http.Header,
	body []byte, expected ...int) (*http.Response, error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		request.Header = header.Clone()
		answer, err := b.client.Do(request)
		if err == nil {
			for _, status := range expected {
				if answer.StatusCode == status {
					return answer, nil
				}
			}
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000)) // for the error alone
			_ = answer.Body.Close()                                  // it was read
			err = &statusError{answer.StatusCode, answer.Status, string(bytes.TrimSpace(text))}
		}
		if attempt == maxAttempts || !isTransient(err) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(rand.N(pause)):
		}
		pause *= 2
	}
}

// isTransient reports whether a request may get another answer soon.
func isTransient(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.code == http.StatusRequestTimeout ||
			status.code == http.StatusTooManyRequests ||
			status.code >= 500
	}
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &network) && network.Timeout()
}

// A statusError is an answer that says what is wrong.
type statusError struct {
	code         int
	status, text string
}

func (e *statusError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("the answer is %s: %s", e.status, e.text), ": ")
}

// List implements store.Bucket.
func (b *googleBucket) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	q := url.Values{
		"prefix": {prefix}, "maxResults": {strconv.Itoa(pageSize)},
		"fields": {"nextPageToken,items(name,size)"},
	}
	for {
		var page struct {
			NextPageToken string
			Items         []struct {
				Name string
				Size int64 `json:",string"`
			}
		}
		if err := b.read(ctx, b.objectsURL("", q), &page); err != nil {
			return err
		}
		for _, o := range page.Items {
			if err := each(o.Name, o.Size); err != nil {
				return err
			}
		}
		if page.NextPageToken == "" {
			return nil
		}
		q.Set("pageToken", page.NextPageToken)
	}
}

// read reads a document of JSON.
func (b *googleBucket) read(ctx context.Context, address string, to any) error {
	answer, err := b.send(ctx, http.MethodGet, address, nil, nil, http.StatusOK)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return json.NewDecoder(answer.Body).Decode(to)
}

// Open implements store.Bucket.
func (b *googleBucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser,
	int64, error) {
	if length == 0 {
		var found struct {
			Size int64 `json:",string"`
		}
		err := b.read(ctx, b.objectURL(key, url.Values{"fields": {"size"}}), &found)
		return http.NoBody, found.Size, err
	}
	// A server that packs its answer says no size.
	header, expected := http.Header{"Accept-Encoding": {"identity"}}, http.StatusOK
	if part := rangeOf(offset, length); part != "" {
		header.Set("Range", part)
		expected = http.StatusPartialContent
	}
	answer, err := b.send(ctx, http.MethodGet, b.objectURL(key, url.Values{"alt": {"media"}}),
		header,
		nil, expected)
	if err != nil {
		return nil, 0, err
	}
	return answer.Body, sizeOf(answer.Header.Get("Content-Range"), answer.ContentLength), nil
}

// Create implements store.Bucket.
func (b *googleBucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	u := newUpload(key, size, r)
	q := url.Values{"name": {key}, "ifGenerationMatch": {"0"}, "uploadType": {"multipart"}}
	metadata, err := json.Marshal(map[string]string{"contentType": contentType(key)})
	if err != nil {
		return err
	}
	if u.isOnePart() {
		part, err := u.next(nil)
		if err != nil {
			return err
		}
		body, kind, err := buildRelatedBody(metadata, part, contentType(key))
		if err != nil {
			return err
		}
		answer, err := b.send(ctx, http.MethodPost, b.objectsURL("/upload", q), http.Header{
			"Content-Type": {kind},
		}, body, http.StatusOK, http.StatusCreated)
		if err != nil {
			return err
		}
		return answer.Body.Close() // only the head counts
	}
	q.Set("uploadType", "resumable")
	begun, err := b.send(ctx, http.MethodPost, b.objectsURL("/upload", q), http.Header{
		"Content-Type":            {"application/json"},
		"X-Upload-Content-Type":   {contentType(key)},
		"X-Upload-Content-Length": {strconv.FormatInt(size, 10)},
	}, metadata, http.StatusOK, http.StatusCreated)
	if err != nil {
		return err
	}
	_ = begun.Body.Close() // only the address counts
	// Parts follow each other. Google wants multiples of 256 KiB and bounds only their size.
	u.partBytes = minPartBytes
	var buffer []byte
	for !u.hasEnded() {
		at := u.read
		if buffer, err = u.next(buffer); err != nil {
			return err // Google forgets the upload in a week, and it costs nothing until then
		}
		if err := b.sendPart(ctx, begun.Header.Get("Location"), buffer, at, size); err != nil {
			return err
		}
	}
	return nil
}

// buildRelatedBody is the body, and its content type, of a request with the metadata and the bytes
// of an object.
func buildRelatedBody(metadata, object []byte, kind string) ([]byte, string, error) {
	var body bytes.Buffer
	parts := multipart.NewWriter(&body)
	for _, part := range []struct {
		kind string
		data []byte
	}{{"application/json", metadata}, {kind, object}} {
		w, err := parts.CreatePart(textproto.MIMEHeader{"Content-Type": {part.kind}})
		if err == nil {
			_, err = w.Write(part.data)
		}
		if err != nil {
			return nil, "", err
		}
	}
	err := parts.Close()
	return body.Bytes(), "multipart/related; boundary=" + parts.Boundary(), err
}

// sendPart sends the bytes of an upload from at on. Google ignores those that it has.
func (b *googleBucket) sendPart(ctx context.Context, session string, part []byte,
	at, size int64) error {
	for len(part) > 0 {
		end := at + int64(len(part))
		answer, err := b.send(ctx, http.MethodPut, session, http.Header{
			"Content-Range": {fmt.Sprintf("bytes %d-%d/%d", at, end-1, size)},
		}, part, http.StatusOK, http.StatusCreated, http.StatusPermanentRedirect)
		if err != nil {
			return err
		}
		_ = answer.Body.Close() // only the head counts
		if answer.StatusCode != http.StatusPermanentRedirect {
			if end == size {
				return nil
			}
			return fmt.Errorf("the object is complete with %d bytes, expected %d", end, size)
		}
		var last int64 // that Google has
		had := answer.Header.Get("Range")
		if _, err := fmt.Sscanf(had, "bytes=0-%d", &last); err != nil || last < at || last >= end {
			return fmt.Errorf("sent the bytes %d to %d, Google has %q", at, end-1, had)
		}
		part, at = part[last+1-at:], last+1
	}
	if at == size {
		return fmt.Errorf("sent %d bytes, and Google does not complete the object", size)
	}
	return nil
}

// Close implements store.Bucket.
func (b *googleBucket) Close() error {
	b.client.CloseIdleConnections()
	return nil
}
