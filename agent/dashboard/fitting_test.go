package dashboard

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

// TestFitting: whatever events say, the leader accepts the message in which it is told of them, and
// it has the last ones.
func TestFitting(t *testing.T) {
	var events []*control.Event
	for i := range uint64(200) {
		events = append(events, &control.Event{
			Sequence: i + 1, What: strings.Repeat("w", 2048), Agent: strings.Repeat("a", 255),
		})
	}
	got := fitEvents(events)
	size := proto.Size(&control.TellRequest{Agent: events[0].Agent, Events: got})
	if len(got) < 16 || size > 64<<10 || got[len(got)-1].GetSequence() != 200 {
		t.Errorf("%d events of %d bytes, the last is %v; want at most 64 KiB of the last ones",
			len(got),
			size, got[len(got)-1].GetSequence())
	}
	for _, e := range events {
		e.What = "short"
	}
	if got := fitEvents(events); len(got) != maxTellEvents {
		t.Errorf("%d short events, want %d", len(got), maxTellEvents)
	}
	if got := fitEvents(nil); len(got) > 0 {
		t.Errorf("got %d of no events", len(got))
	}
}
