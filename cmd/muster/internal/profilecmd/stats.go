//go:build linux && cgo

package profilecmd

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/muster-serve/muster/profiles/workload"
)

// sure is the relative error above which a result is measured on, and then said to be unsure.
const sure = .05

// precise is the relative error above which a slowdown is measured on: most are but some percent.
const precise = .01

// beside is the part of a run in which the neighbours must have had their cores for it to count.
const beside = .8

// countedRuns returns the runs, or what is of several, during which all workers had their cores.
// Where the machine was so busy that they hardly did, it is the third during which they had them
// most.
func countedRuns[T any](all []T, part func(T) float64) []T {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(part(b), part(a)) })
	n := 0
	for n < len(all) && part(all[n]) >= beside {
		n++
	}
	return all[:max(n, (len(all)+2)/3)]
}

// countedCPUTimes are those of the runs that count.
func countedCPUTimes(all []sample) (times []time.Duration) {
	for _, one := range countedRuns(all, func(s sample) float64 { return s.beside }) {
		times = append(times, one.cpu)
	}
	return times
}

// median is that of x, which it sorts; 0 of nothing.
func median[T cmp.Ordered](x []T) T {
	var none T
	if len(x) == 0 {
		return none
	}
	slices.Sort(x)
	return x[len(x)/2]
}

// medianError is the relative standard error of the median of x: by its median deviation, which
// single long runs do not move. It is 1 for fewer than three values.
func medianError[T ~float64 | ~int64](x []T) float64 {
	if len(x) < 3 {
		return 1
	}
	x = slices.Clone(x)
	m := float64(median(x))
	deviations := make([]float64, len(x))
	for i, v := range x {
		deviations[i] = math.Abs(float64(v) - m)
	}
	// 1.4826 makes it the standard deviation where values are normal, 1.2533 is the median's.
	return 1.2533 * 1.4826 * median(deviations) / math.Sqrt(float64(len(x))) / m
}

// quantile is the smallest of the sorted values such that at least a share q of them are not
// larger.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// expectedValue is the mean of a curve over a distribution of batch sizes. y is by batch size;
// between batches it is linear, below the first it is the first's, and beyond the last it goes on.
func expectedValue(sizes *workload.BatchSizes, batches []int, y []float64) float64 {
	mean := 0.0
	for _, p := range sizes.PMF() {
		mean += p.P * interpolateAt(batches, y, p.BatchSize)
	}
	return mean
}

func interpolateAt(batches []int, y []float64, batch int) float64 {
	if batch <= batches[0] || len(batches) == 1 {
		return y[0]
	}
	i := 1
	for i < len(batches)-1 && batches[i] < batch {
		i++
	}
	from, to := float64(batches[i-1]), float64(batches[i])
	return y[i-1] + (y[i]-y[i-1])*(float64(batch)-from)/(to-from)
}

// A contrast is how much longer runs of a batch size took in one phase of a round than in another.
type contrast struct {
	ratio, beside float64
}

// slowdownRatio is how much longer the queries of the trace took in one phase than in another, and
// its relative standard error. Runs are compared within a round, where they follow each other; of a
// batch size the median counts, and batch sizes by how much of the time they take.
func slowdownRatio(sizes *workload.BatchSizes, batches []int, alone, together [][][]sample) (r,
	err float64) {
	times, ratios := make([]float64, len(batches)), make([]float64, len(batches))
	errs := make([]float64, len(batches))
	for i := range batches {
		var all []sample
		var contrasts []contrast
		for n := range min(len(alone), len(together)) {
			all = append(all, alone[n][i]...)
			// The first of a turn takes longest, so as many of both.
			k := min(len(alone[n][i]), len(together[n][i]))
			a, b := medianSample(alone[n][i][:k]), medianSample(together[n][i][:k])
			if a.cpu > 0 && b.cpu > 0 {
				contrasts = append(contrasts, contrast{
					float64(b.cpu) / float64(a.cpu), min(a.beside, b.beside),
				})
			}
		}
		if len(contrasts) == 0 {
			return 0, 1
		}
		times[i] = float64(median(countedCPUTimes(all)))
		var rs []float64
		for _, c := range countedRuns(contrasts, func(c contrast) float64 { return c.beside }) {
			rs = append(rs, c.ratio)
		}
		errs[i] = medianError(rs)
		ratios[i] = median(rs)
	}
	whole := expectedValue(sizes, batches, times)
	for i := range batches {
		part := make([]float64, len(batches))
		part[i] = times[i] * ratios[i]
		is := expectedValue(sizes, batches, part) / whole
		r += is
		err = math.Hypot(err, is*errs[i])
	}
	return r, err / r
}

// medianSample is the median run of those that count, with the least part that one of them had.
func medianSample(all []sample) (s sample) {
	s.beside = 1
	counted := countedRuns(all, func(s sample) float64 { return s.beside })
	for _, one := range counted {
		s.beside = min(s.beside, one.beside)
	}
	s.cpu = median(countedCPUTimes(all))
	return s
}
