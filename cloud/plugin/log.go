package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
)

// maxLine is how much of a line is kept, in bytes.
const maxLine = 16 << 10

// logLines takes the error output of a provider's process: lines of its log as JSON become lines of
// log, and others become warnings. It is used by one goroutine.
type logLines struct {
	log   *slog.Logger
	line  []byte // what has come of the next line
	first string // the first line since the log's last one, such as that of a panic
}

func (l *logLines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		l.line = append(l.line, line[:min(len(line), maxLine-len(l.line))]...)
		if !whole {
			return n, nil
		}
		l.flushLine()
		b = rest
	}
}

// flushLine takes what has come as a line.
func (l *logLines) flushLine() {
	line := bytes.TrimSpace(l.line)
	l.line = nil
	if len(line) == 0 {
		return
	}
	record, err := parseLine(line)
	if err != nil {
		if l.first == "" {
			l.first = fmt.Sprintf("%.500s", line)
		}
		l.log.Warn("the provider wrote a line that is no log record", "line", string(line))
		return
	}
	l.first = ""
	if ctx := context.Background(); l.log.Enabled(ctx, record.Level) {
		_ = l.log.Handler().Handle(ctx, record)
	}
}

// parseLine reads what slog's JSON handler writes, with its attributes in order.
func parseLine(line []byte) (record slog.Record, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return record, fmt.Errorf("no object: %v", err)
	}
	for d.More() {
		key, err := d.Token() // a string, or an error
		if err != nil {
			return record, err
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return record, err
		}
		text, _ := value.(string)
		switch key {
		case slog.TimeKey:
			record.Time, err = time.Parse(time.RFC3339Nano, text)
		case slog.LevelKey:
			err = record.Level.UnmarshalText([]byte(text))
		case slog.MessageKey:
			record.Message = text
		default:
			record.AddAttrs(slog.Any(fmt.Sprint(key), value))
		}
		if err != nil {
			return record, err
		}
	}
	if record.Message == "" || record.Time.IsZero() {
		return record, fmt.Errorf("no %s or %s", slog.TimeKey, slog.MessageKey)
	}
	return record, nil
}
