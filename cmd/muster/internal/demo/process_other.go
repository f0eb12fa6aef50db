//go:build !linux

package demo

import "syscall"

// childAttributes is for Linux alone: elsewhere Run starts nothing.
func childAttributes() *syscall.SysProcAttr { return nil }
