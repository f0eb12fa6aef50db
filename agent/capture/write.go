package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/muster-serve/muster/api/querytrace"
)

const (
	// maxSegmentBytes is the default of Config.SegmentBytes. Chosen: 1 to 3 MB
	// compressed, which clouds take in one request.
	maxSegmentBytes = 8 << 20
	// flushWait is the default of Config.Flush. Chosen: a crash loses a minute, and a folder of a
	// day has 1,440 files of an agent at least.
	flushWait = time.Minute
	// retryWait is the default of Config.RetryWait, and writeTimeout of Config.WriteTimeout. Chosen:
	// a store that is back is used soon, and takes a file within half a minute at .1 MB/s.
	retryWait, writeTimeout = 5 * time.Second, 30 * time.Second
	// closeTimeout bounds the last writes. Chosen: an agent that stops has drained, and nobody waits
	// for its captures.
	closeTimeout = 5 * time.Second
)

// epoch is from when on the arrivals in a record count.
var epoch = time.Unix(0, 0)

// A segment is the lines that become one file.
type segment struct {
	lines []recordLine
	size  int
}

type recordLine struct {
	at   time.Duration
	text []byte
}

// add adds a query, unless the format cannot say it.
func (s *segment) add(q querytrace.TracedQuery) error {
	var b bytes.Buffer
	if err := querytrace.NewWriter(&b).Write(q); err != nil {
		return err
	}
	s.lines = append(s.lines, recordLine{q.At, b.Bytes()})
	s.size += b.Len()
	return nil
}

// A file is a segment in the form in which it is written.
type file struct {
	name    string // as FileName makes it
	data    []byte
	queries int
}

// seal makes the file of the lines, in order of arrival, and empties the segment.
func (s *segment) seal(agent string, encoder *zstd.Encoder) *file {
	slices.SortStableFunc(s.lines, func(a, b recordLine) int { return int(a.at - b.at) })
	var text []byte
	for _, l := range s.lines {
		text = append(text, l.text...)
	}
	f := &file{
		name: FileName(epoch.Add(s.lines[0].at), agent), data: encoder.EncodeAll(text, nil),
		queries: len(s.lines),
	}
	*s = segment{}
	return f
}

// write writes what is queued until Close.
func (r *Recorder) write() {
	defer close(r.ended)
	w := newWriter(r)
	flush := time.NewTicker(r.config.Flush)
	defer flush.Stop()
	retry := time.NewTicker(r.config.RetryWait)
	defer retry.Stop()
	for {
		select {
		case q, open := <-r.queue:
			if !open {
				w.close()
				return
			}
			w.take(q)
		case <-flush.C:
			w.flush()
		case <-retry.C:
			if w.pending != nil {
				w.send()
			}
		}
	}
}

// A writer is what the goroutine of a Recorder works on.
type writer struct {
	*Recorder
	encoder *zstd.Encoder
	current segment
	// pending could not be written yet. Until it is, current fills up, and then queries are dropped.
	pending *file
	failing bool
}

func newWriter(r *Recorder) *writer {
	// The error is of options, which are fixed.
	encoder, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return &writer{Recorder: r, encoder: encoder}
}

// take adds a query to the current segment.
func (w *writer) take(q *Query) {
	defer w.queued.Add(-q.bytes())
	defer q.Request.Release()
	if w.current.size >= w.config.SegmentBytes { // which can wait no longer than pending
		w.countDropped(unwritable, 1)
		return
	}
	if err := w.current.add(q.toRecord(w.config.Key)); err != nil {
		w.config.Log.Debug("a query cannot be kept", "model", q.Request.Model, "error", err)
		w.countDropped(noRecord, 1)
	}
	if w.current.size >= w.config.SegmentBytes {
		w.flush()
	}
}

// flush writes the current segment, unless another waits to be written.
func (w *writer) flush() {
	if w.pending != nil || len(w.current.lines) == 0 {
		return
	}
	w.pending = w.current.seal(w.config.Agent, w.encoder)
	w.send()
}

// send tries to write the pending file, and the current segment if that has no room left.
func (w *writer) send() {
	f := w.pending
	ctx, cancel := context.WithTimeout(context.Background(), w.config.WriteTimeout)
	err := w.config.Sink.Write(ctx, f.name, f.data)
	cancel()
	switch {
	case errors.Is(err, ErrBudget):
		w.countDropped(overBudget, f.queries)
	case err != nil:
		if !w.failing {
			w.config.Log.Warn("captured queries cannot be written; the agent tries again, and drops "+
				"those for which it has no room meanwhile", "to", w.config.Sink.String(), "error", err)
		}
		w.failing = true
		return
	default:
		w.kept.Add(float64(f.queries))
		w.written.Add(float64(len(f.data)))
		if w.failing {
			w.config.Log.Info("captured queries are written again", "to", w.config.Sink.String())
		}
	}
	w.failing, w.pending = false, nil
	if w.current.size >= w.config.SegmentBytes {
		w.flush()
	}
}

// close writes what is left, and counts what it cannot write.
func (w *writer) close() {
	w.config.WriteTimeout = min(w.config.WriteTimeout, closeTimeout)
	if w.pending != nil {
		w.send()
	}
	w.flush()
	lost := len(w.current.lines)
	if w.pending != nil {
		lost += w.pending.queries
	}
	w.countDropped(unwritable, lost)
	w.encoder.Close()
}

// FileName is the name of a file of queries, the first of which arrived at the given time: by the
// hour, so that those of a time are found by their prefix.
func FileName(first time.Time, agent string) string {
	first = first.UTC()
	return fmt.Sprintf("%s%s/%s-%s%s", prefix, first.Format("2006-01-02/15"),
		first.Format("20060102T150405.000000000Z"), agent, Suffix)
}

// prefix begins the names of files, and Suffix ends them: a bucket may have other things, too.
const prefix, Suffix = "captures/", ".jsonl.zst"
