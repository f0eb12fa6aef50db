package locks

import "syscall"

// makeFIFO makes a FIFO.
func makeFIFO(path string) error { return syscall.Mkfifo(path, 0o600) }
