package lateness

import (
	"time"
)

const (
	// slotLength is how long what is counted together is. Chosen: a change shows within seconds.
	slotLength = 5 * time.Second
	// MaxLast is the longest time that a Window knows. Chosen: long enough to look at what has just
	// woken somebody up; for more there are metrics.
	MaxLast = 15 * time.Minute
	slots   = int(MaxLast/slotLength) + 1
	// maxKeys bounds the keys of a slot: names come from other machines. Chosen: more than causes by
	// agents that anybody would read; the rest counts for no agent.
	maxKeys = 256
)

// A Window keeps what was counted in the last MaxLast. Its zero value is empty. Times are since any
// fixed one. It is not safe for concurrent use.
type Window struct {
	ring [slots]slot
}

type slot struct {
	number int64 // of the slot, from 1 on; 0: it was never used
	missed map[Key]Sum
	ended  map[string]uint64
}

func (w *Window) slotAt(now time.Duration) *slot {
	number := int64(now/slotLength) + 1
	s := &w.ring[number%int64(slots)]
	if s.number != number {
		*s = slot{number: number}
	}
	return s
}

// Miss counts queries that were missed.
func (w *Window) Miss(now time.Duration, key Key, sum Sum) {
	if !key.Cause.Known() {
		key.Cause = Unknown // of a later version
	}
	s := w.slotAt(now)
	if s.missed == nil {
		s.missed = map[Key]Sum{}
	}
	if _, known := s.missed[key]; !known && len(s.missed) >= maxKeys {
		key.Agent = ""
		if _, known := s.missed[key]; !known && len(s.missed) >= 2*maxKeys {
			key.Model = ""
		}
	}
	had := s.missed[key]
	s.missed[key] = Sum{had.Count + sum.Count, had.Time + sum.Time}
}

// End counts queries for a model that were answered or failed.
func (w *Window) End(now time.Duration, model string, n uint64) {
	s := w.slotAt(now)
	if s.ended == nil {
		s.ended = map[string]uint64{}
	}
	if _, known := s.ended[model]; !known && len(s.ended) >= maxKeys {
		model = ""
	}
	s.ended[model] += n
}

// Summary sums up the time last before now, rounded up to slots, at most MaxLast.
func (w *Window) Summary(now, last time.Duration) *Summary {
	last = min(max(last, slotLength), MaxLast)
	newest := int64(now/slotLength) + 1
	oldest := newest - int64((last+slotLength-1)/slotLength)
	sums, out := map[Key]Sum{}, &Summary{Last: min(last, now), Ended: map[string]uint64{}}
	for i := range w.ring {
		s := &w.ring[i]
		if s.number == 0 || s.number < oldest || s.number > newest {
			continue
		}
		for key, sum := range s.missed {
			had := sums[key]
			sums[key] = Sum{had.Count + sum.Count, had.Time + sum.Time}
		}
		for model, n := range s.ended {
			out.Ended[model] += n
		}
	}
	out.Missed = sortedMissed(sums)
	return out
}
