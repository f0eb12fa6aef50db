package fleet

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseFault(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for text, want := range map[string]Fault{
		"kill-leader@10s":         {Verb: "kill", Target: "leader", At: 10 * s},
		"kill-r5n.large-3@1m2s":   {Verb: "kill", Target: "r5n.large-3", At: 62 * s},
		"freeze-leader@10s+3s":    {Verb: "freeze", Target: "leader", At: 10 * s, Duration: 3 * s},
		"freeze-g4dn.xlarge-1@0s": {Verb: "freeze", Target: "g4dn.xlarge-1"},
		"cut-leader@5s+500ms":     {Verb: "cut", Target: "leader", At: 5 * s, Duration: 500 * ms},
		"deafen-leader@5s+500ms":  {Verb: "deafen", Target: "leader", At: 5 * s, Duration: 500 * ms},
		"mute-box-1@5s":           {Verb: "mute", Target: "box-1", At: 5 * s},
		"delay@5s+3s:20ms":        {Verb: "delay", At: 5 * s, Duration: 3 * s, Amount: 20 * ms},
		"delay-r5n.large-2@1.5s:20ms": {
			Verb: "delay", Target: "r5n.large-2", At: 1500 * ms, Amount: 20 * ms,
		},
	} {
		got, err := ParseFault(text)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseFault(got.String()); err != nil || again != got {
			t.Errorf("%q is written %q, which is read as %+v, %v", text, got, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                         "got no @",
		"kill-leader":              "got no @",
		"crash-leader@10s":         `got the verb "crash", want kill, drain, freeze, cut, deafen, mute or delay`,
		"@10s":                     `got the verb ""`,
		"kill@10s":                 `got no target, want "leader" or an agent`,
		"kill-@10s":                "got no target",
		"cut@10s+1s":               "got no target",
		"delay-@10s:1ms":           "got no target after the -",
		"delay@10s+1s":             "got no amount",
		"kill-leader@10s+2s":       `got the duration "2s", want none`,
		"kill-leader@10s:2s":       `got the amount "2s", want none`,
		"kill-leader@":             `got the time ""`,
		"kill-leader@10":           `got the time "10", want a duration like`,
		"kill-leader@-1s":          `got the time "-1s"`,
		"kill-leader@200h":         `got the time "200h"`,
		"freeze-leader@10s+":       `got the duration ""`,
		"freeze-leader@10s+0s":     `got the duration "0s"`,
		"delay@10s+1s:soon":        `got the amount "soon"`,
		"delay@10s+1s:-20ms":       `got the amount "-20ms"`,
		"freeze-leader@10s for 3s": `got the time "10s for 3s"`,
	} {
		_, err := ParseFault(text)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), fmt.Sprintf("fault %q", text)) {
			t.Errorf("%q: got %v, want an error that names it, with %q", text, err, want)
		}
	}
}

func TestReadFaults(t *testing.T) {
	faults, err := ReadFaults("faults.txt",
		strings.NewReader("# a bad day\n\n  kill-leader@1s\ndelay@2s:5ms # for good\n"))
	if want := []Fault{
		{Verb: "kill", Target: "leader", At: time.Second}, {
			Verb: "delay", At: 2 * time.Second, Amount: 5 * time.Millisecond,
		},
	}; err != nil || !reflect.DeepEqual(faults, want) {
		t.Errorf("got %v, %v, want %v", faults, err, want)
	}
	for text, want := range map[string]string{
		"kill-leader@1s\nkill\n": `faults.txt line 2: fault "kill"`,
		"# nothing\n":            "faults.txt has no fault",
	} {
		if _, err := ReadFaults("faults.txt", strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
}
