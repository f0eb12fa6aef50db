package serve

import (
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"

	"github.com/muster-serve/muster/agent/outcome"
	"github.com/muster-serve/muster/api/oip"
)

// decompressed is req with the body as its Content-Encoding says it was. The
// limit on a body is for its reader to keep: what is read counts, not what was
// sent.
func decompressed(req *http.Request) (*http.Request, error) {
	var body *oip.Inflater
	var err error
	switch encoding := req.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return req, nil
	case "gzip":
		body, err = oip.NewInflater(req.Body, gzip.NewReader)
	case "deflate": // by HTTP's definition the zlib format
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

// A compressor writes a response compressed if the client accepts that. It
// starts with the first byte, so that an error before it goes out plain.
type compressor struct {
	http.ResponseWriter
	encoding string // "" for plain
	writer   io.WriteCloser
}

func newCompressor(w http.ResponseWriter, req *http.Request) *compressor {
	return &compressor{
		ResponseWriter: w, encoding: acceptedEncoding(req.Header.Values("Accept-Encoding")),
	}
}

func (c *compressor) WriteHeader(status int) {
	// Answers are large and the machine has better things to do: fastest.
	switch c.encoding {
	case "gzip":
		c.writer, _ = gzip.NewWriterLevel(c.ResponseWriter, gzip.BestSpeed) // the level is valid
	case "deflate":
		c.writer, _ = zlib.NewWriterLevel(c.ResponseWriter, zlib.BestSpeed)
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

// finish writes what the compression still holds.
func (c *compressor) finish() {
	if c.writer != nil {
		_ = c.writer.Close() // fails only if the client is gone
	}
}

// acceptedEncoding chooses from what a client accepts: gzip, deflate, or "".
func acceptedEncoding(accept []string) string {
	accepted := map[string]bool{}
	for _, option := range strings.Split(strings.Join(accept, ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(strings.TrimSpace(option)), ";")
		weight = strings.TrimSpace(weight)
		accepted[strings.TrimSpace(name)] = weight != "q=0" && weight != "q=0.0"
	}
	switch {
	case accepted["gzip"]:
		return "gzip"
	case accepted["deflate"]:
		return "deflate"
	}
	return ""
}
