package isolate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A Pin keeps the thread of a goroutine on some processors while it does something. It may be used
// by several goroutines at once.
type Pin struct {
	cpus []int
	mask unix.CPUSet
}

// NewPin returns a Pin to cpus. The error names those that do not exist, are offline or are not
// allowed to this process.
func NewPin(cpus []int) (*Pin, error) {
	p := &Pin{cpus: slices.Clone(cpus)}
	if _, err := ownCPUs(); err != nil {
		return nil, err
	}
	var own unix.CPUSet // without what has been taken away since ownCPUs was first called
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return nil, fmt.Errorf("read the process's processors: %w", err)
	}
	var missing []int
	for _, c := range cpus {
		if c < 0 || c >= maxCPUs || !own.IsSet(c) {
			missing = append(missing, c)
			continue
		}
		p.mask.Set(c)
	}
	switch {
	case len(cpus) == 0:
		return nil, errors.New("pin to no processors: want one at least")
	case len(missing) > 0:
		return nil, fmt.Errorf(
			"pin to processors %v: %v are not there, or not allowed to this process",
			cpus, missing)
	}
	return p, nil
}

// CPUs returns the processors.
func (p *Pin) CPUs() []int { return slices.Clone(p.cpus) }

// ownCPUs returns the processors on which threads of this process run that are not pinned, as they
// were when it was first called. A mask of the process's main thread would not do: which goroutine
// runs there is not known.
var ownCPUs = sync.OnceValues(func() (*unix.CPUSet, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the process's processors: %w", err)
	}
	return &set, nil
})

// Enter keeps the calling goroutine's thread on the processors until Leave. On an error, which says
// that the kernel refused, nothing has changed and Leave must not be called.
func (p *Pin) Enter() error {
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &p.mask); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("pin to processors %v: %w", p.cpus, err)
	}
	return nil
}

// Leave ends what Enter has begun, on the same goroutine.
func (p *Pin) Leave() {
	own, err := ownCPUs()
	if err == nil {
		err = unix.SchedSetaffinity(0, own)
	}
	if err != nil { // processors were taken away: any that the process may use will do
		var all unix.CPUSet
		all.Fill()
		_ = unix.SchedSetaffinity(0, &all)
	}
	runtime.UnlockOSThread()
}

// readAllowed returns which processors the kernel lets this process use.
func readAllowed() (func(cpu int) bool, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, fmt.Errorf("read the process's processors: %w", err)
	}
	return allowed.IsSet, nil
}
