package serve

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestEventRing: the ring is bounded, and no kind pushes out the others.
func TestEventRing(t *testing.T) {
	ring := NewEvents("a")
	log := slog.New(ring.Handler(slog.DiscardHandler))
	log.Info("first", eventKey, "unload", whoKey, "admin", fromKey, "10.0.0.9:1")
	log.Info("no event")
	for i := range 3 * maxEvents {
		log.Warn("refused", eventKey, "refused", "number", i, "error",
			strings.Repeat("\xff", 10000))
	}
	kept := ring.After(0)
	if len(kept) != 1+maxOfKind || kept[0].What != "first" || kept[0].Who != "admin" ||
		kept[0].From != "10.0.0.9:1" {
		t.Fatalf("got %d events, the first %v, want %d", len(kept), kept[0], 1+maxOfKind)
	}
	if last := kept[len(kept)-1]; last.Sequence != 3*maxEvents+1 ||
		proto.Size(last) > maxEventBytes+100 {
		t.Errorf("got as the last %d, of %d bytes", last.Sequence, proto.Size(last))
	}
	for kind := range 8 {
		for range maxOfKind {
			log.Info("more", eventKey, fmt.Sprint(kind))
		}
	}
	kept = ring.After(0)
	if len(kept) != maxEvents {
		t.Errorf("got %d events, want %d", len(kept), maxEvents)
	}
	for i, e := range kept[1:] {
		if e.Sequence <= kept[i].Sequence {
			t.Fatalf("event %d after %d", e.Sequence, kept[i].Sequence)
		}
	}
	if after := ring.After(kept[9].Sequence); len(after) != len(kept)-10 || after[0] != kept[10] {
		t.Errorf("after the tenth: got %d", len(after))
	}
}

// TestEventFrom: what a line says to be from somewhere is a client's address only if a client
// asked.
func TestEventFrom(t *testing.T) {
	ring := NewEvents("a")
	log := slog.New(ring.Handler(slog.DiscardHandler))
	log.Info("lanes have moved", "from", "dien:1x1", "to", "dien:2x1", eventKey, "lanes")
	log.Info("asked to drain", eventKey, "drain", fromKey, "10.0.0.9:1", whoKey, "")
	kept := ring.After(0)
	if moved := kept[0]; moved.From != "" || len(moved.Details) != 2 ||
		moved.Details[0].Key != "from" || moved.Details[0].Value != "dien:1x1" {
		t.Errorf("got %v, want the lanes as a detail and no client", moved)
	}
	if asked := kept[1]; asked.From != "10.0.0.9:1" || len(asked.Details) != 0 {
		t.Errorf("got %v, want the unnamed client's address", asked)
	}
}
