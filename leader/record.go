package leader

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// configPrefix begins the second line of a recorded term.
const configPrefix = "config "

// A Recorder writes a recording of terms. Each term is the line [Header], a line "config " with the
// [Config] as JSON, and then its events, one line each in the serial form, each followed by the
// lines of the actions that it led to.
type Recorder struct {
	w    *bufio.Writer
	line []byte
}

// NewRecorder returns a recorder for a new state with the settings cfg, and writes them.
func NewRecorder(w io.Writer, cfg *Config) (*Recorder, error) {
	r := &Recorder{w: bufio.NewWriter(w)}
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(r.w, "%s\n%s%s\n", Header, configPrefix, data)
	return r, err
}

// Step writes one step of the state: its event, at the given time since the term began, and the
// actions.
func (r *Recorder) Step(now time.Duration, e *Event, actions []Action) error {
	r.line = appendActions(append(AppendEvent(r.line[:0], now, e), '\n'), actions)
	_, err := r.w.Write(r.line)
	return err
}

// Flush writes out what is buffered.
func (r *Recorder) Flush() error { return r.w.Flush() }

func appendActions(b []byte, actions []Action) []byte {
	for i := range actions {
		b = append(AppendAction(b, &actions[i]), '\n')
	}
	return b
}

// A Replayed is the outcome of replaying a recording: what new states did with its events.
type Replayed struct {
	Policy    string `json:"policy"` // of the last term
	Events    int    `json:"events"`
	Decisions int    `json:"decisions"` // about queries
	// Duration is from the start of the last term to its last event.
	Duration time.Duration `json:"-"`
}

// Replay feeds the events of recorded terms to new states and compares their actions with the
// recorded ones, byte for byte. The error names the first line that differs.
func Replay(r io.Reader) (*Replayed, error) {
	in := &lineReader{s: bufio.NewScanner(r)}
	in.s.Buffer(nil, 1<<26) // latency tables are one line
	if in.next(); in.text != Header {
		return nil, in.fault("got the format %.80q, want %q", in.text, Header)
	}
	out := &Replayed{}
	for !in.end {
		if err := out.term(in); err != nil {
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

// term replays one term, of which in has read the header.
func (out *Replayed) term(in *lineReader) error {
	in.next()
	data, ok := strings.CutPrefix(in.text, configPrefix)
	if !ok {
		return in.fault("got %.80q, want %q and the settings as JSON", in.text, configPrefix)
	}
	decoder := json.NewDecoder(strings.NewReader(data))
	decoder.DisallowUnknownFields()
	var cfg Config
	if err := decoder.Decode(&cfg); err != nil {
		return in.fault("settings: %w", err)
	}
	s, err := New(cfg)
	if err != nil {
		return in.fault("settings: %w", err)
	}
	if out.Policy = cfg.Policy; out.Policy == "" {
		out.Policy = match.DefaultPolicy
	}
	var done []byte
	in.next()
	for !in.end && in.text != Header {
		eventLine := in.text
		at, e, err := ParseEvent([]byte(eventLine))
		if err != nil {
			return in.fault("%w", err)
		}
		actions := s.Step(at, &e)
		done = appendActions(done[:0], actions)
		out.Events++
		out.Duration = at
		for i := range actions {
			if actions[i].Kind <= OfferAgain {
				out.Decisions++
			}
		}
		for rest := done; len(rest) > 0; {
			i := bytes.IndexByte(rest, '\n')
			if in.next(); in.end || in.text != string(rest[:i]) {
				return in.fault("after %.200q the recording has %.200q, the leader decides %.200q",
					eventLine, in.text, rest[:i])
			}
			rest = rest[i+1:]
		}
		event := func() bool { return in.text != "" && in.text[0] >= '0' && in.text[0] <= '9' }
		if in.next(); !in.end && in.text != Header && !event() {
			return in.fault(
				"after %.200q the recording has %.200q, the leader decides nothing more",
				eventLine, in.text)
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

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
