package leader

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// record runs a schedule and returns what its leaders recorded.
func record(t testing.TB, seed uint64) string {
	t.Helper()
	var recording bytes.Buffer
	var recorder *Recorder
	var event *Event
	term := 0
	err := runSchedule(seed, &mutant{
		before: func(w *world, e *Event) bool {
			if w.term != term {
				if recorder != nil {
					_ = recorder.Flush() // to a buffer
				}
				term = w.term
				var err error
				if recorder, err = NewRecorder(&recording, &w.config); err != nil {
					t.Fatal(err)
				}
			}
			event = e
			return true
		},
		after: func(w *world, actions []Action) []Action {
			if err := recorder.Step(w.now-w.began, event, actions); err != nil {
				t.Fatal(err)
			}
			return actions
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := recorder.Flush(); err != nil {
		t.Fatal(err)
	}
	return recording.String()
}

// TestReplay: recorded terms replay to the byte, and a line that was changed is found.
func TestReplay(t *testing.T) {
	terms := 0
	for seed := range uint64(100) {
		text := record(t, seed+1)
		terms += strings.Count(text, Header)
		replayed, err := Replay(strings.NewReader(text))
		if err != nil {
			t.Fatalf("seed %d: %v", seed+1, err)
		}
		if replayed.Policy != "horizon" || replayed.Events == 0 || replayed.Decisions == 0 {
			t.Errorf("seed %d: replayed %+v", seed+1, replayed)
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "assign ") {
				changed := strings.Replace(text, line,
					strings.Replace(line, "agent=w", "agent=v", 1), 1)
				if _, err := Replay(strings.NewReader(changed)); err == nil ||
					!strings.Contains(err.Error(), "agent=v") {
					t.Errorf("seed %d: with %q another replays as %v", seed+1, line, err)
				}
				break
			}
		}
	}
	if terms < 120 {
		t.Errorf("%d terms replayed, want more than one a schedule now and then", terms)
	}
	for _, in := range []string{
		"", Header + "\n", Header + "0\n", Header + " decider=0\n", Header + " decider=x\n",
		Header + "\nconfig {}\n0s time-passed\n" + Header + " decider=-1\n",
		Header + "\nconfig", Header + "\nconfig {\"Policy\":\"x\"}\n",
		Header + "\nconfig {\"X\":1}\n", "muster-term 2\n",
	} {
		if _, err := Replay(strings.NewReader(in)); err == nil ||
			!strings.Contains(err.Error(), "line ") {
			t.Errorf("%q replays: %v", in, err)
		}
	}
}

// TestReplayOfOtherDecider: where another version of the decider decided otherwise, a replay says so
// without an error, goes on with the next term, and still finds faults in its own version's terms.
func TestReplayOfOtherDecider(t *testing.T) {
	const assign, other = "agent=w", "agent=v"
	text := record(t, 1)
	own := fmt.Sprintf("%s decider=%d\n", Header, DeciderVersion)
	if !strings.HasPrefix(text, own) {
		t.Fatalf("a recording begins with %.40q, want %q", text, own)
	}
	var line string
	for line = range strings.Lines(text) {
		if strings.HasPrefix(line, "assign ") {
			break
		}
	}
	changed := strings.Replace(text, line, strings.Replace(line, assign, other, 1), 1)
	whole, err := Replay(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if whole.Decider != DeciderVersion || whole.Difference != "" {
		t.Errorf("replayed %+v, want no difference by decider %d", whole, DeciderVersion)
	}
	for header, decider := range map[string]int{
		Header + "\n": 1, Header + " decider=1\n": 1, Header + " decider=12345\n": 12345,
	} {
		same := strings.ReplaceAll(text, own, header)
		if got, err := Replay(strings.NewReader(same)); err != nil || got.Decider != decider ||
			got.Difference != "" || got.Events != whole.Events {
			t.Errorf("%q: replayed %+v, %v; want decider %d, no difference and %d events", header,
				got, err, decider, whole.Events)
		}
		differs := strings.ReplaceAll(changed, own, header)
		got, err := Replay(strings.NewReader(differs + text))
		if err != nil || got.Decider != decider || !strings.Contains(got.Difference, other) ||
			got.Events <= whole.Events {
			t.Errorf("%q: replayed %+v, %v; want decider %d, the difference with %q, and the "+
				"%d events of the next term", header, got, err, decider, other, whole.Events)
		}
		if got, err := Replay(strings.NewReader(differs + changed)); err == nil ||
			!strings.Contains(err.Error(), other) {
			t.Errorf("%q: own term with another decision: %+v, %v", header, got, err)
		}
	}
}

// FuzzParseEvent: what is parsed is written as what parses to the same.
func FuzzParseEvent(f *testing.F) {
	for line := range strings.Lines(record(f, 1)) {
		if line[0] >= '0' && line[0] <= '9' {
			f.Add(line)
		}
	}
	f.Add("1s learned latency=m/1 type=x table=3:1ms/2ms,4:2ms/2ms/3ms sure=no factors=yes " +
		"agent=a factor=1.5 own=x@a limit=3 price=x per_ms=0.5 service=1ms")
	f.Add(
		`0s submitted query=1/2 attempt=1 model="a b/3" batch=4 waited=1s time_left=-1ns ` +
			`agent=w lane=0 denied="no, never" retry_after=2s tag_size=7`)
	f.Add("0s outdated model=a/1 latency=a/1 type=x")
	f.Fuzz(func(t *testing.T, line string) {
		at, e, err := ParseEvent([]byte(line))
		if err != nil {
			return
		}
		text := string(AppendEvent(nil, at, &e))
		at, e, err = ParseEvent([]byte(text))
		if err != nil {
			t.Fatalf("%q is written as %q: %v", line, text, err)
		}
		if again := string(AppendEvent(nil, at, &e)); again != text {
			t.Errorf("%q is written as %q, then as %q", line, text, again)
		}
	})
}

// TestReplayOfFormerPolicy: a recording of a policy that agents had is read, with the settings that
// it had, and the error says where the policy went.
func TestReplayOfFormerPolicy(t *testing.T) {
	text := Header + " decider=1\n" +
		`config {"Self":"a","Policy":"drs","Threshold":300,"Seed":1,"Ahead":500000}` + "\n"
	if _, err := Replay(strings.NewReader(text)); err == nil ||
		!strings.Contains(err.Error(), "reproduce/ in Muster's repository has it") {
		t.Errorf("got %v, want where the policy drs went", err)
	}
}
