package dashboard

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

// FuzzDeliver gives a hub what another agent could send: what it takes it can show to every class
// of viewers, as JSON.
func FuzzDeliver(f *testing.F) {
	w := newWorld(f, "a", "b")
	w.lead(1, "a", "b")
	m := w.beat(3)
	m.Beat.Row.Second = 100
	m.Seconds = []*control.Row{rowAt(60, 2), rowAt(math.MaxUint64, 2)}
	m.Minutes = []*control.Row{rowAt(60, 2)}
	m.Events = []*control.Event{{Agent: "a", Sequence: 1, TimeUnixNs: math.MaxInt64}}
	m.Plan = &control.Plan{Number: 1, AgeNs: -1, Now: &control.Plan_Choice{Price: math.Inf(1)}}
	wire, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Add([]byte{})
	view := w.view()
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m control.PulseMessage
		if proto.Unmarshal(wire, &m) != nil {
			return
		}
		a := &testAgent{world: &world{leadership: view.Leadership}}
		h := NewHub(HubConfig{Self: "b", Members: a, Leading: a, Events: a, Log: quietLog})
		watcher, _ := h.watch(true, 0)
		if h.deliverNew(&m, false) != nil {
			return
		}
		p := <-watcher.out
		for _, c := range []viewerClass{{all: true, events: true}, {}, {models: "1"},
			{models: "0"}} {
			b := p.frameFor(c)
			if p.fleet != nil {
				b = appendFrame(b, "fleet", 0, fleetOf(p.fleet, c))
			}
			for line := range strings.Lines(string(b)) {
				if data, ok := strings.CutPrefix(line, "data: "); ok && !json.Valid([]byte(data)) {
					t.Errorf("no JSON: %.200s", line)
				}
			}
		}
		if p := h.Planned(); p != nil {
			if _, err := json.Marshal(choiceOf(p.Now)); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzLogin gives the login any body.
func FuzzLogin(f *testing.F) {
	f.Add(`{"key": "some-some-some-some"}`)
	f.Add(`{"key": null}`)
	f.Fuzz(func(t *testing.T, body string) {
		if key, err := parseLogin(strings.NewReader(body)); err == nil && key == "" {
			t.Error("an empty key is taken")
		}
	})
}
