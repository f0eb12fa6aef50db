package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// NewProgress returns show, which writes a run's progress to w: on a terminal as a bar that
// replaces the one before, else as a line. It draws only when it is called, because a bar that
// moves by itself would take CPU time from the measurement. done removes the bar.
func NewProgress(w io.Writer) (show func(Progress), done func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func(p Progress) { fmt.Fprintln(w, p) }, func() {}
	}
	const clear = "\r\x1b[K"
	return func(p Progress) {
		line := []rune(p.progressBar() + p.String())
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 &&
			len(line) >= width {
			line = line[:width-1] // a line that the terminal wraps could not be cleared
		}
		fmt.Fprint(w, clear, string(line))
	}, func() { fmt.Fprint(w, clear) }
}

// progressBar is the progress bar, empty if the end of the run is not known.
func (p Progress) progressBar() string {
	if p.Duration <= 0 {
		return ""
	}
	const width = 20
	full := min(int(width*p.Elapsed/p.Duration), width)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "] "
}

// String returns the progress as one line.
func (p Progress) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%3.0f s", p.Elapsed.Seconds())
	if p.Duration > 0 {
		fmt.Fprintf(&b, " of %.0f", p.Duration.Round(time.Second).Seconds())
	}
	fmt.Fprintf(&b, "  %s/s", formatFigures(p.Rate))
	for _, m := range p.P99 {
		switch {
		case m.Latency == never:
			fmt.Fprintf(&b, "  %s p99 ∞", m.Model)
		case m.Latency > 0:
			fmt.Fprintf(&b, "  %s p99 %s ms", m.Model, formatFigures(toMs(m.Latency)))
		}
	}
	for _, m := range p.Accuracy {
		fmt.Fprintf(&b, "  %s accuracy %.4f", m.Family, m.Accuracy)
	}
	fmt.Fprintf(&b, "  late %d  errors %d", p.Late, p.Failed)
	return b.String()
}
