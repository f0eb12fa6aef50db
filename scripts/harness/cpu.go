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

// mostTaken is the share of the CPUs' time beyond which it is worth a word that others took it, and
// beyond which the machine counts as disturbed: what agents do then, stopped for up to a tenth of a
// second at once, says more of its neighbours than of Muster. The kernel's work for our own network
// traffic, which nobody's account shows, stays below it.
const mostTaken = 0.10

// A cpuTime is time of all CPUs, in seconds since the machine was started.
type cpuTime struct {
	all    float64 // idle or not
	busy   float64 // used on this machine
	stolen float64 // given to others by the hypervisor, though this machine had use for it
	own    float64 // that part of busy which this process and its children used
}

// machineTime reads all but own.
func machineTime(proc procfs.FS) (cpuTime, error) {
	stat, err := proc.Stat()
	c := stat.CPUTotal
	t := cpuTime{busy: c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ, stolen: c.Steal}
	t.all = t.busy + t.stolen + c.Idle + c.Iowait
	return t, err
}

// readCPUTime reads the time of the machine, and of a process with its children, those that live
// and those that have ended.
func readCPUTime(proc procfs.FS, pid int) (cpuTime, error) {
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
		if err != nil || s.PID != pid && s.PPID != pid {
			continue // it has ended meanwhile, or is another's
		}
		const ticks = 100 // a second, on every architecture that Go knows
		t.own += (float64(s.UTime) + float64(s.STime) + float64(s.CUTime) +
			float64(s.CSTime)) / ticks
	}
	return t, nil
}

// ProcessTime is how long a process has run on CPUs, in user and system mode together, without its
// children. It reads /proc, which counts in hundredths of a second.
func ProcessTime(pid int) (time.Duration, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := proc.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// taken are the shares of all time since before that went to other programs of this machine, and to
// other machines of its hypervisor.
func (t cpuTime) taken(before cpuTime) (others, stolen float64) {
	all := t.all - before.all
	if all <= 0 {
		return 0, 0
	}
	others = ((t.busy - before.busy) - (t.own - before.own)) / all
	return min(max(others, 0), 1), min(max((t.stolen-before.stolen)/all, 0), 1)
}

// note says in plain words that others take the CPUs; it is empty where they do not.
func note(others, stolen float64) string {
	if others+stolen <= mostTaken {
		return ""
	}
	var who []string
	if others >= 0.01 {
		who = append(who, fmt.Sprintf("other programs took %.0f %% of their time", 100*others))
	}
	if stolen >= 0.01 {
		who = append(who, fmt.Sprintf("other virtual machines stole %.0f %%", 100*stolen))
	}
	return fmt.Sprintf("Note: the CPUs have others to serve, too: %s.\n"+
		"   So latencies are longer here, and more queries may be late, than on a quiet machine.",
		strings.Join(who, ", "))
}

// Neighbours watch what others take of the CPUs. Where /proc does not say, nobody takes any.
type Neighbours struct {
	proc *procfs.FS
	pid  int
	last cpuTime
	told bool
}

// WatchNeighbours begins to.
func WatchNeighbours() *Neighbours {
	n := &Neighbours{pid: os.Getpid()}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return n
	}
	if n.last, err = readCPUTime(proc, n.pid); err == nil {
		n.proc = &proc
	}
	return n
}

// Look returns the note on the time since it looked last, but never a second one.
func (n *Neighbours) Look() string {
	if n.proc == nil || n.told {
		return ""
	}
	now, err := readCPUTime(*n.proc, n.pid)
	if err != nil {
		return ""
	}
	text := note(now.taken(n.last))
	n.last, n.told = now, text != ""
	return text
}

// A stolenTime is when the hypervisor gave more than mostTaken of the CPUs' time to others though
// this machine had use for it. Where /proc does not say, it never did.
type stolenTime struct {
	mu    sync.Mutex
	spans []stolenSpan
}

type stolenSpan struct {
	from, to time.Time
	share    float64 // of the time of all CPUs
}

// watchStolen looks for stolen time until ctx ends, in spans of half a second.
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
				last.stolen) / max(0.01, now.all-last.all); share > mostTaken {
				s.mu.Lock()
				s.spans = append(s.spans, stolenSpan{from, to, share})
				s.mu.Unlock()
			}
			last, from = now, to
		}
	}()
	return s
}

// between is the largest share that was stolen at a time in [from, to], 0 if the machine was not
// disturbed.
func (s *stolenTime) between(from, to time.Time) (share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.spans {
		if !x.to.Before(from) && !x.from.After(to) {
			share = max(share, x.share)
		}
	}
	return share
}
