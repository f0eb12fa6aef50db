//go:build linux && cgo

package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/api/files"
	"github.com/muster-serve/muster/models/onnx"
	"github.com/muster-serve/muster/runtime/cgroup"
)

const (
	// readPiece is how many bytes one call reads. From the page cache this takes some 150 us.
	readPiece = 4 << 20
	// copyPiece is how many bytes one call copies, which takes about as long.
	copyPiece = 1 << 20
	// hugePage is the size of a huge page, or a multiple of it.
	hugePage = 2 << 20
)

// readFolder reads every file of a folder once, so that the kernel's page cache holds it. It blocks
// until all are read or ctx ends. A folder that does not exist is no error.
func readFolder(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // emulated models need no files
	}
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		f, _, err := files.Open(path)
		if err != nil {
			continue // a folder or a broken link; the load itself reports a file that it needs
		}
		err = readFile(ctx, f, null)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// readFile sends a file to /dev/null (null), so that the kernel reads it without copying it to this
// process. During the long system calls other goroutines can use the processor.
//
// A thread of the lowest priority would disturb the others more: between two calls it holds one of
// Go's processors, and while the kernel runs other threads first, the goroutines that need that
// processor wait for up to 10 ms.
func readFile(ctx context.Context, f, null *os.File) error {
	for {
		start := time.Now()
		n, err := unix.Sendfile(int(null.Fd()), int(f.Fd()), nil, readPiece)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("sendfile "+f.Name(), err)
		}
		if n == 0 {
			return nil
		}
		// The pause is bounded: a call that took long waited for a disk, which disturbs nobody.
		if err := Pause(ctx, min(warmPause*time.Since(start), time.Millisecond)); err != nil {
			return err
		}
	}
}

// A mappedFile is a range [from, to) of this process's addresses into which a file is mapped.
type mappedFile struct {
	from, to uintptr
	writable bool // writes then stay in this process: ONNX Runtime maps privately
	path     string
	offset   uintptr // of from, in the file
}

// readMappings returns the mappings of files in this process. files are real paths, as realPaths
// returns them.
func readMappings(files map[string]bool) ([]mappedFile, error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var found []mappedFile
	for line := range strings.Lines(string(text)) {
		// address perms offset dev inode path
		slash := strings.IndexByte(line, '/')
		if slash < 0 {
			continue
		}
		// The kernel writes the end of a line in a path, and nothing else, as \012.
		path := strings.ReplaceAll(strings.TrimSuffix(line[slash:], "\n"), `\012`, "\n")
		if !files[path] {
			continue
		}
		m := mappedFile{path: path}
		var permissions string
		if _, err := fmt.Sscanf(line, "%x-%x %s %x", &m.from, &m.to, &permissions,
			&m.offset); err != nil {
			return nil, fmt.Errorf("/proc/self/maps: %q: %w", line, err)
		}
		m.writable = strings.Contains(permissions, "w")
		found = append(found, m)
	}
	return found, nil
}

// subtractMappings returns the parts of mappings that are not among others.
func subtractMappings(all, others []mappedFile) (left []mappedFile) {
	left = slices.Clone(all)
	for _, o := range others {
		var rest []mappedFile
		for _, m := range left {
			if o.to <= m.from || m.to <= o.from {
				rest = append(rest, m)
				continue
			}
			if m.from < o.from {
				before := m
				before.to = o.from
				rest = append(rest, before)
			}
			if o.to < m.to {
				after := m
				after.from, after.offset = o.to, m.offset+o.to-m.from
				rest = append(rest, after)
			}
		}
		left = rest
	}
	return left
}

// A stamp is of one state of a file: writing into it or replacing it changes the stamp.
type stamp struct {
	inode         uint64
	size, written int64 // written is the modification time in nanoseconds
}

func stampOf(path string) (stamp, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return stamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return stamp{s.Ino, s.Size, s.Mtim.Nano()}, nil
}

// stamps are those of a model's files, by path.
type stamps map[string]stamp

// check returns an error if one of the files has changed since.
func (s stamps) check(while string) error {
	for _, path := range slices.Sorted(maps.Keys(s)) {
		now, err := stampOf(path)
		if err != nil {
			return err
		}
		if now != s[path] {
			return fmt.Errorf("%s was written %s", path, while)
		}
	}
	return nil
}

// readStamped reads the signature of the model at path, and the stamps that its files had then.
func readStamped(path string) (*onnx.Signature, stamps, error) {
	before, _ := stampOf(path) // what is wrong with the file ReadSignature says
	// ONNX Runtime finds the same faults, but its errors do not name the file that is missing,
	// truncated or outside of the folder.
	signature, err := onnx.ReadSignature(path)
	if err != nil {
		return nil, nil, err
	}
	all := stamps{path: before}
	for _, d := range signature.Data {
		data := filepath.Join(filepath.Dir(path), d.Location)
		if all[data], err = stampOf(data); err != nil {
			return nil, nil, err
		}
	}
	return signature, all, nil
}

// realPaths returns the absolute paths, with symbolic links resolved, of a model's files of
// external data. dir is the model's folder.
func realPaths(dir string, data []onnx.DataFile) (map[string]bool, error) {
	paths := map[string]bool{}
	for _, d := range data {
		path, err := realPath(dir, d.Location)
		if err != nil {
			return nil, err
		}
		paths[path] = true
	}
	return paths, nil
}

// realPath is realPaths of one file, by its path in dir.
func realPath(dir, location string) (string, error) {
	path, err := filepath.EvalSymlinks(filepath.Join(dir, location))
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// populatePages enters the pages of mapped files into the page table. Otherwise the first queries
// would do so, with one page fault for each page: thousands of lookups then take 10 ms, in which
// other queries wait. Before Linux 5.14 the kernel cannot do this, and populate does nothing.
func populatePages(ctx context.Context, all []mappedFile) error {
	for _, m := range all {
		for from := m.from; from < m.to; from += readPiece {
			start := time.Now()
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, min(readPiece, m.to-from),
				unix.MADV_POPULATE_READ); errno != 0 {
				return nil
			}
			if err := Pause(ctx, min(warmPause*time.Since(start), time.Millisecond)); err != nil {
				return err
			}
		}
	}
	return nil
}

// detachFiles replaces mapped files by private memory with the same contents. Later writes to the
// files then have no effect, and truncating one does not kill the process. The kernel copies the
// contents, so that a file that is already too short gives an error and no SIGBUS. While nobody is
// disturbed, two threads copy: the caller's, which may be of a low priority, and another one.
func detachFiles(ctx context.Context, all []mappedFile) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var next atomic.Int64
	copyWhile := func(goOn func() bool) error {
		for goOn() {
			i := next.Add(1) - 1
			if i >= int64(len(all)) {
				break
			}
			if err := all[i].copyToMemory(ctx); err != nil {
				return fmt.Errorf("copy %s into memory: %w", all[i].path, err)
			}
		}
		return nil
	}
	other := make(chan error, 1)
	go func() { other <- copyWhile(func() bool { return isCalm(ctx) }) }()
	err := copyWhile(func() bool { return true })
	if err != nil {
		stop()
	}
	return cmp.Or(err, <-other)
}

func (m mappedFile) copyToMemory(ctx context.Context) error {
	size := m.to - m.from
	// The copy begins as far from the beginning of a huge page as the mapping does, so that it
	// keeps its huge pages when it takes the mapping's place.
	room, err := unix.MmapPtr(-1, 0, nil, size+hugePage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	before := (m.from - uintptr(room)) % hugePage
	block := unsafe.Add(room, before)
	if before > 0 {
		err = unix.MunmapPtr(room, before)
	}
	if err := errors.Join(err,
		unix.MunmapPtr(unsafe.Add(block, size), hugePage-before)); err != nil {
		return err
	}
	// Lookups of random rows then miss the address translation's cache less: RM1's and RM2's rows
	// take 20 to 25 % less time. A system without huge pages says no, which does not matter.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(block), size, unix.MADV_HUGEPAGE)
	var copier pageCopier
	defer copier.close()
	for done := uintptr(0); done < size; {
		start := time.Now()
		got, err := copier.copyPages(unsafe.Add(block, done), m.from+done, min(copyPiece, size-done))
		if err == nil {
			done += got
			err = Pause(ctx, min(time.Since(start), time.Millisecond))
		} else if err == unix.EFAULT {
			err = errors.New("the file was cut short while it was being loaded")
		}
		if err != nil {
			return errors.Join(err, unix.MunmapPtr(block, size))
		}
	}
	if !m.writable {
		if _, _, errno := unix.Syscall(unix.SYS_MPROTECT, uintptr(block), size,
			unix.PROT_READ); errno != 0 {
			return errors.Join(errno, unix.MunmapPtr(block, size))
		}
	}
	// mremap replaces the mapping in one step, so that concurrent readers always find memory there.
	if _, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(block), size, size,
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, m.from, 0); errno != 0 {
		return errors.Join(errno, unix.MunmapPtr(block, size))
	}
	return nil
}

// loading holds, by real path, the data files of sessions that are being made, and of sessions that
// map their files and are being closed. No other session maps or unmaps these files meanwhile. So a
// session has mapped what is mapped after it was made and was not before.
var loading struct {
	sync.Mutex
	files map[string]chan struct{} // closed when they are free again
}

// lockFiles blocks until no other session of any of the files is being made, and holds the files
// until unlock. It fails only if ctx ends.
func lockFiles(ctx context.Context, files map[string]bool) (unlock func(), err error) {
	for {
		busy, path := holdFiles(files)
		if busy == nil {
			return func() { freeFiles(files) }, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another load of %s: %w", path, ctx.Err())
		}
	}
}

// holdFiles notes that the files are held. If one of them is held already, holdFiles only returns
// its path, and a channel that closes when the file is free.
func holdFiles(files map[string]bool) (busy chan struct{}, path string) {
	loading.Lock()
	defer loading.Unlock()
	for path := range files {
		if busy := loading.files[path]; busy != nil {
			return busy, path
		}
	}
	if loading.files == nil {
		loading.files = map[string]chan struct{}{}
	}
	for path := range files {
		loading.files[path] = make(chan struct{})
	}
	return nil, ""
}

func freeFiles(files map[string]bool) {
	loading.Lock()
	defer loading.Unlock()
	for path := range files {
		close(loading.files[path])
		delete(loading.files, path)
	}
}

// availableMemory returns how many more bytes this process can use, by the limits of the machine
// and of its cgroups. Page cache counts as available. It returns -1 if this is not known.
func availableMemory() int64 {
	available := cgroup.AvailableMemory(os.DirFS("/"))
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if kb := cgroup.NumberAfter(string(text), "MemAvailable:"); kb >= 0 &&
			(available < 0 || kb<<10 < available) {
			available = kb << 10
		}
	}
	return available
}
