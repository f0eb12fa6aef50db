package client

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client/queries"
	"github.com/muster-serve/muster/leader/match"
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
		q := &gatewayQuery{model: long(255), version: 1 << 40, bytes: 1 << 40, trace: trace}
		q.Tag, q.Deadline = q, 1<<40
		g.queries.Arrive(&q.Query, 1)
		// of none of its queries
		g.queries.HandleAssignment(queries.Assign{Sequence: 10000 + i,
			Agent: names.AgentName(long(128))})
		g.Failed(Failure{Model: long(255), Version: 1<<40 + int64(i), Reason: "unavailable"})
	}
	var told []string
	failed := uint64(0)
	for m := g.nextMessage(); m != nil; m = g.nextMessage() {
		if n := proto.Size(m); n > 64<<10 {
			t.Fatalf("a message has %d bytes, want at most 64 KiB", n)
		}
		for _, f := range m.Failed {
			failed += f.Count
		}
		for _, s := range m.Submit {
			told = append(told, fmt.Sprintf("1 submit %5d", s.Sequence))
		}
		for _, sequence := range m.Cancel {
			told = append(told, fmt.Sprintf("2 cancel %5d", sequence))
		}
		for _, a := range m.Unused {
			told = append(told, fmt.Sprintf("3 unused %5d", a.Sequence))
		}
	}
	if len(told) != 1500 || !slices.IsSorted(told) {
		t.Errorf("%d of 1500 were sent, in order: %v", len(told), slices.IsSorted(told))
	}
	if failed != maxFailures {
		t.Errorf("the leader is told of %d failures, want the %d that are kept", failed,
			maxFailures)
	}
}

// TestRejectionReasons: why a leader rejects a query is one of the reasons that metrics have, which
// docs/metrics.md lists.
func TestRejectionReasons(t *testing.T) {
	document, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for why, reason := range map[match.Reason]string{
		match.Late: "late", match.DeadlinePassed: "deadline", match.UnknownModel: "not_found",
		match.BadBatchSize: "invalid", match.Overloaded: "overloaded",
		match.TooManyAttempts: "unavailable", match.Limit: "limit",
	} {
		err := rejectionError(&control.Reject{Reason: why.String(), RetryAfterNs: 1})
		if got := oip.Reason(status.Convert(err)); got != reason {
			t.Errorf("rejected as %v: got the reason %q, want %q", why, got, reason)
		}
		if !slices.Contains(oip.Reasons(), reason) {
			t.Errorf("%q is no reason of metrics", reason)
		}
		listed := "| `" + why.String() + "` | `" + reason + "` |"
		if why.String() == reason {
			listed = "`" + reason + "`"
		}
		if !strings.Contains(string(document), listed) {
			t.Errorf("docs/metrics.md does not list %s", listed)
		}
	}
}
