//go:build unix

package files

import (
	"os"
	"syscall"
)

// OpenFolder opens a folder to read its names, and nothing else that may have its path. It does not
// block on a FIFO.
func OpenFolder(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
}
