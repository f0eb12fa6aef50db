// Package dirlock keeps a directory to one process at a time, by a file in it that is locked. The
// kernel releases the lock when the process ends, however it ends. It starts no goroutine.
package dirlock

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxPID bounds what is read of a lock file, in bytes: a process id and a line's end.
const maxPID = 32

// A HeldError says that another process has locked the file.
type HeldError struct {
	File string
	// PID is the other process's id, as the lock file has it; 0 if it has none. In a container it
	// is an id of that container.
	PID int
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.File)
	}
	return fmt.Sprintf("%s is locked by process %d", e.File, e.PID)
}

// errHeld is lock's error if another process has locked the file.
var errHeld = errors.New("locked by another process")

// Lock locks the file at path, which it makes if there is none, and writes this process's id to it.
// It does not wait. If another process has locked the file, the error is a *[HeldError]. On a file
// system without locks it keeps nobody out and is no error. The caller closes the file, which
// unlocks it, and does not remove it: a process could then lock another file of that name.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	switch err = lock(f); {
	case err == nil:
	case errors.Is(err, errors.ErrUnsupported):
		return f, nil
	case errors.Is(err, errHeld):
		return nil, errors.Join(&HeldError{path, readHolder(f)}, f.Close())
	default:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	// The id is for people. A full disk takes it not, and the lock holds all the same.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// readHolder returns the id in a lock file; 0 if there is none.
func readHolder(f *os.File) int {
	text := make([]byte, maxPID)
	n, _ := f.ReadAt(text, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}
