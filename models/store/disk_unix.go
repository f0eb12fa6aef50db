//go:build unix

package store

import "golang.org/x/sys/unix"

// diskSpace returns the bytes of the file system at path in all, and those that are free.
func diskSpace(path string) (total, free int64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, 0, err
	}
	return int64(stat.Blocks) * int64(stat.Bsize), int64(stat.Bavail) * int64(stat.Bsize), nil
}
