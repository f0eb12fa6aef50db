package harness

import (
	"errors"
	"os"
	"path/filepath"
)

// EnterRepository makes the repository's root the current directory, which the paths of tests are
// relative to.
func EnterRepository() error {
	root, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(root, "go.mod")); missing == nil {
			return os.Chdir(root)
		}
		if root = filepath.Dir(root); root == "/" {
			err = errors.New("this is no folder of the repository")
		}
	}
	return err
}
