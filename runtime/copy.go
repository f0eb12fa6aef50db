//go:build linux && cgo

package runtime

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A pageCopier has the kernel copy memory of this process, so that pages of a mapped file that is too
// short by now give EFAULT and no SIGBUS. The zero value is ready; the caller closes it.
type pageCopier struct {
	usesPipe bool
	reader   int // of the pipe, and its writer; if usesPipe
	writer   int
}

// copyPages copies up to size bytes, one at least, and returns how many. It uses process_vm_readv.
// The system calls that containerd allows in containers by default do not include that, so there it
// copies through a pipe, which takes 1.4 times as long.
func (c *pageCopier) copyPages(to unsafe.Pointer, from, size uintptr) (uintptr, error) {
	if !c.usesPipe {
		local := unix.Iovec{Base: (*byte)(to)}
		local.SetLen(int(size))
		n, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local},
			[]unix.RemoteIovec{{Base: from, Len: int(size)}}, 0)
		if err != unix.EPERM && err != unix.ENOSYS {
			return uintptr(max(n, 0)), err
		}
		if err := c.openPipe(); err != nil {
			return 0, err
		}
	}
	n, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(c.writer), from, size)
	if errno != 0 {
		return 0, errno
	}
	block := unsafe.Slice((*byte)(to), n)
	for len(block) > 0 {
		got, err := unix.Read(c.reader, block)
		if err != nil && err != unix.EINTR {
			return 0, err
		}
		block = block[max(got, 0):]
	}
	return n, nil
}

func (c *pageCopier) openPipe() error {
	var ends [2]int
	// A write takes what the pipe has room for, and waits for nobody.
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	c.usesPipe, c.reader, c.writer = true, ends[0], ends[1]
	// With less room it takes more calls.
	_, _ = unix.FcntlInt(uintptr(c.writer), unix.F_SETPIPE_SZ, copyPiece)
	return nil
}

func (c *pageCopier) close() {
	if c.usesPipe {
		_ = unix.Close(c.reader)
		_ = unix.Close(c.writer)
	}
}
