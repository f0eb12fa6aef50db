//go:build unix

package models

import (
	"io/fs"
	"syscall"
)

// inodeOf is the number of a file's inode: a file that was replaced has another one.
func inodeOf(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
