package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/files"
)

// A PushOptions says who pushes, and how.
type PushOptions struct {
	By string // see Manifest.CreatedBy
	// Sign returns the signature of a manifest; nil: it is not signed.
	Sign func(document []byte) ([]byte, error)
	// Progress is called with how many of all bytes have been read and are in the store; nil: not.
	Progress func(done, total int64)
}

// PushResult says what a push has done.
type PushResult struct {
	Manifest *Manifest
	// New is whether the version is new; false if the store has the same version.
	New bool
	// Sent is how many bytes of files were sent; the store has had the others.
	Sent int64
	// Signed is whether a signature was added.
	Signed bool
}

// Push puts a version of the model in folder, which is named as the model is, into the store. What
// the store has is not sent again, so a push that was cut off goes on. A version that the store has
// with other files stays; the error then wraps ErrExists.
func (s *Store) Push(ctx context.Context, folder string, version int64, options PushOptions) (
	PushResult, error) {
	if options.Progress == nil {
		options.Progress = func(int64, int64) {}
	}
	m, err := buildManifest(ctx, folder, version)
	if err != nil {
		return PushResult{}, err
	}
	m.Created, m.CreatedBy = time.Now().UTC().Truncate(time.Second), options.By
	pushed := PushResult{Manifest: m}
	there, document, err := s.Manifest(ctx, m.Model, version)
	switch {
	case errors.Is(err, ErrNotFound):
		if pushed.Sent, err = s.pushFiles(ctx, folder, m, options.Progress); err != nil {
			return pushed, err
		}
		document = write(m)
		err = s.createObject(ctx, manifestKey(m.Model, version), document)
		if pushed.New = err == nil; errors.Is(err, ErrExists) { // another has pushed it meanwhile
			there, document, err = s.Manifest(ctx, m.Model, version)
		}
	}
	if err != nil {
		return pushed, err
	}
	if there != nil {
		if path := m.differingFile(there); path != "" {
			return pushed, fmt.Errorf("%w: %s in %s has another %s, pushed %s by %s; a version "+
				"never changes, so push this one with a higher number", ErrExists, m, s.name, path,
				there.Created.Format(time.RFC3339), there.CreatedBy)
		}
		pushed.Manifest = there
	}
	if options.Sign == nil {
		return pushed, nil
	}
	signature, err := options.Sign(document)
	if err != nil {
		return pushed, fmt.Errorf("sign %s: %w", m, err)
	}
	err = s.createObject(ctx, manifestKey(m.Model, version)+signatureEnd, signature)
	pushed.Signed = err == nil
	if errors.Is(err, ErrExists) {
		err = nil
	}
	return pushed, err
}

// pushFiles sends the files of m that the store lacks.
func (s *Store) pushFiles(ctx context.Context, folder string, m *Manifest,
	progress func(done, total int64)) (sent int64, err error) {
	var done int64
	total := m.Bytes()
	for _, f := range m.Files {
		has, err := s.hasBlob(ctx, f)
		if err != nil {
			return sent, err
		}
		if !has {
			file, _, err := files.Open(filepath.Join(folder, filepath.FromSlash(f.Path)))
			if err != nil {
				return sent, err
			}
			r := &checkingReader{of: file, hash: sha256.New(), want: f, done: func(n int64) {
				progress(done+n, total)
			}}
			err = s.bucket.Create(ctx, blobKey(f.SHA256), f.Size, r)
			_ = file.Close() // it was read
			switch {
			case err == nil:
				sent += f.Size
			case !errors.Is(err, ErrExists):
				return sent, fmt.Errorf("push %s of %s to %s: %w", f.Path, m, s.name, err)
			}
		}
		done += f.Size
		progress(done, total)
	}
	return sent, nil
}

// hasBlob reports whether the store has the file. Another size under its name is an error.
func (s *Store) hasBlob(ctx context.Context, f File) (has bool, err error) {
	r, size, err := s.bucket.Open(ctx, blobKey(f.SHA256), 0, 0)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := r.Close(); err != nil {
		return false, err
	}
	if size != f.Size {
		return false, fmt.Errorf("%s has %d bytes in %s, %s has %d: somebody has damaged the store",
			blobKey(f.SHA256), size, s.name, f.Path, f.Size)
	}
	return true, nil
}

// checkingReader reads a file that must not change after it was described: if it has, the reader
// returns an error at the end instead of io.EOF, so that the store keeps nothing.
type checkingReader struct {
	of   io.Reader
	hash hash.Hash
	n    int64
	want File
	done func(n int64)
}

func (c *checkingReader) Read(p []byte) (int, error) {
	n, err := c.of.Read(p)
	c.hash.Write(p[:n])
	c.n += int64(n)
	c.done(c.n)
	if err == io.EOF && (c.n != c.want.Size || sumOf(c.hash) != c.want.SHA256) {
		return n, fmt.Errorf("%s changed while it was read", c.want.Path)
	}
	return n, err
}

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// buildManifest reads the files of a version in the model's folder. It leaves out hidden ones.
func buildManifest(ctx context.Context, folder string, version int64) (*Manifest, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(filepath.Dir(folder))
	if err != nil {
		return nil, err
	}
	m := &Manifest{Format: format, Model: filepath.Base(folder), Version: version}
	add := func(path string) error {
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		if below, err := filepath.Rel(root, real); err != nil || !filepath.IsLocal(below) {
			return fmt.Errorf("%s leads to %s, outside of the model directory", path, real)
		}
		f, err := sumFile(ctx, real)
		if err != nil {
			return err
		}
		f.Path = filepath.ToSlash(name)
		m.Files = append(m.Files, f)
		return nil
	}
	for _, name := range settings {
		err := add(filepath.Join(folder, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	dir := filepath.Join(folder, strconv.FormatInt(version, 10))
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(e.Name(), ".")
		switch {
		case hidden && e.IsDir():
			return fs.SkipDir
		case hidden || e.IsDir():
			return nil
		}
		return add(path)
	})
	if err != nil {
		return nil, err
	}
	sortFiles(m.Files)
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	return m, nil
}

// sumFile returns the size and the sums of a file.
func sumFile(ctx context.Context, path string) (f File, err error) {
	file, _, err := files.Open(path)
	if err != nil {
		return f, err
	}
	defer file.Close()
	whole := sha256.New()
	for {
		part := sha256.New()
		n, err := io.CopyN(io.MultiWriter(whole, part), file, partBytes)
		if err != nil && err != io.EOF {
			return f, err
		}
		if ctx.Err() != nil {
			return f, ctx.Err()
		}
		f.Size += n
		if n > 0 {
			f.Parts = append(f.Parts, sumOf(part))
		}
		if err == io.EOF {
			break
		}
	}
	f.SHA256 = sumOf(whole)
	if len(f.Parts) <= 1 {
		f.Parts = nil
	}
	return f, nil
}

// Signature reads the signature of a version's manifest. The error wraps ErrNotFound if it has
// none.
func (s *Store) Signature(ctx context.Context, model string, version int64) ([]byte, error) {
	data, err := s.read(ctx, manifestKey(model, version)+signatureEnd, maxRelease)
	if err != nil {
		return nil, fmt.Errorf("signature of %s version %d in %s: %w", model, version, s.name, err)
	}
	return data, nil
}

// errNoSignature is the cause of an error that wraps ErrSignature.
var errNoSignature = errors.New("it has no signature; pushing the same version again adds one: " +
	"muster models push --sign KEY")

// Trusted reads the manifest of a version, with its signature if there is one. If keys is not nil,
// one of them must have signed it, which Trusted checks before it parses the document.
func (s *Store) Trusted(ctx context.Context, model string, version int64, keys Keys) (*Manifest,
	error) {
	document, err := s.readManifest(ctx, model, version)
	if err != nil {
		return nil, err
	}
	signature, err := s.Signature(ctx, model, version)
	// Some stores answer "denied" for what they do not have.
	none := errors.Is(err, ErrNotFound) || keys == nil && errors.Is(err, ErrDenied)
	if err != nil && !none {
		return nil, err
	}
	if keys != nil {
		if err = errNoSignature; !none {
			err = keys.Verify(document, signature)
		}
		if err != nil {
			return nil, fmt.Errorf("%s version %d in %s: %w: %w", model, version, s.name,
				ErrSignature, err)
		}
	}
	m, err := s.parse(document, model, version)
	if err != nil {
		return nil, err
	}
	m.document, m.signature = document, signature
	return m, nil
}
