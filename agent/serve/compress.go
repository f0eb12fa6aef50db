package serve

import (
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
)

// decompressBody returns req with a body that decompresses as Content-Encoding says, or an error
// that wraps outcome.ErrInvalid. It does not limit the body's size: the reader must count
// decompressed bytes.
func decompressBody(req *http.Request) (*http.Request, error) {
	var body *oip.Inflater
	var err error
	switch encoding := req.Header.Get("Content-Encoding"); strings.ToLower(encoding) {
	case "", "identity":
		return req, nil
	case "gzip":
		body, err = oip.NewInflater(req.Body, gzip.NewReader)
	case "deflate": // HTTP's "deflate" is the zlib format
		body, err = oip.NewInflater(req.Body, zlib.NewReader)
	default:
		return nil, outcome.Invalid("Content-Encoding %q, want gzip, deflate or none", encoding)
	}
	if err != nil {
		return nil, outcome.Invalid("body: %w", err)
	}
	plain := *req
	plain.Header = req.Header.Clone()
	plain.Header.Del("Content-Encoding")
	plain.Body = io.NopCloser(body)
	plain.ContentLength = -1
	return &plain, nil
}

// A compressor compresses a response if the client accepts that. It sets no header before the first
// byte, so that an error response can still be sent uncompressed.
type compressor struct {
	http.ResponseWriter
	encoding string // "" for plain
	writer   resettable
}

// A resettable is a *gzip.Writer or a *zlib.Writer. Each holds most of a megabyte,
// so they are reused.
type resettable interface {
	io.WriteCloser
	Reset(w io.Writer)
}

// Answers are large, and the CPU is needed for queries: use the fastest level, which is valid.
var writers = map[string]*sync.Pool{
	"gzip": {New: func() any {
		w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		return w
	}},
	"deflate": {New: func() any {
		w, _ := zlib.NewWriterLevel(nil, zlib.BestSpeed)
		return w
	}},
}

func newCompressor(w http.ResponseWriter, req *http.Request) *compressor {
	return &compressor{
		ResponseWriter: w, encoding: acceptedEncoding(req.Header.Values("Accept-Encoding")),
	}
}

func (c *compressor) WriteHeader(status int) {
	if pool := writers[c.encoding]; pool != nil {
		c.writer = pool.Get().(resettable)
		c.writer.Reset(c.ResponseWriter)
	}
	if c.writer != nil {
		c.Header().Set("Content-Encoding", c.encoding)
		c.Header().Del("Content-Length")
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *compressor) Write(b []byte) (int, error) {
	if c.encoding == "" {
		return c.ResponseWriter.Write(b)
	}
	if c.writer == nil {
		c.WriteHeader(http.StatusOK)
	}
	return c.writer.Write(b)
}

// finishStream writes the compressor's buffered bytes. It must be called after the last Write.
func (c *compressor) finishStream() {
	if c.writer != nil {
		_ = c.writer.Close() // fails only if the client is gone
		c.writer.Reset(nil)
		writers[c.encoding].Put(c.writer)
		c.writer = nil
	}
}

// acceptedEncoding returns the encoding to use for a client with these Accept-Encoding headers:
// gzip, deflate, or "" for none.
func acceptedEncoding(accept []string) string {
	accepted := map[string]bool{}
	for _, option := range strings.Split(strings.Join(accept, ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(strings.TrimSpace(option)), ";")
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
		accepted[strings.TrimSpace(name)] = err != nil || q > 0 // err: there is no weight
	}
	switch {
	case accepted["gzip"]:
		return "gzip"
	case accepted["deflate"]:
		return "deflate"
	}
	return ""
}
