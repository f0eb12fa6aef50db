package sim

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"github.com/muster-serve/muster/sim/fleet"
)

// A queryLog writes each query's outcome as CSV, in the order in which outcomes become known.
type queryLog struct {
	w   *csv.Writer
	row []string
}

func newQueryLog(w io.Writer) (*queryLog, error) {
	l := &queryLog{w: csv.NewWriter(w)}
	return l, l.w.Write([]string{
		"query", "model", "batch_size", "arrival_ms", "outcome", "on_time", "latency_ms",
		"waited_ms", "lane", "instance_type",
	})
}

func (l *queryLog) write(r *simulation, seq uint64, q *query, o Outcome, onTime bool,
	by fleet.Answer) error {
	ms := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1e6, 'f', 6, 64) }
	l.row = append(l.row[:0],
		strconv.FormatUint(seq, 10), r.models[q.model].Name, strconv.Itoa(int(q.batch)),
		ms(q.arrival),
		o.String(), strconv.FormatBool(onTime), ms(r.now-q.arrival))
	if o == Served {
		l.row = append(l.row, ms(by.Start-q.arrival), strconv.Itoa(by.Lane),
			r.types[r.lanes[by.Lane].instanceType])
	} else {
		l.row = append(l.row, "", "", "")
	}
	return l.w.Write(l.row)
}

func (l *queryLog) flush() error {
	l.w.Flush()
	return l.w.Error()
}
