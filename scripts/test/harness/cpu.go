package harness

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// maxTaken is a share of the CPUs' time. If others take more than that, the machine counts as
// disturbed, and a note says so: agents are then stopped for up to a tenth of a second at a time,
// and what is measured says more of the others than of Muster. The kernel's work for our own
// network traffic, which looks as if others did it, stays below this share.
const maxTaken = 0.10

// A cpuTime is time of all CPUs, in seconds since the machine was started.
type cpuTime struct {
	all    float64 // idle or not
	busy   float64 // used on this machine
	stolen float64 // given to other virtual machines while this one had work to do
	own    float64 // the part of busy that this process and its children used
}

// machineTime reads all fields but own.
func machineTime(proc procfs.FS) (cpuTime, error) {
	stat, err := proc.Stat()
	c := stat.CPUTotal
	t := cpuTime{busy: c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ, stolen: c.Steal}
	t.all = t.busy + t.stolen + c.Idle + c.Iowait
	return t, err
}

// readCPUTime reads the time of the machine; own is that of the process pid, its children and what
// else is ours, including children of all those that have ended.
func readCPUTime(proc procfs.FS, pid int, ours func(pid int) bool) (cpuTime, error) {
	t, err := machineTime(proc)
	if err != nil {
		return cpuTime{}, err
	}
	all, err := proc.AllProcs()
	if err != nil {
		return cpuTime{}, err
	}
	for _, p := range all {
		s, err := p.Stat()
		if err != nil || s.PID != pid && s.PPID != pid && !ours(p.PID) {
			continue // it has just ended, or is another's
		}
		const ticks = 100 // in a second, on every architecture that Go supports
		t.own += (float64(s.UTime) + float64(s.STime) + float64(s.CUTime) +
			float64(s.CSTime)) / ticks
	}
	return t, nil
}

// Processes are one or more processes with the same task, counted together.
type Processes struct {
	What string
	PIDs []int
}

// CPUTime is how long the processes have run on CPUs, in user and system mode together, without
// their children. It is exact to a hundredth of a second.
func (p *Processes) CPUTime() (sum time.Duration, err error) {
	for _, pid := range p.PIDs {
		proc, err := procfs.NewProc(pid)
		if err != nil {
			return 0, err
		}
		stat, err := proc.Stat()
		if err != nil {
			return 0, err
		}
		sum += time.Duration(stat.CPUTime() * float64(time.Second))
	}
	return sum, nil
}

// CPUTimesDuring returns the CPU time that each of the processes uses while do runs.
func CPUTimesDuring(all []*Processes, do func() error) ([]time.Duration, error) {
	used := make([]time.Duration, len(all))
	read := func(sign time.Duration) error {
		for i, p := range all {
			t, err := p.CPUTime()
			if err != nil {
				return err
			}
			used[i] += sign * t
		}
		return nil
	}
	if err := read(-1); err != nil {
		return nil, err
	}
	if err := do(); err != nil {
		return nil, err
	}
	return used, read(1)
}

// takenShares returns the shares of all time since before that went to other programs of this
// machine, and to other virtual machines.
func (t cpuTime) takenShares(before cpuTime) (others, stolen float64) {
	all := t.all - before.all
	if all <= 0 {
		return 0, 0
	}
	others = ((t.busy - before.busy) - (t.own - before.own)) / all
	return min(max(others, 0), 1), min(max((t.stolen-before.stolen)/all, 0), 1)
}

// note says that others took the CPUs, and what follows. It is empty if they took little.
func note(others, stolen float64) string {
	if others+stolen <= maxTaken {
		return ""
	}
	var who []string
	if others >= 0.01 {
		who = append(who, fmt.Sprintf("other programs took %.0f %% of the CPUs' time", 100*others))
	}
	if stolen >= 0.01 {
		who = append(
			who, fmt.Sprintf("other virtual machines stole %.0f %% of the CPUs' time", 100*stolen))
	}
	return fmt.Sprintf("Note: %s.\n"+
		"   So latencies are longer, and more queries late, than on a quiet machine.",
		strings.Join(who, ", "))
}

// Neighbours watches how much of the CPUs' time others take. Without /proc it finds none.
type Neighbours struct {
	proc *procfs.FS
	pid  int
	ours func(pid int) bool
	last cpuTime
	told bool
}

// WatchNeighbours begins to watch. This process and its children are no others.
func WatchNeighbours() *Neighbours {
	return WatchNeighboursBut(func(int) bool { return false })
}

// WatchNeighboursBut is WatchNeighbours where more processes are no others: those that are ours.
func WatchNeighboursBut(ours func(pid int) bool) *Neighbours {
	n := &Neighbours{pid: os.Getpid(), ours: ours}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return n
	}
	if n.last, err = readCPUTime(proc, n.pid, ours); err == nil {
		n.proc = &proc
	}
	return n
}

// TakenShares returns the shares of the CPUs' time that went to other programs of this machine, and
// to other virtual machines, since the last call.
func (n *Neighbours) TakenShares() (others, stolen float64) {
	if n.proc == nil {
		return 0, 0
	}
	now, err := readCPUTime(*n.proc, n.pid, n.ours)
	if err != nil {
		return 0, 0
	}
	before := n.last
	n.last = now
	return now.takenShares(before)
}

// Look returns a note if other processes took much CPU time since the last call. It returns one at
// most.
func (n *Neighbours) Look() string {
	if n.told {
		return ""
	}
	text := note(n.TakenShares())
	n.told = text != ""
	return text
}

// A stolenTime knows when more than maxTaken of the CPUs' time was stolen. Without /proc it never
// was.
type stolenTime struct {
	mu    sync.Mutex
	spans []stolenSpan
}

type stolenSpan struct {
	from, to time.Time
	share    float64 // of the time of all CPUs
}

// watchStolen looks for stolen time every half second until ctx ends.
func watchStolen(ctx context.Context) *stolenTime {
	s := &stolenTime{}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return s
	}
	last, err := machineTime(proc)
	from := time.Now()
	go func() {
		for err == nil && Settle(ctx, 500*time.Millisecond) == nil {
			var now cpuTime
			now, err = machineTime(proc)
			to := time.Now()
			if share := (now.stolen -
				last.stolen) / max(0.01, now.all-last.all); share > maxTaken {
				s.mu.Lock()
				s.spans = append(s.spans, stolenSpan{from, to, share})
				s.mu.Unlock()
			}
			last, from = now, to
		}
	}()
	return s
}

// maxShareBetween is the largest share that was stolen in a span that overlaps [from, to]; 0 if the
// machine was not disturbed.
func (s *stolenTime) maxShareBetween(from, to time.Time) (share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.spans {
		if !x.to.Before(from) && !x.from.After(to) {
			share = max(share, x.share)
		}
	}
	return share
}
