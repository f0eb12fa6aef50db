package remote

import (
	"fmt"
	"io"
	"net/http"

	"github.com/muster-serve/muster/models/store"
)

const (
	// maxBodyBytes bounds every answer but the files of models: twice the largest document of a
	// store. A page of a listing takes 4 MB at most: 1,000 keys of 1,024 bytes, written with %XX.
	maxBodyBytes = 32 << 20
	// maxErrorBytes bounds an answer that says what is wrong. Libraries keep all of it in memory
	// and ask up to five times. Registries and proxies answer with pages of up to 100 KB.
	maxErrorBytes = 1 << 20
)

// boundedReader sends HTTP requests of a store, as many as an operation may take, and bounds the
// bodies of the answers. Only an answer with bytes of a model's file has no bound of its own:
// whoever reads it stops after the length that a manifest says. It is a client for all the
// libraries, each of which wants one of its methods.
type boundedReader func(*http.Request) (*http.Response, error)

// Do implements the clients of AWS and Azure.
func (b boundedReader) Do(r *http.Request) (*http.Response, error) { return b.RoundTrip(r) }

// RoundTrip implements http.RoundTripper, for the clients of Google and of registries.
func (b boundedReader) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := store.CountRequest(r.Context()); err != nil {
		return nil, err
	}
	response, err := b(r)
	if err != nil || response.Body == nil {
		return response, err
	}
	max := int64(maxBodyBytes)
	if response.StatusCode >= 300 {
		max = maxErrorBytes
	} else if store.ReadsFile(r.Context()) {
		return response, nil
	}
	response.Body = &body{response.Body, response, max, max}
	return response, nil
}

// A body returns an error when more than max bytes are read of it.
type body struct {
	io.ReadCloser
	of        *http.Response
	left, max int64
}

func (b *body) Read(p []byte) (int, error) {
	// One byte more than is allowed tells a body that is too long from one that just fits.
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left >= 0 {
		return n, err
	}
	b.left = 0
	host := ""
	if b.of.Request != nil {
		host = b.of.Request.URL.Host
	}
	return n - 1, fmt.Errorf("the answer of %s (%s) has more than %d bytes, expected fewer: is "+
		"it a model store?", host, b.of.Status, b.max)
}
