package harness

import "syscall"

// ChildAttributes puts a process in a group of its own, so that Ctrl-C reaches only this one, which
// stops the others. Should it be killed, the kernel does.
func ChildAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
