package client

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/client/queries"
)

// TestMessagesAreSmall: what a gateway tells the leader goes in messages that an agent takes of a
// client, in order, with nothing lost.
func TestMessagesAreSmall(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	g := &Gateway{queries: queries.New(nil)}
	g.queries.Learn(queries.Leadership{Epoch: 1, Leader: "a"})
	g.queries.Try(0, func(names.AgentName) bool { return true })
	g.queries.Opened(0)
	trace := &queryTrace{span: noop.Span{}, traceparent: long(55), tracestate: long(512)}
	for i := range uint64(500) {
		q := &query{model: long(255), version: 1 << 40, bytes: 1 << 40, trace: trace}
		q.Tag, q.Deadline = q, 1<<40
		g.queries.Arrive(&q.Query, 1)
		// of none of its queries
		g.queries.Assign(queries.Assign{Sequence: 1000 + i, Agent: names.AgentName(long(128))})
	}
	var told []string
	for m := g.message(); m != nil; m = g.message() {
		if n := proto.Size(m); n > 64<<10 {
			t.Fatalf("a message has %d bytes, want at most 64 KiB", n)
		}
		for _, s := range m.Submit {
			told = append(told, fmt.Sprintf("1 submit %4d", s.Sequence))
		}
		for _, sequence := range m.Cancel {
			told = append(told, fmt.Sprintf("2 cancel %4d", sequence))
		}
		for _, a := range m.Unused {
			told = append(told, fmt.Sprintf("3 unused %4d", a.Sequence))
		}
	}
	if len(told) != 1500 || !slices.IsSorted(told) {
		t.Errorf("%d of 1500 were sent, in order: %v", len(told), slices.IsSorted(told))
	}
}
