// Package mergetest has a rule for tests of what lanes do while queries wait for others.
package mergetest

import (
	"time"

	"github.com/muster-serve/muster/runtime/queue/merge"
)

// Patient is a rule that takes all queries that fit, and waits for more as long as the first may.
type Patient struct{ taken []int }

// Waits implements [merge.Rule].
func (*Patient) Waits() bool { return true }

// Ran implements [merge.Rule].
func (*Patient) Ran(*merge.Kind, int, bool) {}

// Choose implements [merge.Rule].
func (p *Patient) Choose(k *merge.Kind, now time.Duration, waiting []merge.Item) (take []int,
	until time.Duration) {
	p.taken = append(p.taken[:0], 0)
	sum := waiting[0].Batch
	for i, x := range waiting[1:] {
		if x.Other {
			continue
		}
		if sum+x.Batch > k.Largest {
			return p.taken, now
		}
		p.taken, sum = append(p.taken, i+1), sum+x.Batch
	}
	if waiting[0].Due == merge.Never {
		return p.taken, now
	}
	return p.taken, max(now, waiting[0].Due-2*k.Latency.P80(sum))
}
