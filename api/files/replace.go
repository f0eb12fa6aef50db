package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
)

// Replace replaces the contents of the file at path, or makes the file. A reader, also one after a
// crash, finds either the old contents or the new ones, and only the new ones once Replace has
// returned nil.
//
// A new file has the permissions mode, less the umask, as with os.WriteFile. A file that is there
// keeps its permissions as far as mode has them: with 0o600 only its owner may read it afterwards,
// also where others could before. A symbolic link at path is replaced, and not what it leads to.
func Replace(path string, contents []byte, mode fs.FileMode) error {
	return ReplaceBy(path, mode, func(w io.Writer) error {
		_, err := w.Write(contents)
		return err
	})
}

// ReplaceBy does what Replace does, with the contents that write writes. If that fails, the file
// stays as it was.
func ReplaceBy(path string, mode fs.FileMode, write func(io.Writer) error) error {
	folder, base := filepath.Split(path)
	// Not in a folder for temporary files: a file cannot be renamed across file systems.
	beside := filepath.Join(folder, fmt.Sprintf(".%s.%016x", base, rand.Uint64()))
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if old, _ := os.Lstat(path); old != nil && old.Mode().IsRegular() {
		err = f.Chmod(old.Mode().Perm() & mode)
	}
	if err == nil {
		err = write(f)
	}
	if err == nil { // without it the new name may reach the disk before the contents do
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(beside))
	}
	if runtime.GOOS == "windows" { // which cannot sync a folder
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
