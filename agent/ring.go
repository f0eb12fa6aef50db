package agent

import "time"

// statusSeconds is over how long queries are counted.
const statusSeconds = 60

// A ring counts over the last minute, by tenths of a second. Its zero value is ready.
type ring struct {
	parts [10 * statusSeconds]struct {
		at  int64 // in tenths of a second
		sum float64
	}
}

func tenth(now time.Time) int64 { return now.UnixMilli() / 100 }

func (r *ring) add(now time.Time, v float64) {
	at := tenth(now)
	p := &r.parts[at%int64(len(r.parts))]
	if p.at != at {
		p.at, p.sum = at, 0
	}
	p.sum += v
}

// sum is what was counted over the time up to now, at most a minute.
func (r *ring) sum(now time.Time, over time.Duration) (sum float64) {
	last := tenth(now)
	for at := last - int64(over/(100*time.Millisecond)) + 1; at <= last; at++ {
		if p := &r.parts[at%int64(len(r.parts))]; p.at == at {
			sum += p.sum
		}
	}
	return sum
}
