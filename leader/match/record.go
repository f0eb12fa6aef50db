package match

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// A recording is [SerialHeader], a line "config " with the [Config] as JSON, and
// then each event on a line of its own, in the serial form, followed by the lines of the
// decisions that it led to. Where the header stands again, another matcher begins.
const configPrefix = "config "

// A Recorder writes a recording.
type Recorder struct {
	w    *bufio.Writer
	line []byte
}

// NewRecorder returns a recorder of what a new matcher of these settings does.
func NewRecorder(w io.Writer, cfg *Config) (*Recorder, error) {
	r := &Recorder{w: bufio.NewWriter(w)}
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(r.w, "%s\n%s%s\n", SerialHeader, configPrefix, data)
	return r, err
}

// Step writes one step of the matcher: its event, at the given time since the
// start of the recording, and what it decided.
func (r *Recorder) Step(at time.Duration, e *Event, decisions []Decision) error {
	r.line = append(AppendEvent(r.line[:0], at, e), '\n')
	r.line = appendDecisions(r.line, decisions)
	_, err := r.w.Write(r.line)
	return err
}

// Flush writes out what is buffered.
func (r *Recorder) Flush() error { return r.w.Flush() }

func appendDecisions(b []byte, decisions []Decision) []byte {
	for i := range decisions {
		b = append(AppendDecision(b, &decisions[i]), '\n')
	}
	return b
}

// A Replayed recording is what new matchers made of its events.
type Replayed struct {
	Policy    string `json:"policy"` // of the last matcher
	Events    int    `json:"events"`
	Decisions int    `json:"decisions"`
	// Duration is from the start of the last matcher's part to its last event.
	Duration time.Duration `json:"-"`
}

// Replay feeds a recording's events to a new matcher and compares its decisions
// with the recorded ones, byte for byte. The error names the first line that differs.
func Replay(r io.Reader) (*Replayed, error) {
	in := &lineReader{s: bufio.NewScanner(r)}
	in.s.Buffer(nil, 1<<24) // a latency table is one line
	if in.next(); in.text != SerialHeader {
		return nil, in.fault("got %.80q, want %q", in.text, SerialHeader)
	}
	out := &Replayed{}
	for !in.end {
		if err := out.part(in); err != nil {
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

// part replays what one matcher did, of which in has read the header.
func (out *Replayed) part(in *lineReader) error {
	var cfg Config
	in.next()
	data, ok := strings.CutPrefix(in.text, configPrefix)
	if !ok {
		return in.fault("got %.80q, want %q and the matcher's settings as JSON", in.text, configPrefix)
	}
	decoder := json.NewDecoder(strings.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&cfg); err != nil {
		return in.fault("settings: %w", err)
	}
	m, err := New(cfg)
	if err != nil {
		return in.fault("%w", err)
	}
	out.Policy = m.cfg.Policy
	var decided []byte
	in.next()
	for !in.end && in.text != SerialHeader {
		at, e, err := ParseEvent([]byte(in.text))
		if err != nil {
			return in.fault("%w", err)
		}
		out.Events++
		out.Duration = at
		eventLine := in.text
		decisions, _, _ := m.Step(time.Unix(0, 0).Add(at), &e) // what was an error then, and ignored, is so again
		decided = appendDecisions(decided[:0], decisions)
		for rest := decided; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if in.next(); in.end || in.text != string(rest[:i]) {
				return in.fault("after %.200q the recording has %.200q, the matcher decides %.200q", eventLine, in.text, rest[:i])
			}
			out.Decisions++
			rest = rest[i+1:]
		}
		if in.next(); !in.end && in.text != SerialHeader && !(in.text != "" && in.text[0] >= '0' && in.text[0] <= '9') {
			return in.fault("after %.200q the recording has %.200q, the matcher decides nothing more", eventLine, in.text)
		}
	}
	return nil
}

// A lineReader counts lines.
type lineReader struct {
	s    *bufio.Scanner
	n    int
	text string
	end  bool
}

func (l *lineReader) next() {
	l.n++
	l.end = !l.s.Scan()
	l.text = l.s.Text()
}

func (l *lineReader) fault(format string, args ...any) error {
	return fmt.Errorf("line %d: %w", l.n, fmt.Errorf(format, args...))
}
