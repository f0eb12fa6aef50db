package client

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/profiles"
)

// atLanes are the queries of a gateway without a leader, n that are at lanes.
func atLanes(tb testing.TB, n int, now time.Time) *queries {
	tb.Helper()
	knot := func(batch int) profiles.Knot {
		return profiles.Knot{BatchSize: batch, Mean: time.Second, P50: time.Second, P90: time.Second, P99: time.Second}
	}
	table, err := profiles.NewTable(profiles.Key{Model: "sum", InstanceType: "local"}, profiles.Measured, "test", []profiles.Knot{knot(1), knot(1000)})
	if err != nil {
		tb.Fatal(err)
	}
	data, err := json.Marshal(table)
	if err != nil {
		tb.Fatal(err)
	}
	member := &control.Member{Name: "a", InstanceType: "local", Provider: "cpu", Lanes: 1, Cores: 1, Models: []*control.Model{
		{Name: "sum", Version: 1, Newest: true, QosTargetNs: int64(time.Second), LargestBatchSize: 1000}}}
	view := &control.View{Members: []*control.Member{member}, Profiles: []*control.Profile{
		{Model: control.ModelKey("sum", 1), Type: member.LaneType(), Table: data}}}
	g := &Gateway{}
	g.members.Store(newMembers(view))
	g.leaderless = newLeaderless(g)
	g.leaderless.viewed(view)
	g.queries = newQueries(g.leaderless.grace)
	g.queries.closed(false, now)
	for range n {
		arriveLeaderless(tb, &g.queries, now)
	}
	return &g.queries
}

// arriveLeaderless is a query that arrives and is sent to a lane.
func arriveLeaderless(tb testing.TB, d *queries, now time.Time) *query {
	q := &query{model: "sum", batch: 1, arrival: now, wake: make(chan struct{}, 1)}
	d.arrive(q, now)
	if got := d.inquire(now); got != q {
		tb.Fatalf("to be decided is %+v, want the query that has just arrived", got)
	}
	d.decided(q.sequence, target{agent: "a", reservation: 1, took: time.Second})
	if _, ok := d.take(q, func() {}, now); !ok {
		tb.Fatal("a query that was decided is not sent")
	}
	return q
}

// BenchmarkLeaderless is what the gateway's queries cost, from its arrival to its end, where there is no leader and so many
// others are at lanes.
func BenchmarkLeaderless(b *testing.B) {
	for _, n := range []int{15, 1000} {
		b.Run(fmt.Sprint("in-flight=", n), func(b *testing.B) {
			now := time.Unix(0, 0)
			d := atLanes(b, n, now)
			for b.Loop() {
				q := arriveLeaderless(b, d, now)
				d.attempted(q, answered, nil, now)
				d.inquire(now)
			}
		})
	}
}

// TestOverdueOnce: when a query is overdue is found out once for each attempt, whatever happens to others meanwhile;
// and it is then the oldest that is decided again.
func TestOverdueOnce(t *testing.T) {
	const inFlight = 200
	now := time.Unix(0, 0)
	asked := 0
	d := newQueries(func(*query, string) time.Duration { asked++; return leastOverdue })
	d.closed(false, now)
	for range inFlight {
		arriveLeaderless(t, &d, now)
	}
	for range inFlight {
		d.attempted(arriveLeaderless(t, &d, now), answered, nil, now)
		if q := d.inquire(now); q != nil {
			t.Fatalf("query %d is to be decided, which is at a lane", q.sequence)
		}
	}
	if asked != 2*inFlight {
		t.Errorf("asked %d times how long an attempt may take, want %d: once each", asked, 2*inFlight)
	}
	now = now.Add(time.Second + leastOverdue)
	for i := range uint64(inFlight) {
		if q := d.inquire(now); q == nil || q.sequence != i+1 || q.stage != doubted {
			t.Fatalf("to be decided is %+v, want query %d, which is overdue", q, i+1)
		}
	}
	if q := d.inquire(now); q != nil {
		t.Errorf("query %d is to be decided twice", q.sequence)
	}
}
