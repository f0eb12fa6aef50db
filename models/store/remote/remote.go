// Package remote opens the buckets of package store by their URLs: those of S3 and Azure, by the
// clouds' own libraries, those of Google, by HTTP, those of registries, by package oci, and
// folders.
//
// Credentials are those that each cloud's own tools use: the environment, the files in the home
// directory, and the machine's role. Nothing but this package imports a cloud's storage library.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

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
		if u.Host != "" || !filepath.IsAbs(filePath(u)) {
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

// filePath is the path that a file's URL names: file:///C:/models names C:\models on Windows.
func filePath(u *url.URL) string {
	path := u.Path
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/")
	}
	return filepath.FromSlash(path)
}

// Open opens the store at a URL, such as s3://bucket/prefix. An unknown parameter behind "?" is an
// error that names those there are, such as region, endpoint and use_path_style for S3.
func Open(ctx context.Context, address string) (*store.Store, error) {
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	name := u.Scheme + "://" + u.Host + u.Path
	switch u.Scheme {
	case "file":
		return store.New(store.Directory(filePath(u)), name), nil
	case "oci":
		b, err := oci.Open(u, boundedReader(http.DefaultTransport.RoundTrip))
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		return store.New(b, name), nil
	}
	b, err := openPrefixed(ctx, u, name)
	if err != nil {
		return nil, err
	}
	return store.New(b, name), nil
}

// CheckBucket returns what is wrong with a URL for OpenBucket, or nil. It opens nothing.
func CheckBucket(address string) error {
	u, err := parse(address)
	if err == nil && u.Scheme == "oci" {
		err = fmt.Errorf("%q is a registry, expected one of the schemes s3, gs, azblob and file", address)
	}
	return err
}

// OpenBucket opens the bucket at a URL, as Open does, for whoever keeps other things than models in
// one. A registry is none.
func OpenBucket(ctx context.Context, address string) (store.Bucket, error) {
	if err := CheckBucket(address); err != nil {
		return nil, err
	}
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return store.Directory(filePath(u)), nil
	}
	return openPrefixed(ctx, u, u.Scheme+"://"+u.Host+u.Path)
}

func openPrefixed(ctx context.Context, u *url.URL, name string) (store.Bucket, error) {
	b, err := openBucket(context.WithoutCancel(ctx), u)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, wrapped(err))
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &prefixedBucket{b, prefix, name}, nil
}

// openBucket opens the bucket that a URL names, without its prefix. Google's library keeps the
// context for all of the process, and gets each later token with it.
func openBucket(ctx context.Context, u *url.URL) (store.Bucket, error) {
	switch u.Scheme {
	case "gs":
		return openGoogle(ctx, u)
	case "azblob":
		return openAzure(u)
	}
	return openS3(ctx, u)
}

// parseParameters hands the parameters of a URL to those who read them, by name.
func parseParameters(q url.Values, readers map[string]func(value string) error) error {
	for _, name := range slices.Sorted(maps.Keys(q)) {
		read := readers[name]
		if read == nil {
			return fmt.Errorf("there is no parameter %q, expected %s", name,
				strings.Join(slices.Sorted(maps.Keys(readers)), ", "))
		}
		if len(q[name]) > 1 {
			return fmt.Errorf("parameter %s: %d values, expected one", name, len(q[name]))
		}
		if err := read(q[name][0]); err != nil {
			return fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return nil
}

// pageSize is how many keys are listed at a time: the most that all clouds take.
const pageSize = 1000

// A prefixedBucket bucket is the part of a cloud's bucket whose keys begin with a prefix. Its
// errors wrap those of package store, and name the object and the bucket.
type prefixedBucket struct {
	of           store.Bucket
	prefix, name string
}

func (b *prefixedBucket) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	var stopped error
	err := b.of.List(ctx, b.prefix+prefix, func(key string, size int64) error {
		stopped = each(strings.TrimPrefix(key, b.prefix), size)
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return b.explain("list "+prefix, err)
}

func (b *prefixedBucket) Open(ctx context.Context, key string, offset,
	length int64) (io.ReadCloser, int64,
	error) {
	r, size, err := b.of.Open(ctx, b.prefix+key, offset, length)
	if err != nil {
		return nil, 0, b.explain(key, err)
	}
	return r, size, nil
}

func (b *prefixedBucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	return b.explain(key, b.of.Create(ctx, b.prefix+key, size, r))
}

func (b *prefixedBucket) Close() error { return b.of.Close() }

// explain says what an error of a cloud is about, and wraps the store's sentinel that belongs to
// it.
func (b *prefixedBucket) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of %s: %w", what, b.name, wrapped(err))
}

// wrapped wraps the store's sentinel that belongs to an error of a cloud.
func wrapped(err error) error {
	if to := sentinelOf(err); to != nil && !errors.Is(err, to) {
		return fmt.Errorf("%w: %w", to, err)
	}
	return err
}

func sentinelOf(err error) error {
	var azure *azcore.ResponseError
	var google *statusError
	code := s3Code(err)
	switch {
	case errors.As(err, &azure):
		code = cmp.Or(azure.ErrorCode, strconv.Itoa(azure.StatusCode))
	case errors.As(err, &google):
		code = strconv.Itoa(google.code)
	}
	switch code {
	case "NoSuchBucket", "NoSuchKey", "NotFound", "BlobNotFound", "ContainerNotFound",
		"ResourceNotFound", "404":
		return store.ErrNotFound
	case "PreconditionFailed", "BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet",
		"412":
		return store.ErrExists
	case "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch",
		"AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "401",
		"403":
		return store.ErrDenied
	}
	// Libraries have no error of their own for credentials that are not there.
	for _, denied := range []string{
		"get credentials", "could not find default credentials", "DefaultAzureCredential",
	} {
		if strings.Contains(err.Error(), denied) {
			return store.ErrDenied
		}
	}
	return nil
}
