// Package locks compiles where there are locks as Linux has them.
package locks

import "syscall"

// Lock locks a file.
func Lock(file int) error { return syscall.Flock(file, syscall.LOCK_EX) }
