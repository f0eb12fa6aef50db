package direct

import (
	"errors"
	"net"
	"syscall"
	"time"
	"unsafe"
)

// Ended reports whether the other end of a connection has closed it, or has sent something that was
// not read. It does not block. On other systems than Linux it reports false.
func Ended(conn syscall.Conn) bool {
	raw, err := conn.SyscallConn()
	if err != nil { // this end has closed it, or it is no socket
		return !errors.Is(err, errors.ErrUnsupported)
	}
	ended := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b[0])), 1,
			syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		ended = errno != syscall.EAGAIN && errno != syscall.EINTR
	})
	return ended || err != nil
}

// GiveUpAfter makes the kernel close conn, if it is a TCP connection, when the other end has
// acknowledged nothing of what was sent for that long. On other systems than Linux it does nothing.
func GiveUpAfter(conn net.Conn, d time.Duration) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	const tcpUserTimeout = 18 // package syscall has no name for it
	e := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout,
			int(d.Milliseconds()))
	})
	return errors.Join(e, err)
}
