//go:build !linux || race

package direct

import "net"

// Conn returns conn.
func Conn(conn net.Conn) net.Conn { return conn }
