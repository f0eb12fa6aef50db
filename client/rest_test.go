package client

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
)

// TestMessagesAreSmall: what a gateway tells the leader goes in messages that an agent takes of a
// client, in order, with nothing lost.
func TestMessagesAreSmall(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	all := &control.GatewayMessage{}
	for i := range uint64(500) {
		all.Submit = append(all.Submit, &control.Submit{
			Sequence: i, Model: long(255), Agent: long(128), Traceparent: long(55), Tracestate: long(512), WaitedNs: 1 << 40, TimeLeftNs: 1 << 40,
		})
		all.Cancel = append(all.Cancel, 1000+i)
		all.Unused = append(all.Unused, &control.Assign{Sequence: 2000 + i, Agent: long(128)})
	}
	var sequences []uint64
	for m := all; m != nil; {
		later := rest(m)
		if n := proto.Size(m); n > 64<<10 {
			t.Fatalf("a message has %d bytes, want at most 64 KiB", n)
		}
		for _, s := range m.Submit {
			sequences = append(sequences, s.Sequence)
		}
		sequences = append(sequences, m.Cancel...)
		for _, a := range m.Unused {
			sequences = append(sequences, a.Sequence)
		}
		m = later
	}
	if len(sequences) != 1500 || !slices.IsSorted(sequences) {
		t.Errorf("%d of 1500 were sent, in order: %v", len(sequences), slices.IsSorted(sequences))
	}
}
