package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the scripts in testdata/scripts; -rewrite writes what they answer. The commands:
//
//	new [ahead=D] [policy=P]
//	step    events in their serial form, one a line; answers with the actions, but for heartbeats and
//	        what only the learning loop gets. Before each line the state is stepped whenever it asks
//	        for it, unless the line says frozen before the event.
//	state   what the state's methods tell
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var s *State
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				cfg := Config{Self: "leader"}
				d.MaybeScanArgs(t, "policy", &cfg.Policy)
				var ahead string
				if d.MaybeScanArgs(t, "ahead", &ahead) {
					var err error
					if cfg.Ahead, err = time.ParseDuration(ahead); err != nil {
						return err.Error()
					}
				}
				var err error
				if s, err = NewState(cfg); err != nil {
					return err.Error()
				}
				return ""
			case "step":
				return scriptSteps(s, d.Input)
			case "state":
				return scriptState(s)
			}
			return "unknown command " + d.Cmd
		})
	})
}

func scriptSteps(s *State, input string) string {
	var out []byte
	step := func(at time.Duration, e *Event) {
		for _, a := range s.Step(at, e) {
			switch a.Kind {
			case Heartbeat, Arrived, Observed, ObservedCut, PoolChanged:
			default:
				out = append(AppendAction(fmt.Appendf(out, "%v ", at), &a), '\n')
			}
		}
	}
	for line := range strings.Lines(input) {
		frozen := strings.Contains(line, " frozen ")
		at, e, err := ParseEvent([]byte(strings.Replace(line, " frozen ", " ", 1)))
		if err != nil {
			return err.Error()
		}
		for next := s.Next(); !frozen && next < at; next = s.Next() {
			step(next, &Event{Kind: TimePassed})
		}
		step(at, &e)
	}
	return string(out)
}

func scriptState(s *State) string {
	var out []byte
	all, late := s.Waiting()
	out = fmt.Appendf(out, "%d wait, %d late; ahead %v\n", all, late, s.Ahead())
	for _, name := range sortedKeys(s.members) {
		m := s.members[name]
		out = fmt.Appendf(out, "%s is %s", name, m.typ)
		for _, ln := range m.lanes {
			holds, asked := s.matcher.Load(ln.id)
			out = fmt.Appendf(out, ", lane %d has", ln.index)
			for _, h := range s.Holds(name, ln.index) {
				out = fmt.Appendf(out, " %d/%d#%d", h.Gateway, h.Sequence, h.Attempt)
			}
			if holds == 0 {
				out = append(out, " nothing"...)
			}
			if asked > 0 {
				out = fmt.Appendf(out, " and is overdue")
			}
		}
		out = append(out, '\n')
	}
	return string(out)
}
