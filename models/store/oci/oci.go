// Package oci holds a model store in a repository of an OCI registry, with oras-go.
//
// The files of models are the repository's blobs, by the digest that they have in every store. A
// document is an artifact with a tag:
//
//	NAME.VERSION           the manifest of a version, which has the version's files as its layers
//	NAME.VERSION.minisig   its signature
//	NAME.release-NUMBER    a release
//	NAME.revoked-VERSION   a revocation
//
// and the signature of one of the last two is under its tag with .minisig behind it.
//
// The document is the artifact's config. So the registry keeps what a version needs, other tools
// pull a version as any artifact, and another repository may have a copy of it. Credentials are
// docker's: those of its configuration file, and of the helpers that this names.
package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/muster-serve/muster/models/store"
)

const (
	documentType = "application/vnd.muster.document.v1+json"
	fileType     = "application/vnd.muster.file.v1"
	// maxManifest bounds what is read of an artifact's manifest. One with the most files that a
	// version may have takes less.
	maxManifest = 4 << 20
	pageSize    = 1000
)

// Check returns what is wrong with the URL of a repository, or nil.
func Check(u *url.URL) error {
	_, err := parseReference(u)
	return err
}

func parseReference(u *url.URL) (registry.Reference, error) {
	ref, err := registry.ParseReference(u.Host + u.Path)
	if err == nil && ref.Reference != "" {
		err = errors.New("it names a tag or a digest")
	}
	for name, values := range u.Query() {
		if _, wrong := strconv.ParseBool(values[0]); name != "plain_http" || wrong != nil {
			err = fmt.Errorf("%s=%s, expected no parameter but plain_http=true", name, values[0])
		}
	}
	if err != nil {
		return ref, fmt.Errorf("%q: %w; expected oci://HOST/REPOSITORY, in lower case", u, err)
	}
	return ref, nil
}

// Open returns the bucket in the repository at a URL, oci://HOST/REPOSITORY. It asks the registry
// nothing. HTTPS is used but on loopback, or with the parameter plain_http=true. transport sends
// the requests.
func Open(u *url.URL, transport http.RoundTripper) (store.Bucket, error) {
	ref, err := parseReference(u)
	if err != nil {
		return nil, err
	}
	docker, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("docker's credentials: %w", err)
	}
	plain, _ := strconv.ParseBool(u.Query().Get("plain_http"))
	return &bucket{
		repo: &remote.Repository{
			Client: &auth.Client{
				Client: &http.Client{Transport: &discreet{retry.NewTransport(transport),
					ref.Host()}},
				Cache:      auth.NewCache(),
				Credential: credentials.Credential(docker),
			},
			Reference: ref, PlainHTTP: plain || isLoopback(ref.Host()), TagListPageSize: pageSize,
		},
		name: "oci://" + ref.String(),
	}, nil
}

// A discreet transport sends no credentials in plain text to a host that the store's URL does not
// name. A registry says itself, in WWW-Authenticate, where its clients get their tokens: as with
// docker, that may be any host by HTTPS, since registries have others for it. By plain HTTP,
// somebody between would name a host too. (oras-go refuses plain HTTP for a registry by HTTPS.)
type discreet struct {
	to       http.RoundTripper
	registry string // the registry's host, as in its URL
}

// RoundTrip implements [http.RoundTripper]. It sees each redirect as a request of its own.
func (d *discreet) RoundTrip(req *http.Request) (*http.Response, error) {
	// by OAuth 2 the password or token is in a form
	secret := req.Header.Get("Authorization") != "" ||
		req.Header.Get("Content-Type") == "application/x-www-form-urlencoded"
	at := req.URL.Host
	if secret && req.URL.Scheme != "https" && !strings.EqualFold(nameOf(at), nameOf(d.registry)) &&
		!(isLoopback(at) && isLoopback(d.registry)) {
		if req.Body != nil {
			_ = req.Body.Close() // as a RoundTripper must
		}
		return nil, fmt.Errorf("%w: found that the registry %s wants docker's credentials sent to "+
			"%s://%s, expected https, or the registry's own host", errPlain, d.registry,
			req.URL.Scheme, at)
	}
	return d.to.RoundTrip(req)
}

// errPlain is the error of a request that would send credentials in plain text to another host.
var errPlain = errors.New("no credentials in plain text to another host")

// nameOf is a host without its port.
func nameOf(host string) string { return (&url.URL{Host: host}).Hostname() }

func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && address.IsLoopback()
}

type bucket struct {
	repo *remote.Repository
	name string
}

// digestOf is the digest of a file's key.
func digestOf(key string) (digest.Digest, bool) {
	sum, ok := strings.CutPrefix(key, "blobs/sha256/")
	return digest.NewDigestFromEncoded(digest.SHA256, sum), ok
}

// tagOf is the tag of a document's key.
func tagOf(key string) (string, error) {
	parts := strings.Split(key, "/")
	tag := ""
	switch {
	case len(parts) == 3:
		tag = parts[1] + "." + strings.Replace(parts[2], ".json", "", 1)
	case len(parts) == 4 && parts[2] == "releases":
		tag = parts[1] + ".release-" + strings.Replace(parts[3], ".json", "", 1)
	case len(parts) == 4 && parts[2] == "revoked":
		tag = parts[1] + ".revoked-" + strings.Replace(parts[3], ".json", "", 1)
	}
	ref := registry.Reference{Reference: tag}
	if parts[0] != "models" || ref.ValidateReferenceAsTag() != nil {
		return "",
			fmt.Errorf("%s cannot be a tag of a registry: expected the name of a model with "+
				"letters, digits, '.', '_' and '-' only, not beginning with '.' or '-', 100 at most",
				key)
	}
	return tag, nil
}

// keyOf is the key of a tag's document; "" if the tag is none of a store.
func keyOf(tag string) string {
	rest, signed := strings.CutSuffix(tag, ".minisig")
	i := strings.LastIndexByte(rest, '.')
	if i <= 0 {
		return ""
	}
	model, number, folder := rest[:i], rest[i+1:], "/"
	for begins, in := range map[string]string{"release-": "/releases/", "revoked-": "/revoked/"} {
		if n, ok := strings.CutPrefix(number, begins); ok {
			number, folder = n, in
		}
	}
	if _, err := strconv.ParseUint(number, 10, 64); err != nil {
		return ""
	}
	key := "models/" + model + folder + number + ".json"
	if signed {
		key += ".minisig"
	}
	return key
}

func (b *bucket) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	var stopped error
	err := b.repo.Tags(ctx, "", func(tags []string) error {
		for _, tag := range tags {
			if key := keyOf(tag); key != "" && strings.HasPrefix(key, prefix) {
				if stopped = each(key, 0); stopped != nil {
					return stopped
				}
			}
		}
		return nil
	})
	if stopped != nil {
		return stopped
	}
	if err = b.explainError("the tags", err); errors.Is(err, store.ErrNotFound) {
		return nil // nothing was pushed yet
	}
	return err
}

func (b *bucket) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	sum, ok := digestOf(key)
	if !ok {
		return b.openDocument(ctx, key, offset, length)
	}
	if length == 0 {
		found, err := b.repo.Blobs().Resolve(ctx, sum.String())
		return http.NoBody, found.Size, b.explainError(key, err)
	}
	r, size, err := b.fetchBlob(ctx, sum, offset, length)
	return r, size, b.explainError(key, err)
}

// fetchBlob reads a range of a blob. oras-go would first ask for all of it.
func (b *bucket) fetchBlob(ctx context.Context, sum digest.Digest, offset,
	length int64) (io.ReadCloser,
	int64, error) {
	ref := b.repo.Reference
	ctx = auth.AppendRepositoryScope(ctx, ref, auth.ActionPull)
	scheme := "https"
	if b.repo.PlainHTTP {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("%s://%s/v2/%s/blobs/%s", scheme, ref.Host(), ref.Repository, sum), nil)
	if err != nil {
		return nil, 0, err
	}
	end := ""
	if length > 0 {
		end = fmt.Sprint(offset + length - 1)
	}
	if offset > 0 || length > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", offset, end))
	}
	resp, err := b.repo.Client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	size := resp.ContentLength
	switch resp.StatusCode {
	case http.StatusPartialContent:
		said := resp.Header.Get("Content-Range")
		_, total, _ := strings.Cut(said, "/")
		size, err = strconv.ParseInt(total, 10, 64)
		if err != nil || !strings.HasPrefix(said, fmt.Sprintf("bytes %d-", offset)) {
			err = fmt.Errorf("asked for bytes from %d on, got %q", offset, said)
		}
	case http.StatusOK: // a registry without ranges
		_, err = io.CopyN(io.Discard, resp.Body, offset)
	default:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // for the error alone
		err = &errcode.ErrorResponse{
			Method: req.Method, URL: req.URL, StatusCode: resp.StatusCode,
			Errors: errcode.Errors{{Message: strings.TrimSpace(string(text))}},
		}
	}
	if err != nil {
		return nil, 0, errors.Join(err, resp.Body.Close())
	}
	if length < 0 {
		return resp.Body, size, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, length), resp.Body}, size, nil
}

func (b *bucket) openDocument(ctx context.Context, key string, offset, length int64) (io.ReadCloser,
	int64, error) {
	tag, err := tagOf(key)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", store.ErrNotFound, err)
	}
	desc, r, err := b.repo.Manifests().FetchReference(ctx, tag)
	if err != nil {
		return nil, 0, b.explainError(key, err)
	}
	defer r.Close()
	if desc.Size > maxManifest {
		return nil, 0, fmt.Errorf("%s of %s: the artifact's manifest has %d bytes, expected %d at "+
			"most", tag, b.name, desc.Size, maxManifest)
	}
	text, err := content.ReadAll(r, desc)
	m := ocispec.Manifest{}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil && m.Config.MediaType != documentType {
		err = fmt.Errorf("an artifact of type %q, expected %s", m.Config.MediaType, documentType)
	}
	if err == nil {
		err = m.Config.Digest.Validate()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s of %s: %w", tag, b.name, err)
	}
	if length < 0 {
		length = max(m.Config.Size-offset, 0)
	}
	if offset > 0 || length == 0 {
		return nil, 0, fmt.Errorf("%s of %s: a document is read whole", tag, b.name)
	}
	document, size, err := b.fetchBlob(ctx, m.Config.Digest, 0, length)
	if err != nil {
		return nil, 0, b.explainError(key, err)
	}
	return verifyDigest(document, m.Config), size, nil
}

// verifyDigest reads a document, whose digest its artifact has.
func verifyDigest(r io.ReadCloser, desc ocispec.Descriptor) io.ReadCloser {
	v := content.NewVerifyReader(r, desc)
	return struct {
		io.Reader
		io.Closer
	}{&atEnd{v, v.Verify}, r}
}

// atEnd reads r, and at its end returns the error of check, if there is one.
type atEnd struct {
	r     io.Reader
	check func() error
}

func (a *atEnd) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if err == io.EOF {
		if wrong := a.check(); wrong != nil {
			err = wrong
		}
	}
	return n, err
}

// Create writes a file or a document. Registries have no condition for a tag: of two who write the
// same one at once, the one who writes first may be told that it has won, though the other's stays.
func (b *bucket) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	if sum, ok := digestOf(key); ok {
		return b.explainError(key, b.repo.Blobs().Push(ctx,
			ocispec.Descriptor{MediaType: fileType, Digest: sum, Size: size}, r))
	}
	tag, err := tagOf(key)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	switch _, err := b.repo.Resolve(ctx, tag); {
	case err == nil:
		return fmt.Errorf("%w: %s of %s", store.ErrExists, tag, b.name)
	case !errors.Is(err, errdef.ErrNotFound):
		return b.explainError(key, err)
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: documentType, Config: content.NewDescriptorFromBytes(documentType, text),
		Layers: layersOf(text),
	}
	if err := b.push(ctx, m.Config, text); err != nil {
		return b.explainError(key, err)
	}
	if len(m.Layers) == 0 { // the specification wants one
		m.Layers = []ocispec.Descriptor{ocispec.DescriptorEmptyJSON}
		if err := b.push(ctx, m.Layers[0], m.Layers[0].Data); err != nil {
			return b.explainError(key, err)
		}
	}
	artifact, err := json.Marshal(m)
	if err != nil {
		return err
	}
	desc := content.NewDescriptorFromBytes(m.MediaType, artifact)
	if err := b.repo.PushReference(ctx, desc, bytes.NewReader(artifact), tag); err != nil {
		return b.explainError(key, err)
	}
	there, err := b.repo.Resolve(ctx, tag)
	if err == nil && there.Digest != desc.Digest {
		err = fmt.Errorf("%w: %s of %s", store.ErrExists, tag, b.name)
	}
	return b.explainError(key, err)
}

// push writes a blob unless it is there.
func (b *bucket) push(ctx context.Context, desc ocispec.Descriptor, text []byte) error {
	there, err := b.repo.Blobs().Exists(ctx, desc)
	if err != nil || there {
		return err
	}
	return b.repo.Blobs().Push(ctx, desc, bytes.NewReader(text))
}

// layersOf are the files of a version's manifest; none of another document.
func layersOf(document []byte) (all []ocispec.Descriptor) {
	m := store.Manifest{}
	if json.Unmarshal(document, &m) != nil {
		return nil
	}
	for _, f := range m.Files {
		all = append(all, ocispec.Descriptor{
			MediaType:   fileType,
			Digest:      digest.NewDigestFromEncoded(digest.SHA256, f.SHA256),
			Size:        f.Size,
			Annotations: map[string]string{ocispec.AnnotationTitle: f.Path},
		})
	}
	return all
}

func (b *bucket) Close() error { return nil }

// explainError names the object and the repository, and wraps the store's sentinel that belongs to
// an error.
func (b *bucket) explainError(key string, err error) error {
	if err == nil || errors.Is(err, store.ErrExists) {
		return err
	}
	var to error
	var said *errcode.ErrorResponse
	code := 0
	if errors.As(err, &said) {
		code = said.StatusCode
	}
	switch {
	case errors.Is(err, errdef.ErrNotFound), code == http.StatusNotFound:
		to = store.ErrNotFound
	case code == http.StatusUnauthorized, code == http.StatusForbidden,
		errors.Is(err, auth.ErrBasicCredentialNotFound), errors.Is(err, errPlain):
		to = store.ErrDenied
	default:
		return fmt.Errorf("%s in %s: %w", key, b.name, err)
	}
	return fmt.Errorf("%w: %s in %s: %w", to, key, b.name, err)
}
