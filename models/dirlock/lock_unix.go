//go:build unix

package dirlock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock locks a file without waiting. The error is errHeld, or errors.ErrUnsupported if the file
// system has no locks.
func lock(f *os.File) error {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case unix.EOPNOTSUPP, unix.ENOSYS, unix.ENOLCK:
		return errors.ErrUnsupported
	case unix.EWOULDBLOCK:
		return errHeld
	default:
		return err
	}
}
