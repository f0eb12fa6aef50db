package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/models/onnx"
)

const (
	// readPiece is how many bytes are read at once: some 150 us from the page cache.
	readPiece = 4 << 20
	// copyPiece is how many bytes are copied at once: about as long.
	copyPiece = 1 << 20
)

// readFolder brings every file of a folder into the page cache, so that later
// accesses find it there.
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
		f, _, err := onnx.OpenFile(path)
		if err != nil {
			continue // a folder, or a link to nothing: loading would have failed if it mattered
		}
		err = readFile(ctx, f, null)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// readFile sends a file nowhere: the kernel reads it without copying it, in
// long calls that keep no processor from other goroutines.
//
// A reader of the lowest priority is no better: between two calls its thread
// holds one of Go's processors, and while the kernel prefers other threads the
// goroutines that wait for that processor do so, too, for up to 10 ms.
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
		// What took long was waiting for a disk, which disturbs nobody.
		if err := pause(ctx, min(warmPause*time.Since(start), time.Millisecond)); err != nil {
			return err
		}
	}
}

// A mapping is a range of this process's memory that shows a file.
type mapping struct {
	from, to uintptr
	writable bool // private, then
	path     string
}

// mappings are those of the given files, by their real paths.
func mappings(files map[string]bool) ([]mapping, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var found []mapping
	for line := range strings.Lines(string(maps)) {
		// address perms offset dev inode path
		slash := strings.IndexByte(line, '/')
		if slash < 0 || !files[strings.TrimSuffix(line[slash:], "\n")] {
			continue
		}
		m := mapping{path: strings.TrimSuffix(line[slash:], "\n")}
		var permissions string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &m.from, &m.to, &permissions); err != nil {
			return nil, fmt.Errorf("/proc/self/maps: %q: %w", line, err)
		}
		m.writable = strings.Contains(permissions, "w")
		found = append(found, m)
	}
	return found, nil
}

// realPaths are those of a model's files of external data.
func realPaths(dir string, data []onnx.DataFile) (map[string]bool, error) {
	paths := map[string]bool{}
	for _, d := range data {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, d.Location))
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return nil, err
		}
		paths[path] = true
	}
	return paths, nil
}

// populate enters the pages of mapped files into the page table. Otherwise the first query
// would, one fault at a time, which
// for thousands of lookups takes 10 ms that others wait for. Where it cannot be done,
// as before Linux 5.14, the first query does.
func populate(ctx context.Context, all []mapping) error {
	for _, m := range all {
		for from := m.from; from < m.to; from += readPiece {
			start := time.Now()
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, min(readPiece, m.to-from),
				unix.MADV_POPULATE_READ); errno != 0 {
				return nil
			}
			if err := pause(ctx, min(warmPause*time.Since(start), time.Millisecond)); err != nil {
				return err
			}
		}
	}
	return nil
}

// detach puts memory of this process in the place of mapped files, with what they hold now: what
// is written into them afterwards changes nothing, and cutting them short ends no process. It
// reads through the kernel, for which a file that is too short already is an error and no signal.
func detach(ctx context.Context, all []mapping) error {
	for _, m := range all {
		if err := m.detach(ctx); err != nil {
			return fmt.Errorf("copy %s into memory: %w", m.path, err)
		}
	}
	return nil
}

func (m mapping) detach(ctx context.Context) error {
	size := m.to - m.from
	block, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for done := uintptr(0); done < size; {
		start := time.Now()
		n := min(copyPiece, size-done)
		local := unix.Iovec{Base: (*byte)(unsafe.Add(block, done))}
		local.SetLen(int(n))
		got, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local},
			[]unix.RemoteIovec{{Base: m.from + done, Len: int(n)}}, 0)
		if err == nil {
			done += uintptr(got)
			err = pause(ctx, min(time.Since(start), time.Millisecond))
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
	// In one step for whoever reads there: it replaces what is mapped at its new place.
	if _, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(block), size, size,
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, m.from, 0); errno != 0 {
		return errors.Join(errno, unix.MunmapPtr(block, size))
	}
	return nil
}

// mapped are the files, by real path, that sessions have mapped or are about to, with how many. A
// file of two sessions stays mapped, as nobody could tell whose mapping is whose, and one session
// may unmap its own at any time.
var mapped struct {
	sync.Mutex
	files map[string]int
}

// useFiles notes that a session maps files, and reports whether it is the only one. release is
// called once, when the session maps them no more.
func useFiles(files map[string]bool) (alone bool, release func()) {
	mapped.Lock()
	defer mapped.Unlock()
	if mapped.files == nil {
		mapped.files = map[string]int{}
	}
	alone = true
	for path := range files {
		mapped.files[path]++
		alone = alone && mapped.files[path] == 1
	}
	return alone, func() {
		mapped.Lock()
		defer mapped.Unlock()
		for path := range files {
			if mapped.files[path]--; mapped.files[path] == 0 {
				delete(mapped.files, path)
			}
		}
	}
}

// availableMemory is how many bytes this process can still take, page cache given up, by the
// machine and its cgroup; -1 if that cannot be told.
func availableMemory() int64 {
	available := int64(-1)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if kb := numberAfter(string(text), "MemAvailable:"); kb >= 0 {
			available = kb << 10
		}
	}
	group, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return available
	}
	_, path, ok := strings.Cut(string(group), "0::") // version 2
	if !ok {
		return available
	}
	path, _, _ = strings.Cut(path, "\n")
	for dir := filepath.Join("/sys/fs/cgroup", path); len(dir) >= len(
		"/sys/fs/cgroup"); dir = filepath.Dir(dir) {
		read := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(dir, name)) // without limits there is none
			return string(text)
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(read("memory.max")), 10, 64)
		if err != nil {
			continue // "max", or no such file
		}
		used, err := strconv.ParseInt(strings.TrimSpace(read("memory.current")), 10, 64)
		if err != nil {
			continue
		}
		free := max(0, limit-used+max(0, numberAfter(read("memory.stat"), "file ")))
		if available < 0 || free < available {
			available = free
		}
	}
	return available
}

// numberAfter is the number that follows a word at the beginning of a line; -1 if there is none.
func numberAfter(text, word string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, word); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
					return n
				}
			}
		}
	}
	return -1
}
