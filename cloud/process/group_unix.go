//go:build unix

package process

import "syscall"

// ownGroup has a process begin a group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends a signal to a process and those of its group.
func signalGroup(pid int, signal syscall.Signal) error { return syscall.Kill(-pid, signal) }
