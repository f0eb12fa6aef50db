package profiles

import (
	"iter"
	"time"
)

// An Absence notes since when things are not there, so that what is known of them can be forgotten
// once they have not been for a while: a restart or a rolling upgrade takes less. Its zero value
// has noted nothing. It is not safe for concurrent use.
type Absence[K comparable] struct{ since map[K]time.Time }

// Over looks which of all are there now, and returns those that were not at any look for as long as
// keep: again at each look, until they are not among all any more.
func (a *Absence[K]) Over(now time.Time, keep time.Duration, all iter.Seq[K],
	there func(K) bool) (over []K) {
	since := map[K]time.Time{}
	for k := range all {
		if there(k) {
			continue
		}
		at, noted := a.since[k]
		if !noted {
			at = now
		}
		since[k] = at
		if now.Sub(at) >= keep {
			over = append(over, k)
		}
	}
	a.since = since
	return over
}
