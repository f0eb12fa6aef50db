//go:build !linux

package worker

import "io/fs"

// identify returns false: a file is read again for each checksum.
func identify(fs.FileInfo) (fileID, bool) { return fileID{}, false }
