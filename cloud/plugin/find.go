package plugin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Find returns the path of the program of the provider with this name. It lies beside this program,
// or in PATH. The error says where it was looked for, and what to do.
func Find(name string) (string, error) {
	file := programName(name)
	beside := "the directory of this program"
	if own, err := os.Executable(); err == nil {
		beside = filepath.Dir(own)
		if path, err := exec.LookPath(filepath.Join(beside, file)); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(file); err == nil { // not one in the current directory
		return path, nil
	}
	return "", fmt.Errorf("no program %s in %s, nor in PATH, which is %q: install the package of "+
		"Muster, which has it, or put it beside muster; `make %s` builds it", file, beside,
		os.Getenv("PATH"), file)
}
