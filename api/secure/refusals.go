package secure

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// sayAgain is the least time between two log lines about refusals of the same peer for the same
	// reason.
	sayAgain = 10 * time.Minute
	// linesAMinute bounds the log lines about refusals of all peers in a minute.
	linesAMinute = 10
	// maxPeers bounds the pairs of peer and reason that are remembered.
	maxPeers = 4096
)

// refusals logs refused connections and calls: each pair of peer and reason once in sayAgain, and
// at most linesAMinute.
type refusals struct {
	log *slog.Logger

	mu       sync.Mutex
	said     map[peerReason]*refusalLog
	minute   time.Time // when the current minute began
	lines    int
	unlogged int // refusals without a line since the last line
	// How many refusals there were for each reason since the last call of sum.
	reasons map[string]int
}

type peerReason struct{ peer, reason string }

// A refusalLog is when a refusal of a peer was last logged, and how many have come since.
type refusalLog struct {
	at    time.Time
	since int
}

// add counts a refusal of the peer at address, and logs it unless it must not be logged yet. reason
// must be one of few values; detail may be anything.
func (r *refusals) add(address net.Addr, what, reason string, detail error) {
	key := peerReason{peer: hostOf(address), reason: reason}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reasons == nil {
		r.reasons = map[string]int{}
	}
	r.reasons[reason]++
	s := r.said[key]
	if s != nil && now.Sub(s.at) < sayAgain {
		s.since++
		return
	}
	if now.Sub(r.minute) >= time.Minute {
		r.minute, r.lines = now, 0
	}
	if r.lines == linesAMinute {
		r.unlogged++
		return
	}
	r.lines++
	attrs := []any{"peer", key.peer, "reason", reason, "error", detail}
	if s != nil && s.since > 0 {
		attrs = append(attrs, "times", s.since+1)
	}
	if r.unlogged > 0 {
		attrs = append(attrs, "others_not_logged", r.unlogged)
		r.unlogged = 0
	}
	r.log.Warn(what, attrs...)
	if s == nil && len(r.said) >= maxPeers || r.said == nil {
		r.said = map[peerReason]*refusalLog{}
	}
	r.said[key] = &refusalLog{at: now}
}

// logSum logs, as one event, how many refusals there were since its last call, if any.
func (r *refusals) logSum() {
	r.mu.Lock()
	reasons := r.reasons
	r.reasons = nil
	r.mu.Unlock()
	if len(reasons) == 0 {
		return
	}
	all, times := 0, make([]string, 0, len(reasons))
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		all += reasons[reason]
		times = append(times, fmt.Sprintf("%s: %d", reason, reasons[reason]))
	}
	r.log.Info("calls and connections refused", "refused", all, "reasons",
		strings.Join(times, ", "), "event", "refused")
}

// hostOf returns the address without its port.
func hostOf(address net.Addr) string {
	if address == nil {
		return ""
	}
	if host, _, err := net.SplitHostPort(address.String()); err == nil {
		return host
	}
	return address.String()
}
