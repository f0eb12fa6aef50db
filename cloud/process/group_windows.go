package process

import (
	"errors"
	"syscall"
)

// ownGroup is never called: New makes no Provider on Windows.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup is never called.
func signalGroup(int, syscall.Signal) error { return errors.ErrUnsupported }
