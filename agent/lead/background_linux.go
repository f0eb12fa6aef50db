package lead

import (
	"runtime"
	"syscall"
)

// inBackground gives the calling goroutine a thread of its own, which gets processor time that
// nothing else wants. The thread ends with the goroutine.
func inBackground() {
	runtime.LockOSThread()
	// It is allowed to everybody; where it fails all the same, plans are made at the usual
	// priority.
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), 19)
}
