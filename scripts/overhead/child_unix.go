//go:build unix && !linux

package main

import "syscall"

// childAttributes puts a process in a group of its own, so that Ctrl-C reaches only
// this one, which stops the others.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
