// Package misuse marks errors of the command line, a variable or the config file, after which
// nothing has been done. A command that ends with one has the exit status 2.
package misuse

import (
	"errors"
	"fmt"
)

type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

// Wrap marks err. Of nil it is nil.
func Wrap(err error) error {
	if err == nil {
		return nil
	}
	return misuse{err}
}

// Errorf is Of an error that fmt.Errorf makes.
func Errorf(format string, args ...any) error { return misuse{fmt.Errorf(format, args...)} }

// Is reports whether err is marked, or wraps an error that is.
func Is(err error) bool { return errors.As(err, new(misuse)) }
