package models

import "io/fs"

// inodeOf returns 0: a file that was replaced is known by its size and its time alone.
func inodeOf(fs.FileInfo) uint64 { return 0 }
