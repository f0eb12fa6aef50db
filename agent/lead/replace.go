package lead

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// replaceFile replaces the contents of the file at path, or makes the file. A reader, also one
// after a crash, sees either the old contents or the new ones, and only the new ones once
// replaceFile has returned nil. renameio syncs the file but not its directory, so replaceFile does
// that.
func replaceFile(path, contents string, mode os.FileMode) error {
	at := filepath.Dir(path)
	if err := renameio.WriteFile(path, []byte(contents), mode,
		renameio.WithTempDir(at)); err != nil {
		return err
	}
	dir, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
