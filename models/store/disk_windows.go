package store

import (
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// diskSpace returns the bytes of the file system at path in all, and those that are free.
func diskSpace(path string) (total, free int64, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, 0, err
	}
	var all, available uint64
	err = windows.GetDiskFreeSpaceEx(name, &available, &all, nil)
	return int64(all), int64(available), err
}

// readFileStat returns what the file system keeps of a file; false if it does not say. Windows does
// not tell when links changed: the time is that of the last write.
func readFileStat(path string, info fs.FileInfo) (fileStat, bool) {
	f, err := os.Open(path)
	if err != nil {
		return fileStat{}, false
	}
	defer f.Close()
	var found windows.ByHandleFileInformation
	if windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &found) != nil {
		return fileStat{}, false
	}
	return fileStat{bytes: info.Size(), links: uint64(found.NumberOfLinks),
		changed: info.ModTime()}, true
}
