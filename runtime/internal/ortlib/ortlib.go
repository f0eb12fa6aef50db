// Package ortlib embeds the ONNX Runtime library in release builds (build tag embed_onnxruntime)
// and gives it a path from which it can be loaded, without writing to a disk.
package ortlib

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Version is the version of ONNX Runtime that scripts/fetch-onnxruntime.sh downloads.
const Version = "1.30.0"

// CUDAProvider is the file, beside the library of a CUDA build, that has what computes on a GPU.
const CUDAProvider = "libonnxruntime_providers_cuda.so"

// ErrNone is returned by Open in a binary without a library.
var ErrNone = errors.New("this binary was built without the ONNX Runtime library")

// Embedded reports whether this binary carries a library.
func Embedded() bool { return len(packed) > 0 }

// Open unpacks the embedded library into anonymous memory. The file's Name is a
// path that dlopen takes, for as long as the file is open.
func Open() (*os.File, error) {
	if !Embedded() {
		return nil, ErrNone
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	var header zstd.Header
	if err := header.Decode(packed[:min(len(packed), zstd.HeaderMaxSize)]); err != nil {
		return nil, fmt.Errorf("unpack embedded ONNX Runtime library: %w", err)
	}
	fd, err := unix.MemfdCreate("libonnxruntime.so."+Version, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file for ONNX Runtime library: %w", err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	if err := unpack(f, dec, int(header.FrameContentSize)); err != nil {
		f.Close()
		return nil, fmt.Errorf("unpack embedded ONNX Runtime library: %w", err)
	}
	return f, nil
}

// unpack decompresses the library into f, of size bytes, through a mapping of f.
func unpack(f *os.File, dec *zstd.Decoder, size int) error {
	if err := f.Truncate(int64(size)); err != nil {
		return err
	}
	pages, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(pages)
	var populate sync.WaitGroup
	defer populate.Wait()
	populate.Go(func() { // ahead of what is decompressed, which takes twice as long
		_ = unix.Madvise(pages, unix.MADV_POPULATE_WRITE) // not before Linux 5.14
	})
	out, err := dec.DecodeAll(packed, pages[:0])
	if err != nil {
		return err
	}
	if !bytes.Equal(out[:min(4, len(out))], []byte("\x7fELF")) || len(out) != size ||
		&out[0] != &pages[0] {
		return fmt.Errorf("got %d bytes, want an ELF file of %d", len(out), size)
	}
	return nil
}
