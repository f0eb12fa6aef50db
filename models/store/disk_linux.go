package store

import (
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readFileStat returns what the file system keeps of a file; false if it does not say.
func readFileStat(_ string, info fs.FileInfo) (fileStat, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStat{}, false
	}
	return fileStat{bytes: s.Blocks * 512, links: uint64(s.Nlink),
		changed: time.Unix(s.Ctim.Unix())}, true
}

// beginWriting has the kernel begin to write a range of a file to the disk.
func beginWriting(f *os.File, offset, length int64) {
	_ = unix.SyncFileRange(int(f.Fd()), offset, length, unix.SYNC_FILE_RANGE_WRITE)
}

// freeRange makes a hole of a range of a file, if the file system has holes.
func freeRange(f *os.File, offset, length int64) {
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset,
		length)
}
