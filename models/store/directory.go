package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Directory returns the bucket in a folder of a disk, which agents may share by a network file
// system. It makes the folder when it writes the first object.
//
// gocloud.dev/blob/fileblob, which could do this, looks whether a file exists and then renames
// another over it: of two writers both would win. A hard link has one winner.
func Directory(dir string) Bucket { return &directory{dir: dir} }

type directory struct {
	dir     string
	cleared sync.Map // the folders from which what was abandoned was removed, as keys
}

const (
	// unfinished begins the names of files that are being written.
	unfinished = ".new-"
	// abandoned is how long nobody has written to such a file when its writer is taken for killed.
	// Locks would say it at once, but do not reach all machines of every network file system. A
	// writer that was held up for longer finds its file gone, which is an error.
	abandoned = 24 * time.Hour
)

func (d *directory) path(key string) (string, error) {
	local := filepath.FromSlash(key)
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("store %s: key %q leads out of the folder", d.dir, key)
	}
	return filepath.Join(d.dir, local), nil
}

func (d *directory) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	root, err := d.path(strings.TrimSuffix(prefix, "/"))
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, fs.ErrNotExist) { // removed since it was listed
			return nil
		}
		if err != nil {
			return d.explain(err)
		}
		if path != root && strings.HasPrefix(e.Name(), ".") { // being written
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.IsDir() {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return d.explain(err)
		}
		key, err := filepath.Rel(d.dir, path)
		if err != nil {
			return err
		}
		return each(filepath.ToSlash(key), info.Size())
	})
}

func (d *directory) Open(_ context.Context, key string, offset, length int64) (io.ReadCloser, int64,
	error) {
	path, err := d.path(key)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, d.explain(err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s is no file", ErrNotFound, path)
	}
	if err != nil {
		return nil, 0, errors.Join(d.explain(err), f.Close())
	}
	if length < 0 {
		length = max(info.Size()-offset, 0)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, offset, length), f}, info.Size(), nil
}

func (d *directory) Create(ctx context.Context, key string, size int64, r io.Reader) (err error) {
	path, err := d.path(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return d.explain(err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), unfinished+"*")
	if err != nil {
		return d.explain(err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if _, done := d.cleared.LoadOrStore(filepath.Dir(path), true); !done {
		removeAbandoned(f)
	}
	n, err := copyAll(ctx, f, r)
	if err == nil && n != size {
		err = fmt.Errorf("store %s: %s: read %d bytes to write, expected %d", d.dir, key, n, size)
	}
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return d.explain(err)
	}
	return d.explain(os.Link(f.Name(), path))
}

// removeAbandoned removes the files in the folder of made, a new file, whose writers were killed. It
// compares their times with that of made, which the same clock gave, perhaps a file server's. What
// cannot be removed stays: it takes room, and nothing else.
func removeAbandoned(made *os.File) {
	now, err := made.Stat()
	if err != nil {
		return
	}
	dir, err := os.Open(filepath.Dir(made.Name()))
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if !strings.HasPrefix(name, unfinished) {
				continue
			}
			path := filepath.Join(dir.Name(), name)
			info, err := os.Lstat(path)
			if err == nil && now.ModTime().Sub(info.ModTime()) > abandoned {
				_ = os.Remove(path)
			}
		}
		if err != nil {
			return
		}
	}
}

// copyAll copies what r has, and returns how many bytes. The end of ctx takes effect after each 16 MiB.
func copyAll(ctx context.Context, w io.Writer, r io.Reader) (n int64, err error) {
	for err == nil {
		var some int64
		some, err = io.CopyN(w, r, 16<<20)
		n, err = n+some, cmp.Or(ctx.Err(), err)
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (d *directory) Close() error { return nil }

// explain wraps the sentinel that belongs to a file's error. The error names the file.
func (d *directory) explain(err error) error {
	for from, to := range map[error]error{
		fs.ErrNotExist: ErrNotFound, fs.ErrExist: ErrExists, fs.ErrPermission: ErrDenied,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}
