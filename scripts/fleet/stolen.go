package main

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// stolenOver is the time over which stolen CPU time is averaged.
	stolenOver = 500 * time.Millisecond
	// mostStolen is the share beyond which a machine counts as disturbed: what its agents do then, stopped
	// for up to a tenth of a second at once, says more of its neighbours than of Muster.
	mostStolen = 0.10
)

// A stolenTime is the CPU time that the hypervisor gave to others though this machine had use for it,
// by /proc/stat. Where that does not say, there is none.
type stolenTime struct {
	mu    sync.Mutex
	spans []stolenSpan // those beyond mostStolen
}

type stolenSpan struct {
	from, to time.Time
	share    float64 // of the time of all CPUs
}

// watchStolen looks for stolen time until ctx ends.
func watchStolen(ctx context.Context) *stolenTime {
	s := &stolenTime{}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return s
	}
	go func() {
		var last procfs.CPUStat
		from := time.Now()
		for first := true; settle(ctx, stolenOver) == nil; first = false {
			stat, err := proc.Stat()
			if err != nil {
				return
			}
			now, to := stat.CPUTotal, time.Now()
			share := (now.Steal - last.Steal) / max(0.01, total(now)-total(last))
			if !first && share > mostStolen {
				s.mu.Lock()
				s.spans = append(s.spans, stolenSpan{from, to, share})
				s.mu.Unlock()
			}
			last, from = now, to
		}
	}()
	return s
}

// total is all time that a CPU could have given.
func total(c procfs.CPUStat) float64 {
	return c.User + c.Nice + c.System + c.Idle + c.Iowait + c.IRQ + c.SoftIRQ + c.Steal
}

// between is the largest share that was stolen at a time in [from, to], 0 if the machine was not disturbed.
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
