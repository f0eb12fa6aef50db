package runtime

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestQueueOrder compares the queue with the plain definition of its order, for any
// sequence of pushes, removals and pops.
func TestQueueOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue()
		var waiting []*turn // in order of arrival
		var now int64
		// next is the definition.
		next := func() *turn {
			class := func(t *turn) int {
				switch {
				case t.background:
					return 2
				case t.latestStart < now:
					return 1
				}
				return 0
			}
			if len(waiting) == 0 {
				return nil
			}
			return slices.MinFunc(waiting, func(a, b *turn) int { // the first of equals
				if c := cmp.Compare(class(a), class(b)); c != 0 || class(a) > 0 {
					return c
				}
				return cmp.Compare(a.latestStart, b.latestStart)
			})
		}
		take := func(w *turn) { waiting = slices.DeleteFunc(waiting, func(x *turn) bool { return x == w }) }
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 3).Draw(t, "passed")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				w := &turn{
					latestStart: now + rapid.Int64Range(-5, 20).Draw(t, "slack"),
					background:  rapid.IntRange(0, 9).Draw(t, "background") == 0,
					bytes:       rapid.Int64Range(0, 9).Draw(t, "bytes"),
				}
				if rapid.IntRange(0, 9).Draw(t, "no target") == 0 {
					w.latestStart = noLatestStart
				}
				q.push(w, now)
				waiting = append(waiting, w)
			case 2:
				want := next()
				if got := q.pop(now); got != want {
					t.Fatalf("pop at %d: got %+v, want %+v", now, got, want)
				}
				take(want)
			case 3:
				if len(waiting) > 0 {
					w := rapid.SampledFrom(waiting).Draw(t, "remove")
					q.remove(w)
					take(w)
				}
			}
			n, bytes := 0, int64(0)
			for _, w := range waiting {
				if !w.background {
					n++
					bytes += w.bytes
				}
			}
			if q.len() != n || q.bytes != bytes {
				t.Fatalf("queue has %d queries of %d bytes, want %d of %d", q.len(), q.bytes, n, bytes)
			}
		}
	})
}
