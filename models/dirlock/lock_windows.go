package dirlock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockedAt is where the byte lies that lock locks: behind all that others read of the file, since
// Windows lets nobody read what is locked.
const lockedAt = 1 << 30

// lock locks a file without waiting. The error is errHeld if another process has locked it.
func lock(f *os.File) error {
	err := windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		&windows.Overlapped{Offset: lockedAt})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errHeld
	}
	return err
}
