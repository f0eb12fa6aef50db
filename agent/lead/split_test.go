package lead

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/proto"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/tracing"
	"github.com/muster-serve/muster/leader"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// TestSplitTold: a gateway is told of a split and of its parts' lanes in one message; but not of a
// split once it has submitted the whole query again, which replaces the parts.
func TestSplitTold(t *testing.T) {
	state, err := leader.NewState(leader.Config{Self: "a"})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{id: 7, wake: make(chan struct{}, 1)}
	tm := &term{
		leader: &Leader{metrics: newMetrics(prometheus.NewRegistry())}, state: state,
		gateways: map[uint64]*gateway{7: g},
	}
	tm.beating = newBeating(tm)
	split := func(sequence uint64) {
		id := match.QueryID{Gateway: 7, Sequence: sequence}
		tm.carryOut(&leader.Action{Kind: leader.Split, Decision: match.Decision{
			Action: match.Split, Query: id, Rows: []int{3, 5},
		}})
		tm.carryOut(&leader.Action{Kind: leader.Assign, Agent: "b", Decision: match.Decision{
			Action: match.Assign, Query: id.Part(1), Attempt: 1,
		}})
	}
	split(4)
	tm.flush()
	split(8) // is joined with the message that is not sent yet
	tm.flush()
	want := &control.MatchMessage{
		Split: []*control.Split{
			{Sequence: 4, Rows: []uint32{3, 5}}, {Sequence: 8, Rows: []uint32{3, 5}},
		},
		Assign: []*control.Assign{
			{Sequence: 5, Attempt: 1, Agent: "b", WaitedNs: proto.Int64(0)},
			{Sequence: 9, Attempt: 1, Agent: "b", WaitedNs: proto.Int64(0)},
		},
	}
	if !proto.Equal(g.pending, want) {
		t.Errorf("it is told %v, want %v", g.pending, want)
	}
	tm.submit(g, &control.Submit{Sequence: 4, Attempts: 1})
	split(12)
	tm.submit(g, &control.Submit{Sequence: 12, Attempts: 1})
	tm.flush()
	if all := g.pending.GetSplit(); len(all) != 1 || all[0].Sequence != 8 {
		t.Errorf("it is told of the splits %v, want that of 8 alone", all)
	}
}

// TestSplitsOfMembers: a member's models say whether their queries may be split.
func TestSplitsOfMembers(t *testing.T) {
	m := &control.Member{Models: []*control.Model{{Name: "a", Splits: true}, {Name: "b"}}}
	if got := memberOf(profiles.DefaultCatalogue(), m); !got.Models[0].Splits ||
		got.Models[1].Splits {
		t.Errorf("the leader is told %+v, want that a's queries may be split", got.Models)
	}
}

// TestSplitTraced: the leader's span of a split is of the whole query, and those of the decisions
// that follow are of its parts.
func TestSplitTraced(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tm := &term{leader: &Leader{
		metrics: newMetrics(prometheus.NewRegistry()),
		config:  Config{Tracer: provider.Tracer("test")},
	}}
	tm.beating = newBeating(tm)
	id := match.QueryID{Gateway: 7, Sequence: 4}
	tag := &queryTrace{ctx: t.Context(), batch: 8}
	for _, d := range []match.Decision{
		{Action: match.Split, Query: id, Rows: []int{3, 5}},
		{Action: match.Assign, Query: id.Part(2), Attempt: 1},
	} {
		kind := leader.Assign
		if d.Action == match.Split {
			kind = leader.Split
		}
		tm.carryOut(&leader.Action{Kind: kind, Decision: d, Tag: tag})
	}
	var got []string
	for _, s := range spans.GetSpans() {
		about := map[attribute.Key]string{}
		for _, a := range s.Attributes {
			about[a.Key] = a.Value.String()
		}
		got = append(got, fmt.Sprintf("%s of %s rows, part %q", about[tracing.Action],
			about[tracing.BatchSize], about[tracing.Part]))
	}
	if want := []string{`split of 8 rows, part ""`, `assign of 5 rows, part "2"`}; !slices.Equal(
		got, want) {
		t.Errorf("spans are %q, want %q", got, want)
	}
}
