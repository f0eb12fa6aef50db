//go:build linux && cgo

package profilecmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-serve/muster/runtime/isolate"
)

// A usage is how the machine's processors have spent their time, in ticks.
type usage struct {
	all, busy, stolen, own float64
}

// readUsage reads /proc/stat, and this process's time.
func readUsage() (usage, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}, err
	}
	u, err := parseUsage(string(text))
	if err != nil {
		return usage{}, fmt.Errorf("/proc/stat: %w", err)
	}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return usage{}, err
	}
	const ticks = 100 // a second, of USER_HZ
	u.own = ticks * float64(self.Utime.Nano()+self.Stime.Nano()) / float64(time.Second)
	return u, nil
}

func parseUsage(stat string) (u usage, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	// user, nice, system, idle, iowait, irq, softirq, steal
	var t [8]float64
	if _, err := fmt.Sscanf(line, "cpu %g %g %g %g %g %g %g %g", &t[0], &t[1], &t[2], &t[3], &t[4],
		&t[5], &t[6], &t[7]); err != nil {
		return u, fmt.Errorf("%q has no times of all processors: %w", line, err)
	}
	for i, x := range t {
		u.all += x
		if i != 3 && i != 4 {
			u.busy += x
		}
	}
	u.stolen = t[7]
	return u, nil
}

// shareSince returns the parts of the time since before that the hypervisor gave to other machines,
// and that other processes took.
func (u usage) shareSince(before usage) (stolen, others float64) {
	all := u.all - before.all
	if all <= 0 {
		return 0, 0
	}
	stolen = (u.stolen - before.stolen) / all
	others = (u.busy-before.busy-(u.own-before.own))/all - stolen
	return roundTo(stolen, 4), roundTo(max(0, others), 4)
}

// measureBandwidth is the memory's, in GB/s, when all processors copy: bytes that are read and
// written by each thread's processor time.
func measureBandwidth(ctx context.Context, cpus []int) (float64, error) {
	const size, most = 64 << 20, 8 // far larger than a core's share of the caches
	rates := make([]float64, len(cpus))
	errs := make([]error, len(cpus))
	var run sync.WaitGroup
	for i, cpu := range cpus {
		run.Go(func() {
			pin, err := isolate.NewPin([]int{cpu})
			if err == nil {
				err = pin.Enter()
			}
			if err != nil {
				errs[i] = err
				return
			}
			defer pin.Leave()
			from, to := make([]byte, size), make([]byte, size)
			for at := 0; at < size; at += 4096 {
				from[at] = 1 // else all pages are the kernel's one page of zeros, in the cache
			}
			copy(to, from)
			thread := int32(unix.Gettid())
			for range most {
				if errs[i] = ctx.Err(); errs[i] != nil {
					return
				}
				start := threadTime(thread)
				copy(to, from)
				rates[i] = max(rates[i], 2*size/(threadTime(thread)-start).Seconds()/1e9)
			}
		})
	}
	run.Wait()
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return roundTo(sum, 2), errors.Join(errs...)
}
