// Package cgroup reads how much CPU time and memory the control groups of this process leave it, of
// version 1 and of version 2, and how long its threads wait for a processor. It is the one place that
// knows where the system says so. It starts no goroutine and keeps nothing.
package cgroup

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// eachGroup calls visit for each group with the controller that this process is in, from its own up
// to the root: all limits on the way hold. second says whether it is of version 2.
func eachGroup(root fs.FS, controller string, visit func(dir string, second bool)) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		// number:controllers:path; of version 2 the controllers are empty
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, of, _ := strings.Cut(rest, ":")
		mounts := []string{path.Join("sys/fs/cgroup", controllers)}
		second := controllers == ""
		if second {
			mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		} else if !slices.Contains(strings.Split(controllers, ","), controller) {
			continue
		}
		for dir := path.Clean("/" + of); ; dir = path.Dir(dir) {
			for _, mounted := range mounts {
				visit(path.Join(mounted, dir), second)
			}
			if dir == "/" {
				break
			}
		}
	}
}

// CPUQuota returns how many processors' time the process gets; 0 if there is no limit. root is the
// root of the file system.
func CPUQuota(root fs.FS) float64 {
	least := 0.0
	eachGroup(root, "cpu", func(dir string, second bool) {
		var quota, period float64
		if second {
			// "max 100000" or "150000 100000"
			text, err := fs.ReadFile(root, path.Join(dir, "cpu.max"))
			if err != nil {
				return
			}
			if _, err := fmt.Sscan(string(text), &quota, &period); err != nil {
				return // "max": no limit
			}
		} else {
			q, err := readInt(root, path.Join(dir, "cpu.cfs_quota_us")) // -1: no limit
			p, err2 := readInt(root, path.Join(dir, "cpu.cfs_period_us"))
			if err != nil || err2 != nil {
				return
			}
			quota, period = float64(q), float64(p)
		}
		if quota > 0 && period > 0 && (least == 0 || quota/period < least) {
			least = quota / period
		}
	})
	return least
}

// Throttled returns for how long the process was stopped because a group had used its quota, summed
// up over CPUs: of the group that was stopped longest. root is the root of the file system.
func Throttled(root fs.FS) (longest time.Duration) {
	eachGroup(root, "cpu", func(dir string, second bool) {
		text, err := fs.ReadFile(root, path.Join(dir, "cpu.stat"))
		if err != nil {
			return
		}
		word, unit := "throttled_time ", time.Nanosecond
		if second {
			word, unit = "throttled_usec ", time.Microsecond
		}
		longest = max(longest, time.Duration(NumberAfter(string(text), word))*unit)
	})
	return max(0, longest)
}

// MemoryLimit returns how many bytes the process can use in all; -1 if there is no limit. root is
// the root of the file system.
func MemoryLimit(root fs.FS) int64 {
	least := int64(-1)
	eachGroup(root, "memory", func(dir string, second bool) {
		if limit, ok := readMemoryLimit(root, dir, second); ok && (least < 0 || limit < least) {
			least = limit
		}
	})
	return least
}

// readMemoryLimit reads the limit of one group; ok is false if it has none.
func readMemoryLimit(root fs.FS, dir string, second bool) (limit int64, ok bool) {
	file := "memory.limit_in_bytes"
	if second {
		file = "memory.max"
	}
	limit, err := readInt(root, path.Join(dir, file)) // of version 2 "max": no limit
	// Without a limit, version 1 has the largest number, less what is no whole page.
	return limit, err == nil && limit <= math.MaxInt64-1<<20
}

// AvailableMemory returns how many more bytes the process can use; -1 if there is no limit. Page
// cache counts as available. root is the root of the file system.
func AvailableMemory(root fs.FS) int64 {
	available := int64(-1)
	eachGroup(root, "memory", func(dir string, second bool) {
		usedFile := "memory.usage_in_bytes"
		cached := []string{"total_inactive_file ", "total_active_file "}
		if second {
			usedFile, cached = "memory.current", []string{"file "}
		}
		limit, ok := readMemoryLimit(root, dir, second)
		used, err := readInt(root, path.Join(dir, usedFile))
		if !ok || err != nil {
			return
		}
		free := limit - used
		stat, _ := fs.ReadFile(root, path.Join(dir, "memory.stat"))
		for _, word := range cached {
			free += max(0, NumberAfter(string(stat), word))
		}
		if free = max(0, free); available < 0 || free < available {
			available = free
		}
	})
	return available
}

func readInt(root fs.FS, name string) (int64, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// NumberAfter returns the number that follows word in the first line that begins with it, in a file
// such as memory.stat; -1 if there is none.
func NumberAfter(text, word string) int64 {
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

// ThreadTimes returns for how long the threads that this process has now have run on a processor,
// and for how long they could have run and waited for one; both together since they began. root is
// the root of the file system.
func ThreadTimes(root fs.FS) (ran, waited time.Duration, err error) {
	files, err := fs.Glob(root, "proc/self/task/*/schedstat")
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("read schedstat of this process: %w", fs.ErrNotExist)
	}
	if err != nil {
		return 0, 0, err
	}
	for _, file := range files {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			continue // the thread has ended
		}
		var run, wait time.Duration // in ns
		if _, err := fmt.Sscan(string(text), &run, &wait); err != nil {
			return 0, 0, fmt.Errorf("read %s: %w", file, err)
		}
		ran, waited = ran+run, waited+wait
	}
	return ran, waited, nil
}
