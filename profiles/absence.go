package profiles

import (
	"iter"
	"time"
)

// An Absence notes since when keys have been absent, so that a caller can forget keys that stay
// absent for longer than a restart or a rolling upgrade takes. Its zero value has noted nothing. It
// is not safe for concurrent use.
type Absence[K comparable] struct{ since map[K]time.Time }

// Over asks there which keys of all are present now, and returns the keys that have been absent in
// all calls for at least keep. It returns such a key in each call while all contains it.
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
