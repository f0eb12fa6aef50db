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
	"time"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/models"
	"github.com/muster-serve/muster/runtime"
)

// fileSums caches the SHA-256 of files, so that an unchanged file is read only once. Its methods
// may be called concurrently.
type fileSums struct {
	mu    sync.Mutex
	known map[fileID][sha256.Size]byte
	read  int64 // total bytes read, for tests
}

// maxSums bounds the entries of known; a full cache is emptied.
const maxSums = 1024

// A fileID identifies a file and its contents: it differs after every change of the file.
type fileID struct {
	device, inode     uint64
	size              int64
	modified, changed int64 // ns since 1970
}

// sumPiece is how many bytes are hashed between two pauses: in some 0.2 ms, which a query may have
// to wait.
const sumPiece = 256 << 10

// How many times as long as each piece took a checksum pauses after it while queries come.
const (
	restWanted = 1 // a load waits for the checksum
	restLate   = 9
)

// sumOf returns the SHA-256 of an open file. After each piece it pauses (runtime.Pause) for rest
// times the piece's time, or rest ms if that is less, so that running queries are not disturbed. It
// blocks until it has read the file or ctx ends.
func (c *fileSums) sumOf(ctx context.Context, f *os.File, info fs.FileInfo, rest time.Duration) (
	[sha256.Size]byte, error) {
	id, identified := fileIDOf(info)
	c.mu.Lock()
	sum, ok := c.known[id]
	c.mu.Unlock()
	if ok && identified {
		return sum, nil
	}
	hash, buffer := sha256.New(), make([]byte, 32<<10)
	for {
		start := time.Now()
		n, err := io.CopyBuffer(hash, io.LimitReader(f, sumPiece), buffer)
		c.mu.Lock()
		c.read += n
		c.mu.Unlock()
		if err != nil {
			return sum, err
		}
		if n < sumPiece {
			break
		}
		if err := runtime.Pause(ctx, rest*min(time.Since(start), time.Millisecond)); err != nil {
			return sum, err
		}
	}
	hash.Sum(sum[:0])
	now, err := f.Stat()
	if err != nil {
		return sum, err
	}
	if after, _ := fileIDOf(now); identified && after != id {
		return sum, fmt.Errorf("%s changed while it was read", f.Name())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxSums {
		c.known = map[fileID][sha256.Size]byte{}
	}
	c.known[id] = sum
	return sum, nil
}

// versionChecksum returns a checksum of the names and contents of a version's files, by which the
// fleet distinguishes different versions with the same name and number. Of model.yaml it includes
// only the settings that change how long queries run, because latency profiles are stored under the
// checksum. Of an ensemble it includes the checksums of its steps and how they are joined. For rest
// see [fileSums.sumOf].
func (c *fileSums) versionChecksum(ctx context.Context, v *models.Version,
	rest time.Duration) (string,
	error) {
	hash := sha256.New()
	if v.Config.RowsIndependent && !v.Config.InferredIndependence { // as older agents have it
		fmt.Fprintln(hash, "rows_independent")
	}
	if v.Config.TF32 {
		fmt.Fprintln(hash, "tf32")
	}
	// As agents see the version that know no roles: what is inferred changes nothing.
	if v.Batchless || v.Roles != nil && v.FixesFirst {
		fmt.Fprintln(hash, "batchless")
	}
	if v.Roles != nil && v.Config.SaysRoles() {
		fmt.Fprintln(hash, "roles", v.Roles)
	}
	for _, step := range v.Steps {
		sum, err := c.versionChecksum(ctx, step.Version, rest)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %q %q\n", sum, step.Inputs, step.Outputs)
	}
	if len(v.Steps) > 0 {
		return hex.EncodeToString(hash.Sum(nil)[:16]), nil
	}
	err := eachFile(v, func(name string, f *os.File, info fs.FileInfo) error {
		sum, err := c.sumOf(ctx, f, info, rest)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d %x\n", name, info.Size(), sum)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("checksum of %s: %w", v, err)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16]), nil
}

// eachFile calls do with each file of a version, open, and its path in the version's folder.
func eachFile(v *models.Version, do func(name string, f *os.File, info fs.FileInfo) error) error {
	// WalkDir does not look into a folder behind a link.
	dir, err := filepath.EvalSymlinks(filepath.Dir(v.Path))
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		f, info, err := files.Open(path)
		// not a part of the model, which has loaded without it
		if errors.Is(err, files.ErrNotRegular) {
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
		return do(filepath.ToSlash(name), f, info)
	})
}

// filesOf returns the names and identities of a version's files, of an ensemble those of its steps:
// it differs after every change of the files. It leaves out those that cannot be read.
func filesOf(v *models.Version) string {
	var all strings.Builder
	for _, step := range v.Steps {
		all.WriteString(filesOf(step.Version))
	}
	if len(v.Steps) == 0 {
		_ = eachFile(v, func(name string, _ *os.File, info fs.FileInfo) error {
			id, _ := fileIDOf(info)
			fmt.Fprintf(&all, "%q %v\n", name, id)
			return nil
		})
	}
	return all.String()
}

// Checksum returns the checksum of a version by which the fleet, and files of measurements, tell
// its files from others of the same name and number.
func Checksum(ctx context.Context, v *models.Version) (string, error) {
	return new(fileSums).versionChecksum(ctx, v, restWanted)
}

// latest is how long a checksum that may be late lets loads go first. Those that take longer wait
// for a disk, or are many.
const latest = time.Second

// A checksum is that of a version that loads or is loaded, computed on a goroutine of the worker.
type checksum struct {
	// begin makes the computation begin; cancel makes it end.
	begin, cancel func()
	done          chan struct{} // closed when value and err are set
	value         string
	err           error
}

// newChecksum returns a version's checksum, which is to begin before ctx ends. If it may be late,
// it lets the agent's first loads end, and fails if the files have changed since this call.
func (w *Worker) newChecksum(ctx context.Context, v *models.Version, late bool) *checksum {
	s := &checksum{done: make(chan struct{})}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	before := ""
	if late {
		before = filesOf(v)
	}
	s.begin = sync.OnceFunc(func() {
		w.summing.Go(func() {
			defer close(s.done)
			if !late {
				s.value, s.err = w.sums.versionChecksum(ctx, v, restWanted)
				return
			}
			timer := time.NewTimer(latest)
			defer timer.Stop()
			select {
			case <-w.repository.Settled():
			case <-timer.C:
			case <-ctx.Done():
			}
			w.oneLate.Lock() // the other cores are for queries
			defer w.oneLate.Unlock()
			s.value, s.err = w.sums.versionChecksum(ctx, v, restLate)
			if s.err == nil && filesOf(v) != before {
				s.value, s.err = "", fmt.Errorf("the files of %s changed after they were loaded", v)
			}
		})
	})
	return s
}

// wait blocks until the checksum is known, and returns why it cannot be.
func (s *checksum) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// knownSum returns the checksum; "" while it is not known.
func (s *checksum) knownSum() string {
	select {
	case <-s.done:
		return s.value
	default:
		return ""
	}
}

// startsAlone reports whether the agent still loads its first models, and knows of no other agent.
// Then nobody else is told of a model, and what the agent learns of it can be filed later. So a
// model need not wait for its checksum, which takes as long as the load.
func (w *Worker) startsAlone() bool {
	select {
	case <-w.repository.Settled():
		return false
	default:
		return w.layouts == nil && w.config.Fleet.Alone()
	}
}

// tellChecksum waits for the checksum of a version that serves, and has the fleet told of the
// version.
func (w *Worker) tellChecksum(profile names.ModelKey, s *checksum) {
	<-s.done
	switch {
	case s.err == nil:
		w.estimates.noteLoaded(profile, s.value)
		w.config.Fleet.SelfChanged()
	case !errors.Is(s.err, context.Canceled):
		w.config.Log.Error("cannot compute the checksum of a model; the agent does not report it to "+
			"others until its files change", "model", profile, "error", s.err)
	}
}

// awaitSettled closes w.settled when the repository has settled and the checksums are known of what
// it has loaded, or cannot be. It blocks until then, or until ctx ends.
func (w *Worker) awaitSettled(ctx context.Context) {
	select {
	case <-w.repository.Settled():
	case <-ctx.Done():
		return
	}
	for _, s := range w.repository.Index() {
		if loaded, err := w.repository.Acquire(s.Model, s.Version); err == nil {
			sum := loaded.Model.checksum
			loaded.Release()
			_ = sum.wait(ctx) // tellChecksum handles the error
		}
	}
	close(w.settled)
}
