package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/models/store"
)

// ErrBudget says that a file would be more than may be written.
var ErrBudget = errors.New("as much is written as may be")

// A Sink is where files go. It is used by one goroutine.
type Sink interface {
	// Write writes a file with a name of [FileName], all or nothing. The error wraps ErrBudget if it
	// is one file too many.
	Write(ctx context.Context, name string, data []byte) error
	// String is the sink's name, for logs.
	String() string
}

// A folder keeps the newest files, up to a number of bytes.
type folder struct {
	dir   string
	max   int64
	calls files.Calls
	held  []heldFile // by name, the oldest first; nil: it is to be read
	total int64
}

type heldFile struct {
	name string
	size int64
}

// Folder returns a Sink in a folder, which keeps up to maxBytes of the newest files there, whichever
// agent wrote them. A file system that hangs keeps Write no longer than its context.
func Folder(dir string, maxBytes int64) Sink {
	return &folder{dir: dir, max: maxBytes, calls: files.NewCalls(1)}
}

func (f *folder) String() string { return f.dir }

func (f *folder) Write(ctx context.Context, name string, data []byte) error {
	if int64(len(data)) > f.max {
		return fmt.Errorf("%w: the file has %d bytes, the folder may have %d", ErrBudget, len(data), f.max)
	}
	// A call that is left behind goes on with a folder of its own.
	own := &folder{dir: f.dir, max: f.max, held: slices.Clone(f.held), total: f.total}
	_, err := files.Do(ctx, f.calls, func() (any, error) { return nil, own.write(name, data) }, nil)
	if err == nil {
		f.held, f.total = own.held, own.total
	} else {
		f.held = nil // what is there is not known
	}
	return err
}

func (f *folder) write(name string, data []byte) error {
	if f.held == nil || f.total+int64(len(data)) > f.max { // others may write and remove, too
		if err := f.read(); err != nil {
			return err
		}
	}
	for f.total+int64(len(data)) > f.max && len(f.held) > 0 {
		oldest := f.held[0]
		if err := os.Remove(filepath.Join(f.dir, oldest.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_ = os.Remove(filepath.Join(f.dir, filepath.Dir(oldest.name))) // the hour's folder, once it is empty
		f.held, f.total = f.held[1:], f.total-oldest.size
	}
	path := filepath.Join(f.dir, filepath.FromSlash(name))
	// Owner and group read them: they have what clients asked.
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := files.Replace(path, data, 0o640); err != nil {
		return err
	}
	f.held = append(f.held, heldFile{filepath.FromSlash(name), int64(len(data))})
	f.total += int64(len(data))
	return nil
}

// read reads which files are there.
func (f *folder) read() error {
	f.held, f.total = []heldFile{}, 0
	err := filepath.WalkDir(filepath.Join(f.dir, prefix), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // there is no folder yet, or it was removed meanwhile
			return nil
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, Suffix) {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(f.dir, path)
		f.held = append(f.held, heldFile{name, info.Size()})
		f.total += info.Size()
		return err
	})
	slices.SortFunc(f.held, func(a, b heldFile) int { return strings.Compare(a.name, b.name) })
	return err
}

// A bucket takes up to a number of bytes a day.
type bucket struct {
	open   func(context.Context) (store.Bucket, error)
	bucket store.Bucket // nil: it is not open yet
	name   string
	max    int64
	now    func() time.Time
	day    string
	sent   int64 // on that day
}

// Bucket returns a Sink in a bucket of a store, to which it sends up to maxBytes a day of UTC. open
// opens the bucket; it is called again after a failure.
func Bucket(open func(context.Context) (store.Bucket, error), name string, maxBytes int64,
	now func() time.Time) Sink {
	return &bucket{open: open, name: name, max: maxBytes, now: now}
}

func (b *bucket) String() string { return b.name }

func (b *bucket) Write(ctx context.Context, name string, data []byte) (err error) {
	if day := b.now().UTC().Format(time.DateOnly); day != b.day {
		b.day, b.sent = day, 0
	}
	if b.sent+int64(len(data)) > b.max {
		return fmt.Errorf("%w: %d bytes have gone to %s today, and a file has %d", ErrBudget, b.sent,
			b.name, len(data))
	}
	if b.bucket == nil {
		if b.bucket, err = b.open(ctx); err != nil {
			b.bucket = nil
			return err
		}
	}
	err = b.bucket.Create(ctx, name, int64(len(data)), bytes.NewReader(data))
	if err != nil && !errors.Is(err, store.ErrExists) { // a try that failed may have written it
		return err
	}
	b.sent += int64(len(data))
	return nil
}
