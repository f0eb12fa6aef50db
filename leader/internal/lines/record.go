package lines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// A recording has one or more parts. Each part is a header line, a line "config " with settings as
// JSON, and then its events, one line each. The line of an event begins with its time; the lines of
// the decisions or actions that it led to follow it.
const configPrefix = "config "

// A Recorder writes a recording.
type Recorder struct {
	w    *bufio.Writer
	line []byte
}

// NewRecorder returns a recorder, and writes the header and the settings of its first part.
func NewRecorder(w io.Writer, header string, settings any) (*Recorder, error) {
	r := &Recorder{w: bufio.NewWriter(w)}
	data, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(r.w, "%s\n%s%s\n", header, configPrefix, data)
	return r, err
}

// Write writes the lines that add appends to its argument.
func (r *Recorder) Write(add func(b []byte) []byte) error {
	r.line = add(r.line[:0])
	_, err := r.w.Write(r.line)
	return err
}

// Flush writes buffered lines to the underlying writer.
func (r *Recorder) Flush() error { return r.w.Flush() }

// A Replayed is the outcome of replaying a recording.
type Replayed struct {
	Policy    string `json:"policy"` // the policy of the last part
	Events    int    `json:"events"`
	Decisions int    `json:"decisions"`
	// Duration is from the start of the last part to its last event.
	Duration time.Duration `json:"-"`
}

// A Player replays one event, given as its line. It returns when the event happened and the lines
// that it leads to now.
type Player func(line []byte) (at time.Duration, decided []byte, err error)

// Begin reads the settings of a part and returns its policy and a Player for its events.
type Begin func(settings *json.Decoder) (policy string, p Player, err error)

// Replay feeds the events of a recording to new players, one for each part, and compares the lines
// that they return with the recorded ones, byte for byte. The error names the first line that
// differs.
func Replay(r io.Reader, header string, begin Begin) (*Replayed, error) {
	in := &lineReader{s: bufio.NewScanner(r), header: header}
	in.s.Buffer(nil, 1<<26) // latency tables are one line
	if in.next(); in.text != header {
		return nil, in.fault("got %.80q, want %q", in.text, header)
	}
	out := &Replayed{}
	for !in.end {
		if err := out.part(in, begin); err != nil {
			return nil, err
		}
	}
	if in.s.Err() != nil {
		return nil, in.fault("%w", in.s.Err())
	}
	if out.Events == 0 {
		return nil, in.fault("the recording has no events")
	}
	return out, nil
}

// part replays one part. in has read its header.
func (out *Replayed) part(in *lineReader, begin Begin) error {
	in.next()
	data, ok := strings.CutPrefix(in.text, configPrefix)
	if !ok {
		return in.fault("got %.80q, want %q and the settings as JSON", in.text, configPrefix)
	}
	decoder := json.NewDecoder(strings.NewReader(data))
	decoder.DisallowUnknownFields()
	policy, player, err := begin(decoder)
	if err != nil {
		return in.fault("settings: %w", err)
	}
	out.Policy = policy
	in.next()
	for !in.end && in.text != in.header {
		at, decided, err := player([]byte(in.text))
		if err != nil {
			return in.fault("%w", err)
		}
		out.Events++
		out.Duration = at
		eventLine := in.text
		for rest := decided; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if in.next(); in.end || in.text != string(rest[:i]) {
				return in.fault("after %.200q the recording has %.200q, the matcher decides %.200q",
					eventLine, in.text, rest[:i])
			}
			out.Decisions++
			rest = rest[i+1:]
		}
		event := func() bool { return in.text != "" && in.text[0] >= '0' && in.text[0] <= '9' }
		if in.next(); !in.end && in.text != in.header && !event() {
			return in.fault(
				"after %.200q the recording has %.200q, the matcher decides nothing more",
				eventLine, in.text)
		}
	}
	return nil
}

// A lineReader reads lines and counts them, for errors.
type lineReader struct {
	s      *bufio.Scanner
	header string
	n      int
	text   string
	end    bool
}

func (l *lineReader) next() {
	l.n++
	l.end = !l.s.Scan()
	l.text = l.s.Text()
}

func (l *lineReader) fault(format string, args ...any) error {
	return fmt.Errorf("line %d: %w", l.n, fmt.Errorf(format, args...))
}
