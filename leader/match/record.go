package match

import (
	"encoding/json"
	"io"
	"time"

	"github.com/muster-serve/muster/leader/internal/lines"
)

// A Recorder writes a recording: [SerialHeader], a line "config " with the [Config] as JSON, and
// then each event on a line of its own, in the serial form, followed by the lines of the decisions
// that it led to. A further header begins the recording of another matcher.
type Recorder struct{ *lines.Recorder }

// NewRecorder returns a recorder for a new matcher with the settings cfg, and writes them.
func NewRecorder(w io.Writer, cfg *Config) (*Recorder, error) {
	r, err := lines.NewRecorder(w, SerialHeader, cfg)
	return &Recorder{r}, err
}

// Step writes one step of the matcher: its event, at the given time since the start of the
// recording, and its decisions.
func (r *Recorder) Step(at time.Duration, e *Event, decisions []Decision) error {
	return r.Write(func(b []byte) []byte {
		return appendDecisions(append(AppendEvent(b, at, e), '\n'), decisions)
	})
}

func appendDecisions(b []byte, decisions []Decision) []byte {
	for i := range decisions {
		b = append(AppendDecision(b, &decisions[i]), '\n')
	}
	return b
}

// A Replayed is the outcome of replaying a recording: what new matchers did with its events.
type Replayed = lines.Replayed

// Replay feeds a recording's events to new matchers and compares their decisions
// with the recorded ones, byte for byte. The error names the first line that differs.
func Replay(r io.Reader) (*Replayed, error) {
	return lines.Replay(r, SerialHeader,
		func(settings *json.Decoder) (string, lines.Player, error) {
			var cfg Config
			if err := settings.Decode(&cfg); err != nil {
				return "", nil, err
			}
			m, err := New(cfg)
			if err != nil {
				return "", nil, err
			}
			var decided []byte
			return m.cfg.Policy, func(line []byte) (time.Duration, []byte, error) {
				at, e, err := ParseEvent(line)
				if err != nil {
					return 0, nil, err
				}
				// an event that was an error in the recorded run is one again, and ignored
				decisions, _, _ := m.Step(time.Unix(0, 0).Add(at), &e)
				decided = appendDecisions(decided[:0], decisions)
				return at, decided, nil
			}, nil
		})
}
