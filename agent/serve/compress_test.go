package serve

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

func TestAcceptedEncoding(t *testing.T) {
	for accept, want := range map[string]string{
		"": "", "gzip": "gzip", "deflate": "deflate", "deflate, gzip": "gzip", "br": "",
		"GZIP;q=0.5":        "gzip",
		"gzip;q=0, deflate": "deflate", "gzip; q=0.0": "", "identity": "",
		"gzip;q=0.000": "", "gzip;q=0.001": "gzip",
	} {
		if got := acceptedEncoding([]string{accept}); got != want {
			t.Errorf("%q: got %q, want %q", accept, got, want)
		}
	}
}

// TestDecompressed: the names of content codings have no case.
func TestDecompressed(t *testing.T) {
	for _, coding := range []string{"", "identity", "Identity", "gzip", "GZIP", "deflate",
		"Deflate"} {
		var sent bytes.Buffer
		var w io.WriteCloser
		switch strings.ToLower(coding) {
		case "gzip":
			w = gzip.NewWriter(&sent)
		case "deflate":
			w = zlib.NewWriter(&sent)
		}
		if w == nil {
			sent.WriteString("a query")
		} else if _, err := io.WriteString(w, "a query"); err != nil {
			t.Fatal(err)
		} else if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest("POST", "/", &sent)
		req.Header.Set("Content-Encoding", coding)
		plain, err := decompressBody(req)
		if err != nil {
			t.Errorf("%q: %v", coding, err)
			continue
		}
		if got, err := io.ReadAll(plain.Body); err != nil || string(got) != "a query" {
			t.Errorf("%q: got %q, %v", coding, got, err)
		}
	}
	req := httptest.NewRequest("POST", "/", nil)
	req.Header.Set("Content-Encoding", "BR")
	if _, err := decompressBody(req); err == nil || !strings.Contains(err.Error(), `"BR"`) {
		t.Errorf("an unknown coding: %v", err)
	}
}

// TestCompressorMemory: an answer that is compressed allocates no compressor of its own.
func TestCompressorMemory(t *testing.T) {
	req := httptest.NewRequest("GET", "/", nil)
	for _, encoding := range []string{"gzip", "deflate"} {
		req.Header.Set("Accept-Encoding", encoding)
		text := bytes.Repeat([]byte("scores"), 100)
		answer := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			c := newCompressor(w, req)
			if _, err := c.Write(text); err != nil {
				t.Fatal(err)
			}
			c.finishStream()
			return w
		}
		const n = 50
		answer()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n {
			answer()
		}
		runtime.ReadMemStats(&after)
		// The race detector drops some of what a pool holds.
		if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 200<<10 && !raceDetector {
			t.Errorf("%s: %d bytes an answer", encoding, each)
		}
		var r io.Reader
		var err error
		if r, err = gzip.NewReader(answer().Body); encoding == "deflate" {
			r, err = zlib.NewReader(answer().Body)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: got %q, %v", encoding, got, err)
		}
	}
}
