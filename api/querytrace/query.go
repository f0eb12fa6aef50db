package querytrace

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/muster-serve/muster/api/tensor"
)

// A TracedQuery is one query of a record.
type TracedQuery struct {
	// At is when the query arrived, since any moment that is the same for all queries of a record;
	// >= 0.
	At    time.Duration
	Model string
	// Rows is the batch size, 1 to MaxRows: for a ranking model, how many candidates there are.
	Rows int
	// Users is how many users the rows belong to, and Values how many values its ragged features
	// have; 0 if the record does not say.
	Users, Values int
	// Deadline is how long after its arrival its client waited; 0 if the record does not say.
	Deadline time.Duration
	// Inputs are what was sent; nil if the record does not say.
	Inputs []tensor.Tensor
	// Outputs are what was answered; nil if the record does not say. Arrays have none.
	Outputs []tensor.Tensor
	// Client, Version and Outcome say who asked, which version answered, and how it ended: "ok", or
	// why it failed. Agent ran it, Cause is why it was late or failed, and Arm is the side of a
	// comparison of versions that it was on. They are "" if the record does not say.
	Client, Version, Outcome, Agent, Cause, Arm string
	// Latency is how long the answer took; 0 if the record does not say.
	Latency time.Duration
}

// Limits of what a record may say. A number beyond one is a typing error.
const (
	MaxRows   = 1 << 20
	maxValues = math.MaxInt32
	// maxText is the most bytes of a name.
	maxText = 1024
	// maxFileBytes bounds a file that is held in memory, and the arrays in it when they are
	// decompressed.
	maxFileBytes = 2 << 30
	// maxLineBytes bounds a line of JSON; the protocol's messages are not larger.
	maxLineBytes = 64 << 20
)

// The keys of a query.
const (
	atKey       = "at_ms"
	modelKey    = "model"
	rowsKey     = "rows"
	usersKey    = "users"
	valuesKey   = "values"
	deadlineKey = "deadline_ms"
	clientKey   = "client"
	versionKey  = "version"
	outcomeKey  = "outcome"
	latencyKey  = "latency_ms"
	agentKey    = "agent"
	causeKey    = "cause"
	armKey      = "arm"
	inputsKey   = "inputs"
	outputsKey  = "outputs"
)

// A field is a key with a value that is not a tensor. Exactly one of time, count and text is set.
type field struct {
	key      string
	required bool
	time     func(*TracedQuery) *time.Duration // in ms in a record
	count    func(*TracedQuery) *int
	lo, hi   int // of a count
	text     func(*TracedQuery) *string
}

// fields are in the order in which they are written.
var fields = []field{
	{key: atKey, required: true, time: func(q *TracedQuery) *time.Duration { return &q.At }},
	{key: modelKey, required: true, text: func(q *TracedQuery) *string { return &q.Model }},
	{key: rowsKey, required: true, count: func(q *TracedQuery) *int { return &q.Rows }, lo: 1,
		hi: MaxRows},
	{key: usersKey, count: func(q *TracedQuery) *int { return &q.Users }, lo: 1, hi: MaxRows},
	{key: valuesKey, count: func(q *TracedQuery) *int { return &q.Values }, hi: maxValues},
	{key: deadlineKey, time: func(q *TracedQuery) *time.Duration { return &q.Deadline }},
	{key: clientKey, text: func(q *TracedQuery) *string { return &q.Client }},
	{key: versionKey, text: func(q *TracedQuery) *string { return &q.Version }},
	{key: outcomeKey, text: func(q *TracedQuery) *string { return &q.Outcome }},
	{key: latencyKey, time: func(q *TracedQuery) *time.Duration { return &q.Latency }},
	{key: agentKey, text: func(q *TracedQuery) *string { return &q.Agent }},
	{key: causeKey, text: func(q *TracedQuery) *string { return &q.Cause }},
	{key: armKey, text: func(q *TracedQuery) *string { return &q.Arm }},
}

// names are the keys of fields.
func names() (keys []string) {
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return keys
}

// isTold reports whether q says anything for the key.
func (f *field) isTold(q *TracedQuery) bool {
	switch {
	case f.required:
		return true
	case f.time != nil:
		return *f.time(q) != 0
	case f.count != nil:
		return *f.count(q) != 0
	}
	return *f.text(q) != ""
}

// setMs sets a time, in ms.
func (f *field) setMs(q *TracedQuery, ms float64) error {
	if !(ms >= 0 && ms <= float64(math.MaxInt64/int64(time.Millisecond))) {
		return fmt.Errorf("found %v, want a time of 0 ms or more", ms)
	}
	*f.time(q) = time.Duration(math.Round(ms * float64(time.Millisecond)))
	return nil
}

// toMs is a time in ms, which setMs reads as the same one.
func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (f *field) setCount(q *TracedQuery, n int64) error {
	if n < int64(f.lo) || n > int64(f.hi) {
		return fmt.Errorf("found %d, want an integer in %d..%d", n, f.lo, f.hi)
	}
	*f.count(q) = int(n)
	return nil
}

func (f *field) setText(q *TracedQuery, s string) error {
	switch {
	case s == "" && f.required:
		return fmt.Errorf("found no name")
	case len(s) > maxText:
		return fmt.Errorf("found %d bytes, want at most %d", len(s), maxText)
	}
	*f.text(q) = s
	return nil
}

// want says what values the key has.
func (f *field) want() string {
	switch {
	case f.time != nil:
		return "a number of ms"
	case f.count != nil:
		return "an integer in " + strconv.Itoa(f.lo) + ".." + strconv.Itoa(f.hi)
	}
	return "a string"
}

// An order checks that queries arrive in order.
type order struct{ last time.Duration }

func (o *order) check(at time.Duration) error {
	if at < o.last {
		return fmt.Errorf("found %v ms after %v ms, want arrivals in order", toMs(at), toMs(o.last))
	}
	o.last = at
	return nil
}
