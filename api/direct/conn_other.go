//go:build !linux || race

package direct

import "net"

// Conn returns conn.
func Conn(conn net.Conn) net.Conn { return conn }

// ReadBuffer is the size of the read buffer that gRPC's server should have with these connections,
// in bytes. They hold it as long as they are open.
const ReadBuffer = 4 << 10
