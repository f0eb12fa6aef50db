package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// A statusLine shows how far long work is: one line that changes where w is a
// terminal, else a line at most every ten seconds.
type statusLine struct {
	w        io.Writer
	terminal bool
	every    time.Duration
	last     time.Time
}

func newStatusLine(w io.Writer) *statusLine {
	s := &statusLine{w: w, every: 10 * time.Second, last: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.terminal, s.every = true, 100*time.Millisecond
	}
	return s
}

const clearLine = "\r\x1b[K"

func (s *statusLine) show(format string, args ...any) {
	if time.Since(s.last) < s.every {
		return
	}
	s.last = time.Now()
	if s.terminal {
		fmt.Fprintf(s.w, clearLine+format, args...)
		return
	}
	fmt.Fprintf(s.w, format+"\n", args...)
}

// done removes the line that changes.
func (s *statusLine) done() {
	if s.terminal {
		fmt.Fprint(s.w, clearLine)
	}
}
