// Package latency has the kinds of latencies that simulations draw from and planners know.
package latency

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// Measured returns the latencies of samples: each sample of a batch size is equally likely. A batch
// size between measured ones has the samples of the next larger one.
func Measured(s *profiles.Series) match.Latencies {
	sizes := s.BatchSizes()
	t := &measuredLatency{
		cells: make([][]time.Duration, sizes[len(sizes)-1]+1),
		means: make([]time.Duration, sizes[len(sizes)-1]+1),
	}
	batchSize := 0
	for _, measuredAt := range sizes {
		cell := slices.Clone(s.At(measuredAt))
		slices.Sort(cell)
		for ; batchSize <= measuredAt; batchSize++ {
			t.cells[batchSize], t.means[batchSize] = cell, s.Mean(measuredAt)
		}
	}
	return t
}

// measuredLatency has the samples by batch size, up to the largest measured one, which holds for
// all beyond it.
type measuredLatency struct {
	cells [][]time.Duration // samples in ascending order
	means []time.Duration
}

func (t *measuredLatency) Mean(batchSize int) time.Duration {
	return t.means[min(batchSize, len(t.means)-1)]
}

func (t *measuredLatency) Quantile(p float64, batchSize int) time.Duration {
	cell := t.cells[min(batchSize, len(t.cells)-1)]
	return cell[min(int(p*float64(len(cell))), len(cell)-1)]
}

// misjudgedLatency is a latency with a relative error at each batch size.
type misjudgedLatency struct {
	match.Latencies
	factor []float64 // by batch size
}

// Misjudge returns l as it is known with errors drawn with the given standard deviation.
func Misjudge(l match.Latencies, largest int, deviation float64, r *rand.Rand) match.Latencies {
	m := misjudgedLatency{l, make([]float64, largest+1)}
	for b := range m.factor {
		m.factor[b] = NoiseFactor(deviation, r)
	}
	return m
}

// NoiseFactor draws 1 + deviation*N(0, 1), made positive.
func NoiseFactor(deviation float64, r *rand.Rand) float64 {
	return max(0.01, 1+deviation*r.NormFloat64())
}

// Mean is the mean with its error.
func (m misjudgedLatency) Mean(batchSize int) time.Duration {
	return m.by(m.Latencies.Mean(batchSize), batchSize)
}

// Quantile is the quantile with the error of the mean.
func (m misjudgedLatency) Quantile(p float64, batchSize int) time.Duration {
	return m.by(m.Latencies.Quantile(p, batchSize), batchSize)
}

func (m misjudgedLatency) by(d time.Duration, batchSize int) time.Duration {
	return max(1, time.Duration(float64(d)*m.factor[batchSize]))
}

// Fixed is a latency that never varies: a fixed part and a part per item.
type Fixed struct {
	Base, PerItem time.Duration
}

// Mean is the latency.
func (f Fixed) Mean(batchSize int) time.Duration {
	return f.Base + time.Duration(batchSize)*f.PerItem
}

// Quantile is the latency at any p.
func (f Fixed) Quantile(_ float64, batchSize int) time.Duration { return f.Mean(batchSize) }

// Scaled is a latency multiplied by a factor > 0.
func Scaled(l match.Latencies, factor float64) match.Latencies {
	if factor == 1 {
		return l
	}
	return scaledLatency{l, factor}
}

type scaledLatency struct {
	match.Latencies
	factor float64
}

func (s scaledLatency) Mean(batchSize int) time.Duration {
	return s.scale(s.Latencies.Mean(batchSize))
}

func (s scaledLatency) Quantile(p float64, batchSize int) time.Duration {
	return s.scale(s.Latencies.Quantile(p, batchSize))
}

func (s scaledLatency) scale(d time.Duration) time.Duration {
	return max(1, time.Duration(float64(d)*s.factor))
}

// Fastest is the latency of whichever of several is least. It has one or more.
type Fastest []match.Latencies

// Mean is the least mean.
func (f Fastest) Mean(batchSize int) time.Duration {
	least := f[0].Mean(batchSize)
	for _, l := range f[1:] {
		least = min(least, l.Mean(batchSize))
	}
	return least
}

// Quantile is the least quantile.
func (f Fastest) Quantile(p float64, batchSize int) time.Duration {
	least := f[0].Quantile(p, batchSize)
	for _, l := range f[1:] {
		least = min(least, l.Quantile(p, batchSize))
	}
	return least
}
