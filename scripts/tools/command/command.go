// Package command runs the programs that the tools need, such as go and git.
package command

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Output runs a command and returns its standard output. Its error has the command and what that
// wrote to standard error.
func Output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return out, nil
}
