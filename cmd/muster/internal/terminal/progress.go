package terminal

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// NewProgress returns a function that shows on w how many bytes of a task are done. If w is a
// terminal it draws a bar, else it prints a line at most every ten seconds. One goroutine at a time
// may call the function.
func NewProgress(w io.Writer, title string) func(done, total int64) {
	return newProgress(w, title, true)
}

// NewPercentage is as NewProgress for a task whose unit says nothing to the user.
func NewPercentage(w io.Writer, title string) func(done, total int64) {
	return newProgress(w, title, false)
}

func newProgress(w io.Writer, title string, isBytes bool) func(done, total int64) {
	if IsTerminal(w) {
		var bar *progressbar.ProgressBar
		return func(done, total int64) {
			if bar == nil {
				bar = progressbar.NewOptions64(total,
					progressbar.OptionSetWriter(w),
					progressbar.OptionSetDescription(title),
					progressbar.OptionShowBytes(isBytes),
					progressbar.OptionClearOnFinish(),
					progressbar.OptionThrottle(100*time.Millisecond))
			}
			_ = bar.Set64(done) // a bar that cannot be drawn is no reason to stop
		}
	}
	last := time.Now()
	return func(done, total int64) {
		if total > 0 && time.Since(last) > 10*time.Second {
			last = time.Now()
			fmt.Fprintf(w, "%s: %d %%\n", title, 100*done/total)
		}
	}
}
