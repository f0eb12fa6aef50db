//go:build !linux

package main

import (
	"os"
	"syscall"
)

// logged has one signal that every system knows: agents run on Linux alone, and an empty list would
// mean all signals.
var logged = []os.Signal{syscall.SIGALRM}

// signalName is the name of a signal that ends a command, such as SIGTERM.
func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGHUP:
		return "SIGHUP"
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGQUIT:
		return "SIGQUIT"
	case syscall.SIGTERM:
		return "SIGTERM"
	}
	return s.String()
}
