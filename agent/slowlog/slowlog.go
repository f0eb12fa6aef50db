package slowlog

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/muster-serve/muster/api/lateness"
)

const (
	// maxFileBytes is the size from which the file is kept as FILE.1, in place of an older one, and
	// begun anew: the log takes at most twice that. Chosen: an hour of a fleet in which all is late,
	// and weeks of one in which little is.
	maxFileBytes = 64 << 20
	// maxWaiting is how many lines may wait for the disk. Chosen: a disk that stands still for some
	// seconds loses none.
	maxWaiting = 256
	// maxID bounds the ids that clients send, in bytes. Chosen: ids have 16 to 64.
	maxID = 128
)

// A Query is one that was late, refused or failed.
type Query struct {
	Model, Version string // "" if they are not known
	Cause          lateness.Cause
	Agent          string // whose doing it is; "" if it is none's, or not known
	Reason         string // why it failed, as docs/metrics.md lists reasons; "" if it was answered
	Client         string // the name of who sent it; "" without one
	After, Target  time.Duration
	Spent          *lateness.Record // where its time went; nil if that is not known
	// ID is the id in the query. TraceID and RequestID are those in the headers traceparent and
	// x-request-id. Each is "" if the client sent none.
	ID, TraceID, RequestID string
}

// A line is the form of a Query in the log.
type line struct {
	Time      string             `json:"time"`
	Model     string             `json:"model"`
	Version   string             `json:"version,omitempty"`
	Cause     lateness.Cause     `json:"cause"`
	Agent     string             `json:"agent,omitempty"`
	Reason    string             `json:"reason,omitempty"`
	Client    string             `json:"client,omitempty"`
	TookMs    float64            `json:"took_ms"`
	TargetMs  float64            `json:"target_ms,omitempty"`
	SpentMs   map[string]float64 `json:"spent_ms,omitempty"`
	ID        string             `json:"id,omitempty"`
	TraceID   string             `json:"trace_id,omitempty"`
	RequestID string             `json:"request_id,omitempty"`
	LeftOut   uint64             `json:"left_out,omitempty"`
}

// format returns the line of a query, of whose cause leftOut were left out before it.
func format(q *Query, now time.Time, leftOut uint64) ([]byte, error) {
	l := line{
		Time: now.UTC().Format("2006-01-02T15:04:05.000Z"), Model: q.Model, Version: q.Version,
		Cause: q.Cause, Agent: q.Agent, Reason: q.Reason, Client: q.Client,
		TookMs: milliseconds(q.After), TargetMs: milliseconds(q.Target),
		ID: cut(q.ID), TraceID: cut(q.TraceID), RequestID: cut(q.RequestID), LeftOut: leftOut,
	}
	if q.Spent != nil {
		l.SpentMs = map[string]float64{}
		for c, part := range q.Spent.Parts {
			if ms := milliseconds(part); ms > 0 {
				l.SpentMs[lateness.Component(c).String()] = ms
			}
		}
	}
	text, err := json.Marshal(&l)
	return append(text, '\n'), err
}

// milliseconds rounds to microseconds.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

func cut(id string) string { return id[:min(len(id), maxID)] }

// A Log is an open log. Its goroutine writes the lines, and ends with Close. A nil Log writes
// nothing. The methods may be called concurrently; Note does not block.
type Log struct {
	path    string
	log     *slog.Logger
	maxFile int64
	lines   chan []byte
	ended   chan struct{}

	mu      sync.Mutex
	sampler sampler
	closed  bool
}

// Open opens the log in the file at path, to which it appends. Failures to write, later, are logged
// as warnings to log.
func Open(path string, log *slog.Logger) (*Log, error) {
	l := &Log{
		path: path, log: log, maxFile: maxFileBytes, lines: make(chan []byte, maxWaiting),
		ended: make(chan struct{}),
	}
	file, err := openFile(path)
	if err != nil {
		return nil, err
	}
	go l.write(file)
	return l, nil
}

// openFile opens a file to append to it. Its readers are its owner and group, since the names of
// models and clients are in it.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
}

// Note writes a query into the log, or leaves it out.
func (l *Log) Note(q *Query, now time.Time) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	leftOut, chosen := l.sampler.choose(q.Cause, now)
	if !chosen {
		return
	}
	text, err := format(q, now, leftOut)
	if err != nil {
		l.log.Debug("a query cannot be written to the slow log", "error", err)
		return
	}
	select {
	case l.lines <- text:
	default:
		l.sampler.leaveOut(q.Cause, leftOut+1)
	}
}

// Close writes what is waiting, and closes the file.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.lines)
	}
	l.mu.Unlock()
	<-l.ended
}

// write writes the lines until Close. After a failure it goes on with the next line.
func (l *Log) write(file *os.File) {
	defer close(l.ended)
	failing := false
	for text := range l.lines {
		next, err := l.append(file, text)
		file = next
		if err != nil && !failing {
			l.log.Warn("the slow log cannot be written; the agent goes on without its lines",
				"path", l.path, "error", err)
		}
		failing = err != nil
	}
	file.Close() // nil if it could not be opened
}

// append writes a line to file, which is begun anew if it is full, and returns the file to go on
// with; nil if there is none.
func (l *Log) append(file *os.File, text []byte) (*os.File, error) {
	var err error
	if file != nil {
		if info, bad := file.Stat(); bad == nil && info.Mode().IsRegular() &&
			info.Size()+int64(len(text)) > l.maxFile {
			err = errors.Join(file.Close(), os.Rename(l.path, l.path+".1"))
			file = nil
		}
	}
	if err == nil && file == nil {
		file, err = openFile(l.path)
	}
	if err != nil {
		return nil, err
	}
	_, err = file.Write(text)
	return file, err
}
