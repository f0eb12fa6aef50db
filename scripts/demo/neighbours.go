package main

import (
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/prometheus/procfs"
)

// mostTaken is the share of the CPUs' time beyond which it is worth a word that others took it. The
// kernel's work for the demo's own network traffic, which nobody's account shows, stays below it.
const mostTaken = 0.10

// A cpuTime is time of all CPUs, in seconds since the machine was started.
type cpuTime struct {
	all    float64 // idle or not
	busy   float64 // used on this machine
	stolen float64 // given to others by the hypervisor, though this machine had use for it
	own    float64 // that part of busy which this process and its children used
}

// readCPUTime reads the time of the machine, and of a process with its children, those that live and
// those that have ended.
func readCPUTime(proc procfs.FS, pid int) (cpuTime, error) {
	stat, err := proc.Stat()
	if err != nil {
		return cpuTime{}, err
	}
	c := stat.CPUTotal
	t := cpuTime{busy: c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ, stolen: c.Steal}
	t.all = t.busy + t.stolen + c.Idle + c.Iowait
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
		t.own += (float64(s.UTime) + float64(s.STime) + float64(s.CUTime) + float64(s.CSTime)) / ticks
	}
	return t, nil
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
		"   So latencies are longer here, and more queries may be late, than on a quiet machine.", strings.Join(who, ", "))
}

// neighbours watch what others take of the CPUs. Where /proc does not say, nobody takes any.
type neighbours struct {
	proc *procfs.FS
	pid  int
	last cpuTime
	told bool
}

func watchNeighbours() *neighbours {
	n := &neighbours{pid: os.Getpid()}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return n
	}
	if n.last, err = readCPUTime(proc, n.pid); err == nil {
		n.proc = &proc
	}
	return n
}

// look returns the note on the time since it looked last, but never a second one.
func (n *neighbours) look() string {
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

// percent writes a share with one decimal, rounded down: what is not all does not read as all.
func percent(share float64) string {
	return fmt.Sprintf("%.1f %%", math.Floor(1000*share+1e-9)/10)
}
