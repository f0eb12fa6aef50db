package lane

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// An Estimator predicts execution times by profile ([Query.Profile]). A State calls the methods one
// at a time; they must not block.
type Estimator interface {
	// Estimate returns the expected execution time of a query; 0 if it is not known.
	Estimate(profile names.ModelKey, batchSize int) time.Duration
	// High returns the 90 % quantile of the execution time; 0 if it is not known.
	High(profile names.ModelKey, batchSize int) time.Duration
	// Observe reports the execution time of a query that was not cancelled.
	Observe(profile names.ModelKey, batchSize int, execution time.Duration)
}

// NewLinearEstimator returns an [Estimator] that fits a floor and a slope per
// profile to recent executions.
func NewLinearEstimator() Estimator { return linearEstimator{} }

type linearEstimator map[names.ModelKey]*Line

func (e linearEstimator) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	if l := e[profile]; l != nil {
		return l.predictAt(batchSize)
	}
	return 0
}

func (e linearEstimator) High(profile names.ModelKey, batchSize int) time.Duration {
	if l := e[profile]; l != nil {
		return time.Duration(float64(l.predictAt(batchSize)) * (1 + normal90*l.relativeSpread()))
	}
	return 0
}

// normal90 is the 90 % quantile of the normal distribution.
const normal90 = 1.2816

func (e linearEstimator) Observe(profile names.ModelKey, batchSize int, execution time.Duration) {
	l := e[profile]
	if l == nil {
		l = new(Line)
		e[profile] = l
	}
	l.Observe(batchSize, execution)
}

// A Line is a floor and a slope fitted to (batch size, duration) by least squares of relative
// errors. Older observations have less weight.
type Line struct {
	w, x, y, xx, xy float64 // weighted sums; durations in seconds
	largest         int     // batch size observed
	// floor and slope are what the observations have last shown, when batch sizes differed enough.
	floor, slope float64
	// n is the weighted number of predictions that were compared with the outcome, deviations the
	// weighted sum of their squared relative errors.
	n, deviations float64
}

// forget is the factor by which each new observation reduces the weight of the older ones, so that
// about 100 count (EWMA). Chosen: their mean is a tenth as noisy as one run, and a change of a
// machine shows within a second under load.
const forget = 0.99

func (l *Line) Observe(batchSize int, d time.Duration) {
	x, y := float64(batchSize), max(d, time.Nanosecond).Seconds()
	if predicted := l.predictAt(batchSize).Seconds(); predicted > 0 && batchSize <= l.largest {
		l.n = l.n*forget + 1
		l.deviations = l.deviations*forget + (y/predicted-1)*(y/predicted-1)
	}
	w := 1 / (y * y)
	l.largest = max(l.largest, batchSize)
	l.w = l.w*forget + w
	l.x = l.x*forget + w*x
	l.y = l.y*forget + w*y
	l.xx = l.xx*forget + w*x*x
	l.xy = l.xy*forget + w*x*y
	l.fitLine()
}

// relativeSpread returns the relative standard deviation of observations from their predictions; 0
// before it is known.
func (l *Line) relativeSpread() float64 {
	if l.n == 0 {
		return 0
	}
	return math.Sqrt(l.deviations / l.n)
}

// fitLine fits the floor, in seconds, and the slope, in seconds per row. While the batch sizes
// observed are too alike to tell them apart, the two keep their ratio.
func (l *Line) fitLine() {
	x, y := l.x/l.w, l.y/l.w
	variance := l.xx/l.w - x*x
	if !(variance > 1e-3*x*x) {
		if known := l.floor + l.slope*x; known > 0 {
			l.floor, l.slope = l.floor*y/known, l.slope*y/known
		}
		return
	}
	l.slope = max(0, (l.xy/l.w-x*y)/variance)
	if l.floor = y - l.slope*x; l.floor < 0 {
		l.floor, l.slope = 0, l.xy/l.xx
	}
}

// predictAt returns the predicted duration at a batch size; 0 before the first observation. If only
// one batch size was observed, smaller ones take as long as it, and larger ones in proportion.
func (l *Line) predictAt(batchSize int) time.Duration {
	if l.w == 0 {
		return 0
	}
	floor, slope := l.floor, l.slope
	if floor+slope == 0 {
		slope = l.y / l.x
		batchSize = max(batchSize, int(l.x/l.w))
	}
	return time.Duration((floor + slope*float64(batchSize)) * float64(time.Second))
}

// RowsWithin returns how many rows to run at once so that a run takes about d. It returns more rows
// if the floor would otherwise be above an eighth of a run's slope part, and never more than four
// times the largest batch size observed. It returns at least 1, or 0 before the first observation.
func (l *Line) RowsWithin(d time.Duration) int {
	if l.w == 0 {
		return 0
	}
	floor, slope := l.floor, l.slope
	if floor+slope == 0 {
		slope = l.y / l.x
	}
	n := max(d.Seconds()-floor, 8*floor) / slope // +Inf without a slope
	return max(1, int(min(n, 4*float64(l.largest))))
}
