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
	"strconv"
	"strings"
	"time"

	"github.com/muster-serve/muster/leader/match"
)

// DeciderVersion is the version of what decides: this package and package match. Two builds of one
// version decide the same after the same events, byte for byte; a recording names the version that
// made it. Rule: a change that alters a decision after any event raises the version, unless the
// version has not left its author's hands yet. TestRecordings holds the decisions of the golden
// recordings to a hash by version, so that nobody alters them unawares.
//
//   - 1: of recordings that name no version.
//   - 2: the first that recordings name.
const DeciderVersion = 2

// deciderPrefix stands between [Header] and the version of the decider. Readers that know version 1
// only refuse such a line, because they would take other decisions for faults.
const deciderPrefix = " decider="

// configPrefix begins the second line of a recorded term.
const configPrefix = "config "

// A Recorder writes a recording of terms. Each term is a line with [Header] and [DeciderVersion], a
// line "config " with the [Config] as JSON, and then its events, one line each in the serial form,
// each followed by the lines of the actions that it led to.
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
	_, err = fmt.Fprintf(r.w, "%s%s%d\n%s%s\n", Header, deciderPrefix, DeciderVersion,
		configPrefix, data)
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

// A ReplayOutcome is the outcome of replaying a recording: what new states did with its events.
type ReplayOutcome struct {
	Policy    string `json:"policy"` // of the last term
	Events    int    `json:"events"`
	Decisions int    `json:"decisions"` // about queries
	// Duration is from the start of the last term to its last event.
	Duration time.Duration `json:"-"`
	// Decider is [DeciderVersion], or the first other version that recorded one of the terms.
	Decider int `json:"decider"`
	// Difference says where a term that another version recorded first differs, or is "". The rest
	// of such a term is not replayed: its events follow from other decisions.
	Difference string `json:"difference,omitempty"`
}

// Replay feeds the events of recorded terms to new states and compares their actions with the
// recorded ones, byte for byte. The error names the first line that differs. In a term that another
// version of the decider recorded, a difference is no error but [ReplayOutcome.Difference].
func Replay(r io.Reader) (*ReplayOutcome, error) {
	in := &lineReader{s: bufio.NewScanner(r)}
	in.s.Buffer(nil, 1<<26) // latency tables are one line
	if in.next(); !in.startsTerm() {
		return nil, in.lineError("got the format %.80q, want %q", in.text, Header)
	}
	out := &ReplayOutcome{Decider: DeciderVersion}
	for !in.end {
		if err := out.replayTerm(in); err != nil {
			return nil, err
		}
	}
	if in.s.Err() != nil {
		return nil, in.lineError("%w", in.s.Err())
	}
	if out.Events == 0 {
		return nil, in.lineError("the recording has no events")
	}
	return out, nil
}

// replayTerm replays one term, of which in has read the header.
func (out *ReplayOutcome) replayTerm(in *lineReader) error {
	decider, err := in.deciderVersion()
	if err != nil {
		return err
	}
	if out.Decider == DeciderVersion {
		out.Decider = decider
	}
	in.next()
	data, ok := strings.CutPrefix(in.text, configPrefix)
	if !ok {
		return in.lineError("got %.80q, want %q and the settings as JSON", in.text, configPrefix)
	}
	decoder := json.NewDecoder(strings.NewReader(data))
	decoder.DisallowUnknownFields()
	var settings struct {
		Config
		Threshold int // of the former policy drs, which New refuses
	}
	if err := decoder.Decode(&settings); err != nil {
		return in.lineError("settings: %w", err)
	}
	cfg := settings.Config
	s, err := NewState(cfg)
	if err != nil {
		return in.lineError("settings: %w", err)
	}
	if out.Policy = cfg.Policy; out.Policy == "" {
		out.Policy = match.DefaultPolicy
	}
	var done []byte
	in.next()
	for !in.end && !in.startsTerm() {
		eventLine := in.text
		at, e, err := ParseEvent([]byte(eventLine))
		if err != nil {
			return in.lineError("%w", err)
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
		if err := in.compareActions(eventLine, done); err != nil {
			if decider == DeciderVersion {
				return err
			}
			if out.Difference == "" {
				out.Difference = err.Error()
			}
			in.skipTerm()
		}
	}
	return nil
}

// compareActions reads the actions recorded after an event. The error says where they are not done,
// a line each.
func (l *lineReader) compareActions(event string, done []byte) error {
	for rest := done; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		if l.next(); l.end || l.text != string(rest[:i]) {
			return l.lineError("after %.200q the recording has %.200q, the leader decides %.200q",
				event, l.text, rest[:i])
		}
		rest = rest[i+1:]
	}
	isEvent := func() bool { return l.text != "" && l.text[0] >= '0' && l.text[0] <= '9' }
	if l.next(); !l.end && !l.startsTerm() && !isEvent() {
		return l.lineError("after %.200q the recording has %.200q, the leader decides nothing more",
			event, l.text)
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

// startsTerm reports whether the line is the first of a term, of any version of the decider.
func (l *lineReader) startsTerm() bool {
	rest, ok := strings.CutPrefix(l.text, Header)
	return ok && (rest == "" || strings.HasPrefix(rest, deciderPrefix))
}

// deciderVersion returns the version of the decider that recorded the term which the line starts.
func (l *lineReader) deciderVersion() (int, error) {
	text, ok := strings.CutPrefix(l.text, Header+deciderPrefix)
	if !ok {
		return 1, nil
	}
	decider, err := strconv.Atoi(text)
	if err != nil || decider < 1 {
		return 0, l.lineError("got the decider %.80q, want a version from 1", text)
	}
	return decider, nil
}

// skipTerm reads on to the next term or the end.
func (l *lineReader) skipTerm() {
	for !l.end && !l.startsTerm() {
		l.next()
	}
}

func (l *lineReader) lineError(format string, args ...any) error {
	return fmt.Errorf("line %d: %w", l.n, fmt.Errorf(format, args...))
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
