package election

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/muster-serve/muster/api/names"
)

// TestScripts runs the scripts in testdata; -rewrite writes what they answer. The commands:
//
//	new id=I role=R [spare=N] [no-cpu] [epoch=N] [join=D]
//	step    lines of a time and an event; answers with the actions, and with when the node wants to be stepped next.
//	        Before each line the node is stepped whenever it asks for it, unless the line says frozen:
//	          T [frozen] time | up ID ROLE [SPARE] | down ID | broken ID | ended ID | persisted N | resigned
//	          T [frozen] from ID KIND N/ID [successor ID] [heard]
//	state   what the node's methods tell
//
// A claim is written N/ID; its rank is the one that up has told last.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				s = newScript(t, d)
				return ""
			case "step":
				return s.steps(t, d)
			case "state":
				return s.state()
			}
			return "unknown command " + d.Cmd
		})
	})
}

type script struct {
	n     *Node
	next  time.Time
	ranks map[names.AgentName]Rank
}

func newScript(t *testing.T, d *datadriven.TestData) *script {
	var cfg Config
	var role, join string
	var spare int
	d.ScanArgs(t, "id", &cfg.ID)
	d.ScanArgs(t, "role", &role)
	d.MaybeScanArgs(t, "spare", &spare)
	d.MaybeScanArgs(t, "epoch", &cfg.Epoch)
	if d.MaybeScanArgs(t, "join", &join) {
		cfg.JoinWait = must(t, time.ParseDuration)(join)
	}
	cfg.Rank = RankOf(must(t, ParseRole)(role), d.HasArg("no-cpu"), spare)
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &script{n: n, ranks: map[names.AgentName]Rank{cfg.ID: cfg.Rank}}
}

func must[T any](t *testing.T, parse func(string) (T, error)) func(string) T {
	return func(s string) T {
		v, err := parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (s *script) steps(t *testing.T, d *datadriven.TestData) string {
	var out []byte
	step := func(at time.Time, e Event) {
		var actions []Action
		actions, s.next = s.n.Step(at, &e)
		for _, a := range actions {
			out = fmt.Appendf(out, "%v %v\n", at.Sub(epoch), a)
		}
	}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		at := epoch.Add(must(t, time.ParseDuration)(words[0]))
		words = words[1:]
		if words[0] == "frozen" {
			words = words[1:]
		} else {
			for !s.next.IsZero() && s.next.Before(at) {
				step(s.next, Event{Kind: TimePassed})
			}
		}
		step(at, s.event(t, words))
	}
	if s.next.IsZero() {
		return string(out) + "next never\n"
	}
	return string(out) + fmt.Sprintf("next %v\n", s.next.Sub(epoch))
}

// epoch is the time 0 of scripts and schedules.
var epoch = time.Unix(1_000_000, 0)

func (s *script) event(t *testing.T, words []string) Event {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	e := Event{ID: names.AgentName(arg(1))}
	switch words[0] {
	case "time":
	case "up":
		spare, _ := strconv.Atoi(arg(3))
		s.ranks[e.ID] = RankOf(must(t, ParseRole)(arg(2)), false, spare)
		e.Kind, e.Rank = MemberUp, s.ranks[e.ID]
	case "down":
		e.Kind = MemberDown
	case "broken":
		e.Kind = StreamBroken
	case "ended":
		e.Kind = ProcessEnded
	case "persisted":
		e.Kind = Persisted
		e.Epoch, _ = strconv.ParseUint(arg(1), 10, 64)
	case "resigned":
		e.Kind = Resigned
	case "from":
		e.Kind = Received
		for k, name := range messageNames {
			if name == arg(2) {
				e.Message = Message{Kind: MessageKind(k), Claim: s.claim(t, arg(3))}
			}
		}
		if arg(4) == "successor" {
			e.Message.Successor = names.AgentName(arg(5))
		}
		e.Message.Heard = arg(4) == "heard"
		if want := strings.Join(words[2:], " "); e.Message.String() != want {
			t.Fatalf("message %q reads as %q", want, e.Message)
		}
	default:
		t.Fatalf("event %q is unknown", words[0])
	}
	return e
}

func (s *script) claim(t *testing.T, text string) Claim {
	number, leader, _ := strings.Cut(text, "/")
	e, err := strconv.ParseUint(number, 10, 64)
	if _, ok := s.ranks[names.AgentName(leader)]; !ok || err != nil {
		t.Fatalf("claim is %q, want N/ID with a known ID", text)
	}
	return Claim{Epoch: e, Rank: s.ranks[names.AgentName(leader)], Leader: names.AgentName(leader)}
}

func (s *script) state() string {
	leader := "no leader"
	if c, ok := s.n.followed(); ok {
		leader = "follows " + c.String()
	}
	if s.n.Leading() {
		reached, members := s.n.reached()
		leader += fmt.Sprintf(", leads, reaches %d of %d", reached, members)
	}
	if id := s.n.Successor(); id != "" {
		leader += ", then " + string(id)
	}
	return leader
}
