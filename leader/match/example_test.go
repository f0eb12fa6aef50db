package match_test

import (
	"fmt"
	"log"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles"
)

// Two lanes of different types serve one model. The large query goes to the fast type and the small
// one to the cheap type, which is fast enough for it.
func Example() {
	matcher, err := match.New(match.Config{Models: []match.Model{
		{Name: "wnd", QoSTarget: 25 * time.Millisecond, LargestBatchSize: 1000},
	}})
	if err != nil {
		log.Fatal(err)
	}
	start := time.Unix(0, 0) // the matcher reads no clock
	step := func(at time.Duration, e match.Event) {
		decisions, _, err := matcher.Step(start.Add(at), &e)
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range decisions {
			fmt.Printf("%v: query %d to lane %d, %s, slack %.0f ms\n", at, d.Query.Sequence, d.Lane,
				d.Reason, float64(d.Slack)/1e6)
		}
	}

	library := profiles.ShippedLibrary()
	for i, instanceType := range []string{"g4dn.xlarge", "r5n.large"} {
		latencies, err := library.Table("wnd", profiles.InstanceType(instanceType))
		if err != nil {
			log.Fatal(err)
		}
		table, err := match.NewTable(latencies, 1000)
		if err != nil {
			log.Fatal(err)
		}
		step(0, match.Event{
			Kind: match.ProfileChanged, Model: "wnd", Type: names.LaneType(instanceType),
			Table: table,
		})
		step(
			0,
			match.Event{Kind: match.LaneJoined, Lane: match.LaneID(i + 1),
				Type:   names.LaneType(instanceType),
				Models: []names.ModelKey{"wnd"}})
	}

	submit := func(at time.Duration, sequence uint64, batchSize int) {
		step(at, match.Event{Kind: match.Submitted, Query: match.QueryID{
			Gateway: 1, Sequence: sequence,
		},
			Model: "wnd", BatchSize: batchSize})
	}
	submit(1*time.Millisecond, 1, 900)
	submit(2*time.Millisecond, 2, 20)

	// Both lanes are busy. A third query waits until one of them is free.
	submit(3*time.Millisecond, 3, 20)
	step(5*time.Millisecond, match.Event{Kind: match.Completed, Lane: 2, Attempt: 1,
		Query: match.QueryID{Gateway: 1, Sequence: 2}})
	// Output:
	// 1ms: query 1 to lane 1, matched, slack 16 ms
	// 2ms: query 2 to lane 2, matched, slack 22 ms
	// 5ms: query 3 to lane 2, matched, slack 20 ms
}
