package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

var (
	// ErrNotFound means that the store lacks what was asked for. Errors wrap it.
	ErrNotFound = errors.New("store: not found")
	// ErrExists means that an object was not written, because there is one. Errors wrap it.
	ErrExists = errors.New("store: exists already")
	// ErrInvalid means that a document is not one that a store may have. Errors wrap it.
	ErrInvalid = errors.New("store: not a valid document")
	// ErrDenied means that the caller has no rights, or no credentials. Errors wrap it.
	ErrDenied = errors.New("store: no rights")
)

type readsFile struct{}

// ReadsFile reports whether a context is of Bucket.Open for the bytes of a model's file, whose length
// a manifest says. All else that a store answers is bounded by the bucket.
func ReadsFile(ctx context.Context) bool { return ctx.Value(readsFile{}) != nil }

// maxRequests bounds the requests for a listing or a document, in which empty pages may follow each
// other, or lead from server to server, without end. 100,000 objects take 100 full pages; a server
// may send shorter ones.
const maxRequests = 1000

type requests struct{}

// CountRequest notes a request of a bucket for a listing or a document, which ctx says. The error
// says that there were too many, and that this one must not be sent.
func CountRequest(ctx context.Context) error {
	sent, ok := ctx.Value(requests{}).(*atomic.Int64)
	if ok && sent.Add(1) > maxRequests {
		return fmt.Errorf("the answer takes more than %d requests, expected fewer: is this a model "+
			"store?", maxRequests)
	}
	return nil
}

// A Bucket holds objects by key. Keys are paths with slashes. Methods may be called concurrently,
// and return soon after ctx ends. Errors name the object and the bucket.
type Bucket interface {
	// List calls each with the keys that begin with prefix, in any order, until each returns an
	// error, which List returns. A size that is not known is 0. It holds a page of keys at a time.
	List(ctx context.Context, prefix string, each func(key string, size int64) error) error
	// Open reads an object from offset on, length bytes or, if length is below 0, to its end. size
	// is that of the whole object, as the store says. The error wraps ErrNotFound if there is none.
	Open(ctx context.Context, key string, offset, length int64) (r io.ReadCloser, size int64,
		err error)
	// Create writes an object of size bytes, all or nothing. The error wraps ErrExists if there is
	// one, which stays as it is.
	Create(ctx context.Context, key string, size int64, r io.Reader) error
	// Close frees what the bucket holds open.
	Close() error
}
