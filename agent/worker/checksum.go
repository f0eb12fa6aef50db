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
)

// fileSums are the SHA-256 of files, each read once for as long as it stays the same. Its methods
// may be called concurrently.
type fileSums struct {
	mu    sync.Mutex
	known map[fileID][sha256.Size]byte
	read  int64 // bytes, in all
}

// mostSums bounds what is known; beyond it all is forgotten.
const mostSums = 1024

// A fileID changes when a file does.
type fileID struct {
	device, inode     uint64
	size              int64
	modified, changed syscall.Timespec
}

// sumPiece is how many bytes are read and hashed between two pauses.
const sumPiece = 4 << 20

// of is the sum of an open file. It reads in pieces with pauses of 1 ms at most, so that what
// is being served is not disturbed.
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
		select {
		case <-time.After(min(time.Since(start), time.Millisecond)):
		case <-ctx.Done():
			return sum, ctx.Err()
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

// identify reports false where the system does not say enough.
func identify(info fs.FileInfo) (fileID, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim}, true
}

// checksum tells versions apart that agents hold under one name: of the names
// and contents of the version's files. Of model.yaml it has what changes how
// long queries run, for what was learned of the version is kept under its checksum.
func (c *fileSums) checksum(ctx context.Context, v *models.Version) (string, error) {
	hash := sha256.New()
	if v.Config.RowsIndependent {
		fmt.Fprintln(hash, "rows_independent")
	}
	dir := filepath.Dir(v.Path)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		f, info, err := onnx.OpenFile(path)
		if errors.Is(err, onnx.ErrNotRegular) { // no part of the model, which has loaded
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
