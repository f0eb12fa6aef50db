// Package remote opens the buckets of package store by their URLs: those of S3, GCS and Azure, with
// gocloud.dev/blob, those of registries, by package oci, and folders.
//
// Credentials are those that each cloud's own tools use: the environment, the files in the home
// directory, and the machine's role. Nothing but this package imports a cloud's storage library.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/muster-serve/muster/models/store"
	"github.com/muster-serve/muster/models/store/oci"
)

// Schemes are those of the URLs that Open takes.
func Schemes() []string { return []string{"s3", "gs", "azblob", "oci", "file"} }

// Check returns what is wrong with the URL of a store, or nil. It opens nothing.
func Check(address string) error {
	_, err := parse(address)
	return err
}

func parse(address string) (*url.URL, error) {
	want := "expected SCHEME://BUCKET/PREFIX with one of the schemes " +
		strings.Join(Schemes(), ", ")
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%q: %w; %s", address, err, want)
	}
	switch u.Scheme {
	case "s3", "gs", "azblob":
		if u.Host == "" {
			return nil, fmt.Errorf("%q names no bucket; %s", address, want)
		}
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("%q, expected file:///PATH", address)
		}
	case "oci":
		if err := oci.Check(u); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%q has the scheme %q; %s", address, u.Scheme, want)
	}
	if u.User != nil {
		return nil, fmt.Errorf("the URL of a store has a user; credentials come from where the " +
			"cloud's own tools have them")
	}
	return u, nil
}

// Open opens the store at a URL, such as s3://bucket/prefix. The parameters behind "?" are those of
// gocloud.dev/blob, such as region, endpoint and use_path_style for S3.
func Open(ctx context.Context, address string) (*store.Store, error) {
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	name := u.Scheme + "://" + u.Host + u.Path
	switch u.Scheme {
	case "file":
		return store.New(store.Directory(u.Path), name), nil
	case "oci":
		b, err := oci.Open(u, boundedReader(http.DefaultTransport.RoundTrip))
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		return store.New(b, name), nil
	}
	prefix := strings.Trim(u.Path, "/")
	u.Path = ""
	// Google's library keeps the context for all of the process, and gets each later token with it.
	b, err := openBucket(context.WithoutCancel(ctx), u)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, explain(err))
	}
	if prefix != "" {
		b = blob.PrefixedBucket(b, prefix+"/")
	}
	return store.New(&bucket{b, name}, name), nil
}

// bucket is a store.Bucket by gocloud.dev/blob.
type bucket struct {
	b    *blob.Bucket
	name string
}

// pageSize is how many keys are listed at a time: the most that all clouds take.
const pageSize = 1000

func (b *bucket) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	token := blob.FirstPageToken
	for {
		page, next, err := b.b.ListPage(ctx, token, pageSize, &blob.ListOptions{Prefix: prefix})
		if err != nil {
			return explain(err)
		}
		for _, o := range page {
			if err := each(o.Key, o.Size); err != nil {
				return err
			}
		}
		if len(next) == 0 {
			return nil
		}
		token = next
	}
}

func (b *bucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	r, err := b.b.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, 0, explain(err)
	}
	return r, r.Size(), nil
}

func (b *bucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind := "application/octet-stream"
	if strings.HasSuffix(key, ".json") {
		kind = "application/json"
	}
	w, err := b.b.NewWriter(ctx, key, &blob.WriterOptions{
		ContentType: kind, IfNotExist: true, BufferSize: bufferSize(size),
	})
	if err != nil {
		return explain(err)
	}
	n, err := io.Copy(w, r)
	if err == nil && n != size {
		err = fmt.Errorf("%s: read %d bytes to write, expected %d", key, n, size)
	}
	if err != nil {
		cancel() // so that Close writes nothing
		_ = w.Close()
		return explain(err)
	}
	return explain(w.Close())
}

// bufferSize is the size of an upload's parts, of which S3 takes 10,000; the least is 8 MiB.
func bufferSize(size int64) int { return int(max(8<<20, size/9000)) }

func (b *bucket) Close() error { return b.b.Close() }

// explain wraps the store's sentinel that belongs to an error.
func explain(err error) error {
	var to error
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		to = store.ErrNotFound
	case gcerrors.FailedPrecondition, gcerrors.AlreadyExists:
		to = store.ErrExists
	case gcerrors.PermissionDenied:
		to = store.ErrDenied
	default:
		text := ""
		if err != nil {
			text = err.Error()
		}
		for _, denied := range []string{
			"AccessDenied", "StatusCode: 403", "StatusCode: 401", "InvalidAccessKeyId",
			"SignatureDoesNotMatch", "get credentials", "could not find default credentials",
			"AuthenticationFailed", "AuthorizationFailure",
		} {
			if strings.Contains(text, denied) {
				to = store.ErrDenied
			}
		}
	}
	if to == nil || errors.Is(err, to) {
		return err
	}
	return fmt.Errorf("%w: %w", to, err)
}
