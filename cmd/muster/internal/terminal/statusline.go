package terminal

import (
	"fmt"
	"io"
	"time"
)

// A StatusLine shows the progress of long work: on a terminal one line that changes, elsewhere a
// new line at most every ten seconds. It is not safe for concurrent use.
type StatusLine struct {
	w        io.Writer
	terminal bool
	every    time.Duration
	last     time.Time
}

// NewStatusLine returns a status line on w, which shows nothing yet.
func NewStatusLine(w io.Writer) *StatusLine {
	s := &StatusLine{w: w, every: 10 * time.Second, last: time.Now()}
	if IsTerminal(w) {
		s.terminal, s.every = true, 100*time.Millisecond
	}
	return s
}

// clearLine moves to the start of the line and erases it.
const clearLine = "\r\x1b[K"

// Show replaces the line by the formatted text. It does nothing if the line changed less than 100
// ms ago (10 s if w is no terminal).
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

// Done erases the line, so that other output can follow. Show may be called again.
func (s *StatusLine) Done() {
	if s.terminal {
		fmt.Fprint(s.w, clearLine)
	}
}
