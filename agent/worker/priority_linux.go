package worker

import (
	"runtime"
	"syscall"
)

// atLowPriority calls do on a thread that gets processor time after those that run queries, and
// blocks until do returns. Threads that do starts keep that priority, which only root could raise.
func atLowPriority(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		// Everybody may; where it fails all the same, the load has the usual priority.
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), lowPriority)
		do()
	}()
	<-done
}

// lowPriority is a nice value: beside a thread of the usual one it gets a tenth of a processor.
const lowPriority = 10
