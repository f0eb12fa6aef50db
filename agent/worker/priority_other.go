//go:build !linux

package worker

// atLowPriority calls do; only Linux has priorities of threads.
func atLowPriority(do func()) { do() }
