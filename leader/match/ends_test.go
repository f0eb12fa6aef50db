package match

import (
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
)

// TestEndingLaneHoldsUpNobody: a lane that ends too soon for the queries that wait, and that is
// still there, keeps none of them from another lane, whether or not they came before its end was
// known.
func TestEndingLaneHoldsUpNobody(t *testing.T) {
	for _, policy := range Policies() {
		for _, before := range []bool{true, false} {
			m, err := New(Config{Policy: policy, Models: []Model{
				{Name: "m", QoSTarget: time.Second, LargestBatchSize: 100},
			}})
			if err != nil {
				t.Fatal(err)
			}
			mustStep(t, m, 0, Event{
				Kind: ProfileChanged, Model: "m", Type: "x", Table: tableOf(2500, 2500),
			})
			for id := LaneID(1); id <= 2; id++ {
				mustStep(t, m, 0, Event{
					Kind: LaneJoined, Lane: id, Type: "x", Models: []names.ModelKey{"m"},
				})
			}
			ends := func() {
				mustStep(t, m, 0, Event{Kind: LaneEnds, Lane: 1, Remaining: time.Millisecond})
			}
			if !before {
				ends()
			}
			for i := range uint64(6) {
				mustStep(t, m, 0, Event{
					Kind: Submitted, Query: QueryID{1, i}, Model: "m", BatchSize: 10,
				})
			}
			if before {
				ends()
			}
			left := 6 - len(m.Holds(nil, 1))
			for at := time.Duration(0); left > 0; left-- {
				holds := m.Holds(nil, 2)
				if len(holds) != 1 {
					t.Fatalf("%s, queries first %v: with %d queries left lane 2 has %+v", policy,
						before, left, holds)
				}
				at += 5 * time.Millisecond
				mustStep(t, m, at, Event{
					Kind: Completed, Lane: 2, Query: holds[0].Query, Attempt: holds[0].Attempt,
				})
			}
		}
	}
}
