//go:build !linux

package lead

// inBackground would lower the priority of the calling goroutine; only Linux can.
func inBackground() {}
