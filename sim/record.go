package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// A recording is match.SerialHeader, a line "config " with the match.Config as
// JSON, and then each event on a line of its own, in match's serial form,
// followed by the lines of the decisions that it led to.
const configPrefix = "config "

// A recorder writes a recording. A nil recorder writes nothing.
type recorder struct {
	w    *bufio.Writer
	line []byte
}

func newRecorder(w io.Writer, cfg *match.Config) (*recorder, error) {
	if w == nil {
		return nil, nil
	}
	r := &recorder{w: bufio.NewWriter(w)}
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(r.w, "%s\n%s%s\n", match.SerialHeader, configPrefix, data)
	return r, err
}

func (r *recorder) step(at time.Duration, e *match.Event, decisions []match.Decision) error {
	if r == nil {
		return nil
	}
	r.line = append(match.AppendEvent(r.line[:0], at, e), '\n')
	r.line = appendDecisions(r.line, decisions)
	_, err := r.w.Write(r.line)
	return err
}

func (r *recorder) flush() error {
	if r == nil {
		return nil
	}
	return r.w.Flush()
}

func appendDecisions(b []byte, decisions []match.Decision) []byte {
	for i := range decisions {
		b = append(match.AppendDecision(b, &decisions[i]), '\n')
	}
	return b
}

// A Replayed recording is what a new matcher made of its events.
type Replayed struct {
	Policy    string        `json:"policy"`
	Events    int           `json:"events"`
	Decisions int           `json:"decisions"`
	Duration  time.Duration `json:"-"`
}

// Replay feeds a recording's events to a new matcher and compares its decisions
// with the recorded ones, byte for byte. The error names the first line that differs.
func Replay(r io.Reader) (*Replayed, error) {
	in := &lineReader{s: bufio.NewScanner(r)}
	in.s.Buffer(nil, 1<<24) // a latency table is one line
	if in.next(); in.text != match.SerialHeader {
		return nil, in.fault("got %.80q, want %q", in.text, match.SerialHeader)
	}
	var cfg match.Config
	in.next()
	data, ok := strings.CutPrefix(in.text, configPrefix)
	if !ok {
		return nil, in.fault("got %.80q, want %q and the matcher's settings as JSON", in.text, configPrefix)
	}
	decoder := json.NewDecoder(strings.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&cfg); err != nil {
		return nil, in.fault("settings: %w", err)
	}
	m, err := match.New(cfg)
	if err != nil {
		return nil, in.fault("%w", err)
	}
	out := &Replayed{Policy: cfg.Policy}
	var decided []byte
	in.next()
	for !in.end {
		at, e, err := match.ParseEvent([]byte(in.text))
		if err != nil {
			return nil, in.fault("%w", err)
		}
		out.Events++
		out.Duration = at
		eventLine := in.text
		decisions, _, err := m.Step(epoch.Add(at), &e)
		if err != nil {
			return nil, in.fault("%w", err)
		}
		decided = appendDecisions(decided[:0], decisions)
		for rest := decided; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if in.next(); in.end || in.text != string(rest[:i]) {
				return nil, in.fault("after %.200q the recording has %.200q, the matcher decides %.200q", eventLine, in.text, rest[:i])
			}
			out.Decisions++
			rest = rest[i+1:]
		}
		if in.next(); !in.end && !(in.text != "" && in.text[0] >= '0' && in.text[0] <= '9') {
			return nil, in.fault("after %.200q the recording has %.200q, the matcher decides nothing more", eventLine, in.text)
		}
	}
	if in.s.Err() != nil {
		return nil, in.fault("%w", in.s.Err())
	}
	if out.Events == 0 {
		return nil, errors.New("the recording has no events")
	}
	return out, nil
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
