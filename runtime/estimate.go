package runtime

import (
	"math"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// An Estimator predicts execution times. Lanes calls it under a lock, never
// concurrently.
type Estimator interface {
	// Estimate is how long a query will execute; 0 where nothing is known.
	Estimate(profile names.ModelKey, batchSize int) time.Duration
	// High is the time within which nine of ten such queries will have executed;
	// 0 where nothing is known.
	High(profile names.ModelKey, batchSize int) time.Duration
	// Observe tells it how long an uncancelled query did.
	Observe(profile names.ModelKey, batchSize int, execution time.Duration)
}

// NewLinearEstimator returns an [Estimator] that fits a floor and a slope per
// profile to recent executions.
func NewLinearEstimator() Estimator { return linearEstimator{} }

type linearEstimator map[names.ModelKey]*line

func (e linearEstimator) Estimate(profile names.ModelKey, batchSize int) time.Duration {
	if l := e[profile]; l != nil {
		return l.at(batchSize)
	}
	return 0
}

func (e linearEstimator) High(profile names.ModelKey, batchSize int) time.Duration {
	if l := e[profile]; l != nil {
		return time.Duration(float64(l.at(batchSize)) * (1 + normal90*l.spread()))
	}
	return 0
}

// normal90 is the 90 % quantile of the normal distribution.
const normal90 = 1.2816

func (e linearEstimator) Observe(profile names.ModelKey, batchSize int, execution time.Duration) {
	l := e[profile]
	if l == nil {
		l = new(line)
		e[profile] = l
	}
	l.observe(batchSize, execution)
}

// A line is a floor and a slope fitted to (batch size, duration) by least
// squares of relative errors, older observations counting less.
type line struct {
	w, x, y, xx, xy float64 // weighted sums; durations in seconds
	largest         int     // batch size observed
	// weighted count of predictions that were checked, and of their squared relative errors
	n, deviations float64
}

// forget is what an observation's weight is multiplied with at each later one.
const forget = 0.99

func (l *line) observe(batchSize int, d time.Duration) {
	x, y := float64(batchSize), max(d, time.Nanosecond).Seconds()
	if predicted := l.at(batchSize).Seconds(); predicted > 0 && batchSize <= l.largest {
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
}

// spread is the relative standard deviation of what is observed from what was
// predicted; 0 before it is known.
func (l *line) spread() float64 {
	if l.n == 0 {
		return 0
	}
	return math.Sqrt(l.deviations / l.n)
}

// fit returns the floor and the slope, in seconds; ok is false as long as the
// observations do not tell one from the other.
func (l *line) fit() (floor, slope float64, ok bool) {
	x, y := l.x/l.w, l.y/l.w
	variance := l.xx/l.w - x*x
	if !(variance > 1e-3*x*x) {
		return 0, 0, false
	}
	slope = max(0, (l.xy/l.w-x*y)/variance)
	floor = y - slope*x
	if floor < 0 {
		return 0, l.xy / l.xx, true
	}
	return floor, slope, true
}

// at is the duration at a batch size; 0 before the first observation. What was
// seen at one size only is a floor for smaller and a slope for larger ones.
func (l *line) at(batchSize int) time.Duration {
	if l.w == 0 {
		return 0
	}
	floor, slope, ok := l.fit()
	if !ok {
		floor, slope = 0, l.y/l.x
		batchSize = max(batchSize, int(l.x/l.w))
	}
	return time.Duration((floor + slope*float64(batchSize)) * float64(time.Second))
}

// within is how many rows to run at once so that a run takes about d, but
// never so few that floors cost more than an eighth on top, and at most four
// times what was ever observed; at least 1, and 0 before the first observation.
func (l *line) within(d time.Duration) int {
	if l.w == 0 {
		return 0
	}
	floor, slope, ok := l.fit()
	if !ok {
		floor, slope = 0, l.y/l.x
	}
	n := max(d.Seconds()-floor, 8*floor) / slope // +Inf without a slope
	return max(1, int(min(n, 4*float64(l.largest))))
}
