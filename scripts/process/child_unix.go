//go:build unix && !linux

package process

import "syscall"

// childAttributes puts the agent in a process group of its own, so that Ctrl-C
// reaches only the demo, which stops the agent when it is done with it.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
