package starvation

import (
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-serve/muster/runtime/cgroup"
)

const (
	// interval is the time between two samples while there are queries. Chosen: a sample takes some
	// 0.2 ms of a CPU with 30 threads, so that all take .1 %, and a cause shows within a second.
	interval = 200 * time.Millisecond
	// idleAfter is how long after the last query samples go on.
	idleAfter = 2 * time.Second
	// kept is how many samples are kept: longer than any deadline is not needed.
	kept = 64
)

// Totals are sums over all threads of the process since some fixed time.
type Totals struct {
	At time.Time
	// Ran is the time on CPUs, and Waited the time that threads were ready to run and did not.
	Ran, Waited time.Duration
	Throttled   time.Duration // that the process's control group was throttled, on all CPUs
	MajorFaults uint64        // pages that were read from disk
}

// Lost is what a process did not get in some time, as shares of it in [0, 1] that add up to 1 at
// most.
type Lost struct {
	CPU, Throttled float64
	// Waited is how long threads were ready to run and did not, all together.
	Waited      time.Duration
	MajorFaults uint64
}

// CPUOf is how much of a part of the time the process did not get. It is no more than its threads
// waited: one that sleeps, or waits for a card, lacks nothing meanwhile.
func (l *Lost) CPUOf(part time.Duration) time.Duration {
	return min(time.Duration(l.CPU*float64(part)), l.Waited)
}

// A Meter keeps samples of this process. It owns one goroutine, that of Run. Its other methods may
// be called concurrently.
type Meter struct {
	root fs.FS
	cpus int
	wake chan struct{} // of size 1: there are queries

	mu      sync.Mutex
	touched time.Time
	samples [kept]Totals // a ring
	n       int          // how many there have been
}

// New returns a meter of a process that may use so many CPUs. root is the root of the file system.
func New(root fs.FS, cpus int) *Meter {
	return &Meter{root: root, cpus: max(1, cpus), wake: make(chan struct{}, 1)}
}

// Touch says that there is a query. It does not block.
func (m *Meter) Touch(now time.Time) {
	m.mu.Lock()
	idle := now.Sub(m.touched) > idleAfter
	if idle || now.Sub(m.touched) > interval {
		m.touched = now
	}
	m.mu.Unlock()
	if idle {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// Run samples while there are queries, until done is closed.
func (m *Meter) Run(done <-chan struct{}) {
	ticker := time.NewTicker(interval)
	ticker.Stop()
	defer ticker.Stop()
	for {
		select {
		case <-m.wake:
			m.Sample(time.Now())
			ticker.Reset(interval)
		case <-ticker.C:
			now := time.Now()
			m.Sample(now)
			m.mu.Lock()
			idle := now.Sub(m.touched) > idleAfter
			m.mu.Unlock()
			if idle {
				ticker.Stop()
			}
		case <-done:
			return
		}
	}
}

// Sample takes a sample. Run does so; tests do it themselves.
func (m *Meter) Sample(now time.Time) {
	t := read(m.root)
	t.At = now
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples[m.n%kept] = t
	m.n++
}

// Between returns what the process did not get in the time between, as the samples around it say.
func (m *Meter) Between(from, to time.Time) Lost {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n < 2 {
		return Lost{}
	}
	oldest := max(0, m.n-kept)
	last := m.n - 1
	for last > oldest+1 && !m.samples[(last-1)%kept].At.Before(to) {
		last--
	}
	first := last - 1
	for first > oldest && m.samples[first%kept].At.After(from) {
		first--
	}
	return m.samples[last%kept].Since(&m.samples[first%kept], m.cpus)
}

// Since returns what the process, which may use so many CPUs, did not get since earlier totals.
func (t *Totals) Since(before *Totals, cpus int) Lost {
	passed := t.At.Sub(before.At)
	if passed <= 0 {
		return Lost{}
	}
	ran, waited := max(0, t.Ran-before.Ran), max(0, t.Waited-before.Waited)
	throttled := max(0, t.Throttled-before.Throttled)
	// Threads of one process also wait for each other. Only what the process leaves of its CPUs can
	// have gone to others.
	left := max(0, 1-float64(ran)/float64(passed)/float64(cpus))
	lost := Lost{MajorFaults: t.MajorFaults - before.MajorFaults, Waited: waited}
	if t.MajorFaults < before.MajorFaults { // a thread has ended
		lost.MajorFaults = 0
	}
	lost.Throttled = min(left, float64(throttled)/float64(passed), 1)
	if ran+waited > 0 {
		share := float64(waited) / float64(ran+waited)
		// The kernel counts most of the time of a throttled thread as waiting.
		lost.CPU = max(0, min(left-lost.Throttled, share-lost.Throttled))
	}
	return lost
}

// read reads the totals; what cannot be read is 0.
func read(root fs.FS) (t Totals) {
	t.Ran, t.Waited, _ = cgroup.ThreadTimes(root)
	t.Throttled = cgroup.Throttled(root)
	t.MajorFaults = majorFaults(root)
	return t
}

// majorFaults returns the field majflt of /proc/self/stat, which is of all threads.
func majorFaults(root fs.FS) uint64 {
	text, err := fs.ReadFile(root, "proc/self/stat")
	if err != nil {
		return 0
	}
	// the second field is a name in parentheses, which may have spaces
	const majflt = 9 // of the fields after the name
	after := strings.LastIndex(string(text), ")") + 1
	if fields := strings.Fields(string(text)[after:]); len(fields) > majflt {
		n, _ := strconv.ParseUint(fields[majflt], 10, 64)
		return n
	}
	return 0
}
