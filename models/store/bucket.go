package store

import (
	"context"
	"errors"
	"io"
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
