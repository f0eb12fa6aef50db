package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// EnableEscapes has the consoles of this process's output understand what a [StatusLine] writes to
// clear a line. A console of before Windows 10 shows it instead.
func EnableEscapes() {
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		console := windows.Handle(f.Fd())
		var mode uint32
		if windows.GetConsoleMode(console, &mode) == nil { // else it is no console
			_ = windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
		}
	}
}
