//go:build !linux

package direct

import (
	"net"
	"syscall"
	"time"
)

// Ended reports false: see the function for Linux.
func Ended(syscall.Conn) bool { return false }

// GiveUpAfter does nothing: see the function for Linux.
func GiveUpAfter(net.Conn, time.Duration) error { return nil }
