package match

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/fluid"
	"github.com/muster-serve/muster/leader/internal/lines"
)

// The serial form has one line per event or decision: its kind, then key=value fields in a fixed
// order. A field is absent if its value is the zero of its type. Lines of events start with the
// time since the start of a run. The fields of events are written exactly, so that a matcher
// decides the same again; the floats of decisions are rounded to six digits. Queries are written
// gateway/sequence. Names that contain spaces are quoted.
//
//	12.5ms submitted query=1/7 model=rm2 batch=120 waited=1ms time_left=3.5s
//	12.5ms completed query=1/3 attempt=1 lane=4 remaining=0s
//	0s model model=rm2 target=350ms largest=1000
//	0s profile model=rm2 type=t3.xlarge table=10:3.1ms/3.3ms,20:4.2ms/4.4ms
//	assign query=1/7 attempt=1 lane=4 reason=matched cost=0.31 latency=30ms waited=1ms wait=0s slack=319ms
//
// A table lists, for each run of batch sizes with equal latencies, the last batch size of the run,
// the mean, the 80 % quantile, and the 99 % quantile if it differs from that.

var kindNames = []string{"time-passed", "submitted", "cancelled", "completed", "refused",
	"lane-has", "unused", "gateway-lost",
	"lane-joined", "lane-lost", "lane-draining", "lane-models", "lane-remaining", "profile",
	"prices", "model", "ahead", "lane-ends", "model-gone"}

var actionNames = []string{"assign", "reject", "offer-again", "ask", "split"}

var reasonNames = []string{"matched", "late", "deadline-passed", "unknown-model", "bad-batch-size",
	"overloaded", "too-many-attempts",
	"lane-refused", "lane-gone", "lane-overdue", "least-accuracy", "limit"}

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// String returns the serial form of k.
func (k Kind) String() string { return name(kindNames, int(k)) }

// String returns the serial form of a.
func (a Action) String() string { return name(actionNames, int(a)) }

// String returns the serial form of r.
func (r Reason) String() string { return name(reasonNames, int(r)) }

// String returns "gateway/sequence".
func (id QueryID) String() string {
	return strconv.FormatUint(id.Gateway, 10) + "/" + strconv.FormatUint(id.Sequence, 10)
}

// AppendEvent appends the serial form of e, which happened at the given time
// since the start of a run, without a newline.
func AppendEvent(b []byte, at time.Duration, e *Event) []byte {
	b = append(b, at.String()...)
	b = append(b, ' ')
	b = append(b, e.Kind.String()...)
	switch e.Kind {
	case Submitted:
		b = appendQuery(b, e.Query)
		b = lines.Int(b, "attempt", e.Attempt)
		if e.Lane != 0 {
			b = lines.Number(b, "lane", int(e.Lane))
		}
		b = lines.Text(b, "model", e.Model)
		b = lines.Int(b, "batch", e.BatchSize)
		b = lines.Duration(b, "waited", e.Waited)
		b = lines.Duration(b, "time_left", e.TimeLeft)
		b = lines.Flag(b, "splits", "yes", e.Splits)
		b = lines.Float(b, "least_accuracy", e.LeastAccuracy)
	case LaneHas:
		b = lines.Number(b, "lane", int(e.Lane))
		b = lines.Duration(b, "remaining", e.Remaining)
		for i := range e.Holds {
			h := &e.Holds[i]
			b = appendQuery(b, h.Query)
			b = lines.Int(b, "attempt", h.Attempt)
			b = lines.Text(b, "model", h.Model)
			b = lines.Int(b, "batch", h.BatchSize)
		}
	case Cancelled:
		b = appendQuery(b, e.Query)
	case Completed, Refused, Unused:
		b = appendQuery(b, e.Query)
		b = lines.Int(b, "attempt", e.Attempt)
		b = lines.Number(b, "lane", int(e.Lane))
		b = lines.Duration(b, "remaining", e.Remaining)
	case GatewayLost:
		b = strconv.AppendUint(append(b, " gateway="...), e.Query.Gateway, 10)
	case LaneLost, LaneDraining:
		b = lines.Number(b, "lane", int(e.Lane))
	case LaneRemaining, LaneEnds:
		b = lines.Number(b, "lane", int(e.Lane))
		b = lines.Duration(b, "remaining", e.Remaining)
	case LaneJoined:
		b = lines.Number(b, "lane", int(e.Lane))
		b = lines.Text(b, "agent", e.Agent)
		b = lines.Text(b, "type", e.Type)
		b = appendModels(b, e.Models)
		b = lines.Duration(b, "remaining", e.Remaining)
	case LaneModels:
		b = lines.Number(b, "lane", int(e.Lane))
		b = lines.Text(b, "type", e.Type)
		b = appendModels(b, e.Models)
	case ModelChanged:
		b = lines.Text(b, "model", e.Model)
		b = lines.Duration(b, "target", e.QoSTarget)
		b = lines.Int(b, "largest", e.BatchSize)
		b = lines.Flag(b, "late", "reject", e.RejectLate)
		b = lines.Flag(b, "splits", "yes", e.Splits)
		b = lines.Text(b, "merge", e.Merge)
		b = lines.Text(b, "family", e.Family)
		b = lines.Float(b, "accuracy", e.Accuracy)
	case ModelGone:
		b = lines.Text(b, "model", e.Model)
	case AheadChanged:
		b = lines.Duration(b, "ahead", e.Ahead)
	case ProfileChanged:
		b = lines.Text(b, "model", e.Model)
		b = lines.Text(b, "type", e.Type)
		if e.Table != nil {
			b = append(b, " table="...)
			b = e.Table.Append(b)
		}
		b = lines.Flag(b, "sure", "no", e.Doubtful)
		b = lines.Flag(b, "more", "yes", e.More)
	case PricesChanged:
		for _, p := range e.Prices {
			b = lines.Item(b, "type", p.Type)
			b = AppendPriceFields(b, &p)
		}
	}
	return b
}

// AppendDecision appends the serial form of d, without a newline.
func AppendDecision(b []byte, d *Decision) []byte {
	b = append(b, d.Action.String()...)
	if d.Action != Ask {
		b = appendQuery(b, d.Query)
	}
	b = lines.Int(b, "attempt", d.Attempt)
	if d.Action == Split {
		for _, rows := range d.Rows {
			b = lines.Number(b, "rows", rows)
		}
	} else if d.Action != Reject {
		b = lines.Number(b, "lane", int(d.Lane))
	}
	b = append(b, " reason="...)
	b = append(b, d.Reason.String()...)
	if d.Cost != 0 {
		b = append(b, " cost="...)
		b = strconv.AppendFloat(b, d.Cost, 'g', 6, 64)
	}
	b = appendRounded(b, "latency", d.Latency)
	b = appendRounded(b, "waited", d.Waited)
	b = appendRounded(b, "wait", d.Wait)
	b = appendRounded(b, "slack", d.Slack)
	if d.Family != "" {
		b = lines.Text(b, "variant", d.Model)
		b = lines.Float(b, "accuracy", d.Accuracy)
	}
	if d.Merge != 0 {
		b = lines.Int(lines.Int(b, "merge", int(d.Merge)), "merged", d.Merged)
	}
	return b
}

func appendQuery(b []byte, id QueryID) []byte {
	return lines.Query(b, "query", id.Gateway, id.Sequence)
}

// appendRounded rounds to a microsecond, because the last digits differ between CPUs.
func appendRounded(b []byte, key string, v time.Duration) []byte {
	return lines.Duration(b, key, v.Round(time.Microsecond))
}

func appendModels(b []byte, models []names.ModelKey) []byte {
	for _, m := range models {
		b = lines.Item(b, "model", m)
	}
	return b
}

// Append appends the serial form of t.
func (t *Table) Append(b []byte) []byte {
	for i := 1; i < len(t.mean); i++ {
		if i+1 < len(t.mean) && t.mean[i] == t.mean[i+1] && t.safe[i] == t.safe[i+1] &&
			t.tail[i] == t.tail[i+1] {
			continue
		}
		if b[len(b)-1] != '=' {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(append(b, ':'), t.Mean(i).String()...)
		b = append(append(b, '/'), t.P80(i).String()...)
		if t.tail[i] != t.safe[i] {
			b = append(append(b, '/'), fromMs(t.tail[i]).String()...)
		}
	}
	return b
}

// ParseTable is the inverse of Append.
func ParseTable(s string) (*Table, error) {
	t := &Table{mean: []float64{0}, safe: []float64{0}, tail: []float64{0}}
	for run := range strings.SplitSeq(s, ",") {
		last, latencies, _ := strings.Cut(run, ":")
		mean, safe, ok := strings.Cut(latencies, "/")
		if !ok {
			return nil, fmt.Errorf("table: got %q, want batch:mean/p80[/p99]", run)
		}
		safe, tail, ok := strings.Cut(safe, "/")
		if !ok {
			tail = safe
		}
		n, err := strconv.Atoi(last)
		if err != nil || n < len(t.mean) || n > MaxBatchSize {
			return nil, fmt.Errorf("table: got batch size %q after %d, want a larger one up to %d",
				last, len(t.mean)-1, MaxBatchSize)
		}
		a, err := time.ParseDuration(mean)
		if err != nil {
			return nil, fmt.Errorf("table: %w", err)
		}
		b, err := time.ParseDuration(safe)
		if err != nil {
			return nil, fmt.Errorf("table: %w", err)
		}
		c, err := time.ParseDuration(tail)
		if err != nil {
			return nil, fmt.Errorf("table: %w", err)
		}
		if a <= 0 || b < a || c < b {
			return nil, fmt.Errorf("table: got %q, want 0 < mean <= p80 <= p99", run)
		}
		for len(t.mean) <= n {
			t.mean, t.safe, t.tail = append(t.mean, toMs(a)), append(t.safe,
				toMs(b)), append(t.tail, toMs(c))
		}
	}
	return t, nil
}

// ParseEvent is the inverse of AppendEvent.
func ParseEvent(line []byte) (at time.Duration, e Event, err error) {
	fields, err := lines.Fields(string(bytes.TrimSpace(line)))
	if err != nil {
		return 0, e, fmt.Errorf("event %.80q: %w", line, err)
	}
	if len(fields) < 2 {
		return 0, e, fmt.Errorf("event %.80q: want a time and a kind", line)
	}
	if at, err = time.ParseDuration(fields[0]); err != nil {
		return 0, e, fmt.Errorf("event %.80q: %w", line, err)
	}
	kind := slices.Index(kindNames, fields[1])
	if kind < 0 {
		return 0, e, fmt.Errorf("event %.80q: kind %q is unknown, there are: %s", line, fields[1],
			strings.Join(kindNames, ", "))
	}
	e.Kind = Kind(kind)
	for _, f := range fields[2:] {
		if err := e.set(f); err != nil {
			return 0, e, fmt.Errorf("event %.80q: %w", line, err)
		}
	}
	return at, e, nil
}

// set sets the field of e that a key=value names.
func (e *Event) set(field string) error {
	key, value, err := lines.Split(field)
	if err != nil {
		return err
	}
	var number uint64
	query, attempt, batch, model := &e.Query, &e.Attempt, &e.BatchSize, &e.Model
	if e.Kind == LaneHas && (key == "query" || len(e.Holds) > 0) {
		if key == "query" {
			e.Holds = append(e.Holds, Held{})
		}
		h := &e.Holds[len(e.Holds)-1]
		query, attempt, batch, model = &h.Query, &h.Attempt, &h.BatchSize, &h.Model
	}
	switch key {
	case "query":
		query.Gateway, query.Sequence, err = lines.ParseQuery(value)
	case "gateway":
		e.Query.Gateway, err = strconv.ParseUint(value, 10, 64)
	case "lane":
		number, err = strconv.ParseUint(value, 10, 32)
		e.Lane = LaneID(number)
	case "attempt":
		*attempt, err = strconv.Atoi(value)
	case "batch", "largest":
		*batch, err = strconv.Atoi(value)
	case "target":
		e.QoSTarget, err = time.ParseDuration(value)
	case "sure":
		if e.Doubtful = true; value != "no" {
			err = fmt.Errorf("got %s, want no", value)
		}
	case "more":
		if e.More = true; value != "yes" {
			err = fmt.Errorf("got %s, want yes", value)
		}
	case "late":
		if e.RejectLate = true; value != "reject" {
			err = fmt.Errorf("got %s, want reject", value)
		}
	case "merge":
		e.Merge = Merge(value)
	case "family":
		e.Family = names.ModelKey(value)
	case "accuracy":
		e.Accuracy, err = lines.ParseShare(value)
	case "least_accuracy":
		e.LeastAccuracy, err = lines.ParseShare(value)
	case "splits":
		if e.Splits = true; value != "yes" {
			err = fmt.Errorf("got %s, want yes", value)
		}
	case "ahead":
		e.Ahead, err = time.ParseDuration(value)
	case "model":
		if e.Kind == LaneJoined || e.Kind == LaneModels {
			e.Models = append(e.Models, names.ModelKey(value))
		} else {
			*model = names.ModelKey(value)
		}
	case "agent":
		e.Agent = names.AgentName(value)
	case "type":
		if e.Kind == PricesChanged {
			e.Prices = append(e.Prices, fluid.Price{Type: names.LaneType(value)})
		} else {
			e.Type = names.LaneType(value)
		}
	case "class", "holds", "per_ms", "service":
		if len(e.Prices) == 0 {
			return fmt.Errorf("%s before any type", key)
		}
		err = SetPriceField(&e.Prices[len(e.Prices)-1], key, value)
	case "waited":
		e.Waited, err = time.ParseDuration(value)
	case "time_left":
		e.TimeLeft, err = time.ParseDuration(value)
	case "remaining":
		e.Remaining, err = time.ParseDuration(value)
	case "table":
		e.Table, err = ParseTable(value)
	default:
		return fmt.Errorf("key %q is unknown", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
