package lane

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/runtime/queue/merge"
	"github.com/muster-serve/muster/runtime/queue/merge/mergetest"
)

// TestScripts runs the scripts in testdata/scripts; -rewrite writes what they answer. The commands:
//
//	new  [lanes=N] [cores=N] [max-waiting=N] [max-bytes=N] [floor=D] [row=D] [core=FACTOR] [unknown]
//	     Runs of the model take floor and row for each row, times core on one core of several. The
//	     lanes know that, unless it is unknown to them.
//	play what happens, one a line, each after a time; answers with events and actions:
//	     arrive rows=N [target=D] [deadline=D] [merge=POLICY:LARGEST] [group=NUMBER:QUERIES]
//	            [reject-late] [refuse] [divide] [background] [fails] [lane=N] [bytes=N]
//	     leave N, reserve rows=N keep=D, stats, drain, drain-timeout
//
// Queries have the numbers in which they come.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var p *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				p = newScript(t, d)
				return ""
			case "play":
				return p.play(d.Input)
			}
			return "unknown command " + d.Cmd
		})
	})
}

type script struct {
	*world
	classes map[string]*Class
	out     strings.Builder
	came    int
}

func newScript(t *testing.T, d *datadriven.TestData) *script {
	cfg := Config{Lanes: 1, Cores: 1, MaxWaiting: 1000, MaxWaitingBytes: 1 << 20}
	var floor, row time.Duration
	factor, unknown := 1.5, false
	for _, arg := range d.CmdArgs {
		duration := func() time.Duration {
			took, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				t.Fatal(err)
			}
			return took
		}
		switch arg.Key {
		case "lanes":
			arg.Scan(t, 0, &cfg.Lanes)
		case "cores":
			arg.Scan(t, 0, &cfg.Cores)
		case "max-waiting":
			arg.Scan(t, 0, &cfg.MaxWaiting)
		case "max-bytes":
			arg.Scan(t, 0, &cfg.MaxWaitingBytes)
		case "floor":
			floor = duration()
		case "row":
			row = duration()
		case "core":
			var err error
			if factor, err = strconv.ParseFloat(arg.Vals[0], 64); err != nil {
				t.Fatal(err)
			}
		case "unknown":
			unknown = true
		default:
			t.Fatalf("argument %q is unknown", arg.Key)
		}
	}
	p := &script{
		world: newWorld(cfg), classes: map[string]*Class{},
	}
	p.takes = func(q *Query, rows int) (time.Duration, bool) {
		took := floor + time.Duration(rows)*row
		if q.onCore {
			took = time.Duration(float64(took) * factor)
		}
		return took, slices.ContainsFunc(q.Owner.(*visitor).members, func(v *visitor) bool {
			return v.fails
		})
	}
	for rows := 1; rows <= 10 && !unknown; rows += 9 {
		p.arrive(Query{Profile: "m/1", BatchSize: rows})
		p.runUntil(Never)
	}
	return p
}

// play plays what happens from now on, until nothing is left.
func (p *script) play(input string) string {
	p.out.Reset()
	start := p.now
	p.trace = func(line string) {
		if at, what, ok := strings.Cut(line, " "); ok && at != "" { // an event
			d, _ := time.ParseDuration(at)
			line = (d - start).String() + " " + what
		}
		p.out.WriteString(line + "\n")
	}
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		at, err := time.ParseDuration(words[0])
		if err != nil {
			return err.Error()
		}
		p.do(start+at, func() {
			if err := p.happen(words[1], words[2:]); err != nil {
				p.out.WriteString(err.Error() + "\n")
			}
		})
	}
	p.runUntil(Never)
	if p.fault != nil {
		return p.fault.Error()
	}
	return p.out.String()
}

func (p *script) happen(what string, words []string) error {
	args := map[string]string{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		args[key] = value
	}
	number := func(text string) int {
		n, _ := strconv.Atoi(text)
		return n
	}
	duration := func(key string) time.Duration {
		d, _ := time.ParseDuration(args[key])
		return d
	}
	switch what {
	case "arrive":
		q := Query{
			Profile: "m/1", BatchSize: number(args["rows"]), Arrival: p.now,
			QoSTarget: duration("target"), Preferred: number(args["lane"]),
		}
		q.Bytes = int64(number(args["bytes"]))
		if d := duration("deadline"); d > 0 {
			q.Deadline = p.now + d
		}
		_, q.RejectLate = args["reject-late"]
		_, q.Refuse = args["refuse"]
		_, q.Divide = args["divide"]
		_, q.Background = args["background"]
		if policy, largest, ok := strings.Cut(args["merge"], ":"); ok {
			if p.classes[policy] == nil {
				c := &Class{Profile: "m/1", Kind: merge.Kind{
					Policy: names.MergePolicy(policy), Largest: number(largest),
				}}
				if policy == "patient" {
					c.Rule = &mergetest.Patient{}
				}
				p.classes[policy] = c
			}
			q.Class = p.classes[policy]
		}
		if group, queries, ok := strings.Cut(args["group"], ":"); ok {
			q.Group = merge.GroupID{Number: uint64(number(group)), Queries: number(queries)}
		}
		p.came++
		_, fails := args["fails"]
		p.enter(&visitor{Query: q, number: p.came, fails: fails})
	case "leave":
		for _, v := range p.visitors {
			if v.number == number(words[0]) {
				p.leave(v, CallerLeft)
				return nil
			}
		}
	case "reserve":
		r := &Reservation{
			Profile: "m/1", BatchSize: number(args["rows"]), Keep: duration("keep"),
		}
		p.step(Event{Kind: Reserved, Reservation: r})
		fmt.Fprintf(&p.out, "  free in %v, done in %v\n", r.Remaining.Round(time.Microsecond),
			r.Finish.Round(time.Microsecond))
	case "stats":
		s := p.s.Stats(p.now)
		fmt.Fprintf(&p.out, "running %d, waiting %d of %d bytes, free in %v, lanes busy for %v\n",
			s.Running, s.Waiting, s.WaitingBytes, s.Remaining.Round(time.Microsecond),
			s.RemainingByLane)
	case "drain":
		p.drains = true
		p.step(Event{Kind: DrainBegan})
	case "drain-timeout":
		p.step(Event{Kind: DrainTimedOut})
	default:
		return fmt.Errorf("%q is unknown", what)
	}
	return nil
}
