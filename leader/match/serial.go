package match

import (
	"bytes"
	"fmt"
	"maps"
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
func (k EventKind) String() string { return name(kindNames, int(k)) }

// String returns the serial form of a.
func (a Action) String() string { return name(actionNames, int(a)) }

// String returns the serial form of r.
func (r Reason) String() string { return name(reasonNames, int(r)) }

// String returns "gateway/sequence".
func (id QueryID) String() string {
	return strconv.FormatUint(id.Gateway, 10) + "/" + strconv.FormatUint(id.Sequence, 10)
}

// The fields of events, in one place for writer and reader. kindFields has those of each kind of
// event in the order in which a line has them; prices, and the queries that a lane holds, are
// written apart.
var (
	queryField = lines.QueryField("query", func(e *Event) (gateway, sequence *uint64) {
		return &e.Query.Gateway, &e.Query.Sequence
	})
	attemptField = lines.IntField("attempt", func(e *Event) *int { return &e.Attempt })
	laneField    = &lines.Field[Event]{Key: "lane", Append: func(b []byte, e *Event) []byte {
		return lines.Number(b, "lane", int(e.Lane))
	}, Set: setLane}
	// anyLaneField is absent where no lane is named.
	anyLaneField = &lines.Field[Event]{Key: "lane", Append: func(b []byte, e *Event) []byte {
		return lines.Int(b, "lane", int(e.Lane))
	}, Set: setLane}
	modelField = &lines.Field[Event]{Key: "model", Append: func(b []byte, e *Event) []byte {
		return lines.Text(b, "model", e.Model)
	}, Set: setModel}
	modelsField = &lines.Field[Event]{Key: "model", Append: func(b []byte, e *Event) []byte {
		for _, m := range e.Models {
			b = lines.Item(b, "model", m)
		}
		return b
	}, Set: setModel}
	typeField      = lines.TextField("type", func(e *Event) *names.LaneType { return &e.Type })
	splitsField    = lines.FlagField("splits", "yes", func(e *Event) *bool { return &e.Splits })
	remainingField = lines.DurationField("remaining",
		func(e *Event) *time.Duration { return &e.Remaining })
	attemptFields = lines.Form[Event]{queryField, attemptField, laneField, remainingField}

	kindFields = map[EventKind]lines.Form[Event]{
		Submitted: {
			queryField, attemptField, anyLaneField, modelField,
			lines.IntField("batch", func(e *Event) *int { return &e.BatchSize }),
			lines.IntField("rows", func(e *Event) *int { return &e.Rows }),
			lines.IntField("once", func(e *Event) *int { return &e.Once }),
			lines.DurationField("waited", func(e *Event) *time.Duration { return &e.Waited }),
			lines.DurationField("time_left", func(e *Event) *time.Duration { return &e.TimeLeft }),
			splitsField,
			lines.ShareField("least_accuracy",
				func(e *Event) *float64 { return &e.LeastAccuracy }),
			lines.IntField("band", func(e *Event) *int { return &e.Band }),
			lines.TextField("tenant", func(e *Event) *string { return &e.Tenant }),
			WeightField(func(e *Event) *float64 { return &e.Weight }),
		},
		LaneHas:   {laneField, remainingField},
		Cancelled: {queryField},
		Completed: attemptFields,
		Refused:   attemptFields,
		Unused:    attemptFields,
		GatewayLost: {
			lines.GatewayField(func(e *Event) *uint64 { return &e.Query.Gateway }),
		},
		LaneLost:      {laneField},
		LaneDraining:  {laneField},
		LaneRemaining: {laneField, remainingField},
		LaneEnds:      {laneField, remainingField},
		LaneJoined: {
			laneField,
			lines.TextField("agent", func(e *Event) *names.AgentName { return &e.Agent }),
			typeField, modelsField, remainingField,
		},
		LaneModels: {laneField, typeField, modelsField},
		ModelChanged: {
			modelField,
			lines.DurationField("target", func(e *Event) *time.Duration { return &e.QoSTarget }),
			lines.IntField("largest", func(e *Event) *int { return &e.BatchSize }),
			lines.FlagField("late", "reject", func(e *Event) *bool { return &e.RejectLate }),
			splitsField,
			lines.TextField("merge", func(e *Event) *Merge { return &e.Merge }),
			lines.TextField("family", func(e *Event) *names.ModelKey { return &e.Family }),
			lines.ShareField("accuracy", func(e *Event) *float64 { return &e.Accuracy }),
		},
		ModelGone: {modelField},
		AheadChanged: {
			lines.DurationField("ahead", func(e *Event) *time.Duration { return &e.Ahead }),
		},
		ProfileChanged: {
			modelField, typeField,
			{Key: "table", Append: func(b []byte, e *Event) []byte {
				if e.Table == nil {
					return b
				}
				return e.Table.Append(append(b, " table="...))
			}, Set: func(e *Event, value string) (err error) {
				e.Table, err = ParseTable(value)
				return err
			}},
			lines.FlagField("sure", "no", func(e *Event) *bool { return &e.Doubtful }),
			lines.FlagField("more", "yes", func(e *Event) *bool { return &e.More }),
		},
	}
	// anyFields are those of all kinds: a reader takes each with any kind.
	anyFields = slices.Concat(slices.Collect(maps.Values(kindFields))...)

	heldFields = lines.Form[Held]{
		lines.QueryField("query", func(h *Held) (gateway, sequence *uint64) {
			return &h.Query.Gateway, &h.Query.Sequence
		}),
		lines.IntField("attempt", func(h *Held) *int { return &h.Attempt }),
		lines.TextField("model", func(h *Held) *names.ModelKey { return &h.Model }),
		lines.IntField("batch", func(h *Held) *int { return &h.BatchSize }),
	}
)

// WeightField is the field of a tenant's weight in an event; 0 is left out.
func WeightField[T any](at func(*T) *float64) *lines.Field[T] {
	return &lines.Field[T]{
		Key: "weight",
		Append: func(b []byte, e *T) []byte {
			if *at(e) == 0 {
				return b
			}
			return strconv.AppendFloat(append(b, " weight="...), *at(e), 'g', -1, 64)
		},
		Set: func(e *T, value string) (err error) {
			if *at(e), err = strconv.ParseFloat(value, 64); err == nil && !isWeight(*at(e)) {
				err = fmt.Errorf("got %s, want a weight above 0", value)
			}
			return err
		},
	}
}

func setLane(e *Event, value string) error {
	number, err := strconv.ParseUint(value, 10, 32)
	e.Lane = LaneID(number)
	return err
}

// setModel sets the model of an event, or adds to those of its lane.
func setModel(e *Event, value string) error {
	if e.Kind == LaneJoined || e.Kind == LaneModels {
		e.Models = append(e.Models, names.ModelKey(value))
	} else {
		e.Model = names.ModelKey(value)
	}
	return nil
}

// AppendEvent appends the serial form of e, which happened at the given time
// since the start of a run, without a newline.
func AppendEvent(b []byte, at time.Duration, e *Event) []byte {
	b = append(b, at.String()...)
	b = append(b, ' ')
	b = append(b, e.Kind.String()...)
	b = kindFields[e.Kind].Append(b, e)
	switch e.Kind {
	case LaneHas:
		for i := range e.Holds {
			b = heldFields.Append(b, &e.Holds[i])
		}
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

// Append appends the serial form of t.
func (t *LatencyTable) Append(b []byte) []byte {
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
func ParseTable(s string) (*LatencyTable, error) {
	t := &LatencyTable{mean: []float64{0}, safe: []float64{0}, tail: []float64{0}}
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
	e.Kind = EventKind(kind)
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
	switch {
	case e.Kind == LaneHas && (key == "query" || len(e.Holds) > 0 && heldFields.Has(key)):
		if key == "query" {
			e.Holds = append(e.Holds, Held{})
		}
		err = heldFields.Set(&e.Holds[len(e.Holds)-1], key, value)
	case e.Kind == PricesChanged && key == "type":
		e.Prices = append(e.Prices, fluid.Price{Type: names.LaneType(value)})
	case slices.Contains([]string{"class", "holds", "per_ms", "service"}, key):
		if len(e.Prices) == 0 {
			return fmt.Errorf("%s before any type", key)
		}
		err = SetPriceField(&e.Prices[len(e.Prices)-1], key, value)
	default:
		err = anyFields.Set(e, key, value)
	}
	if err == lines.ErrNoField {
		return fmt.Errorf("key %q is unknown", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
