package demo

import "syscall"

// childAttributes puts a process in a group of its own, so that Ctrl-C reaches only this one, which
// ends the others. Should this one be killed, the kernel ends them.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
