package leader

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-serve/muster/api/names"
	"github.com/muster-serve/muster/leader/match"
	"github.com/muster-serve/muster/profiles/work"
)

// growing takes 1 ms and as much for each 10 rows.
type growing struct{}

func (growing) Mean(b int) time.Duration                  { return time.Millisecond * time.Duration(10+b) / 10 }
func (g growing) Quantile(_ float64, b int) time.Duration { return g.Mean(b) * 6 / 5 }

// withBoxes has members of one lane hold the model, with the latency of growing by a law.
func withBoxes(t *testing.T, law work.Law, largest int, all ...string) *told {
	in := newTold(t)
	var members []*Member
	for _, name := range all {
		m := box(name)
		m.Models[0].Splits, m.Models[0].Merge = true, "fill"
		m.Models[0].Largest = largest
		members = append(members, m)
	}
	in.tell(Event{Kind: ViewChanged, Members: members})
	for _, m := range members {
		in.tell(Event{Kind: Described, Member: m})
		in.tell(Event{Kind: Greeted, Agent: m.Name})
	}
	table, err := match.NewTable(growing{}, largest)
	if err != nil {
		t.Fatal(err)
	}
	in.tell(Event{Kind: Learned, Advice: &Advice{Latencies: []*Latency{{
		TableKey: names.TableKey{Model: "m/1", Type: "box/cpu/1"}, Table: table, Law: law,
	}}}})
	in.tell(Event{Kind: GatewayConnected, Gateway: 7})
	return in
}

// TestRowsAlone: queries of a model without a law, and those that tell neither users nor values,
// lead to the same decisions, byte for byte, as if nobody knew of work.
func TestRowsAlone(t *testing.T) {
	decide := func(law work.Law, users, values int) (all []string) {
		in := withBoxes(t, law, 100, "w0", "w1")
		for i := range uint64(60) {
			actions := in.tell(Event{
				Kind: Submitted, Gateway: 7, Sequence: 4 * (i + 1), Model: modelM,
				BatchSize: 1 + int(i*37%100), Splits: true, Users: users, Values: values,
			})
			for len(actions) > 0 { // each lane answers at once
				a := actions[0]
				actions = actions[1:]
				if all = append(all, string(AppendAction(nil, &a))); a.Kind == Assign {
					actions = append(actions, in.tell(Event{
						Kind: Completed, Agent: a.Agent, Lane: a.Lane, Gateway: 7, Model: modelM,
						Sequence: a.Decision.Query.Sequence, Attempt: a.Decision.Attempt,
						BatchSize: a.BatchSize, Execution: a.Decision.Latency,
					})...)
				}
			}
			in.now += time.Duration(i%7) * 100 * time.Microsecond
		}
		return all
	}
	want := decide(work.Law{}, 0, 0)
	if len(want) < 60 {
		t.Fatalf("%d actions, want more", len(want))
	}
	law := work.Law{PerUser: 20, PerValue: .5}
	if got := decide(work.Law{}, 1, 50); !slices.Equal(got, want) {
		t.Errorf("without a law users and values change decisions:\n%q\n%q", got, want)
	}
	if got := decide(law, 0, 0); !slices.Equal(got, want) {
		t.Errorf("a law changes decisions about queries that tell no users:\n%q\n%q", got, want)
	}
	if got := decide(law, 1, 50); slices.Equal(got, want) {
		t.Error("a law changes no decision")
	}
}

// TestPartsBearTheUser: a query with users that is split has rows in its parts, each of which bears
// the user's work again; what the matcher expects of them says so.
func TestPartsBearTheUser(t *testing.T) {
	in := withBoxes(t, work.Law{PerUser: 200}, 2000, "w0", "w1", "w2")
	// 740 rows and the user take 95 ms whole and may take 114, 58 ms in two parts of 370 rows; the
	// target is 100 ms.
	actions := in.tell(Event{
		Kind: Submitted, Gateway: 7, Sequence: 4, Model: modelM, BatchSize: 740, Users: 1,
		Splits: true,
	})
	var rows []int
	if actions[0].Kind == Split {
		rows = actions[0].Decision.Rows
	}
	if fmt.Sprint(rows) != "[370 370]" {
		t.Errorf("parts of %v rows, want two of 370", rows)
	}
	for _, a := range actions {
		if a.Kind == Assign && (a.BatchSize != 370 || a.Decision.Latency != 58*time.Millisecond) {
			t.Errorf("%s: a part of %d rows, want one of 370 that takes 58ms",
				AppendAction(nil, &a), a.BatchSize)
		}
	}
}
