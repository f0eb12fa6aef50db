package secure

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// lookAgain is how often files are checked for changes.
const lookAgain = time.Second

// A watchedFiles holds the value that files define, as of the last time that they could be read and
// parsed. Its methods may be called concurrently.
type watchedFiles[T any] struct {
	what  string // names the files in the log
	paths []string
	read  func() (T, error)
	value atomic.Pointer[T]

	mu     sync.Mutex
	stamps []os.FileInfo // the files' state when last read
	seen   []os.FileInfo // the files' state when last checked
	fault  string        // why the last read failed; "" if it did not
	looked time.Time
}

// watch reads the files for the first time, and returns an error if it cannot.
func watch[T any](what string, read func() (T, error), paths ...string) (*watchedFiles[T], error) {
	w := &watchedFiles[T]{what: what, read: read, looked: time.Now()}
	for _, path := range paths {
		if path != "" {
			w.paths = append(w.paths, path)
		}
	}
	for range startLooks {
		w.stamps = w.statFiles()
		v, err := read()
		if w.seen = w.statFiles(); isSameFiles(w.seen, w.stamps) {
			if err != nil {
				return nil, err
			}
			w.value.Store(&v)
			return w, nil
		}
		time.Sleep(startPause)
	}
	return nil, fmt.Errorf("%s: %s: being written all the time, want files that stand still", what,
		strings.Join(w.paths, " "))
}

// At the start, files that change while they are read are read again, up to startLooks times with a
// pause of startPause.
const startLooks, startPause = 50, 20 * time.Millisecond

// get returns the current value.
func (w *watchedFiles[T]) get() T { return *w.value.Load() }

// refreshFiles reads the files again if they have changed, or if the last read failed, and reports
// whether the value is new. To avoid reading a file that is being written, it reads only files that
// two checks have found the same, and checks again after it has read them. It logs each fault once.
func (w *watchedFiles[T]) refreshFiles(log *slog.Logger) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked = time.Now()
	stamps := w.statFiles()
	still := isSameFiles(stamps, w.seen)
	w.seen = stamps
	if w.fault == "" && isSameFiles(stamps, w.stamps) || !still {
		return false
	}
	v, err := w.read()
	if w.seen = w.statFiles(); !isSameFiles(w.seen, stamps) {
		return false
	}
	if err != nil {
		if err.Error() != w.fault {
			log.Warn("files have changed and cannot be used; what they said before stays in force",
				"what", w.what, "error", err, "event", "files")
		}
		w.fault = err.Error()
		return false
	}
	// A file may have been missing for a moment and be back unchanged.
	changed := !isSameFiles(stamps, w.stamps)
	w.value.Store(&v)
	w.stamps, w.fault = stamps, ""
	log.Info("files read again", "what", w.what, "files", strings.Join(w.paths, " "), "event",
		"files")
	return changed
}

// currentValue returns the value, and calls refresh before if the last check is more than lookAgain
// ago. It is for users without a goroutine that calls refresh.
func (w *watchedFiles[T]) currentValue(log *slog.Logger) T {
	w.mu.Lock()
	old := time.Since(w.looked) >= lookAgain
	w.mu.Unlock()
	if old {
		w.refreshFiles(log)
	}
	return w.get()
}

// statFiles returns the state of each file; nil for a missing one.
func (w *watchedFiles[T]) statFiles() []os.FileInfo {
	stamps := make([]os.FileInfo, len(w.paths))
	for i, path := range w.paths {
		if info, err := os.Stat(path); err == nil {
			stamps[i] = info
		}
	}
	return stamps
}

func isSameFiles(a, b []os.FileInfo) bool {
	for i := range a {
		if a[i] == nil || b[i] == nil {
			if a[i] != b[i] {
				return false
			}
			continue
		}
		if !a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size() ||
			a[i].Mode() != b[i].Mode() || !os.SameFile(a[i], b[i]) {
			return false
		}
	}
	return true
}
