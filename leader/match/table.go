package match

import (
	"fmt"
	"time"

	"github.com/muster-serve/muster/profiles"
)

// Latencies is the part of a latency profile that a matcher reads: execution latency, without
// waiting, as a function of batch size. A *profiles.Table implements it.
type Latencies interface {
	// Mean returns the mean latency.
	Mean(batchSize int) time.Duration
	// Quantile returns the latency that a share p, 0 < p < 1, of the queries does not exceed.
	Quantile(p float64, batchSize int) time.Duration
}

// safeQuantile is the quantile of latency that horizon compares with the time left until the QoS
// target. .7 and .9 reach about .001 of the fluid limit less (docs/internals/matching.md).
const safeQuantile = 0.8

// tailQuantile is the quantile of latency from which it follows when a lane is overdue.
const tailQuantile = 0.99

// A LatencyTable is the latency of one model on one instance type, with an entry for every batch
// size. It is immutable, so matchers may share it.
type LatencyTable struct {
	mean, safe, tail []float64 // ms, by batch size; [0] unused
}

// NewTable reads l at the batch sizes 1..largest. Every latency must be > 0; a quantile below the
// mean counts as the mean. More items never take less time, so latencies that fall with the batch
// size are in error, and the table has the nearest that do not ([profiles.Ascend]): else a matcher
// would choose the batch sizes, of parts and merged runs above all, whose latency is told too
// short.
func NewTable(l Latencies, largest int) (*LatencyTable, error) {
	if largest < 1 || largest > MaxBatchSize {
		return nil, fmt.Errorf("latency table: largest batch size is %d, want 1..%d", largest,
			MaxBatchSize)
	}
	t := &LatencyTable{
		mean: make([]float64, largest+1), safe: make([]float64, largest+1),
		tail: make([]float64, largest+1),
	}
	for b := 1; b <= largest; b++ {
		mean, safe := l.Mean(b), l.Quantile(safeQuantile, b)
		if mean <= 0 {
			return nil, fmt.Errorf("latency table: mean latency at batch size %d is %v, want > 0",
				b, mean)
		}
		t.mean[b], t.safe[b] = toMs(mean), toMs(max(mean, safe))
		t.tail[b] = max(t.safe[b], toMs(l.Quantile(tailQuantile, b)))
	}
	for _, column := range [][]float64{t.mean, t.safe, t.tail} {
		profiles.Ascend(column[1:], nil)
		for i, ms := range column { // whole ns again, as a recording has them
			column[i] = toMs(fromMs(ms))
		}
	}
	return t, nil
}

// Largest returns the largest batch size of the table.
func (t *LatencyTable) Largest() int { return len(t.mean) - 1 }

// Mean returns the mean latency at a batch size in 1..Largest.
func (t *LatencyTable) Mean(batchSize int) time.Duration { return fromMs(t.mean[batchSize]) }

// P80 returns the 80 % quantile of the latency at a batch size in 1..Largest,
// or the mean where that is more.
func (t *LatencyTable) P80(batchSize int) time.Duration { return fromMs(t.safe[batchSize]) }

func toMs(d time.Duration) float64 { return float64(d) / 1e6 }

func fromMs(ms float64) time.Duration {
	if ms < 0 {
		return time.Duration(ms*1e6 - 0.5)
	}
	return time.Duration(ms*1e6 + 0.5)
}
