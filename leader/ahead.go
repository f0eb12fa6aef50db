package leader

import (
	"cmp"
	"slices"
	"time"
)

// An aheadEstimate learns how long before its start at a lane a query must be decided on: as long
// as its way is, a + b * bytes, of the assignment to the gateway and of the payload to the worker;
// and a spread, by which the lane is often free earlier than expected. Its zero value is ready;
// fixed may be what a former leader has found.
type aheadEstimate struct {
	samples  [128]aheadSample
	observed int
	fitted   int // observed, at the last fit
	fixed    time.Duration
	perByte  float64 // ns
	bytes    uint64  // of a usual query
	spread   time.Duration

	sorted [128]aheadSample // scratch
	rest   [128]time.Duration
}

type aheadSample struct {
	ahead, early time.Duration
	bytes        uint64
}

const (
	// spreadQuantile of the lanes' executions are not shorter than expected by more than the
	// spread: a standard deviation of a normal distribution.
	spreadQuantile = 0.84
	// The first fit takes aheadAnswers, and each next one comes moreAnswers later: it costs as much
	// as deciding on some queries.
	aheadAnswers, moreAnswers = 32, 64
)

// observe learns from a query whose answer came round after the decision, not counting the time at
// the lane: three ways, decision, payload and completion, of which two come before the start, and
// the time that its payload took to come in. Its execution was shorter than expected by early.
func (e *aheadEstimate) observe(round, receive, early time.Duration, bytes uint64) {
	receive = min(max(receive, 0), max(round, 0))
	e.samples[e.observed%len(e.samples)] = aheadSample{
		max(0, receive+(round-receive)*2/3), early, bytes,
	}
	e.observed++
}

// fit is the line of Brown and Mood: through the medians of the samples with few bytes and
// of those with many. Outliers do not move it.
func (e *aheadEstimate) fit() {
	e.fitted = e.observed
	s := e.sorted[:copy(e.sorted[:], e.samples[:min(e.observed, len(e.samples))])]
	slices.SortFunc(s, func(a, b aheadSample) int {
		if a.bytes != b.bytes {
			return cmp.Compare(a.bytes, b.bytes)
		}
		return cmp.Compare(a.ahead, b.ahead)
	})
	few, many := s[:len(s)/2], s[len(s)/2:]
	e.bytes = many[0].bytes
	e.perByte = 0
	if run := float64(many[len(many)/2].bytes) - float64(few[len(few)/2].bytes); run > 0 {
		e.perByte = max(0, float64(e.medianAhead(many, 0)-e.medianAhead(few, 0))/run)
	}
	e.fixed = max(0, e.medianAhead(s, e.perByte))
	slices.SortFunc(s, func(a, b aheadSample) int { return cmp.Compare(a.early, b.early) })
	e.spread = max(0, s[int(spreadQuantile*float64(len(s)))].early)
}

// medianAhead is the median of what the bytes do not account for.
func (e *aheadEstimate) medianAhead(s []aheadSample, perByte float64) time.Duration {
	rest := e.rest[:len(s)]
	for i, x := range s {
		rest[i] = x.ahead - time.Duration(perByte*float64(x.bytes))
	}
	slices.Sort(rest)
	return rest[len(rest)/2]
}

// value is how long ahead of its start a usual query, of the median size, must be decided on; false
// before enough is known. A lane that ends early tells so, and has its next query three ways later
// (one and a half times that of an assignment and its payload): more than that the spread cannot
// save, however early lanes end.
func (e *aheadEstimate) value() (time.Duration, bool) {
	if since := e.observed - e.fitted; since >= moreAnswers ||
		e.fitted == 0 && since >= aheadAnswers {
		e.fit()
	}
	if e.fitted == 0 {
		return e.fixed, e.fixed > 0
	}
	way := e.fixed + time.Duration(e.perByte*float64(e.bytes))
	return way + min(e.spread, way*3/2), true
}
