package match

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// TestReplayParts replays what two matchers did, one after the other, in one
// file, and an event between that made no sense.
func TestReplayParts(t *testing.T) {
	var recording bytes.Buffer
	for range 2 {
		cfg := Config{Policy: "fcfs"}
		m, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewRecorder(&recording, &cfg)
		if err != nil {
			t.Fatal(err)
		}
		table, err := NewTable(stairs{200, 10}, 10)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range []Event{
			{Kind: LaneDraining, Lane: 3},
			{Kind: ModelChanged, Model: "a", QoSTarget: time.Second, BatchSize: 10},
			{Kind: ProfileChanged, Model: "a", Type: "x", Table: table},
			{Kind: LaneJoined, Lane: 1, Type: "x", Models: []names.ModelKey{"a"}},
			{Kind: Submitted, Query: QueryID{1, 1}, Model: "a", BatchSize: 1},
		} {
			at := time.Duration(i) * time.Millisecond
			decisions, _, err := m.Step(time.Unix(0, 0).Add(at), &e)
			if (err != nil) != (i == 0) {
				t.Fatal(err)
			}
			if err := r.Step(at, &e, decisions); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Replay(bytes.NewReader(recording.Bytes()))
	want := Replayed{Policy: "fcfs", Events: 10, Decisions: 2, Duration: 4 * time.Millisecond}
	if err != nil || *got != want {
		t.Errorf("replayed %+v, %v, want %+v", got, err, want)
	}
	second := strings.LastIndex(recording.String(), SerialHeader)
	damaged := recording.String()[:second] +
		strings.Replace(recording.String()[second:], "lane=1 reason", "lane=2 reason", 1)
	if _, err := Replay(strings.NewReader(damaged)); err == nil ||
		!strings.Contains(err.Error(), "line 16:") {
		t.Errorf("another lane in the second part: got %v, want an error at line 16", err)
	}
}
