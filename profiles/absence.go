package profiles

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// An Absence notes since when keys have been absent, so that a caller can forget keys that stay
// absent for longer than a restart or a rolling upgrade takes. Its zero value has noted nothing. It
// is not safe for concurrent use.
type Absence[K comparable] struct{ since map[K]time.Time }

// Over calls there to learn which keys of all are present now, and returns the keys that have been
// absent in all calls for at least keep. It returns such a key in each call while all contains it.
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

// Excess returns the keys that the last call of Over noted as absent, except the n last noted ones
// of each group. Of keys that one call noted, those that compare highest count as the last.
func (a *Absence[K]) Excess(n int, group func(K) string, compare func(a, b K) int) (over []K) {
	groups := map[string][]K{}
	for k := range a.since {
		groups[group(k)] = append(groups[group(k)], k)
	}
	for _, keys := range groups {
		slices.SortFunc(keys, func(x, y K) int { // the last one first
			return cmp.Or(a.since[y].Compare(a.since[x]), compare(y, x))
		})
		over = append(over, keys[min(n, len(keys)):]...)
	}
	slices.SortFunc(over, compare)
	return over
}
