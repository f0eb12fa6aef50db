package terminal

import (
	"fmt"
	"io"
	"time"
)

// A StatusLine shows how far long work is: one line that changes where w is a
// terminal, else a line at most every ten seconds.
type StatusLine struct {
	w        io.Writer
	terminal bool
	every    time.Duration
	last     time.Time
}

// NewStatusLine shows it on w.
func NewStatusLine(w io.Writer) *StatusLine {
	s := &StatusLine{w: w, every: 10 * time.Second, last: time.Now()}
	if Is(w) {
		s.terminal, s.every = true, 100*time.Millisecond
	}
	return s
}

const clearLine = "\r\x1b[K"

// Show shows what it is given, unless it has just shown something.
func (s *StatusLine) Show(format string, args ...any) {
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

// Done removes the line that changes.
func (s *StatusLine) Done() {
	if s.terminal {
		fmt.Fprint(s.w, clearLine)
	}
}
