package files

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// OpenFolder opens a folder to read its names, and nothing else that may have its path.
func OpenFolder(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
