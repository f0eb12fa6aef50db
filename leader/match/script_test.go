package match

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/muster-serve/muster/api/names"
)

// TestScripts runs the scripts in testdata/scripts; -rewrite writes what they answer. The commands:
//
//	new policy=P models=(name:target:largest[:reject] ...) [threshold=N] [ahead=D]
//	        [settle=D] [shard-lanes=N] [max-waiting=N]
//	step    events in their serial form, one a line; answers with the decisions
//	waiting how many queries wait, and how many of them are late
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var m *Matcher
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				cfg, err := scriptConfig(t, d)
				if err != nil {
					return err.Error()
				}
				if m, err = New(cfg); err != nil {
					return err.Error()
				}
				return ""
			case "step":
				return steps(m, d.Input)
			case "waiting":
				all, late := m.Waiting()
				return fmt.Sprintf("%d, %d late", all, late)
			}
			return "unknown command " + d.Cmd
		})
	})
}

func scriptConfig(t *testing.T, d *datadriven.TestData) (Config, error) {
	var cfg Config
	for _, arg := range d.CmdArgs {
		var err error
		switch arg.Key {
		case "policy":
			cfg.Policy = arg.Vals[0]
		case "max-waiting":
			arg.Scan(t, 0, &cfg.MaxWaiting)
		case "shard-lanes":
			arg.Scan(t, 0, &cfg.ShardLanes)
		case "ahead":
			cfg.DispatchAhead, err = time.ParseDuration(arg.Vals[0])
		case "settle":
			cfg.Settle, err = time.ParseDuration(arg.Vals[0])
		case "models":
			for _, v := range arg.Vals {
				part := strings.Split(v, ":")
				m := Model{Name: names.ModelKey(part[0]), RejectLate: len(part) == 4}
				if m.QoSTarget, err = time.ParseDuration(part[1]); err == nil {
					_, err = fmt.Sscan(part[2], &m.LargestBatchSize)
				}
				cfg.Models = append(cfg.Models, m)
			}
		default:
			err = fmt.Errorf("argument %q is unknown", arg.Key)
		}
		if err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func steps(m *Matcher, input string) string {
	var out []byte
	for line := range strings.Lines(input) {
		at, e, err := ParseEvent([]byte(line))
		if err != nil {
			return err.Error()
		}
		decisions, next, err := m.Step(time.Unix(0, 0).Add(at), &e)
		if err != nil {
			out = fmt.Appendf(out, "%v error: %v\n", at, err)
		}
		for i := range decisions {
			out = append(AppendDecision(fmt.Appendf(out, "%v ", at), &decisions[i]), '\n')
		}
		if e.Kind == TimePassed && !next.IsZero() {
			out = fmt.Appendf(out, "%v next at %v\n", at,
				next.Sub(time.Unix(0, 0)).Round(time.Microsecond))
		}
	}
	return string(out)
}
