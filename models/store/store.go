package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Store holds models. Its methods may be called concurrently.
type Store struct {
	bucket Bucket
	name   string
}

// New returns the store in a bucket. name, such as the bucket's URL, is for errors.
func New(bucket Bucket, name string) *Store { return &Store{bucket, name} }

// String returns the store's name.
func (s *Store) String() string { return s.name }

// Close closes the bucket.
func (s *Store) Close() error { return s.bucket.Close() }

// An Entry is what a store has of a model.
type Entry struct {
	Versions []int64 // in order
	Signed   []int64 // those with a signature, in order
	Revoked  []int64 // versions that have a revocation, in order; it may not count
	Release  uint64  // the number of the newest release; 0: none
	// Releases are the numbers of all releases up to that, in order.
	Releases []uint64
	// Strange is the lowest number of a release that is ignored because it is too far above the one
	// before; 0: none is.
	Strange uint64
}

// MaxReleaseStep is the most by which a release's number may be above that of the one before it in
// the store, or above 0. Each release is one above the newest, and somebody may have removed old
// ones. One that is further above was not made by Muster, and would leave no room for the later
// ones.
const MaxReleaseStep = 1 << 20

// newestRelease finds the newest release and the lowest one that is passed over.
func (e *Entry) newestRelease() {
	slices.Sort(e.Releases)
	for i, number := range e.Releases {
		if number > e.Release+MaxReleaseStep {
			e.Strange, e.Releases = number, e.Releases[:i]
			return
		}
		e.Release = number
	}
}

// StrangeRelease returns the error of a release of a model that is passed over; nil if none is.
func (e *Entry) StrangeRelease(model string) error {
	if e.Strange == 0 {
		return nil
	}
	return fmt.Errorf("release %d of %s and those above it are ignored: its number is more than %d "+
		"above %d, the release before it; remove it from the store", e.Strange, model,
		MaxReleaseStep, e.Release)
}

const (
	// maxObjects bounds the manifests, signatures and releases of an index, and so its memory.
	maxObjects = 100_000
	// maxListTime is for a listing: 100 pages, each of which takes a cloud a fifth of a second.
	maxListTime = time.Minute
	// maxReadTime is for a document: the largest comes at 280 kB/s.
	maxReadTime = time.Minute
)

// runWithin runs do, which lists, reads or writes documents, for at most the given time, and for as
// many requests as CountRequest allows.
func runWithin(ctx context.Context, most time.Duration, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := do(context.WithValue(limited, requests{}, new(atomic.Int64)))
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("it has taken longer than %v: %w", most, err)
	}
	return err
}

// Index lists the models, also those of which there are only revocations. Files are not listed,
// however many there are. Objects that are not of a store are passed over; more than 100,000 of any
// kind below models/ are an error.
func (s *Store) Index(ctx context.Context) (map[string]*Entry, error) {
	return s.readIndex(ctx, "models/")
}

// Entry returns what the store has of one model. The error wraps ErrNotFound if that is nothing.
func (s *Store) Entry(ctx context.Context, model string) (*Entry, error) {
	if err := CheckName(model); err != nil {
		return nil, err
	}
	all, err := s.readIndex(ctx, "models/"+model+"/")
	if err != nil {
		return nil, err
	}
	if all[model] == nil || len(all[model].Versions) == 0 {
		return nil, fmt.Errorf("%w: model %q in %s", ErrNotFound, model, s.name)
	}
	return all[model], nil
}

func (s *Store) readIndex(ctx context.Context, prefix string) (map[string]*Entry, error) {
	found := map[string]*Entry{}
	objects := 0
	each := func(key string, _ int64) error {
		if objects++; objects > maxObjects {
			return fmt.Errorf("there are more than %d objects below %s; is this the prefix of a "+
				"model store?", maxObjects, prefix)
		}
		parts := strings.Split(key, "/")
		release := len(parts) == 4 && parts[2] == "releases"
		revoked := len(parts) == 4 && parts[2] == "revoked"
		if !release && !revoked && len(parts) != 3 || parts[0] != "models" ||
			CheckName(parts[1]) != nil {
			return nil
		}
		entry := found[parts[1]]
		if entry == nil {
			entry = &Entry{}
			found[parts[1]] = entry
		}
		if release {
			if number := numberOf(parts[3], ".json"); number > 0 {
				entry.Releases = append(entry.Releases, uint64(number))
			}
		} else if revoked {
			if v := numberOf(parts[3], ".json"); v > 0 {
				entry.Revoked = append(entry.Revoked, v)
			}
		} else if v := numberOf(parts[2], ".json"); v > 0 {
			entry.Versions = append(entry.Versions, v)
		} else if v := numberOf(parts[2], ".json"+signatureEnd); v > 0 {
			entry.Signed = append(entry.Signed, v)
		}
		return nil
	}
	err := runWithin(ctx, maxListTime, func(ctx context.Context) error {
		return s.bucket.List(ctx, prefix, each)
	})
	if err != nil {
		return nil, fmt.Errorf("list the models of %s: %w", s.name, err)
	}
	maps.DeleteFunc(found, func(_ string, e *Entry) bool {
		return len(e.Versions)+len(e.Revoked) == 0
	})
	for _, entry := range found {
		slices.Sort(entry.Versions)
		slices.Sort(entry.Signed)
		slices.Sort(entry.Revoked)
		entry.newestRelease()
	}
	return found, nil
}

// numberOf returns the number above 0 in a name with the given end, else 0. A number that is
// written in another way than a store's keys have it, such as 03, counts as none: nothing could
// read it.
func numberOf(name, end string) int64 {
	digits, ok := strings.CutSuffix(name, end)
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 1 || digits != strconv.FormatInt(n, 10) {
		return 0
	}
	return n
}

func manifestKey(model string, version int64) string {
	return fmt.Sprintf("models/%s/%d.json", model, version)
}

func releaseKey(model string, number uint64) string {
	return fmt.Sprintf("models/%s/releases/%d.json", model, number)
}

func blobKey(sum string) string { return "blobs/sha256/" + sum }

// Manifest reads the manifest of a version, and returns it with the document. The error wraps
// ErrNotFound if there is none.
func (s *Store) Manifest(ctx context.Context, model string, version int64) (*Manifest, []byte,
	error) {
	data, err := s.readManifest(ctx, model, version)
	if err != nil {
		return nil, nil, err
	}
	m, err := s.parse(data, model, version)
	if err != nil {
		return nil, nil, err
	}
	return m, data, nil
}

// readManifest reads the manifest of a version, and does not look into it.
func (s *Store) readManifest(ctx context.Context, model string, version int64) ([]byte, error) {
	if err := CheckName(model); err != nil {
		return nil, err
	}
	data, err := s.read(ctx, manifestKey(model, version), maxDocument)
	if err != nil {
		return nil, fmt.Errorf("manifest of %s version %d in %s: %w", model, version, s.name, err)
	}
	return data, nil
}

func (s *Store) parse(document []byte, model string, version int64) (*Manifest, error) {
	m, err := ParseManifest(document, model, version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	return m, nil
}

// Release reads the document of a release. The error wraps ErrNotFound if there is none.
func (s *Store) Release(ctx context.Context, model string, number uint64) ([]byte, error) {
	if err := CheckName(model); err != nil {
		return nil, err
	}
	data, err := s.read(ctx, releaseKey(model, number), maxRelease)
	if err != nil {
		return nil, fmt.Errorf("release %d of %s in %s: %w", number, model, s.name, err)
	}
	return data, nil
}

// ReleaseSignature reads the signature of a release's document. The error wraps ErrNotFound if
// there is none.
func (s *Store) ReleaseSignature(ctx context.Context, model string, number uint64) ([]byte, error) {
	data, err := s.read(ctx, releaseKey(model, number)+signatureEnd, maxRelease)
	if err != nil {
		return nil, fmt.Errorf("signature of release %d of %s in %s: %w", number, model, s.name,
			err)
	}
	return data, nil
}

// CreateReleaseSignature writes the signature of a release's document. The error wraps ErrExists if
// there is one.
func (s *Store) CreateReleaseSignature(ctx context.Context, model string, number uint64,
	signature []byte) error {
	if err := CheckName(model); err != nil {
		return err
	}
	if err := s.createObject(ctx, releaseKey(model, number)+signatureEnd, signature); err != nil {
		return fmt.Errorf("write the signature of release %d of %s to %s: %w", number, model,
			s.name,
			err)
	}
	return nil
}

// CreateRelease writes the document of a release, whose number is one above that of the newest. The
// error wraps ErrExists if somebody else has written it: then that one stays.
func (s *Store) CreateRelease(ctx context.Context, model string, number uint64,
	document []byte) error {
	if err := CheckName(model); err != nil {
		return err
	}
	if err := s.createObject(ctx, releaseKey(model, number), document); err != nil {
		return fmt.Errorf("write release %d of %s to %s: %w", number, model, s.name, err)
	}
	return nil
}

// Newest returns the newest version of a model. The error wraps ErrNotFound if the store has none.
func (s *Store) Newest(ctx context.Context, model string) (int64, error) {
	entry, err := s.Entry(ctx, model)
	if err != nil {
		return 0, err
	}
	return entry.Versions[len(entry.Versions)-1], nil
}

// read returns a document of at most limit bytes.
func (s *Store) read(ctx context.Context, key string, limit int) (data []byte, err error) {
	var size int64
	err = runWithin(ctx, maxReadTime, func(ctx context.Context) error {
		r, n, err := s.bucket.Open(ctx, key, 0, -1)
		if err != nil {
			return err
		}
		size = n
		data, err = io.ReadAll(io.LimitReader(r, int64(limit)+1))
		if err = errors.Join(err, r.Close()); err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(data) > limit:
		return nil, fmt.Errorf("read %s: %w: more than %d bytes", key, ErrInvalid, limit)
	case int64(len(data)) != size:
		return nil, fmt.Errorf("read %s: got %d bytes, the store says %d: %w", key, len(data), size,
			io.ErrUnexpectedEOF)
	}
	return data, nil
}

func (s *Store) createObject(ctx context.Context, key string, data []byte) error {
	return runWithin(ctx, maxReadTime, func(ctx context.Context) error {
		return s.bucket.Create(ctx, key, int64(len(data)), bytes.NewReader(data))
	})
}
