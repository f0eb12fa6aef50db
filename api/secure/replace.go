package secure

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// ReplaceFile replaces the contents of the file at path, or makes the file. A reader, also one after a
// crash, sees either the old contents or the new ones, and only the new ones once ReplaceFile has
// returned nil. Only the file's owner may read it, also where others could read the file before: an
// agent's state names those who have asked for changes. renameio syncs the file but not its directory,
// so ReplaceFile does that.
func ReplaceFile(path string, contents []byte) error {
	at := filepath.Dir(path)
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(at),
		renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	defer f.Cleanup() // does nothing once the file is replaced
	if _, err := f.Write(contents); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	dir, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
