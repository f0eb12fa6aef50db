package beat

import (
	"math"
	"time"
)

// Histogram is a histogram of buckets 3 % wide, from 10 us to half a minute. Its zero value is
// empty. The width is chosen: quantiles of some hundred latencies err by more.
type Histogram struct {
	buckets [512]uint32
	n       uint64
}

const (
	minLatency  = 10 * time.Microsecond
	bucketWidth = 1.03
)

var logWidth = math.Log(bucketWidth)

// Add counts one latency.
func (l *Histogram) Add(d time.Duration) {
	i := 0
	if d > minLatency {
		i = int(math.Log(float64(d)/float64(minLatency))/logWidth) + 1
	}
	l.buckets[min(i, len(l.buckets)-1)]++
	l.n++
}

// Join adds the counts of another histogram.
func (l *Histogram) Join(o *Histogram) {
	for i, n := range o.buckets {
		l.buckets[i] += n
	}
	l.n += o.n
}

// Count is how many latencies were added.
func (l *Histogram) Count() uint64 { return l.n }

// Quantile returns the latency that a share q of those added do not exceed, within 3 %; NaN if none
// was added. It is in nanoseconds.
func (l *Histogram) Quantile(q float64) float64 {
	if l.n == 0 {
		return math.NaN()
	}
	rank := max(1, uint64(math.Ceil(q*float64(l.n))))
	seen := uint64(0)
	for i, n := range l.buckets {
		if seen += uint64(n); seen >= rank {
			// the middle of the bucket, by its logarithm
			return float64(minLatency) * math.Exp((float64(i)-0.5)*logWidth)
		}
	}
	return math.NaN() // not reached: the buckets have n
}
