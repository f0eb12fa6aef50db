package leader

import (
	"cmp"
	"slices"
	"time"
)

// An aheadEstimate learns how long before its start at a lane a query must be
// decided on, a + b * bytes + spread: the way of the assignment to the gateway and of the payload to the
// worker, and as much as the lane is often free earlier than expected. Its zero value is ready; fixed may be
// what a former leader has found.
type aheadEstimate struct {
	samples  [128]aheadSample
	observed int
	fitted   int // observed, at the last fit
	fixed    time.Duration
	perByte  float64 // ns
	spread   time.Duration
}

type aheadSample struct {
	ahead, early time.Duration
	bytes        uint64
}

// spreadQuantile of the lanes' executions are not shorter than expected by more than the spread: a standard
// deviation of a normal distribution.
const spreadQuantile = 0.84

// observe learns from a query whose answer came round after the decision, not counting
// the time at the lane: three ways, decision, payload and completion, of which two come before the
// start, and the time that its payload took to come in. Its execution was shorter than expected by early.
func (e *aheadEstimate) observe(round, receive, early time.Duration, bytes uint64) {
	receive = min(max(receive, 0), max(round, 0))
	e.samples[e.observed%len(e.samples)] = aheadSample{max(0, receive+(round-receive)*2/3), early, bytes}
	e.observed++
	if e.observed-e.fitted >= 32 {
		e.fit()
	}
}

// fit is the line of Brown and Mood: through the medians of the samples with few bytes and
// of those with many. Outliers do not move it.
func (e *aheadEstimate) fit() {
	e.fitted = e.observed
	s := slices.Clone(e.samples[:min(e.observed, len(e.samples))])
	slices.SortFunc(s, func(a, b aheadSample) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.ahead, b.ahead))
	})
	few, many := s[:len(s)/2], s[len(s)/2:]
	e.perByte = 0
	if run := float64(many[len(many)/2].bytes) - float64(few[len(few)/2].bytes); run > 0 {
		e.perByte = max(0, float64(medianAhead(many, 0)-medianAhead(few, 0))/run)
	}
	e.fixed = max(0, medianAhead(s, e.perByte))
	slices.SortFunc(s, func(a, b aheadSample) int { return cmp.Compare(a.early, b.early) })
	e.spread = max(0, s[int(spreadQuantile*float64(len(s)))].early)
}

// medianAhead is the median of what the bytes do not account for.
func medianAhead(s []aheadSample, perByte float64) time.Duration {
	rest := make([]time.Duration, len(s))
	for i, x := range s {
		rest[i] = x.ahead - time.Duration(perByte*float64(x.bytes))
	}
	slices.Sort(rest)
	return rest[len(rest)/2]
}

// value is how long ahead of its start a usual query, of the median size, must be decided on; false
// before enough is known.
func (e *aheadEstimate) value() (time.Duration, bool) {
	if e.fitted == 0 {
		return e.fixed, e.fixed > 0
	}
	bytes := make([]uint64, min(e.observed, len(e.samples)))
	for i := range bytes {
		bytes[i] = e.samples[i].bytes
	}
	slices.Sort(bytes)
	return e.fixed + time.Duration(e.perByte*float64(bytes[len(bytes)/2])) + e.spread, true
}
