package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
)

// What the signals do that could end a process:
//
// - SIGINT and SIGTERM ask the command to finish, an agent to drain. A second one ends it at once.
//   - SIGHUP asks for the same, as when the terminal or the SSH session of a command ends; it never
//     ends a command at once, because the kernel and the shell may each send one. A command started
//     with SIGHUP ignored (nohup) goes on.
// - SIGQUIT asks for the same after it has written the stacks of all goroutines to standard error.
//     A second one is Go's: the stacks once more, and the end.
//   - SIGPIPE, of a write to a standard output that nobody reads any more, ends a command in
//     silence, as it does other tools. An agent goes on; see serveOnWithoutReaders.
//   - An agent logs the signals of logged; Go ignores them and the rest, but those of a crash.

// notifyFinish returns the channel on which the signals arrive that ask a command to finish.
func notifyFinish() <-chan os.Signal {
	finish := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) {
		finish = append(finish, syscall.SIGHUP)
	}
	// One of each kind has room: a signal that comes while another one is handled is not lost.
	signals := make(chan os.Signal, len(finish))
	signal.Notify(signals, finish...)
	return signals
}

// handleFinish cancels the command's context, with the first signal as its cause. It does not
// return.
func handleFinish(signals <-chan os.Signal, stderr io.Writer, cancel context.CancelCauseFunc) {
	for s := range signals {
		switch s {
		case syscall.SIGINT, syscall.SIGTERM:
			// The next one has its default effect: it ends the process at once.
			signal.Reset(syscall.SIGINT, syscall.SIGTERM)
		case syscall.SIGQUIT:
			signal.Reset(syscall.SIGQUIT)
			// 2 is the form of a crash. If nobody reads the stacks, they are lost.
			_ = pprof.Lookup("goroutine").WriteTo(stderr, 2)
		}
		cancel(signalError{s.(syscall.Signal)})
	}
}

// signalError is why main ended a command's context.
type signalError struct{ signal syscall.Signal }

func (s signalError) Error() string { return signalName(s.signal) }

// exitStatus is the exit status of a command that the signal ended before its work was done.
func (s signalError) exitStatus() int { return 128 + int(s.signal) }

// mustRestart reports whether an agent that drained for the signal is wanted back: nobody who stops
// a service sends SIGHUP or SIGQUIT. So the agent's status is not 0, and systemd starts it again.
func (s signalError) mustRestart() bool {
	return s.signal == syscall.SIGHUP || s.signal == syscall.SIGQUIT
}

// serveOnWithoutReaders makes the process survive the loss of the readers of its standard output
// and error, and log the signals that it ignores, until stop is called. What it writes while nobody
// reads is lost.
func serveOnWithoutReaders(log *slog.Logger) (stop func()) {
	// Go ends a process whose write to standard output or error fails with EPIPE, unless it is
	// notified of SIGPIPE; signal.Ignore would do too, but child processes would inherit that.
	// Nobody receives: there is nothing to do, and a log line could cause the next signal.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	signals, done := make(chan os.Signal, len(logged)), make(chan struct{})
	signal.Notify(signals, logged...)
	go func() {
		defer close(done)
		for s := range signals {
			log.Info("signal ignored; SIGTERM drains the agent",
				"signal", signalName(s.(syscall.Signal)))
		}
	}()
	return func() {
		signal.Stop(pipe)
		signal.Stop(signals)
		close(signals) // Stop has returned: nothing is sent any more
		<-done
	}
}
