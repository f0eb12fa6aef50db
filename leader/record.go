package leader

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/muster-serve/muster/leader/internal/lines"
	"github.com/muster-serve/muster/leader/match"
)

// A Recorder writes a recording of terms. Each term is the line [Header], a line "config " with the
// [Config] as JSON, and then its events, one line each in the serial form, each followed by the
// lines of the actions that it led to.
type Recorder struct{ *lines.Recorder }

// NewRecorder returns a recorder for a new state with the settings cfg, and writes them.
func NewRecorder(w io.Writer, cfg *Config) (*Recorder, error) {
	r, err := lines.NewRecorder(w, Header, cfg)
	return &Recorder{r}, err
}

// Step writes one step of the state: its event, at the given time since the term began, and the
// actions.
func (r *Recorder) Step(now time.Duration, e *Event, actions []Action) error {
	return r.Write(func(b []byte) []byte {
		return appendActions(append(AppendEvent(b, now, e), '\n'), actions)
	})
}

func appendActions(b []byte, actions []Action) []byte {
	for i := range actions {
		b = append(AppendAction(b, &actions[i]), '\n')
	}
	return b
}

// A Replayed is the outcome of replaying a recording: what new states did with its events.
type Replayed = lines.Replayed

// Replay feeds the events of recorded terms to new states and compares their actions with the
// recorded ones, byte for byte. The error names the first line that differs.
func Replay(r io.Reader) (*Replayed, error) {
	return lines.Replay(r, Header, func(settings *json.Decoder) (string, lines.Player, error) {
		var cfg Config
		if err := settings.Decode(&cfg); err != nil {
			return "", nil, err
		}
		s, err := New(cfg)
		if err != nil {
			return "", nil, err
		}
		if cfg.Policy == "" {
			cfg.Policy = match.DefaultPolicy
		}
		var done []byte
		return cfg.Policy, func(line []byte) (time.Duration, []byte, error) {
			at, e, err := ParseEvent(line)
			if err != nil {
				return 0, nil, err
			}
			done = appendActions(done[:0], s.Step(at, &e))
			return at, done, nil
		}, nil
	})
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
