package lead

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// replaceFile gives the file at path, which need not be there, other contents. Whoever reads it, or
// finds it after a crash, sees those before or these; once it returns, these. renameio brings the
// file to the disk, but not its new name.
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
