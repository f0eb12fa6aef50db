package isolate

import (
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An Apart keeps threads on different processors while they compute at the same time. When its
// processors have much to do, Linux looks for no idle one on which to wake a thread: it may run
// where another computes, for milliseconds, while a processor has nothing to do. It may be used by
// several goroutines at once.
type Apart struct {
	own     *unix.CPUSet
	mu      sync.Mutex
	threads []computeThread
}

// A computeThread thread is one that computes.
type computeThread struct {
	id   int
	left int // the processor on which it may not run; -1: it may on all
}

// NewApart returns an Apart without threads. It returns nil, which does nothing, if the process has
// one processor only, or does not know which it has.
func NewApart() *Apart {
	own, err := ownCPUs()
	if err != nil || own.Count() < 2 {
		return nil
	}
	return &Apart{own: own}
}

// Enter notes that the calling thread, which is not pinned, computes, and has the others that do
// leave its processor. That takes about 1 us for each of them. The caller calls Leave with the
// result, maybe on another thread. What the kernel refuses is not done.
func (a *Apart) Enter() int {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	thread, cpu := unix.Gettid(), currentCPU()
	others := *a.own
	others.Clear(cpu)
	for i := range a.threads {
		t := &a.threads[i]
		if t.id != thread && t.left != cpu && unix.SchedSetaffinity(t.id, &others) == nil {
			t.left = cpu
		}
	}
	a.threads = append(a.threads, computeThread{thread, -1})
	return thread
}

// currentCPU returns the processor that the calling thread is on; maxCPUs if the kernel does not
// say.
func currentCPU() int {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		return maxCPUs
	}
	return int(cpu)
}

// Leave notes that a thread, the result of Enter, computes no more.
func (a *Apart) Leave(thread int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.threads, func(t computeThread) bool { return t.id == thread })
	if a.threads[i].left >= 0 {
		_ = unix.SchedSetaffinity(thread, a.own)
	}
	a.threads = slices.Delete(a.threads, i, i+1)
}
