package lateness

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Component is a part of the time from a query's arrival to its answer.
type Component uint8

// The components. They do not overlap: each nanosecond of a query's time is in one of them. Their
// numbers are sent between agents, so new ones are added at the end.
const (
	AwaitedLane   Component = iota // it waited for a lane that others used
	LackedCPU                      // its process was ready to run and other processes ran
	WasThrottled                   // its process had used the CPU time that its control group allows
	AwaitedPages                   // it waited for memory to be read from disk
	AwaitedGPU                     // its card was slowed, or had a fault
	RanLong                        // its run took longer than its profile, for no reason that is known
	RanAsProfiled                  // its run, as long as its profile says, and what cannot be avoided
	OnTheWay                       // between client, gateway, leader and worker
	ArrivedLate                    // its client was slow to send it, or stood still
	LostToHost                     // an attempt failed, and had to be made elsewhere
	AwaitedLeader                  // there was no leader that decided
	Unmeasured                     // an agent that took part does not measure

	Components = iota
)

// A Record is one query's time by components, with what else its cause depends on.
type Record struct {
	Target time.Duration // the QoS target, > 0, else a query is never late
	Parts  [Components]time.Duration
	// Failed is why the query got no answer; "" if it got one, or its time was over.
	Failed Cause
	// Agent is the name of the agent whose doing the cause would be; "": it is not known.
	Agent string
}

// Total is the time from the query's arrival to its end.
func (r *Record) Total() (sum time.Duration) {
	for _, part := range r.Parts {
		sum += part
	}
	return sum
}

// causes are those of components, by component.
var causes = [Components]Cause{
	AwaitedLane: Lane, LackedCPU: CPU, WasThrottled: Throttled, AwaitedPages: Paging,
	AwaitedGPU: GPU, RanLong: Run, RanAsProfiled: Target, OnTheWay: Way, ArrivedLate: Client,
	LostToHost: Host, AwaitedLeader: Takeover, Unmeasured: Unknown,
}

// componentNames are the components' names in logs: those of their causes, but for a run as its
// profile has it, which is the cause only where nothing else is.
var componentNames = [Components]string{
	AwaitedLane: "lane", LackedCPU: "cpu", WasThrottled: "throttled", AwaitedPages: "paging",
	AwaitedGPU: "gpu", RanLong: "run", RanAsProfiled: "as_profiled", OnTheWay: "way",
	ArrivedLate: "client", LostToHost: "host", AwaitedLeader: "takeover", Unmeasured: "unknown",
}

// String is the component's name in logs.
func (c Component) String() string { return componentNames[c] }

// Cause is why the query was late or failed; "" if it was answered in time. It is the cause of the
// largest component without which the query would have been in time. If there is no such component,
// it is Target where a run as the profile has it takes longer than the target, else Several. The
// first of equal components counts.
func (r *Record) Cause() Cause {
	if r.Failed != "" {
		return r.Failed
	}
	excess := r.Total() - r.Target
	if excess <= 0 || r.Target <= 0 {
		return ""
	}
	best := Component(Components)
	for c := range Component(Components) {
		// A run that is as its profile says is no fault, unless nothing else would help.
		if c == RanAsProfiled || r.Parts[c] < excess {
			continue
		}
		if best == Components || r.Parts[c] > r.Parts[best] {
			best = c
		}
	}
	switch {
	case best < Components:
		return causes[best]
	case r.Parts[RanAsProfiled] > r.Target:
		return Target
	case r.Parts[Unmeasured] > 0:
		return Unknown
	}
	return Several
}

// Of is how much of the record's time has the given cause; 0 where the cause is no component's.
func (r *Record) Of(c Cause) (sum time.Duration) {
	for at, its := range causes {
		if its == c {
			sum += r.Parts[at]
		}
	}
	return sum
}

// Move moves up to d from one component to another, and returns how much it has moved.
func (r *Record) Move(from, to Component, d time.Duration) time.Duration {
	d = max(0, min(d, r.Parts[from]))
	r.Parts[from] -= d
	r.Parts[to] += d
	return d
}

// AppendParts appends the components in the form of ReadParts: a varint of microseconds for each.
func AppendParts(b []byte, parts *[Components]time.Duration) []byte {
	for _, part := range parts {
		b = protowire.AppendVarint(b, uint64(max(0, part)/time.Microsecond))
	}
	return b
}

// maxPart bounds a component that another agent tells of, so that sums do not overflow.
const maxPart = 24 * time.Hour

// ReadParts reads what AppendParts has written, of this version or another: components that are not
// known here are Unmeasured, and those that the writer did not know are 0.
func ReadParts(b []byte) (parts [Components]time.Duration, ok bool) {
	for at := 0; len(b) > 0; at++ {
		us, n := protowire.ConsumeVarint(b)
		if n < 0 || at > 64 {
			return parts, false
		}
		b = b[n:]
		d := time.Duration(min(us, uint64(maxPart/time.Microsecond))) * time.Microsecond
		if at >= Components {
			parts[Unmeasured] += d
		} else {
			parts[at] += d
		}
	}
	return parts, true
}
