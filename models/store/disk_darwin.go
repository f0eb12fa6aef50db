package store

import (
	"io/fs"
	"syscall"
	"time"
)

// readFileStat returns what the file system keeps of a file; false if it does not say.
func readFileStat(_ string, info fs.FileInfo) (fileStat, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStat{}, false
	}
	return fileStat{bytes: s.Blocks * 512, links: uint64(s.Nlink),
		changed: time.Unix(s.Ctimespec.Unix())}, true
}
