package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// logged are the signals that an agent ignores and logs: people send some of them to daemons, and
// the kernel the others. SIGXFSZ is not among them, because a log line could cause the next one.
var logged = []os.Signal{
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGXCPU,
	syscall.SIGIO, syscall.SIGPWR,
}

// signalName is the name of a signal, such as SIGTERM.
func signalName(s syscall.Signal) string { return unix.SignalName(s) }
