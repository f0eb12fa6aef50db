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

	"github.com/muster-serve/muster/api/files"
)

// Directory returns the bucket in a folder of a disk, which agents may share by a network file
// system. It makes the folder when it writes the first object.
//
// A file gets its name by a hard link, of which two writers have one winner. To look whether the file
// exists and then rename another over it would let both win.
//
// A file system that hangs keeps nobody waiting for longer than his context (see files.Do).
func Directory(dir string) Bucket {
	return &directory{dir: dir, calls: files.NewCalls(callsAtOnce)}
}

// callsAtOnce is how many calls of a store's file system there are at a time, of which each may
// keep a thread for ever. As many files are fetched, and releases read, at a time.
const callsAtOnce = 64

type directory struct {
	dir     string
	calls   files.Calls
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

func (d *directory) pathOf(key string) (string, error) {
	local := filepath.FromSlash(key)
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("store %s: key %q leads out of the folder", d.dir, key)
	}
	return filepath.Join(d.dir, local), nil
}

func (d *directory) List(ctx context.Context, prefix string,
	each func(key string, size int64) error) error {
	root, err := d.pathOf(strings.TrimSuffix(prefix, "/"))
	if err != nil {
		return err
	}
	seen := 0
	for folders := []string{root}; len(folders) > 0; {
		path := folders[len(folders)-1]
		folders = folders[:len(folders)-1]
		dir, err := d.openFolder(ctx, path)
		if errors.Is(err, fs.ErrNotExist) { // removed since it was listed
			continue
		}
		for err == nil {
			var page []fs.DirEntry
			page, err = files.Do(ctx, d.calls, func() ([]fs.DirEntry, error) {
				return dir.ReadDir(namesAtOnce)
			}, nil)
			if seen += len(page); seen > maxNames {
				err = fmt.Errorf("there are more than %d names below %s; is it a model store?",
					maxNames,
					root)
			}
			for _, e := range page {
				if strings.HasPrefix(e.Name(), ".") { // being written
					continue
				}
				if e.IsDir() {
					folders = append(folders, filepath.Join(path, e.Name()))
				} else if wrong := d.eachFile(filepath.Join(path, e.Name()), each); wrong != nil {
					go dir.Close() // it was read
					return wrong
				}
			}
		}
		if dir != nil {
			go dir.Close() // it was read
		}
		if err != io.EOF {
			return d.wrapError(err)
		}
	}
	return nil
}

const (
	// namesAtOnce is how many names of a folder are read at a time.
	namesAtOnce = 1024
	// maxNames bounds the names, those of folders and of unfinished files too, which Store does not
	// count.
	maxNames = 10 * maxObjects
)

// openFolder opens a folder to read its names, and nothing else that may have its path.
func (d *directory) openFolder(ctx context.Context, path string) (*os.File, error) {
	return files.Do(ctx, d.calls, func() (*os.File, error) {
		return files.OpenFolder(path)
	}, closeFile)
}

func closeFile(f *os.File) { _ = f.Close() } // it was read

// eachFile calls each with the key of a file, whose size it does not ask for.
func (d *directory) eachFile(path string, each func(key string, size int64) error) error {
	key, err := filepath.Rel(d.dir, path)
	if err != nil {
		return err
	}
	return each(filepath.ToSlash(key), 0)
}

func (d *directory) Open(ctx context.Context, key string, offset, length int64) (io.ReadCloser,
	int64, error) {
	path, err := d.pathOf(key)
	if err != nil {
		return nil, 0, err
	}
	type openedFile struct {
		*os.File
		size int64
	}
	f, err := files.Do(ctx, d.calls, func() (openedFile, error) {
		f, info, err := files.Open(path)
		if err != nil {
			return openedFile{}, err
		}
		return openedFile{f, info.Size()}, nil
	}, func(f openedFile) { closeFile(f.File) })
	if err != nil {
		return nil, 0, d.wrapError(err)
	}
	if length < 0 {
		length = max(f.size-offset, 0)
	}
	return &objectReader{ctx, d.calls, io.NewSectionReader(f, offset, length), f.File, nil},
		f.size, nil
}

// An objectReader reads an object of a directory.
type objectReader struct {
	ctx   context.Context // of Open, as that of a request whose answer is read
	calls files.Calls
	of    io.Reader
	file  *os.File
	err   error
}

func (r *objectReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	// A call that is left behind writes to a buffer that nobody reads.
	read, err := files.Do(r.ctx, r.calls, func() ([]byte, error) {
		buffer := make([]byte, min(len(p), piece))
		n, err := r.of.Read(buffer)
		if n > 0 {
			err = nil // the next call returns it
		}
		return buffer[:n], err
	}, nil)
	r.err = err
	return copy(p, read), err
}

func (r *objectReader) Close() error {
	if r.err != nil && r.err != io.EOF {
		go closeFile(r.file) // the file system may hang
		return nil
	}
	return r.file.Close()
}

func (d *directory) Create(ctx context.Context, key string, size int64, r io.Reader) error {
	path, err := d.pathOf(key)
	if err != nil {
		return err
	}
	_, err = files.Do(ctx, d.calls, func() (any, error) {
		return nil, d.createFile(ctx, path, size, r)
	}, nil)
	return d.wrapError(err)
}

func (d *directory) createFile(ctx context.Context, path string, size int64,
	r io.Reader) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), unfinished+"*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if _, done := d.cleared.LoadOrStore(filepath.Dir(path), true); !done {
		removeAbandoned(f)
	}
	n, err := copyAll(ctx, f, r)
	if err == nil && n != size {
		err = fmt.Errorf("write %s: read %d bytes, expected %d", path, n, size)
	}
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

// removeAbandoned removes the files in the folder of made, a new file, whose writers were killed.
// It compares their times with that of made, which the same clock gave, perhaps a file server's.
// What cannot be removed stays: it takes room, and nothing else.
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

// copyAll copies what r has, and returns how many bytes. The end of ctx takes effect after each 16
// MiB.
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

// wrapError wraps the sentinel that belongs to a file's error. The error names the file.
func (d *directory) wrapError(err error) error {
	for from, to := range map[error]error{
		fs.ErrNotExist: ErrNotFound, fs.ErrExist: ErrExists, fs.ErrPermission: ErrDenied,
		files.ErrNotRegular: ErrNotFound,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}
