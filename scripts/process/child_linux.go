package process

import "syscall"

// childAttributes puts the agent in a process group of its own, so that Ctrl-C
// reaches only the demo, which stops the agent when it is done with it. Should the
// demo be killed, the kernel stops the agent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
