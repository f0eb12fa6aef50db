package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime"
)

// fileSums caches the SHA-256 of files, so that an unchanged file is read only once. Its methods
// may be called concurrently.
type fileSums struct {
	mu    sync.Mutex
	known map[fileID][sha256.Size]byte
	read  int64 // total bytes read, for tests
}

// mostSums bounds the entries of known; a full cache is emptied.
const mostSums = 1024

// A fileID identifies a file and its contents: it differs after every change of the file.
type fileID struct {
	device, inode     uint64
	size              int64
	modified, changed syscall.Timespec
}

// sumPiece is how many bytes of reads and hashes between two pauses.
const sumPiece = 4 << 20

// of returns the SHA-256 of an open file. It pauses for up to 1 ms after each piece (runtime.Pause),
// so that running queries are not disturbed, and blocks until it has read the file or ctx ends.
func (c *fileSums) of(ctx context.Context, f *os.File, info fs.FileInfo) ([sha256.Size]byte,
	error) {
	id, identified := identify(info)
	c.mu.Lock()
	sum, ok := c.known[id]
	c.mu.Unlock()
	if ok && identified {
		return sum, nil
	}
	hash := sha256.New()
	for {
		start := time.Now()
		n, err := io.CopyN(hash, f, sumPiece)
		c.mu.Lock()
		c.read += n
		c.mu.Unlock()
		if err == io.EOF {
			break
		}
		if err != nil {
			return sum, err
		}
		if err := runtime.Pause(ctx, min(time.Since(start), time.Millisecond)); err != nil {
			return sum, err
		}
	}
	hash.Sum(sum[:0])
	now, err := f.Stat()
	if err != nil {
		return sum, err
	}
	if after, _ := identify(now); identified && after != id {
		return sum, fmt.Errorf("%s changed while it was read", f.Name())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= mostSums {
		c.known = map[fileID][sha256.Size]byte{}
	}
	c.known[id] = sum
	return sum, nil
}

// identify returns a file's identity, or false if the system does not provide one.
func identify(info fs.FileInfo) (fileID, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim}, true
}

// checksum returns a checksum of the names and contents of a version's files, by which the fleet
// distinguishes different versions with the same name and number. Of model.yaml it includes only
// the settings that change how long queries run, because latency profiles are stored under the
// checksum. Of an ensemble it includes the checksums of its steps and how they are joined.
func (c *fileSums) checksum(ctx context.Context, v *models.Version) (string, error) {
	hash := sha256.New()
	if v.Config.RowsIndependent {
		fmt.Fprintln(hash, "rows_independent")
	}
	if v.Batchless {
		fmt.Fprintln(hash, "batchless")
	}
	for _, step := range v.Steps {
		sum, err := c.checksum(ctx, step.Version)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %q %q\n", sum, step.Inputs, step.Outputs)
	}
	if len(v.Steps) > 0 {
		return hex.EncodeToString(hash.Sum(nil)[:16]), nil
	}
	dir := filepath.Dir(v.Path)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		f, info, err := onnx.OpenFile(path)
		// not a part of the model, which has loaded without it
		if errors.Is(err, onnx.ErrNotRegular) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		sum, err := c.of(ctx, f, info)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d %x\n", filepath.ToSlash(name), info.Size(), sum)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("checksum of %s: %w", v, err)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16]), nil
}

// Checksum returns the checksum of a version by which the fleet, and files of measurements, tell
// its files from others of the same name and number.
func Checksum(ctx context.Context, v *models.Version) (string, error) {
	return new(fileSums).checksum(ctx, v)
}
