package worker

import (
	"io/fs"
	"syscall"
)

// fileIDOf returns a file's identity, or false if the system does not provide one.
func fileIDOf(info fs.FileInfo) (fileID, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(s.Dev), s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano()}, true
}
