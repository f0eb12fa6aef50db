package onnx

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrNotRegular is returned for a path that is not a regular file. Reading a FIFO or a device may
// block or never end.
var ErrNotRegular = errors.New("not a regular file")

// OpenFile opens a regular file for reading and returns its info. The caller closes it. Any other
// kind of file gives an error, without blocking, that wraps ErrNotRegular.
func OpenFile(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}
