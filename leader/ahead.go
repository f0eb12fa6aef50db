package leader

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An aheadEstimate learns how long before a query's start at a lane the leader must decide on it.
// That time is the way of the assignment to the gateway and of the payload to the worker, fixed +
// perByte * bytes, and a spread, because lanes are often free earlier than predicted. The zero
// value is ready to use. fixed may be set to the value that the former leader had found.
type aheadEstimate struct {
	samples  [128]aheadSample
	observed int
	fitted   int // the value of observed at the last fit
	fixed    time.Duration
	perByte  float64 // ns
	bytes    uint64  // payload of a query of the median size
	spread   time.Duration

	sorted [128]aheadSample // scratch
	rest   [128]time.Duration
}

type aheadSample struct {
	ahead, early time.Duration
	bytes        uint64
}

const (
	// The spread is the quantile spreadQuantile of how much shorter executions are than predicted:
	// one standard deviation of a normal distribution. In the simulator the throughput of DIEN is
	// highest with that much.
	spreadQuantile = 0.84
	// The first fit is made after aheadAnswers answers, and each later one after moreAnswers more.
	// Chosen: a fit costs as much CPU time as deciding on some queries, and half of the samples are
	// new then.
	aheadAnswers, moreAnswers = 32, 64
	// unknownEarly stands for an execution of which only its end is known.
	unknownEarly time.Duration = math.MinInt64
)

// observeAnswer learns from one answered query. round is the time from the decision to the
// completion, without the time at the lane. It spans three ways, those of the decision, the payload
// and the completion, of which two come before the start. receive is how long the payload took to
// come in. early is how much shorter than predicted the execution was, or unknownEarly.
func (e *aheadEstimate) observeAnswer(round, receive, early time.Duration, bytes uint64) {
	receive = min(max(receive, 0), max(round, 0))
	e.samples[e.observed%len(e.samples)] = aheadSample{
		max(0, receive+(round-receive)*2/3), early, bytes,
	}
	e.observed++
}

// fitLine sets fixed and perByte to the line of Brown and Mood, which passes through the medians of
// the half of the samples with fewer bytes and of the half with more. Outliers do not move it.
func (e *aheadEstimate) fitLine() {
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
		e.perByte = max(0, float64(e.medianLeadTime(many, 0)-e.medianLeadTime(few, 0))/run)
	}
	e.fixed = max(0, e.medianLeadTime(s, e.perByte))
	slices.SortFunc(s, func(a, b aheadSample) int { return cmp.Compare(a.early, b.early) })
	first, _ := slices.BinarySearchFunc(s, unknownEarly+1,
		func(x aheadSample, early time.Duration) int { return cmp.Compare(x.early, early) })
	if s = s[first:]; len(s) > 0 {
		e.spread = max(0, s[int(spreadQuantile*float64(len(s)))].early)
	}
}

// medianLeadTime is the median of the samples' ways without the part that their bytes account for.
func (e *aheadEstimate) medianLeadTime(s []aheadSample, perByte float64) time.Duration {
	rest := e.rest[:len(s)]
	for i, x := range s {
		rest[i] = x.ahead - time.Duration(perByte*float64(x.bytes))
	}
	slices.Sort(rest)
	return rest[len(rest)/2]
}

// estimateAhead is how long before its start a query of the median size must be decided on; false
// until enough is known. A lane that ends early says so, and gets its next query three ways later,
// one and a half times the way of an assignment and its payload. The spread cannot save more than
// that, however early lanes end.
func (e *aheadEstimate) estimateAhead() (time.Duration, bool) {
	if since := e.observed - e.fitted; since >= moreAnswers ||
		e.fitted == 0 && since >= aheadAnswers {
		e.fitLine()
	}
	if e.fitted == 0 {
		return e.fixed, e.fixed > 0
	}
	way := e.fixed + time.Duration(e.perByte*float64(e.bytes))
	return way + min(e.spread, way*3/2), true
}
