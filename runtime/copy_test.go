//go:build linux && cgo

package runtime

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newPipeCopier returns a copier where process_vm_readv is not allowed.
func newPipeCopier(t testing.TB) *pageCopier {
	t.Helper()
	c := &pageCopier{}
	if err := c.openPipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// TestCopyPages: both ways copy all, and a file that is cut short is EFAULT where it ends, and no bus
// error.
func TestCopyPages(t *testing.T) {
	page := os.Getpagesize()
	data := make([]byte, 600*page+7)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(data), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	copyAll := func(c *pageCopier) ([]byte, error) {
		got := make([]byte, len(mapped))
		from := uintptr(unsafe.Pointer(&mapped[0]))
		for done := 0; done < len(got); {
			n, err := c.copyPages(unsafe.Pointer(&got[done]), from+uintptr(done),
				uintptr(min(copyPiece, len(got)-done)))
			if err == nil && n == 0 {
				err = fmt.Errorf("nothing is copied")
			}
			if err != nil {
				return got[:done], err
			}
			done += int(n)
		}
		return got, nil
	}
	copiers := map[string]*pageCopier{"by process_vm_readv": {}, "by a pipe": newPipeCopier(t)}
	for name, c := range copiers {
		if got, err := copyAll(c); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v, want all", name, len(got), err)
		}
	}
	if err := f.Truncate(int64(100 * page)); err != nil {
		t.Fatal(err)
	}
	for name, c := range copiers {
		if got, err := copyAll(c); err != unix.EFAULT || !bytes.Equal(got, data[:100*page]) {
			t.Errorf("%s: %d bytes, %v, want those of 100 pages and EFAULT", name, len(got), err)
		}
	}
}

func BenchmarkCopyPages(b *testing.B) {
	from, to := make([]byte, copyPiece), make([]byte, copyPiece)
	for name, c := range map[string]*pageCopier{"readv": {}, "pipe": newPipeCopier(b)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(copyPiece)
			for b.Loop() {
				for done := uintptr(0); done < copyPiece; {
					n, err := c.copyPages(unsafe.Pointer(&to[done]), uintptr(unsafe.Pointer(&from[done])),
						copyPiece-done)
					if err != nil {
						b.Fatal(err)
					}
					done += n
				}
			}
		})
	}
}
