package regimes

import (
	"math"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// bimodal are latencies of which a share is a factor longer.
type bimodal struct {
	match.Latencies
	share, factor float64
}

func (l bimodal) Mean(batchSize int) time.Duration {
	return scaleDuration(l.Latencies.Mean(batchSize), 1+l.share*(l.factor-1))
}

func (l bimodal) Quantile(p float64, batchSize int) time.Duration {
	if usual := 1 - l.share; p < usual {
		return l.Latencies.Quantile(p/usual, batchSize)
	}
	return scaleDuration(l.Latencies.Quantile((p-(1-l.share))/l.share, batchSize), l.factor)
}

// logNormal are latencies with the means of others and log-normal around them, by the standard
// deviation of their logarithm.
type logNormal struct {
	match.Latencies
	deviation float64
}

func (l logNormal) Quantile(p float64, batchSize int) time.Duration {
	const least = 1e-9
	z := math.Sqrt2 * math.Erfinv(2*min(max(p, least), 1-least)-1)
	return scaleDuration(l.Mean(batchSize), math.Exp(l.deviation*z-l.deviation*l.deviation/2))
}

// slowDown returns the latencies on the lanes of what takes so long on their type.
func (l *Lanes) slowDown(usual match.Latencies) match.Latencies {
	if usual == nil || l.Slowdown == nil {
		return usual
	}
	return slowedLatency{usual, l.Slowdown}
}

type slowedLatency struct {
	match.Latencies
	by func(batchSize int) float64
}

func (l slowedLatency) Mean(batchSize int) time.Duration {
	return scaleDuration(l.Latencies.Mean(batchSize), l.by(batchSize))
}

func (l slowedLatency) Quantile(p float64, batchSize int) time.Duration {
	return scaleDuration(l.Latencies.Quantile(p, batchSize), l.by(batchSize))
}
